"""Parts of methods: queues, weights, keys, chunks, precision; and what they refuse.

tests/training/whole_step_test.py compares the steps of every method with steps by hand.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax import numpy as jnp
from loss_cases import NAMES
from method_cases import DIM, KEY, B, Head, Net, embed, first_step, start, value_of

from jaxssl import losses
from jaxssl.errors import UserError
from jaxssl.losses import objective
from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import pair_towers, unit
from jaxssl.methods import momentum, siamese, two_tower
from jaxssl.methods.base import weighted_loss
from jaxssl.models.encoder import Encoder, features
from jaxssl.training.config import arguments, factory, load
from jaxssl.training.config.method import check_compatibility

close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


class RandomNet(nn.Module):
    """`Net`, whose features have a random scale for each row."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        x = Net()(x, train=train)
        return x if keys is None else x * (1 + jax.vmap(jax.random.uniform)(keys)[:, None])


def batch_of(num_views=2, num_crops=0, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    batch = {"views": draw(num_views, B, 2, 2, 3)}
    batch |= {"crops": draw(num_crops, B, 1, 1, 3)} if num_crops else {}
    label = jnp.asarray(np.arange(B) % 3, jnp.int32)
    return batch | {"index": jnp.arange(B, dtype=jnp.int32) + 2, "label": label}


ENCODER = Encoder(Net(), Head())
PREDICTING = ENCODER._replace(predictor=Head())
NT_XENT = objective("nt_xent", temperature=0.3)


@pytest.mark.long
def test_siamese_queue_adds_past_embeddings_of_all_views_as_negatives():
    method = siamese.method(ENCODER, NT_XENT, queue_size=2 * B + 3)
    params, carried = start(method, batch_of())
    rows: Any = np.asarray(carried.memory["queue"]["rows"])

    @jax.jit
    @jax.value_and_grad
    def by_hand(params, batch, rows):
        (u, v), (crop,) = embed(params, batch["views"]), embed(params, batch["crops"])
        e = lambda x, y: jnp.exp(unit(x) @ unit(y).T / 0.3)  # noqa: E731
        z, own = jnp.concatenate([u, v]), 1 - jnp.eye(2 * B)
        below = (e(z, z) * own).sum(1) + e(z, rows).sum(1)
        of_views = jnp.log(below / jnp.diag(e(z, jnp.concatenate([v, u])))).mean()
        of_crops = [
            jnp.log((e(crop, key).sum(1) + e(crop, rows).sum(1)) / jnp.diag(e(crop, key)))
            for key in (u, v)
        ]
        return (2 * of_views + sum(x.mean() for x in of_crops)) / 4

    for step in range(2):
        batch = batch_of(2, 1, seed=step)
        value, gradient, carried, z = value_of(method, params, carried, batch, step)
        expected = by_hand(params, batch, rows)
        close(value, expected[0])
        jax.tree.map(close, gradient["net"], expected[1]["net"])
        place = (np.arange(2 * B) + step * 2 * B) % (2 * B + 3)
        rows = rows.copy()
        rows[place] = unit(z.reshape(2 * B, DIM))
        close(carried.memory["queue"]["rows"], rows)


@pytest.mark.parametrize("scheme", [siamese, momentum])
def test_queue_is_refused_with_labels(scheme):
    with pytest.raises(ValueError, match="^the queue has no labels.*set method.queue_size=0"):
        scheme.method(ENCODER, NT_XENT, queue_size=8, labels=True)


@pytest.mark.long
@pytest.mark.parametrize(("reduction", "of_views"), [("mean", 1), ("sum", 2)])
def test_auc_cl_weighs_negatives_of_views_and_crops_equally(reduction, of_views):
    """With a sum, the 2(B - 1) negatives of two views weigh twice the B - 1 of a crop.

    All images of an example are equal here, so that all pairings have the same cosines.
    """
    hyper = {"negative_weight": 3.0, "negative_reduction": reduction, "b": 0.2}
    batch, one = batch_of(2, 3), batch_of(1)["views"][:, :, :1, :1]
    batch |= {"views": jnp.tile(one, (2, 1, 2, 2, 1)), "crops": jnp.tile(one, (3, 1, 1, 1, 1))}
    method = siamese.method(ENCODER, objective("auc_cl", **hyper))
    params, _, value, _, _, z = first_step(method, batch)

    without = losses.auc_cl(*z, **hyper | {"negative_weight": 0.0})
    of_a_crop = losses.auc_cl_loss(pair_towers(z[0], z[1]), **hyper).mean() - without
    close(losses.auc_cl(*z, **hyper) - without, of_views * of_a_crop)
    close(value, without + (2 * of_views + 6) / 8 * of_a_crop)


def test_momentum_queue_stores_the_keys_of_all_views():
    method = momentum.method(ENCODER, objective("info_nce", temperature=0.5), queue_size=2 * B + 3)
    batch = batch_of()
    params, _, _, _, carried, _ = first_step(method, batch)
    keys = embed(params, batch["views"]).reshape(2 * B, DIM)
    keys /= jnp.linalg.norm(keys, axis=1, keepdims=True)
    close(carried.memory["queue"]["rows"][: 2 * B], keys)
    assert carried.memory["queue"]["next"] == 2 * B


def test_projector_and_predictor_are_initialised_with_different_keys():
    encoder = Encoder(Net(DIM), Head(), Head())
    params, _ = start(momentum.method(encoder, objective("byol")), batch_of())
    kernels = [params[name]["Dense_0"]["kernel"] for name in ("projector", "predictor")]
    assert kernels[0].shape == kernels[1].shape and (kernels[0] != kernels[1]).all()


def test_loss_terms_of_a_step_have_separate_weights_and_random_keys():
    """Values are summed with the weights, metrics are averaged with them, memories are merged."""
    keys = []

    def loss(pairs, params, memory, *, step, key):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return params * pairs, memory + pairs, {"figure": jnp.float32(pairs), "step": step}

    init: Any = lambda *_: ()  # noqa: E731
    terms: Any = [(0.5, 1.0), (1.5, 3.0), (1.0, 8.0)]
    params: Any = 10.0
    how: Any = {"step": jnp.float32(4), "key": KEY}
    value, memory, metrics = weighted_loss(Objective(init, loss), terms, params, 7.0, **how)
    close([value, memory], [10 * (0.5 + 4.5 + 8.0), 7 + (1 + 3 + 8) / 3])
    close([metrics["figure"], metrics["step"]], [13 / 3, 4])
    expected = [jax.random.key_data(jax.random.fold_in(KEY, i)).tolist() for i in range(3)]
    assert keys == [tuple(key) for key in expected]


@pytest.mark.parametrize("which", ["online", "target"])
def test_method_evaluate_setting_selects_online_or_target_network(which):
    encoder = PREDICTING._replace(net=Net(norm=True))
    method = momentum.method(encoder, objective("byol"), momentum=0.9, evaluate=which)
    batch = batch_of()
    params, carried = start(method, batch)
    params = jax.tree.map(lambda x: x + 1, params)
    carried = carried._replace(batch_stats=jax.tree.map(lambda x: x + 2, carried.batch_stats))
    images = batch["views"][0]
    weights, stats = params, carried.batch_stats
    if which == "target":
        weights, stats = carried.target["params"], carried.target["batch_stats"]
    expected = features(encoder, weights["net"], stats["net"], images)
    close(method.features(params, carried, images), expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "encoder"),
    [(siamese.method, ENCODER), (partial(momentum.method, momentum=0.9), PREDICTING)],
)
def test_accumulation_with_random_layers_or_a_predictor_equals_the_whole_batch(make, encoder):
    batch, encoder = batch_of(2, 1), encoder._replace(net=RandomNet())
    whole, parts = make(encoder, NT_XENT), make(encoder._replace(num_chunks=3), NT_XENT)
    params, carried = start(whole, batch)
    expected, actual = (value_of(m, params, carried, batch) for m in (whole, parts))
    jax.tree.map(close, actual, expected)


def test_gradient_accumulation_applies_batch_norm_to_each_chunk():
    encoder = Encoder(Net(norm=True), Head())
    batch = batch_of()
    method = siamese.method(encoder, NT_XENT)
    params, carried = start(method, batch)
    chunked = siamese.method(encoder._replace(num_chunks=2), NT_XENT)
    _, _, after, z = value_of(chunked, params, carried, batch)
    halves = []
    for part in (slice(0, 3), slice(3, 6)):
        half = {**batch, "views": batch["views"][:, part]}
        half |= {name: batch[name][part] for name in ("index", "label")}
        halves.append(value_of(method, params, carried, half))
    close(z, np.concatenate([half[3] for half in halves], axis=1))
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *(half[2].batch_stats for half in halves))
    jax.tree.map(close, after.batch_stats, mean)


@jax.numpy_dtype_promotion("standard")  # Flax promotes BatchNorm's sums to float32.
def test_bfloat16_training_stores_float32_parameters():
    encoder = Encoder(Net(norm=True), Head())
    batch = batch_of()
    params, carried, expected, _, _, z = first_step(siamese.method(encoder, NT_XENT), batch)
    half = siamese.method(encoder._replace(precision="bf16"), NT_XENT)
    value, gradient, after, z_half = value_of(half, params, carried, batch)
    kept = (value, gradient, after.batch_stats, z_half)
    assert {x.dtype for x in jax.tree.leaves(kept)} == {jnp.dtype("float32")}
    assert 0 < np.abs(z_half - z).max() < 0.05  # only the rounding of bfloat16 differs
    np.testing.assert_allclose(value, expected, rtol=2e-2)
    lowered = jax.jit(lambda p, c, b: half.loss(p, c, b, step=0, key=KEY, axis_name=None)[0])
    lines = lowered.lower(params, carried, batch).as_text().splitlines()
    products = [line for line in lines if "dot_general" in line]
    assert sum("bf16" in line for line in products) == 2  # net and projector; the loss uses float32
    assert any("bf16" not in line for line in products)


CHUNKED = partial(siamese.method, ENCODER._replace(num_chunks=4), NT_XENT)
BYOL = partial(momentum.method, ENCODER, objective("byol"))


@pytest.mark.parametrize(
    ("make", "num_views", "message"),
    [
        (lambda: siamese.method(PREDICTING, NT_XENT), 2, "not use a predictor"),
        (lambda: BYOL(momentum=1.5), 2, r"in \[0, 1\], got 1.5"),
        (lambda: BYOL(evaluate="both"), 2, 'must be "online", or'),
        (lambda: BYOL(momentum=0.0, evaluate="target"), 2, "got 'target' with momentum=0.0"),
        (BYOL, 1, "needs views=2, .* got views=1"),
        (lambda: BYOL(symmetric=False), 3, "needs views=2, .* got views=3"),
        (CHUNKED, 2, "num_chunks must divide the batch size 6, got 4"),
    ],
)
def test_training_schemes_reject_invalid_arguments_and_views(make, num_views, message):
    def run():
        method, batch = make(), batch_of(num_views)
        params, carried = method.init(KEY, batch, 20)
        return method.loss(params, carried, batch, step=0, key=KEY, axis_name=None)

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(run)


def check(**overrides):
    """Check the compatibility of a config's method and loss."""
    config = load("configs/base.py", [(k.replace("__", "."), v) for k, v in overrides.items()])
    objective = factory("loss", config.loss.name)(**arguments(config.loss.to_dict()))
    check_compatibility(config, objective)


def test_error_about_a_loss_that_a_training_scheme_rejects_names_another_scheme():
    refused = {}
    for name in [*NAMES, "cross_entropy"]:
        settings = {"loss__name": name, "predictor__name": "mlp"}
        if name in ("cross_entropy", "sup_con"):
            settings["method__labels"] = "True"
        for method in ("siamese", "momentum"):
            try:
                check(method__name=method, **settings)
            except UserError as error:
                refused[method, name] = str(error)
    expected = {("siamese", name) for name in ("auc_dino", "byol", "dino", "ressl", "simsiam")}
    assert set(refused) == expected | {("momentum", "cross_entropy")}
    assert all("set method.name=" in message for message in refused.values())


MOMENTUM = {"method__name": "momentum"}
MOCO_V2 = MOMENTUM | {"method__preset": "moco_v2"}
NO_QUEUE = "does not use a queue; set method.queue_size=0"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"loss__name": "vicreg", "method__labels": "True"}, "vicreg.*does not use labels"),
        ({"loss__name": "cross_entropy"}, "needs labels; set method.labels=True"),
        ({"loss__name": "sup_con"}, "needs labels; set method.labels=True"),
        ({"views": "1"}, "a single view without labels has no positives"),
        (
            {"views": "1", "loss__name": "mmcl", "method__labels": "True"},
            "needs a second view of every example; set views=2",
        ),
        ({"loss__name": "decl", "loss__rate": "momentum"}, "set method.name=momentum"),
        ({"method__name": "two_tower", "loss__name": "byol"}, "set method.name=momentum"),
        (MOMENTUM | {"loss__name": "byol"}, "set predictor.name=mlp"),
        (MOMENTUM | {"method__momentum": "0.0", "loss__name": "dino"}, "collapses to constant"),
        (MOCO_V2 | {"loss__name": "vicreg"}, NO_QUEUE),
        ({"loss__name": "vicreg", "method__queue_size": "8"}, NO_QUEUE),
        (MOCO_V2 | {"loss__name": "nt_xent", "loss__ring": "True"}, NO_QUEUE),
        ({"loss__name": "spectral", "method__queue_size": "8"}, NO_QUEUE),
        (
            {"loss__name": "decl", "loss__similarity": "neg_euclidean", "method__queue_size": "8"},
            NO_QUEUE,
        ),
        (
            MOCO_V2 | {"loss__name": "mmcl", "loss__solver": "inv"},
            "it needs the negatives of the batch; set method.queue_size=0",
        ),
        (
            {"method__name": "two_tower", "method__symmetric": "True", "loss__name": "fastclip"},
            "has both directions itself; set method.symmetric=False",
        ),
    ],
)
def test_loss_that_the_method_cannot_train_is_rejected(overrides, message):
    with pytest.raises(UserError, match=message):
        check(**overrides)


@pytest.mark.parametrize("module", [siamese, momentum, two_tower])
def test_every_method_keeps_the_parameters_of_the_loss_within_their_bounds(module):
    encoder = Encoder(Net(), Head(), text=Encoder(Net(), Head()))
    scheme = module.method(encoder, objective("clip"))
    net = {"kernel": jnp.float32(9.0)}
    params = {"net": net, "objective": {"logit_scale": jnp.float32(9.0)}}
    constrained = scheme.constrain(params, 0)
    np.testing.assert_allclose(constrained["objective"]["logit_scale"], np.log(100), rtol=1e-6)
    assert constrained["net"] is net
