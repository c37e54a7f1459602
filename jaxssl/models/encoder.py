"""Backbone, projector and predictor as pure functions of their variables."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from flax.typing import VariableDict
from jax import Array
from jax import numpy as jnp

from jaxssl.losses.accumulate import map_chunks

PRECISIONS = {"float32": jnp.float32, "bf16": jnp.bfloat16}


class Encoder(NamedTuple):
    """The networks of a method and how they are run.

    Attributes:
        net: the backbone, ``(images, *, train, axis_name, keys) -> [n, f]``. In place of images,
            here and below, there may be dicts of arrays; a row of theirs may hold k examples,
            which come out one after the other (packed graphs).
        projector: ``(features, *, train, axis_name) -> [n, d]``.
        predictor: ``(embeddings, *, train, axis_name) -> [n, d]``, or None.
        precision: of the computation, "float32" or "bf16"; parameters, BatchNorm's statistics and
            what comes out are float32.
        num_chunks: examples go through the networks in this many chunks (gradient accumulation);
            BatchNorm then sees a chunk for a batch.
        text: the other tower, for captions, or None.
    """

    net: nn.Module
    projector: nn.Module
    predictor: nn.Module | None = None
    precision: str = "float32"
    num_chunks: int = 1
    text: "Encoder | None" = None

    def modules(self) -> dict[str, nn.Module]:
        """The networks by name, in the order of the data."""
        modules = {"net": self.net, "projector": self.projector}
        return modules if self.predictor is None else {**modules, "predictor": self.predictor}


def init(encoder: Encoder, key: Array, groups: list[Any]) -> tuple[dict, dict, int]:
    """Parameters and BatchNorm's statistics by network, and d, the embeddings' dimension.

    ``groups`` are views [V_g, b, h, w, c] of one size each; the backbone may refuse any of them.
    """
    params, stats, x = {}, {}, _first_view(groups[0])
    for name, module in encoder.modules().items():
        key, module_key = jax.random.split(key)
        variables = dict(module.init(module_key, x, train=False))
        if name == "net":
            for group in groups[1:]:
                run = partial(module.apply, variables, train=False)
                jax.eval_shape(run, _first_view(group))
        x = module.apply(variables, x, train=False)
        params[name] = variables.get("params", {})
        stats[name] = variables.get("batch_stats", {})
    return params, stats, x.shape[1]


def embed(
    encoder: Encoder,
    params: Mapping[str, Any],
    stats: Mapping[str, Any],
    views: list[Any],
    index: Array,
    *,
    key: Array | None,
    axis_name: str | None,
) -> tuple[Array, Array, dict]:
    """All views of a batch through the networks, in training mode.

    The views of a group go through the backbone together, so BatchNorm sees the statistics of all
    of them in the global batch; all groups go through the heads together.

    Args:
        encoder: the networks.
        params: of each network in ``params``, at least "net" and "projector". Without "predictor"
            there is no prediction.
        stats: BatchNorm's running statistics by network.
        views: groups of views [V_g, b, h, w, c] of one size each; or [V_g, b / k, ...] each array,
            of rows of k examples.
        index: [b], the examples' place in the data set; random draws are keyed by it.
        key: random key of the step; None drops nothing.
        axis_name: the mapped axis whose devices share the batch, or None.

    Returns:
        Embeddings [V, b, d] and predictions [V, b, d] (the embeddings where there is no predictor),
        float32, groups one after the other; and the new statistics.
    """
    modules = {name: module for name, module in encoder.modules().items() if name in params}
    dtype = PRECISIONS[encoder.precision]
    params = _cast(params, dtype)
    k = len(index) // jax.tree.leaves(views[0])[0].shape[1]
    keys = None
    if key is not None:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index).reshape(-1, k)

    def run(name: str, x: Any, stats: dict, **kwargs: Any) -> tuple[Array, dict]:
        variables = {"params": params[name], "batch_stats": stats[name]}
        x, updated = modules[name].apply(
            variables, x, train=True, axis_name=axis_name, mutable=["batch_stats"], **kwargs
        )
        return x, {**stats, name: updated.get("batch_stats", {})}

    def view_keys(keys: Array | None, first: int, num_views: int) -> Array | None:
        if keys is None:
            return None
        numbers = jnp.arange(first, first + num_views, dtype=jnp.int32)
        each = jax.vmap(jax.random.fold_in, (0, None))  # of a row's examples
        fold = jax.vmap(jax.vmap(each, (None, 0)), (0, None))
        return fold(keys, numbers).reshape(-1)

    def chunk(batch: tuple[Array | None, list[Any]]) -> tuple[Array, Array, dict]:
        keys, groups = batch
        new, features, first = dict(stats), [], 0
        for group in groups:  # [c, V_g, h, w, channels], of rows
            rows, num_views = jax.tree.leaves(group)[0].shape[:2]
            images = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), group)
            own = view_keys(keys, first, num_views)
            h, new = run("net", _cast(images, dtype), new, keys=own)
            h = jnp.swapaxes(h.reshape(rows, num_views, k, -1), 1, 2)
            features.append(h.reshape(rows * k, num_views, -1))
            first += num_views
        h = jnp.concatenate(features, axis=1)
        z, new = run("projector", h.reshape(-1, h.shape[2]), new)
        p = z
        if "predictor" in modules:
            p, new = run("predictor", z, new)
        z, p = (x.astype(jnp.float32).reshape(*h.shape[:2], -1) for x in (z, p))
        return z, p, new

    batch = keys, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), views)
    if encoder.num_chunks == 1:
        z, p, new = chunk(batch)
    else:
        z, p, new = map_chunks(chunk, batch, encoder.num_chunks)
        z, p = (x.reshape(-1, *x.shape[2:]) for x in (z, p))
        new = jax.tree.map(lambda x: jnp.mean(x, axis=0), new)
    return jnp.swapaxes(z, 0, 1), jnp.swapaxes(p, 0, 1), new


def features(encoder: Encoder, params: Any, stats: Any, images: Any) -> Array:
    """[n, f] float32: the backbone in evaluation mode; ``params`` and ``stats`` are its own."""
    dtype = PRECISIONS[encoder.precision]
    variables = {"params": _cast(params, dtype), "batch_stats": stats}
    return encoder.net.apply(variables, _cast(images, dtype), train=False).astype(jnp.float32)


def features_in_training(
    encoder: Encoder,
    params: Any,
    stats: Any,
    images: Any,
    *,
    axis_name: str | None,
    keys: Array | None,
) -> tuple[Array, Any]:
    """[n, f] float32 and the new statistics: the backbone in training mode."""
    dtype = PRECISIONS[encoder.precision]
    h, updated = encoder.net.apply(
        {"params": _cast(params, dtype), "batch_stats": stats},
        _cast(images, dtype),
        train=True,
        axis_name=axis_name,
        keys=keys,
        mutable=["batch_stats"],
    )
    return h.astype(jnp.float32), updated.get("batch_stats", {})


def project(encoder: Encoder, params: Any, stats: Any, h: Array) -> Array:
    """[n, d] float32: the projector in evaluation mode, on features [n, f]."""
    dtype = PRECISIONS[encoder.precision]
    variables = {"params": _cast(params, dtype), "batch_stats": stats}
    return encoder.projector.apply(variables, _cast(h, dtype), train=False).astype(jnp.float32)


def _first_view(group: Any) -> Any:
    return jax.tree.map(lambda x: x[0], group)


def _cast(tree: Any, dtype: Any) -> Any:
    """Numbers in another precision; whole ones are places and stay."""

    def cast(x: Array) -> Array:
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, tree)


def find_channels(
    net: nn.Module, variables: VariableDict, sides: tuple[int, ...], known: tuple[int, ...] = (3, 1)
) -> int:
    """How many channels a backbone's images, or clips, have.

    Args:
        net: the backbone.
        variables: {"params", "batch_stats"} of the backbone.
        sides: of an image, or a clip with the frames in front.
        known: numbers of channels to try.

    Raises:
        ValueError: if it takes none of these.
    """
    for channels in known:
        image = jax.ShapeDtypeStruct((1, *sides, channels), jnp.float32)
        try:
            jax.eval_shape(lambda x: net.apply(variables, x, train=False), image)
        except Exception:  # flax has several for a kernel of another shape
            continue
        return channels
    raise ValueError(f"the backbone takes no images of {' x '.join(map(str, sides))}")
