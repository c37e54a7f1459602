"""From uint8 images to the network's input: random views to train on, plain ones to evaluate."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import video as clip_ops
from jaxssl.augment.image import crop_resize, resize
from jaxssl.augment.recipes import Recipe

Images = Array | dict[str, Array]
Augment = Callable[[Array, Any, Array], dict[str, Array]]


class Inputs(NamedTuple):
    """How a network wants its images.

    Attributes:
        size: pixels a side.
        channels: 1 (grey) or 3 (RGB).
        mean: of each channel, or of all, in [0, 1]; taken off.
        std: likewise; divided by.
        crop: share of the short side that a central square keeps; 0 resizes all of the image.
    """

    size: int
    channels: int
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    crop: float = 0.0

    kind = "image"
    copies = 1  # that `prepare` makes of an image, whose features are averaged

    def prepare(self, images: Array) -> Array:
        """`preprocess`."""
        return preprocess(images, self)


def make_views(recipes: Sequence[Recipe], crops: Sequence[Recipe] = ()) -> Augment:
    """`(key, images, index) -> {"views": [V, b, s, s, c], "crops": [L, b, t, t, c]}` for a batch.

    Images are [b, h, w, c] uint8, or already one of its own for every view and small crop:
    {"views": [b, V, h, w, c], "crops": [b, L, h, w, c]}. Recipes of clips take [b, t, h, w, c].
    ``index`` is their place in the data set, views are float32 in [-1, 1]. The key of a view is
    folded from the example's index, so a batch split over any number of devices gets the same
    views.

    Args:
        recipes: one for each of V >= 1 views; the same one may be repeated.
        crops: one for each of the L >= 0 small crops of multi-crop; without any there are no
            "crops".
    """

    def group(
        key: Array, images: Array, index: Array, recipes: Sequence[Recipe], own: bool
    ) -> Array:
        def of_example(image: Array, i: Array) -> Array:
            keys = jax.random.split(jax.random.fold_in(key, i), len(recipes))
            image, views, first = to_float(image), [], 0
            # Neighbours of one recipe are compiled once.
            for recipe, same in itertools.groupby(recipes):
                last = first + len(list(same))
                given = image[first:last] if own else image
                view = jax.vmap(recipe, in_axes=(0, 0 if own else None))
                views.append(view(keys[first:last], given))
                first = last
            return jnp.concatenate(views)

        return normalise(jax.vmap(of_example, out_axes=1)(images, index))

    def augment(key: Array, images: Images, index: Array) -> dict[str, Array]:
        own = isinstance(images, dict)
        if not own:
            images = {"views": images, "crops": images}
        view_key, crop_key = jax.random.split(key)
        views = {"views": group(view_key, images["views"], index, recipes, own)}
        if crops:
            views["crops"] = group(crop_key, images["crops"], index, crops, own)
        return views

    return augment


def make_image_text_views(recipes: Sequence[Recipe]) -> Augment:
    """`(key, {"image", "text"}, index) -> {"views": [1, b, s, s, c], "texts": [1, b, length]}`.

    One view of each image, as `make_views` has it, and one of its captions, drawn evenly.

    Args:
        recipes: one, of the images; "image" is as in `make_views`, "text" [b, k, length] int32 the
            tokens of k captions each.
    """
    of_images = make_views(recipes)

    def augment(key: Array, pairs: dict[str, Any], index: Array) -> dict[str, Array]:
        image_key, text_key = jax.random.split(key)

        def choose(texts: Array, i: Array) -> Array:
            key = jax.random.fold_in(text_key, i)
            return texts[jax.random.randint(key, (), 0, texts.shape[0])]

        texts = jax.vmap(choose)(pairs["text"], index)[None]
        return {**of_images(image_key, pairs["image"], index), "texts": texts}

    return augment


class VideoInputs(NamedTuple):
    """How a network wants its clips.

    Attributes:
        size: pixels a side.
        frames: of a clip, the middle ones.
        stride: frames from one to the next.
        channels: 1 (grey), 2 (flow) or 3 (RGB).
        copies: 1, the whole frames; or 10, the ten crops of `clip.ten_crops`.
    """

    size: int
    frames: int
    stride: int
    channels: int
    copies: int = 1

    kind = "video"

    @property
    def span(self) -> int:
        """How many frames of a clip those are taken from."""
        return clip_ops.span(self.frames, self.stride)

    def prepare(self, clips: Array) -> Array:
        """Uint8 clips [n, t, h, w, c] to [n copies, frames, size, size, c], as in evaluation."""

        def of_clip(clip: Array) -> Array:
            clip = clip_ops.centre_window(to_float(clip), self.frames, stride=self.stride)
            if self.copies == 1:
                return clip_ops.per_frame(lambda frame: resize(frame, self.size), clip)[None]
            return clip_ops.ten_crops(clip, self.size)

        found = jax.vmap(of_clip)(clips)
        return normalise(found.reshape(-1, *found.shape[2:]))


def preprocess(images: Array, inputs: Inputs) -> Array:
    """Uint8 images [n, h, w, c] as the network sees them in evaluation: not augmented.

    Grey images are repeated for a network of three channels.

    Raises:
        ValueError: if the network takes one channel and the images have three.
    """
    return standardise(resize_images(images, inputs), inputs)


def resize_images(images: Array, inputs: Inputs) -> Array:
    """`preprocess` before `standardise`: float32 in [0, 1] of the network's size and channels."""
    if images.shape[3] > inputs.channels:
        raise ValueError(
            f"the network takes images of {inputs.channels} channel, these have {images.shape[3]}"
        )
    if images.shape[3] < inputs.channels:
        images = jnp.broadcast_to(images, (*images.shape[:3], inputs.channels))

    def of_image(image: Array) -> Array:
        if not inputs.crop:
            return resize(image, inputs.size)
        h, w = image.shape[:2]
        side = inputs.crop * min(h, w)
        left, top = (w - side) / 2, (h - side) / 2
        box = jnp.array([left, top, left + side, top + side], jnp.float32)
        return crop_resize(image, box, inputs.size)

    return jax.vmap(of_image)(to_float(images))


def standardise(images: Array, inputs: Inputs) -> Array:
    """[0, 1] to a network's range."""
    mean, std = (jnp.asarray(x, jnp.float32)[None, None, None] for x in (inputs.mean, inputs.std))
    return (images - mean) / std


def to_float(images: Array) -> Array:
    """Uint8 in [0, 255] to float32 in [0, 1]."""
    return images.astype(jnp.float32) / 255


def normalise(images: Array) -> Array:
    """[0, 1] to [-1, 1], the range that the networks are trained on, for any data set."""
    return images * 2 - 1


def to_uint8(views: Array) -> Array:
    """`normalise` undone, for pictures."""
    return jnp.round((views + 1) * 127.5).astype(jnp.uint8)
