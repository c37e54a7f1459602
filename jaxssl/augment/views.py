"""Turn uint8 examples into network inputs: random views to train, plain inputs to evaluate."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl.augment.image import centre_box, crop_resize, resize
from jaxssl.augment.recipes import Recipe

Images = Array | dict[str, Array]
Augment = Callable[..., dict[str, Array]]


class Inputs(NamedTuple):
    """Input format that an image network expects.

    Attributes:
        size: side of an image in pixels.
        channels: number of channels, such as 1 (grey) or 3 (RGB).
        mean: mean to subtract, per channel or for all channels, for values in [0, 1].
        std: standard deviation to divide by, per channel or for all channels.
        crop: side of a central square crop, as a fraction of the short side. 0 resizes the whole
            image. None resizes it too, but is 0.875 in a data set of images of different sizes.
        interpolation: "bilinear" or "bicubic".
    """

    size: int
    channels: int
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    crop: float | None = None
    interpolation: str = "bilinear"

    kind = "image"
    axes = "h, w, c"  # of one example, for messages; "" if it is not one array
    copies = 1  # Number of inputs that `prepare` returns per image. Their features are averaged.

    @property
    def resizing(self) -> tuple[int, float | None, str]:
        """Return size, crop and interpolation for `jaxssl.data.splits.Source.images`."""
        return self.size, self.crop, self.interpolation

    def prepare(self, images: Array) -> Array:
        """Map pixels [n, h, w, c] in [0, 255] to network inputs for evaluation, not augmented.

        Grey images are repeated over the channels of an RGB network.

        Raises:
            ValueError: if the images are not grey and have other channels than the network takes.
        """
        return standardise(resize_images(images, self), self)


class Scale(NamedTuple):
    """Statistics of each channel by which the views of a run are scaled, for values in [0, 1].

    Attributes:
        mean: mean to subtract.
        std: standard deviation to divide by.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


HALF = Scale((0.5,), (0.5,))  # to [-1, 1]


def make_views(
    recipes: Sequence[Recipe], crops: Sequence[Recipe] = (), scale: Scale | None = None
) -> Augment:
    """Return a function that draws the random views of a batch of images.

    The function maps ``(key, images, index)`` to a dict with "views" [V, b, s, s, c] and, with
    multi-crop, "crops" [L, b, t, t, c], as float32 in [-1, 1], or scaled by statistics. Images are
    uint8 [b, h, w, c], or a dict with a separate image for every view: "views" [b, V, h, w, c],
    "crops" [b, L, h, w, c]. For recipes of videos they are [b, t, h, w, c].

    ``index`` [b] holds the indices of the examples in the data set. The key of a view is folded
    from it, so the views do not depend on how a batch is split over devices.

    Args:
        recipes: a recipe for each of V >= 1 views. Recipes may be repeated.
        crops: a recipe for each of L >= 0 small crops.
        scale: statistics to scale by in place of [-1, 1].

    Raises:
        ValueError: for a recipe in place of a list of recipes. The function raises ValueError for
            images or an index of another shape or dtype.
    """
    if callable(recipes) or callable(crops) or not recipes:
        raise ValueError("recipes must be lists with a recipe for each view, such as [recipe] * 2")

    def draw_group(
        key: Array, images: Array, index: Array, group: Sequence[Recipe], image_per_view: bool
    ) -> Array:
        """Draw the views or the crops of a batch, [len(group), b, ...]."""

        def draw_example(image: Array, i: Array) -> Array:
            keys = jax.random.split(jax.random.fold_in(key, i), len(group))
            image, views, start = to_float(image), [], 0
            # Consecutive views with the same recipe share one vmap, so that it is compiled once.
            for recipe, repeats in itertools.groupby(group):
                stop = start + len(list(repeats))
                source = image[start:stop] if image_per_view else image
                draw_views = jax.vmap(recipe, in_axes=(0, 0 if image_per_view else None))
                views.append(draw_views(keys[start:stop], source))
                start = stop
            return jnp.concatenate(views)

        views = jax.vmap(draw_example, out_axes=1)(images, index)
        return standardise(views, scale or HALF)

    def augment(key: Array, images: Images, index: Array) -> dict[str, Array]:
        if not jnp.issubdtype(jnp.result_type(index), jnp.integer):  # `fold_in` would truncate.
            raise ValueError(f"index must have integers, got {jnp.result_type(index)}")
        for x in jax.tree.leaves(images):
            if x.dtype != jnp.uint8:
                raise ValueError(f"images must be uint8 in [0, 255], got {x.dtype}")
            if x.ndim < 4 or x.shape[:1] != np.shape(index):
                raise ValueError(
                    f"images must be [b, h, w, c] and index [b], got the shapes {x.shape} and "
                    f"{np.shape(index)}; grey images [b, h, w] become images[..., None]"
                )
        image_per_view = isinstance(images, dict)
        groups = images if isinstance(images, dict) else {"views": images, "crops": images}
        view_key, crop_key = jax.random.split(key)
        views = {"views": draw_group(view_key, groups["views"], index, recipes, image_per_view)}
        if crops:
            views["crops"] = draw_group(crop_key, groups["crops"], index, crops, image_per_view)
        return views

    return augment


def resize_images(images: Array, inputs: Inputs) -> Array:
    """Map pixels [n, h, w, c] in [0, 255] to [0, 1], of the network's size and channels."""
    images = match_channels(images, inputs.channels)

    def resize_one(image: Array) -> Array:
        if not inputs.crop:
            return resize(image, inputs.size, inputs.interpolation)
        h, w, _ = image.shape
        box = jnp.array(centre_box(h, w, inputs.size, inputs.crop), jnp.float32)
        return crop_resize(image, box, inputs.size, inputs.interpolation)

    return jax.vmap(resize_one)(to_float(images))


def match_channels(images: Array, channels: int) -> Array:
    """Return images [n, h, w, c] with ``channels`` channels. Grey images are repeated over them.

    Raises:
        ValueError: if the images are not grey and have another number of channels.
    """
    if images.shape[3] not in (1, channels):
        raise ValueError(
            f"the network takes {channels}-channel images, got {images.shape[3]}-channel images "
            f"[n, h, w, c] = {list(images.shape)}; transpose [n, c, h, w] by (0, 2, 3, 1), and "
            "pass grey images [n, h, w] as images[..., None]"
        )
    return jnp.broadcast_to(images, (*images.shape[:3], channels))


def standardise(images: Array, inputs: Inputs | Scale) -> Array:
    """Subtract the mean and divide by the standard deviation of each channel [..., c]."""
    mean, std = (_per_channel(x, images.ndim) for x in (inputs.mean, inputs.std))
    return (images - mean) / std


def _per_channel(values: tuple[float, ...], rank: int) -> Array:
    """Reshape one number per channel to [1, ..., 1, c], so that it broadcasts with images."""
    return jnp.asarray(values, jnp.float32).reshape((1,) * (rank - 1) + (-1,))


def to_float(images: Array) -> Array:
    """Map pixels in [0, 255] to float32 in [0, 1]."""
    return images.astype(jnp.float32) / 255


def to_uint8(views: Array, scale: Scale | None = None) -> Array:
    """Map training views, in [-1, 1] or scaled by statistics, back to uint8 images."""
    mean, std = (_per_channel(x, views.ndim) for x in scale or HALF)
    return jnp.round((views * std + mean) * 255).astype(jnp.uint8)


def measured_scale(data: ConfigDict) -> Scale | None:
    """Return the channel means and stds in the config group `data`, None for scaling to [-1, 1]."""
    return Scale(tuple(data["mean"]), tuple(data["std"])) if "mean" in data else None
