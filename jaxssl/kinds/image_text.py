"""The kind of examples "image_text": images from data sets that have captions as features."""

from collections.abc import Sequence

import jax
from jax import Array
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl.augment.recipes import Recipe
from jaxssl.augment.views import Augment, Inputs, Scale, make_views
from jaxssl.data.batches import Order, Reader
from jaxssl.data.decoders import tokens
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.splits import Source
from jaxssl.errors import UserError
from jaxssl.kinds import image


class CaptionedInputs(Inputs):
    """Input format of an image network that was trained with captions."""

    kind = "image_text"


def make_reader(source: Source, order: Order, rows: int, crops: Crops | None) -> Reader:
    """Build the reader of batches of images and captions.

    Raises:
        UserError: if the images have no captions.
    """
    if not source.captioned:
        raise UserError(
            f"augment.name needs captions, but the images of {source.name!r} have none; set "
            "data.name=captions, or a set of TFDS that has captions"
        )
    return image.make_reader(source, order, rows, crops, captions=True)


def make_image_text_views(recipes: Sequence[Recipe], scale: Scale | None = None) -> Augment:
    """Return a function that draws one view of each image and one of its captions.

    The function maps ``(key, {"image", "text"}, index)`` to a dict with "views" [1, b, s, s, c] and
    "texts" [1, b, length]. "image" and ``index`` are as in `make_views`. "text" [b, k, length]
    int32 holds the tokens of k captions per image.

    Args:
        recipes: a list with one recipe, for the images.
        scale: as in `make_views`.
    """
    make_image_views = make_views(recipes, scale=scale)
    if len(recipes) != 1:
        raise ValueError("images with captions have one view; set views=1")

    def augment(key: Array, pairs: dict[str, Array], index: Array) -> dict[str, Array]:
        image_key, text_key = jax.random.split(key)

        def choose_caption(texts: Array, i: Array) -> Array:
            drawn = jax.random.fold_in(text_key, i)
            return texts[jax.random.randint(drawn, (), 0, _count_captions(texts), jnp.int32)]

        texts = jax.vmap(choose_caption)(pairs["text"], index)[None]
        return {**make_image_views(image_key, pairs["image"], index), "texts": texts}

    return augment


def _count_captions(texts: Array) -> Array:
    """Count the captions before they repeat. An image with few captions repeats them."""
    repeats = [jnp.all(texts[k:] == texts[:-k]) for k in range(1, texts.shape[0])]
    return 1 + jnp.argmax(jnp.stack([*repeats, jnp.bool_(True)]))


def view_shapes(config: ConfigDict, inputs: Inputs) -> dict[str, object]:
    """Return the views and captions of a batch of two as `jax.ShapeDtypeStruct`."""
    texts = jax.ShapeDtypeStruct((1, 2, config.data.context), jnp.int32)
    return {**image.view_shapes(config, inputs), "texts": texts}


kind = image.kind._replace(
    make_reader=make_reader,
    views=make_image_text_views,
    view_shapes=view_shapes,
    inputs=lambda config, shape: CaptionedInputs(*image.make_inputs(config, shape)),
    infer_inputs=lambda *args: CaptionedInputs(*image.infer_inputs(*args)),
    # The captions are empty, because protocols do not use their view.
    batch_of=lambda images: {"image": images, "text": jnp.zeros((len(images), 1, 1), jnp.int32)},
    check=tokens.load_tokenizer,
    small_crops=False,
    captions=True,
)
