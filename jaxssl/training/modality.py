"""Kinds of examples (images, captioned images, videos, graphs): their views and network inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from flax.typing import VariableDict
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.augment.graph import GraphInputs, make_graph_views
from jaxssl.augment.views import Inputs, VideoInputs, make_image_text_views, make_views
from jaxssl.errors import UserError
from jaxssl.models.encoder import find_channels

Shape = tuple[int | None, ...]


class Modality(NamedTuple):
    """Functions of training and evaluation that depend on the kind of examples.

    Attributes:
        make_views: ``(recipes of the views, recipes of the small crops) -> augment``.
        inputs: ``(config, shape of an example) -> inputs``, which prepare examples for a network.
        infer_inputs: ``(config, network, variables) -> inputs`` of a trained network.
        view_shapes: ``(config, inputs) -> views`` of a batch of two, as `jax.ShapeDtypeStruct`.
    """

    make_views: Callable[[Sequence[Any], Sequence[Any]], Any]
    inputs: Callable[[ConfigDict, Shape], Any]
    infer_inputs: Callable[[ConfigDict, Any, VariableDict], Any]
    view_shapes: Callable[[ConfigDict, Any], dict[str, Any]]


def example_kind(config: Mapping[str, Any]) -> str:
    """Return the kind of examples of a run, which the augmentation recipe determines."""
    recipe = components.module("augment", config["augment"]["name"])
    return getattr(recipe, "EXAMPLES", "image")


def dataset_kind(config: Mapping[str, Any]) -> str:
    """Return the kind of data set that a run needs. Captioned images are of the kind "image"."""
    kind = example_kind(config)
    return "image" if kind == "image_text" else kind


def network_kind(net: str) -> str:
    """Return the kind of examples that a network takes."""
    return getattr(components.module("net", net), "EXAMPLES", "image")


def get(config: Mapping[str, Any]) -> Modality:
    """Return the modality (views and inputs) of a run's kind of examples."""
    return MODALITIES[example_kind(config)]


def _channels(shape: Shape, axis: int = -1) -> int:
    """Return the length of an axis that is the same for all examples."""
    size = shape[axis]
    assert size is not None
    return size


def _image_inputs(config: ConfigDict, shape: Shape) -> Inputs:
    return Inputs(config.augment.size, _channels(shape))


def _infer_image_inputs(config: ConfigDict, net: Any, variables: VariableDict) -> Inputs:
    size = config.augment.size
    return Inputs(size, find_channels(net, variables, (size, size)))


def _image_views(config: ConfigDict, inputs: Inputs) -> dict[str, Any]:
    def shape(number: int, side: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((number, 2, side, side, inputs.channels), jnp.float32)

    views = {"views": shape(config.views, inputs.size)}
    if config.crops.number:
        views["crops"] = shape(config.crops.number, config.crops.get("size", inputs.size))
    return views


def _make_image_text_views(recipes: Sequence[Any], crops: Sequence[Any]) -> Any:
    if crops or len(recipes) != 1:
        raise ValueError("images with captions have one view; set views=1 and crops.number=0")
    return make_image_text_views(recipes)


def _image_text_views(config: ConfigDict, inputs: Inputs) -> dict[str, Any]:
    texts = jax.ShapeDtypeStruct((1, 2, config.data.context), jnp.int32)
    return {**_image_views(config, inputs), "texts": texts}


def _make_video_views(recipes: Sequence[Any], crops: Sequence[Any]) -> Any:
    if crops:
        raise ValueError("clips have no small crops; set crops.number=0")
    return make_views(recipes)


def _video_inputs(config: ConfigDict, shape: Shape) -> VideoInputs:
    values = config.augment
    return VideoInputs(values.size, values.frames, values.stride, _channels(shape))


def _infer_video_inputs(config: ConfigDict, net: Any, variables: VariableDict) -> VideoInputs:
    sides = (config.augment.frames, config.augment.size, config.augment.size)
    return _video_inputs(config, (find_channels(net, variables, sides, (3, 2, 1)),))


def _video_views(config: ConfigDict, inputs: VideoInputs) -> dict[str, Any]:
    sides = (inputs.frames, inputs.size, inputs.size, inputs.channels)
    return {"views": jax.ShapeDtypeStruct((config.views, 2, *sides), jnp.float32)}


def _make_graph_views(recipes: Sequence[Any], crops: Sequence[Any]) -> Any:
    if crops:
        raise ValueError("graphs have no small crops; set crops.number=0")
    return make_graph_views(recipes)


def _graph_inputs(config: ConfigDict, shape: Shape) -> GraphInputs:
    del config
    return GraphInputs(_channels(shape, 0))


def _infer_graph_inputs(config: ConfigDict, net: Any, variables: VariableDict) -> GraphInputs:
    del config
    try:
        return GraphInputs(variables["params"]["Dense_0"]["kernel"].shape[0])
    except KeyError as error:
        raise UserError(
            f"the {type(net).__name__} has no layer Dense_0, whose input is the tags of the nodes; "
            "name the first layer of a graph network so"
        ) from error


def _graph_views(config: ConfigDict, inputs: GraphInputs) -> dict[str, Any]:
    def shape(dtype: Any, *axes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((config.views, 1, *axes), dtype)

    row = {
        "x": shape(jnp.float32, 8, inputs.num_tags),
        "graph": shape(jnp.int32, 8),
        "edge": shape(jnp.int32, 8, 2),
        "size": shape(jnp.int32, 2),
    }
    return {"views": row}


MODALITIES = {
    "image": Modality(make_views, _image_inputs, _infer_image_inputs, _image_views),
    "image_text": Modality(
        _make_image_text_views, _image_inputs, _infer_image_inputs, _image_text_views
    ),
    "video": Modality(_make_video_views, _video_inputs, _infer_video_inputs, _video_views),
    "graph": Modality(_make_graph_views, _graph_inputs, _infer_graph_inputs, _graph_views),
}
