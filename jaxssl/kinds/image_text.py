"""Images with captions. Their data set is one of images, some of whose features are captions."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl.augment.views import Inputs, Scale, make_image_text_views
from jaxssl.data.splits import Source
from jaxssl.errors import UserError
from jaxssl.kinds import image


def make_reader(source: Source, *args: Any) -> image.Reader:
    """Build the reader of batches of images and captions.

    Raises:
        UserError: if the images have no captions.
    """
    if not source.captioned:
        raise UserError(
            f"augment.name needs captions, but the images of {source.name!r} have none; set "
            "data.name=captions, or a set of TFDS that has captions"
        )
    return image.make_reader(source, *args)._replace(captions=True)


def make_views(recipes: Sequence[Any], crops: Sequence[Any], scale: Scale | None = None) -> Any:
    """Return the function that draws a view of each image and one of its captions."""
    if crops or len(recipes) != 1:
        raise ValueError("images with captions have one view; set views=1 and crops.number=0")
    return make_image_text_views(recipes, scale)


def view_shapes(config: ConfigDict, inputs: Inputs) -> dict[str, Any]:
    """Return the views and captions of a batch of two as `jax.ShapeDtypeStruct`."""
    texts = jax.ShapeDtypeStruct((1, 2, config.data.context), jnp.int32)
    return {**image.view_shapes(config, inputs), "texts": texts}


def with_empty_captions(images: Any) -> dict[str, Any]:
    """Return the input of the views, where the view of the caption is not used."""
    return {"image": images, "text": jnp.zeros((len(images), 1, 1), jnp.int32)}


kind = image.kind._replace(
    make_reader=make_reader,
    views=make_views,
    view_shapes=view_shapes,
    batch_of=with_empty_captions,
    captions=True,
)
