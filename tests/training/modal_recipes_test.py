"""Every config of graphs, captioned images and videos builds and has the stated sizes."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl import components
from jaxssl.data import kind
from jaxssl.errors import UserError
from jaxssl.evaluation.selection import select_protocols
from jaxssl.methods.base import image_groups
from jaxssl.models import gin
from jaxssl.models.encoder import init
from jaxssl.training import config as config_lib
from jaxssl.training.build import build
from jaxssl.training.config.method import make_crops, make_networks

ROOT = Path(__file__).parents[2]
FOLDERS = {"graphs": "graph", "image_text": "image_text", "video": "video"}
RECIPES = [name for name in components.recipes() if "/" in name]
each_recipe = pytest.mark.parametrize("name", RECIPES)


def shapes(config, b: int) -> tuple:
    """Return input and index of a batch as `jax.ShapeDtypeStruct`."""
    shape = jax.ShapeDtypeStruct
    size = config.augment.get("size", 0)
    images = shape((b, size, size, 3), jnp.uint8)
    if kind.name_of(config) == "graph":
        actual = {
            "x": shape((1, 40, 7), jnp.uint8),
            "graph": shape((1, 40), jnp.int32),
            "edge": shape((1, 50, 2), jnp.int32),
            "size": shape((1, b), jnp.int32),
        }
    elif kind.name_of(config) == "video":
        frames = make_crops(config).frames[0]
        actual = shape((b, frames + 2, size, size, 3), jnp.uint8)
    else:
        actual = {"image": images, "text": shape((b, 5, config.data.context), jnp.int32)}
    return actual, shape((b,), jnp.int32)


@each_recipe
def test_recipe_builds_and_its_networks_accept_its_views(name):
    config = config_lib.load(name)
    assert kind.name_of(config) == FOLDERS[name.partition("/")[0]]
    parts = build(config, 4 * config.batch_size)
    assert parts.total_steps == 4 * config.epochs
    select_protocols((*config.eval.protocols, f"knn:{config.eval.knn}"))
    key = jax.eval_shape(lambda: jax.random.key(0))
    views = jax.eval_shape(parts.augment, key, *shapes(config, 2))
    first = jax.tree.leaves(image_groups(views)[0])[0]
    assert first.shape[0] == config.views

    def start(key, views):
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), views)
        return parts.method.init(key, {**blank, "index": jnp.arange(2, dtype=jnp.int32)}, 8)

    params, _ = jax.eval_shape(start, key, views)
    assert ("text" in params) == (config.text.name != "none")


def test_every_recipe_is_listed_on_its_page():
    page = {folder: (ROOT / "docs" / f"{folder}.md").read_text() for folder in FOLDERS}
    for name in RECIPES:
        path, _, variant = name.partition(":")
        text = page[name.partition("/")[0]]
        assert f"configs/{path}.py" in text and variant in text, name


@pytest.mark.parametrize("name", ["graphs/tu:nt_xent", "video/moving_digits"])
def test_small_crops_are_rejected_for_graphs_and_videos(name):
    config = config_lib.load(name, [("crops.number", "2")])
    with pytest.raises(UserError, match="no small crops; set crops.number=0"):
        build(config, 2 * config.batch_size)


@pytest.mark.parametrize(
    ("name", "net", "takes", "makes"),
    [
        ("graphs/tu:graphcl", "convnet", "images", "'graph' makes graphs"),
        ("video/moving_digits", "resnet", "images", "'video' makes clips"),
        ("image_text/digit_captions", "gin", "graphs", "'clip' makes images"),
        ("image_text/digit_captions", "text", "captions", "'clip' makes images"),
        ("graphs/tu:graphcl", "s3d", "clips", "'graph' makes graphs"),
    ],
)
def test_network_for_another_kind_of_examples_is_rejected(name, net, takes, makes):
    config = config_lib.load(name, [("net.name", net)])
    message = f"net.name='{net}' takes {takes}, but augment.name={makes}; choose another"
    with pytest.raises(UserError, match=message):
        build(config, 2 * config.batch_size)


def test_graph_encoder_accepts_rows_of_packed_graphs():
    config = config_lib.load("graphs/tu:graphcl")
    encoder = make_networks(config)
    assert isinstance(encoder.net, gin.GIN)
    packed, _ = shapes(config, 6)
    views = jax.tree.map(lambda x: jnp.zeros((2, *x.shape), x.dtype), packed)
    views["x"] = views["x"].astype(jnp.float32)
    params, _, dim = init(encoder, jax.random.key(0), [views])
    assert dim == 96 and np.shape(params["net"]["Dense_0"]["kernel"]) == (7, 32)
