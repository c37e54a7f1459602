"""Whole training steps against steps that are written out by hand, for every method.

The step under test runs on eight devices. The step by hand knows no devices, methods or
objectives: it folds the random keys, applies the networks, computes the loss from functions of
arrays, and updates parameters, momentum network, queues and buffers itself.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp
from marks import long_except
from method_cases import DIM, Head, as_numpy

from jaxssl import collectives, distributed, losses
from jaxssl.augment.views import make_views
from jaxssl.losses.decl import exponential
from jaxssl.losses.pairs import negatives, pair_towers, pair_views
from jaxssl.losses.swav import sinkhorn
from jaxssl.models.encoder import Encoder
from jaxssl.training.state import make_init, make_train_step

BATCH, NUM_EXAMPLES, STEPS = 8, 20, 2
SEED = 3
RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.1  # settings of the optimiser
LABELS = np.array([[0, 1, 0, 2, 1, 0, 3, 1], [4, 4, 4, 4, 0, 1, 2, 3]], np.int32)
TAU = {"temperature": 0.3}


def summary(x):
    """The mean pixel of images [n, h, w, c], or numbers of tokens [n, length]."""
    return x.mean((1, 2)) if x.ndim == 4 else jnp.cos(x.astype(jnp.float32))


class Net(nn.Module):
    """A Dense layer on mean pixels or tokens, a random scale per row, and the batch's centre."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        h = jnp.tanh(nn.Dense(5)(summary(x)))
        if keys is not None:
            h = h * (1 + jax.vmap(jax.random.uniform)(keys)[:, None])
        running = self.variable("batch_stats", "mean", jnp.zeros, 5)
        mean = collectives.mean(h.mean(0), axis_name) if train else running.value
        if train and not self.is_initializing():
            running.value = 0.8 * running.value + 0.2 * mean
        return h - mean[None, :]


def view(key, image):
    return image + jax.random.uniform(key, image.shape)


def small_crop(key, image):
    return view(key, image[:2, :2])


def dense(params, x):
    return x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]


def network(params, stats, images, key, index, first=0):
    """Features [V, b, 5] of views [V, b, h, w, c], and the new statistics."""
    h = jnp.tanh(dense(params, jax.vmap(summary)(images)))
    if key is not None:
        fold = jax.random.fold_in
        scale = lambda v, i: 1 + jax.random.uniform(fold(fold(key, i), v))  # noqa: E731
        of_view = jax.vmap(scale, (None, 0))
        h = h * jax.vmap(of_view, (0, None))(first + jnp.arange(len(images)), index)[:, :, None]
    mean = h.reshape(-1, 5).mean(0)
    return h - mean, {"mean": 0.8 * stats["mean"] + 0.2 * mean}


def unit(z):
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


def both(x):
    """The pairs (query 0, key 1) and (query 1, key 0) of `x.q` and `x.k`."""
    return [(x.q[0], x.k[1]), (x.q[1], x.k[0])]


def one_labelled_view(x):
    """Five of eight examples have a positive, on devices that hold one example each."""
    per_anchor = losses.sup_con_loss(pair_views(x.z, labels=x.label), **TAU)
    shared = (x.label[:, None] == x.label[None, :]).sum(1) > 1
    return jnp.where(shared, per_anchor, 0).sum() / shared.sum(dtype=jnp.float32), ()


def labelled_crops(x):
    tcl = lambda pairs: losses.tcl_loss(pairs, **TAU, k1=2.0).mean()  # noqa: E731
    value = 2 * tcl(pair_views(x.z, labels=x.label))
    value += sum(tcl(pair_towers(c, z, labels=x.label)) for c in x.crops for z in x.z)
    return value / (2 + 2 * len(x.crops)), ()


def three_views(x):
    b = x.params["b"]
    return losses.auc_cl_loss(pair_views(x.z), b).mean(), ()


def decl_rate(pairs, buffer=(), anchor=None):
    """Rate [n] of each anchor: the mean similarity of its negatives, or a moving average."""
    s = jnp.exp(unit(pairs.anchor if anchor is None else anchor) @ unit(pairs.candidate).T / 0.3)
    mean = jnp.where(negatives(pairs), s, 0).sum(1) / negatives(pairs).sum(1, dtype=jnp.float32)
    if isinstance(buffer, tuple):
        return lax.stop_gradient(mean)
    old = buffer[pairs.index]
    return lax.stop_gradient(jnp.where(old == -jnp.inf, mean, 0.9 * jnp.exp(old) + 0.1 * mean))


def decl(x, pairs, weights, *, of_partner=False, **hyper):
    """Every pairing has its own samples and weight, and their rates are averaged."""
    value, rates = 0.0, []
    for number, (weight, p) in enumerate(zip(weights, pairs, strict=True)):
        rate = decl_rate(p, x.memory, p.partner if of_partner else None)
        sample = rate / exponential(jax.random.fold_in(x.key, number), p)
        value += weight * losses.decl_loss(p, sample, **TAU, **hyper).mean()
        if not of_partner:
            rates.append(rate.reshape(-1, BATCH).mean(0))
    return value, x.memory.at[x.index].set(jnp.log(sum(rates) / len(pairs))) if rates else ()


def decl_of_views(x):
    """The weight alternates. Every pairing has its own samples, and the rates are averaged."""
    pairs = [pair_views(x.z, x.index)]
    pairs += [pair_towers(crop, z, x.index) for crop in x.crops for z in x.z]
    weights = [w / (1 + len(pairs)) for w in (2, *[1] * (len(pairs) - 1))]
    return decl(x, pairs, weights, weight=1.0 - x.step % 2)


def decl_of_keys(x):
    pairs = [pair_towers(x.q[q], x.k[k], x.index) for q, k in ((1, 0), (0, 1))]
    return decl(x, pairs, (1, 1), of_partner=True)


def decl_of_towers(x):
    pairs = [pair_towers(x.z[a], x.z[b], x.index) for a, b in ((0, 1), (1, 0))]
    return decl(x, pairs, (0.5, 0.5))


def swav(x):
    scores = unit(x.z) @ unit(x.params["prototypes"]).T
    codes = [lax.stop_gradient(sinkhorn(s, epsilon=0.05)) for s in scores]
    log_p = jax.nn.log_softmax(scores / 0.1, axis=2)
    return -sum((codes[1 - v] * log_p[v]).sum(1).mean() for v in range(2)) / 2, ()


def moco_v3(x):
    pairs = [*both(x), (x.q[2], x.k[0]), (x.q[2], x.k[1])]
    return sum(losses.info_nce(q, k, **TAU) for q, k in pairs) / 2, ()


def moco_v2(x):
    """The queue is shorter than a batch, so that it holds the last keys only."""
    pairs = pair_towers(x.q[0], x.k[0], queue=x.queue, batch_negatives=False)
    x.new_queue = unit(x.k[0])[-6:]
    return losses.info_nce_loss(pairs, **TAU).mean(), ()


def labelled_keys(x):
    pairs = [pair_towers(q, k, labels=x.label) for q, k in both(x)]
    return sum(losses.sup_con_loss(p, **TAU).mean() for p in pairs), ()


def byol(x):
    return sum((2 - 2 * (unit(q) * unit(k)).sum(1)).mean() for q, k in both(x)), ()


def simsiam(x):
    return sum(losses.simsiam(q, k) for q, k in both(x)) / 2, ()


def one_network(x):
    """Keys are embeddings of the trained network, and constants."""
    return sum(losses.info_nce(q, k, **TAU) for q, k in both(x)), ()


def dino(x):
    """The teacher's temperature is a schedule, and the centre is that of the step before."""
    pairs = [*both(x), (x.q[2], x.k[0]), (x.q[2], x.k[1])]

    def one(q, k):
        target = jax.nn.softmax((k - x.memory) / (0.5 + 0.1 * x.step), axis=1)
        return -(target * jax.nn.log_softmax(q / 0.1, axis=1)).sum(1).mean()

    center = 0.9 * x.memory + 0.1 * x.k.reshape(-1, DIM).mean(0)
    return sum(one(q, k) for q, k in pairs) / 4, center


def nnclr(x):
    rows, value = x.memory["rows"], 0.0
    for q, k in both(x):
        neighbour = rows[jnp.argmax(unit(k) @ rows.T, axis=1)]
        value += losses.info_nce(neighbour, q, temperature=0.1, scale_by_temperature=False) / 2
    place = (x.memory["next"] + jnp.arange(BATCH)) % len(rows)
    # NNCLR stores the keys of view 1, which its last pairing of two views uses.
    memory = {"rows": rows.at[place].set(unit(x.k[1])), "next": (place[-1] + 1) % len(rows)}
    return value, memory


def asymmetric_crops(x):
    """View 1 is the only key, and no query."""
    return sum(losses.info_nce(q, x.k[1], **TAU) for q in (x.q[0], x.q[2])) / 2, ()


def clip(x):
    return losses.clip(x.z[0], x.texts[0], x.params["logit_scale"]), ()


class Case(NamedTuple):
    """A run, and its loss by hand: ``x -> (value, memory)``."""

    method: str
    settings: dict[str, Any]
    loss: str
    hyper: dict[str, Any]
    by_hand: Callable
    views: int = 2
    crops: int = 0
    predictor: bool = False


def growing(step):
    """A momentum that differs at every step."""
    return 0.5 + 0.25 * jnp.asarray(step, jnp.float32)


TEACHER = {"teacher_temperature": lambda step: 0.5 + 0.1 * jnp.asarray(step, jnp.float32)}
DECL = {**TAU, "momentum": 0.9}
ALTERNATE = {**DECL, "weight": "alternate"}
SUPPORT = {"support_size": 12}
SLOW, SAME = {"momentum": 0.7}, {"momentum": 0.0}  # EMA momentum of the momentum network
# fmt: off
CASES = {
    "one labelled view":
        Case("siamese", {"labels": True}, "sup_con", TAU, one_labelled_view, views=1),
    "labelled crops":
        Case("siamese", {"labels": True}, "tcl", {**TAU, "k1": 2.0}, labelled_crops, crops=2),
    "auc_cl, three views": Case("siamese", {}, "auc_cl", {}, three_views, views=3),
    "decl, crops": Case("siamese", {}, "decl", ALTERNATE, decl_of_views, crops=1),
    "decl of views": Case("siamese", {}, "decl", ALTERNATE, decl_of_views),
    "swav": Case("siamese", {}, "swav", {"num_prototypes": 6}, swav),
    "moco_v3, crops":
        Case("momentum", {"momentum": growing}, "info_nce", TAU, moco_v3, crops=1, predictor=True),
    "moco_v2":
        Case("momentum", {**SLOW, "symmetric": False, "queue_size": 6}, "info_nce", TAU, moco_v2),
    "labelled keys": Case("momentum", {**SLOW, "labels": True}, "sup_con", TAU, labelled_keys),
    "byol": Case("momentum", SLOW, "byol", {}, byol, predictor=True),
    "simsiam": Case("momentum", {**SAME, "average": True}, "simsiam", {}, simsiam, predictor=True),
    "one network": Case("momentum", SAME, "info_nce", TAU, one_network, predictor=True),
    "dino, crops":
        Case("momentum", {"momentum": growing, "average": True}, "dino", TEACHER, dino, crops=1),
    "nnclr":
        Case("momentum", {**SAME, "average": True}, "nnclr", SUPPORT, nnclr, predictor=True),
    "decl of keys": Case("momentum", {}, "decl", {**TAU, "rate": "momentum"}, decl_of_keys),
    "one network, asymmetric":
        Case("momentum", {**SAME, "symmetric": False}, "info_nce", TAU, asymmetric_crops, crops=1),
    "captions": Case("two_tower", {}, "clip", {}, clip, views=1),
    "decl of towers": Case("two_tower", {"symmetric": True}, "decl", DECL, decl_of_towers),
}
# fmt: on


def batch_at(step: int) -> dict[str, np.ndarray]:
    """Consecutive batches share examples, and contain example 0 and the last one."""
    rng = np.random.default_rng(step)
    index = np.concatenate([[0, NUM_EXAMPLES - 1], 1 + rng.permutation(NUM_EXAMPLES - 2)[:6]])
    return {
        "input": rng.integers(0, 256, (BATCH, 4, 4, 3), np.uint8),
        "label": LABELS[step],
        "index": index.astype(np.int32),
    }


@cache
def steps_under_test(name: str):
    """Return the states before, between and after the steps, as NumPy, losses and embeddings."""
    case = CASES[name]
    text = Encoder(Net(), Head()) if name == "captions" else None
    encoder = Encoder(Net(), Head(), Head() if case.predictor else None, text=text)
    objective = import_module(f"jaxssl.losses.{case.loss}").objective(**case.hyper)
    make = import_module(f"jaxssl.methods.{case.method}").method
    method = make(encoder, objective, **case.settings)
    optimiser = optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(RATE, MOMENTUM))
    make_images = make_views([view] * case.views, [small_crop] * case.crops)

    def augment(key, images, index):
        """Add the index of an example as its caption."""
        texts = {"texts": jnp.stack([index, 2 * index, 3 * index], axis=1)[None]} if text else {}
        return {**make_images(key, images, index), **texts}

    mesh = distributed.make_mesh()
    state = make_init(method, optimiser, augment, batch_at(0), NUM_EXAMPLES, mesh)(SEED)
    step = make_train_step(method, optimiser, augment, mesh)
    states, values, embeddings = [as_numpy(state)], [], []
    for number in range(STEPS):
        state, metrics, z = step(state, distributed.shard(batch_at(number), mesh))
        states.append(as_numpy(state))
        values.append(float(metrics["loss"]))
        embeddings.append(np.asarray(z))
    return states, values, embeddings, augment


@jax.numpy_rank_promotion("allow")
def step_by_hand(case: Case, state, velocity, batch, augment):
    """Return the loss, parameters, velocity, momentum network and the rest of the state."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
    augment_key, method_key = jax.random.split(key)
    net_key, loss_key = jax.random.split(method_key)
    images = augment(augment_key, batch["input"], batch["index"])
    groups, index = [images[name] for name in ("views", "crops") if name in images], batch["index"]
    carried, tower = state.carried, case.method == "momentum"
    asymmetric = not case.settings.get("symmetric", True)
    has_target = tower and carried.target != ()

    def encode(params, stats, groups, key):
        h, first = [], 0
        for group in groups:
            new, stats = network(params["net"], stats, group, key, index, first)
            h.append(new)
            first += len(group)
        return dense(params["projector"], jnp.concatenate(h)), stats

    def loss(params):
        seen = [groups[0][:1], *groups[1:]] if asymmetric and has_target else groups
        both = "texts" in images
        image_key, text_key = jax.random.split(net_key) if both else (net_key, None)
        z, stats = encode(params, carried.batch_stats["net"], seen, image_key)
        q = dense(params["predictor"], z) if case.predictor else z
        stats, texts = {"net": stats}, None
        if both:
            of_text = carried.batch_stats["text"]
            texts, new = encode(params["text"], of_text["net"], [images["texts"]], text_key)
            stats["text"] = {"net": new}
        k, target_stats = z[: case.views], None
        if has_target:
            shown = groups[0][1:] if asymmetric else groups[0]
            of_target = carried.target["batch_stats"]["net"]
            k, target_stats = encode(carried.target["params"], of_target, [shown], None)
        memory = carried.memory["objective"] if tower else carried.memory
        x = SimpleNamespace(
            z=z[: case.views], crops=z[case.views :], q=q, k=lax.stop_gradient(k), texts=texts,
            params=params["objective"], key=loss_key, step=state.step.astype(jnp.float32),
            memory=memory if isinstance(memory, tuple | dict) else memory[:NUM_EXAMPLES],
            queue=carried.memory["queue"]["rows"] if "queue_size" in case.settings else None,
            index=index, label=batch["label"], new_queue=None,
        )  # fmt: skip
        value, memory = case.by_hand(x)
        of_views = [z[:1], x.k] if asymmetric and has_target else [z[: case.views]]
        of_views += [] if texts is None else [texts]
        of_views = jnp.concatenate(of_views)
        return value, (stats, target_stats, memory, x.new_queue, of_views)

    (value, aux), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
    gradient = jax.tree.map(lambda g, p: g + DECAY * p, gradient, state.params)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradient)
    params = jax.tree.map(lambda p, v: p - RATE * v, state.params, velocity)
    target = ()
    if has_target:
        m = case.settings.get("momentum", 0.99)
        m = m(state.step) if callable(m) else m
        trained = {name: params[name] for name in ("net", "projector")}
        target = jax.tree.map(lambda k, q: m * k + (1 - m) * q, carried.target["params"], trained)
    return value, params, velocity, target, aux


KEPT = ("auc_cl, three views", "decl of views", "byol", "captions")


@pytest.mark.parametrize("name", long_except(KEPT, CASES))
def test_training_step_equals_a_step_written_by_hand(name):
    case, (states, values, embeddings, augment) = CASES[name], steps_under_test(name)
    run_key = jax.random.split(jax.random.key(SEED))[1]
    np.testing.assert_array_equal(states[0].key, jax.random.key_data(run_key))
    if name == "captions":  # the towers have the same shapes, and different weights
        first = states[0].params
        kernels = [p["projector"]["Dense_0"]["kernel"] for p in (first, first["text"])]
        assert (kernels[0] != kernels[1]).all()
    velocity = jax.tree.map(np.zeros_like, states[0].params)

    @jax.jit
    def by_hand(state, velocity, batch):
        return step_by_hand(case, state, velocity, batch, augment)

    for number in range(STEPS):
        before, after = states[number], states[number + 1]
        value, params, velocity, target, aux = by_hand(before, velocity, batch_at(number))
        stats, target_stats, memory, queue, z = aux
        np.testing.assert_allclose(values[number], value, rtol=1e-4)
        same(embeddings[number], z)
        same(after.params, params)
        same(after.carried.batch_stats["net"], stats["net"])
        if "text" in stats:
            same(after.carried.batch_stats["text"]["net"], stats["text"]["net"])
        if case.method == "momentum":
            actual_memory, actual_queue = (after.carried.memory[k] for k in ("objective", "queue"))
        else:
            actual_memory, actual_queue = after.carried.memory, ()
        if case.loss == "decl" and not isinstance(memory, tuple):
            assert not actual_memory[NUM_EXAMPLES:].any()  # zeros pad the rows for eight devices
            actual_memory = actual_memory[:NUM_EXAMPLES]
        same(actual_memory, memory)
        if queue is not None:
            same(actual_queue["rows"], queue)
        if target != ():
            same(after.carried.target["params"], target)
            same(after.carried.target["batch_stats"]["net"], target_stats)


def same(actual, expected):
    def close(a, b):
        largest = np.abs(np.where(np.isfinite(b), b, 0)).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * largest)

    jax.tree.map(close, actual, expected)
