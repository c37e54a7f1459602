"""From uint8 images to the network's input: random views to train on, plain ones to evaluate."""

from collections.abc import Callable

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment.image import crop_resize
from jaxssl.augment.recipes import Recipe


def make_views(recipe: Recipe, num_views: int) -> Callable[[Array, Array, Array], Array]:
    """`(key, images, index) -> views` for a batch.

    Images are [b, h, w, c] uint8, ``index`` is their place in the data set, views are
    [V, b, s, s, c] float32 in [-1, 1]. The key of a view is folded from the example's index, so a
    batch split over any number of devices gets the same views.

    Args:
        recipe: makes one view of one image.
        num_views: V >= 1.
    """

    def views(key: Array, images: Array, index: Array) -> Array:
        def of_example(image: Array, i: Array) -> Array:
            keys = jax.random.split(jax.random.fold_in(key, i), num_views)
            return jax.vmap(recipe, in_axes=(0, None))(keys, to_float(image))

        return normalise(jax.vmap(of_example, out_axes=1)(images, index))

    return views


def preprocess(images: Array, size: int) -> Array:
    """[n, h, w, c] uint8 images as the network sees them in evaluation: resized, not augmented."""
    h, w = images.shape[1:3]
    box = jnp.array([0, 0, w, h], jnp.float32)
    resized = jax.vmap(lambda image: crop_resize(image, box, size))(to_float(images))
    return normalise(resized)


def to_float(images: Array) -> Array:
    """Uint8 in [0, 255] to float32 in [0, 1]."""
    return images.astype(jnp.float32) / 255


def normalise(images: Array) -> Array:
    """[0, 1] to [-1, 1], the range that the networks are trained on, for any data set."""
    return images * 2 - 1


def to_uint8(views: Array) -> Array:
    """`normalise` undone, for pictures."""
    return jnp.round((views + 1) * 127.5).astype(jnp.uint8)
