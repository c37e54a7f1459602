"""The two-tower method: views of captioned images, losses by hand, devices, rejected settings."""

from functools import cache, partial
from importlib import import_module

import flax.linen as nn
import jax
import numpy as np
import optax
import oracles
import pytest
from file_cases import refused
from jax import numpy as jnp
from tiny import DIGITS

from jaxssl import distributed
from jaxssl.augment.views import make_image_text_views
from jaxssl.losses.pairs import pair_towers
from jaxssl.methods import two_tower
from jaxssl.models import convnet, text
from jaxssl.models.encoder import Encoder
from jaxssl.models.heads import MLP
from jaxssl.training.build import build, make_networks
from jaxssl.training.config import load
from jaxssl.training.state import make_init, make_train_step

CAPTIONED = DIGITS.parent / "image_text" / "digit_captions.py"
B, DIM, LENGTH, NUM_EXAMPLES, KEY = 6, 4, 5, 24, jax.random.key(0)
close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


def objective_of(name, **hyper):
    return import_module(f"jaxssl.losses.{name}").objective(**hyper)


# Views


def window(key, image):
    return image[:4, :4] * jax.random.uniform(key, (4, 4, 1))


@pytest.fixture(scope="module")
def pair_views():
    return jax.jit(make_image_text_views([window]))


def captioned(b, k=5, seed=0):
    """Make images with different captions; the first token is the index of the image."""
    rng = np.random.default_rng(seed)
    text = np.stack(np.indices((b, k)), axis=2).astype(np.int32)
    return {"image": rng.integers(0, 256, (b, 8, 8, 1), np.uint8), "text": text}


def test_captions_of_an_example_are_drawn_uniformly(pair_views):
    pairs, index, number = captioned(4), np.arange(4, dtype=np.int32) + 100, 2000
    keys = jax.random.split(KEY, number)
    texts = jax.jit(jax.vmap(lambda key: pair_views(key, pairs, index)["texts"]))(keys)
    assert texts.shape == (number, 1, 4, 2)
    example, drawn = np.moveaxis(np.asarray(texts[:, 0]), 2, 0)
    assert (example == np.arange(4)).all()
    counts = np.stack([np.bincount(drawn[:, i], minlength=5) for i in range(4)])
    deviation = np.sqrt(number * (1 / 5) * (4 / 5))
    assert np.abs(counts - number / 5).max() < 4.5 * deviation
    # Examples draw independently: two agree in a fifth of the cases.
    agree = [(drawn[:, i] == drawn[:, j]).sum() for i in range(4) for j in range(i)]
    assert np.abs(np.array(agree) - number / 5).max() < 4.5 * deviation


def test_views_and_captions_do_not_depend_on_the_batch(pair_views):
    pairs, index = captioned(8), np.arange(8, dtype=np.int32) + 1000
    whole = pair_views(KEY, pairs, index)
    assert (whole["views"].shape, whole["texts"].shape) == ((1, 8, 4, 4, 1), (1, 8, 2))
    assert len(set(np.asarray(whole["texts"])[0, :, 1].tolist())) > 1

    def same(found, places):
        np.testing.assert_array_equal(found["texts"], whole["texts"][:, places])
        np.testing.assert_allclose(found["views"], whole["views"][:, places], atol=1e-6)

    for places in (np.random.default_rng(1).permutation(8), np.arange(4, 8)):
        some = jax.tree.map(lambda x, at=places: x[at], pairs)
        same(pair_views(KEY, some, index[places]), places)
    mesh, spec = distributed.make_mesh(), jax.sharding.PartitionSpec
    split = spec(distributed.DATA_AXIS), spec(None, distributed.DATA_AXIS)
    on_eight = distributed.spmd(
        make_image_text_views([window]), mesh, (spec(), split[0], split[0]), split[1]
    )
    same(jax.jit(on_eight)(KEY, pairs, index), np.arange(8))


def test_image_view_does_not_depend_on_the_drawn_caption(pair_views):
    pairs, index = captioned(4), np.arange(4, dtype=np.int32)
    other = {**pairs, "text": captioned(4, k=3)["text"] + 7}
    actual, expected = (pair_views(KEY, x, index)["views"] for x in (other, pairs))
    np.testing.assert_array_equal(actual, expected)


# Method


class Net(nn.Module):
    """Mean over pixels and a Dense layer."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        return jnp.tanh(nn.Dense(5)(x.reshape(x.shape[0], -1, x.shape[-1]).mean(1)))


class Head(nn.Module):
    """One Dense layer."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None):
        return nn.Dense(DIM)(x)


TEXT_NET = text.net(vocabulary=20, context=LENGTH, dim=4, layers=1, num_heads=2)
VIEWS = Encoder(Net(), Head())
PAIRS = VIEWS._replace(text=Encoder(TEXT_NET, Head()))


def batch_of(num_views=1, seed=0):
    rng = np.random.default_rng(seed)
    images = jnp.asarray(rng.normal(size=(num_views, B, 2, 2, 3)), jnp.float32)
    texts = jnp.asarray(rng.integers(0, 20, (1, B, LENGTH)), jnp.int32)
    index = jnp.arange(B, dtype=jnp.int32) * 2 + 1
    return {"views": images, "texts": texts, "index": index, "label": index // 4}


def start(method, batch):
    return jax.jit(partial(method.init, num_examples=NUM_EXAMPLES))(KEY, batch)


def value_of(method, params, carried, batch, step=0):
    """Return the loss, its gradient, the carried state and the embeddings."""

    @jax.jit
    def run(params, carried, step):
        loss = partial(method.loss, step=step, key=KEY, axis_name=None)
        return jax.value_and_grad(loss, has_aux=True)(params, carried, batch)

    (value, (carried, _, embeddings)), gradient = run(params, carried, jnp.int32(step))
    return value, gradient, carried, embeddings


def towers(params, batch):
    """Apply the networks by hand; return embeddings of images and captions."""

    def run(x, params, net):
        h = net.apply({"params": params["net"]}, x, train=False)
        return Head().apply({"params": params["projector"]}, h, train=False)

    return run(batch["views"][0], params, Net()), run(batch["texts"][0], params["text"], TEXT_NET)


def test_two_tower_loss_equals_towers_computed_by_hand():
    method, batch = two_tower.method(PAIRS, objective_of("clip")), batch_of()
    params, carried = start(method, batch)
    assert set(params) == {"net", "projector", "text", "objective"}
    assert (carried.target, carried.memory) == ((), ())
    value, gradient, _, z = value_of(method, params, carried, batch)
    close(z, jnp.stack(towers(params, batch)))
    close(value, oracles.clip(pair_towers(*z), np.log(1 / 0.07)).mean())

    def expected(params):
        images, captions = (x / jnp.linalg.norm(x, axis=1, keepdims=True)
                            for x in towers(params, batch))  # fmt: skip
        logits = jnp.exp(params["objective"]["logit_scale"]) * images @ captions.T
        each = [jnp.diag(jax.nn.log_softmax(logits, axis=axis)) for axis in (0, 1)]
        return -(each[0] + each[1]).mean() / 2

    slope = jax.jit(jax.grad(expected))(params)
    jax.tree.map(close, gradient, slope)


def test_two_tower_gradients_reach_both_networks():
    method, batch = two_tower.method(PAIRS, objective_of("clip")), batch_of()
    _, gradient, _, _ = value_of(method, *start(method, batch), batch)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.abs(leaf).max() > 1e-6, jax.tree_util.keystr(path)
    read = np.unique(batch["texts"])
    table = np.abs(gradient["text"]["net"]["embedding"]).max(axis=1)
    assert (table[np.setdiff1d(np.arange(20), read)] == 0).all() and (table > 0).any()


def test_two_tower_without_captions_uses_two_views_as_towers():
    method, batch = two_tower.method(VIEWS, objective_of("clip")), batch_of(2)
    params, carried = start(method, batch)
    assert set(params) == {"net", "projector", "objective"}
    value, _, _, z = value_of(method, params, carried, batch)
    for view, own in zip(batch["views"], z, strict=True):
        close(own, towers({**params, "text": start_text()}, {**batch, "views": view[None]})[0])
    close(value, oracles.clip(pair_towers(*z), np.log(1 / 0.07)).mean())


@cache
def start_text():
    method = two_tower.method(PAIRS, objective_of("clip"))
    return start(method, batch_of())[0]["text"]


def test_two_tower_with_labels_uses_the_class_as_positives():
    method = two_tower.method(VIEWS, objective_of("decl", rate="batch", u="mean"), labels=True)
    batch = batch_of(2)
    value, _, _, z = value_of(method, *start(method, batch), batch)
    assert len(np.unique(batch["label"])) == 3
    close(value, oracles.decl(pair_towers(*z, labels=batch["label"])).mean())


def log_means(z, temperature):
    """Log of the mean similarity of each image to other captions, and vice versa."""
    u = np.asarray(z, np.float64) / np.linalg.norm(z, axis=2, keepdims=True)
    s = np.where(np.eye(B, dtype=bool), 0, np.exp(u[0] @ u[1].T / temperature))
    return np.log(s.sum(axis=1) / (B - 1)), np.log(s.sum(axis=0) / (B - 1))


def test_symmetric_decl_averages_both_directions_and_merges_memory():
    hyper = {"rate": "buffer", "u": "mean", "weight": 0.5, "momentum": 0.75, "temperature": 0.5}
    objective = objective_of("decl", **hyper)
    method = two_tower.method(PAIRS, objective, symmetric=True)
    params, carried = start(method, batch_of())
    assert method.per_example.memory is True
    memory = np.full(NUM_EXAMPLES, -np.inf)
    for step in range(2):
        batch = batch_of(seed=step)
        value, _, carried, z = value_of(method, params, carried, batch, step)
        index, expected, merged = np.asarray(batch["index"]), 0, 0
        for way, new in zip((z, z[::-1]), log_means(z, 0.5), strict=True):
            old = memory[index]
            rate = new if step == 0 else np.log(0.75 * np.exp(old) + 0.25 * np.exp(new))
            term = oracles.decl(pair_towers(*way), np.exp(rate), weight=0.5, temperature=0.5)
            expected, merged = expected + term.mean() / 2, merged + rate / 2
        close(value, expected)
        memory[index] = merged
        close(carried.memory, memory)
    one_way = two_tower.method(PAIRS, objective_of("decl", **hyper | {"rate": "batch"}))
    value, _, _, z = value_of(one_way, *start(one_way, batch), batch)
    close(value, oracles.decl(pair_towers(*z), weight=0.5, temperature=0.5).mean())


@pytest.mark.long
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_symmetric_option_does_not_change_symmetric_losses(name):
    batch = batch_of()
    methods = [two_tower.method(PAIRS, objective_of(name), symmetric=s) for s in (False, True)]
    params, carried = start(methods[0], batch)
    one, both = (value_of(method, params, carried, batch)[:2] for method in methods)
    jax.tree.map(close, one, both)


def test_two_tower_accumulation_keeps_all_negatives():
    batch = batch_of()
    chunked = PAIRS._replace(num_chunks=2, text=PAIRS.text._replace(num_chunks=2))
    whole, parts = (two_tower.method(e, objective_of("clip")) for e in (PAIRS, chunked))
    params, carried = start(whole, batch)
    expected, actual = (value_of(m, params, carried, batch) for m in (whole, parts))
    jax.tree.map(close, actual, expected)


# Steps

RUNS = {
    "clip": ({}, {}),
    "decl": ({"preset": "clip"}, {"symmetric": True}),
    "siglip": ({}, {}),
    "auc_cl": ({}, {"symmetric": True}),
    "mmcl": ({"num_steps": 20}, {"symmetric": True}),
}
BATCH, STEPS = 8, 2


def batch_at(step):
    rng = np.random.default_rng(step)
    texts = rng.integers(1, 20, (BATCH, 3, LENGTH), np.int32)
    return {
        "input": {"image": rng.integers(0, 256, (BATCH, 8, 8, 1), np.uint8), "text": texts},
        "label": np.zeros(BATCH, np.int32),
        "index": rng.choice(NUM_EXAMPLES, BATCH, replace=False).astype(np.int32),
    }


@cache
def run(name, devices):
    """Return the final state as NumPy, the losses, and the embeddings of the first step."""
    hyper, settings = RUNS[name]
    if "preset" in hyper:
        hyper = import_module(f"jaxssl.losses.{name}").PRESETS[hyper["preset"]]
    net = convnet.net(widths=(4, 8), strides=(2, 2))  # with BatchNorm
    encoder = Encoder(net, MLP(8, DIM, 1), text=Encoder(TEXT_NET, MLP(8, DIM, 1)))
    method = two_tower.method(encoder, objective_of(name, **hyper), **settings)
    stages = method, optax.sgd(0.05), make_image_text_views([window])
    mesh = distributed.make_mesh(jax.devices()[:devices])
    state = make_init(*stages, batch_at(0), NUM_EXAMPLES, mesh)(0)
    step = make_train_step(*stages, mesh)
    losses, first = [], None
    for number in range(STEPS):
        state, metrics, z = step(state, distributed.shard(batch_at(number), mesh))
        losses.append(float(metrics["loss"]))
        first = np.asarray(z) if first is None else first
    assert int(state.skipped[0]) == 0
    tree = state.replace(key=jax.random.key_data(state.key))
    return jax.tree.map(np.asarray, tree), losses, first


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_every_two_tower_loss_takes_finite_steps(name):
    state, losses, z = run(name, 2)
    assert np.isfinite(losses).all() and z.shape == (2, BATCH, DIM)
    leaves = jax.tree.leaves(state.params)
    assert all(np.isfinite(leaf).all() for leaf in leaves)


@pytest.mark.long  # whole_step_test.py has steps on eight devices
@pytest.mark.parametrize("name", ["clip", "decl"])
@pytest.mark.parametrize("devices", [1, 8])
def test_steps_do_not_depend_on_the_number_of_devices(name, devices):
    (actual, found_losses, found_z), (state, losses, z) = run(name, devices), run(name, 2)
    np.testing.assert_allclose(found_losses, losses, rtol=1e-4)
    np.testing.assert_allclose(found_z, z, rtol=1e-4, atol=1e-5)

    def same(a, b):
        # Sums over the batch cancel, so rounding errors are relative to the largest entry.
        largest = np.abs(np.where(np.isfinite(b), b, 0)).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=5e-5 * largest)

    jax.tree.map(same, actual, state)


@pytest.mark.long
def test_decl_memory_is_written_only_for_seen_examples():
    state, _, _ = run("decl", 2)
    seen = np.union1d(batch_at(0)["index"], batch_at(1)["index"])
    assert np.isfinite(state.carried.memory[seen]).all()
    assert (np.delete(state.carried.memory, seen) == -np.inf).all()


# Rejected settings

ALONE = {"method.name": "two_tower"}
TOGETHER = "captions take method.name=two_tower, text.name=text and augment.name=clip together"


@pytest.mark.parametrize(
    ("path", "changes", "parts"),
    [
        (CAPTIONED, {"method.name": "siamese"}, [TOGETHER, "got siamese, text and clip"]),
        (CAPTIONED, {"text.name": "none"}, [TOGETHER, "got two_tower, none and clip"]),
        (CAPTIONED, {"augment.name": "simclr"}, [TOGETHER, "got two_tower, text and simclr"]),
        (DIGITS, {"augment.name": "clip"}, [TOGETHER, "got siamese, none and clip"]),
        (DIGITS, {"text.name": "text"}, [TOGETHER, "got siamese, text and digits"]),
        (DIGITS, {"text.name": "text"} | ALONE, [TOGETHER, "got two_tower, text and digits"]),
        (CAPTIONED, {"views": "2"}, ["needs views=1 and crops.number=0, got"]),
        (CAPTIONED, {"crops.number": "1"}, ["needs views=1 and crops.number=0, got"]),
        (DIGITS, {"views": "1"} | ALONE, ["a single view without labels has no positives"]),
        (DIGITS, {"views": "3"} | ALONE, ["needs views=2 and crops.number=0, got"]),
        (DIGITS, {"crops.number": "1"} | ALONE, ["needs views=2 and crops.number=0, got"]),
        (CAPTIONED, {"predictor.name": "mlp"}, ["not use a predictor; set predictor.name=none"]),
        (
            CAPTIONED,
            {
                "loss.name": "decl",
                "loss.learn_scale": "True",
                "loss.temperature": "{'schedule': 'linear', 'start': 0.1, 'end': 0.5}",
            },
            ["temperature must be a number if learn_scale=True", "got a schedule"],
        ),
        (CAPTIONED, {"text.num_heads": "3"}, ["text.dim must be a multiple of text.num_heads=3"]),
    ],
)
def test_two_tower_rejects_incompatible_settings(path, changes, parts):
    with refused(*parts):
        build(load(path, list(changes.items())), 1297)


@pytest.mark.parametrize("path", [CAPTIONED, DIGITS])
def test_only_a_config_with_captions_has_a_text_encoder(path):
    config = load(path, list(ALONE.items()) if path == DIGITS else [])
    assert build(config, 1297).steps_per_epoch == 1297 // config.batch_size
    assert (make_networks(config).text is not None) == (path == CAPTIONED)


def test_config_without_the_text_key_uses_no_captions():
    config = load(DIGITS)
    with config.unlocked():
        del config["text"]
    assert make_networks(config).text is None
    assert build(config, 1297).total_steps == config.epochs * (1297 // config.batch_size)
