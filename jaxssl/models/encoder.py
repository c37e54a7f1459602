"""Backbone, projector and predictor as pure functions of their variables."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
from flax.typing import Collection, VariableDict
from jax import Array
from jax import numpy as jnp
from jax.typing import DTypeLike

from jaxssl import collectives
from jaxssl.errors import one_line
from jaxssl.losses.accumulate import map_chunks
from jaxssl.models._layers import batch_norm_groups

T = TypeVar("T")
# One array of images, or a dict of named arrays with equally many examples.
Images = Array | Mapping[str, Array]

PRECISIONS = {"float32": jnp.float32, "bf16": jnp.bfloat16}


class Encoder(NamedTuple):
    """The networks of a training method, with their precision and order of application.

    Images may also be a dict of arrays. A row of packed graphs holds k examples. The backbone then
    returns k features for each row.

    Attributes:
        net: the backbone, ``(images, *, train, axis_name, keys) -> [n, f]``.
        projector: ``(features, *, train, axis_name) -> [n, d]``.
        predictor: ``(embeddings, *, train, axis_name) -> [n, d]``, or None.
        precision: "float32" or "bf16", for the computation. Parameters, BatchNorm statistics and
            outputs are float32.
        num_chunks: the batch is encoded in this many chunks (gradient accumulation). BatchNorm uses
            the statistics of each chunk.
        norm_group: number of devices that share BatchNorm's statistics; 0 stands for all. The
            running statistics are the mean of all groups.
        text: the encoder of captions, or None.
    """

    net: nn.Module
    projector: nn.Module
    predictor: nn.Module | None = None
    precision: str = "float32"
    num_chunks: int = 1
    norm_group: int = 0
    text: "Encoder | None" = None

    def modules(self) -> dict[str, nn.Module]:
        """Return the backbone, projector and predictor by name, in their order of application."""
        modules = {"net": self.net, "projector": self.projector}
        return modules if self.predictor is None else {**modules, "predictor": self.predictor}


class Embeddings(NamedTuple):
    """Embeddings of all views of a batch.

    Attributes:
        z: [V, b, d] float32, views in the order of their groups.
        predictions: [V, b, d] float32, equal to ``z`` without a predictor.
        batch_stats: new running BatchNorm statistics by network.
    """

    z: Array
    predictions: Array
    batch_stats: dict[str, Any]


def init(encoder: Encoder, key: Array, groups: list[Images]) -> tuple[dict, dict, int]:
    """Initialise the backbone, projector and predictor on a batch of views.

    Args:
        encoder: the networks.
        key: random key.
        groups: views [V_g, b, h, w, c]. The views of a group have one size. The backbone is traced
            on every group, so that it can refuse a size.

    Returns:
        Parameters and BatchNorm statistics by network, and d, the dimension of an embedding.
    """
    params, stats = {}, {}
    x: Any = _first_view(groups[0])
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
    params: Collection,
    stats: Collection,
    groups: list[Images],
    index: Array,
    *,
    key: Array | None,
    axis_name: str | None,
) -> Embeddings:
    """Apply backbone, projector and predictor in training mode to all views of a batch.

    The views of a group go through the backbone together, so that BatchNorm uses the statistics of
    all of them in the global batch. All groups go through the heads together.

    Args:
        encoder: the networks.
        params: parameters by network, at least of "net" and "projector". Without "predictor" the
            predictor is not applied.
        stats: running BatchNorm statistics by network.
        groups: views [V_g, b, h, w, c]. The views of a group have one size. Arrays with k examples
            in a row are [V_g, b / k, ...].
        index: [b] indices of the examples in the data set, which random draws are keyed by.
        key: random key of the step. None turns stochastic depth off.
        axis_name: the mapped axis over which devices share the batch, or None.
    """
    num_rows = jax.tree.leaves(groups[0])[0].shape[1]
    keys, k = None, len(index) // num_rows
    if key is not None:
        num_views = sum(len(jax.tree.leaves(group)[0]) for group in groups)
        keys = _example_keys(key, index.reshape(num_rows, k), num_views)

    def encode(batch: tuple[Array | None, list[Images]]) -> Embeddings:
        keys, groups = batch
        return _encode_rows(encoder, params, stats, groups, keys, k, axis_name=axis_name)

    batch = keys, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), groups)
    if encoder.num_chunks == 1:
        z, p, new_stats = encode(batch)
    else:
        z, p, new_stats = map_chunks(encode, batch, encoder.num_chunks)
        z, p = (x.reshape(-1, *x.shape[2:]) for x in (z, p))
        new_stats = jax.tree.map(lambda x: jnp.mean(x, axis=0), new_stats)
    return Embeddings(jnp.swapaxes(z, 0, 1), jnp.swapaxes(p, 0, 1), new_stats)


def _example_keys(key: Array, index: Array, num_views: int) -> Array:
    """Return keys [rows, V, k]: ``key`` folded with an example's index, then with the view's.

    ``index`` [rows, k] has the indices of the examples.
    """

    def fold(index: Array, view: Array) -> Array:
        return jax.random.fold_in(jax.random.fold_in(key, index), view)

    of_row = jax.vmap(jax.vmap(fold, (0, None)), (None, 0))
    return jax.vmap(of_row, (0, None))(index, jnp.arange(num_views, dtype=jnp.int32))


def _encode_rows(
    encoder: Encoder,
    params: Collection,
    stats: Collection,
    groups: list[Images],
    keys: Array | None,
    k: int,
    *,
    axis_name: str | None,
) -> Embeddings:
    """Apply the networks to groups of views [rows, V_g, h, w, c], with k examples in each row.

    Args:
        encoder: the networks.
        params: parameters by network.
        stats: running BatchNorm statistics by network.
        groups: groups of views.
        keys: random keys [rows, V, k], or None.
        k: number of examples in a row.
        axis_name: the mapped axis, or None.

    Returns:
        Embeddings with the examples first, [rows * k, V, d].
    """
    train = partial(_train, encoder, params, axis_name=axis_name)
    features, first = [], 0
    for group in groups:
        rows, num_views = jax.tree.leaves(group)[0].shape[:2]
        images = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), group)
        group_keys = None if keys is None else keys[:, first : first + num_views].reshape(-1)
        h, stats = train(stats, "net", images, keys=group_keys)
        h = jnp.swapaxes(h.reshape(rows, num_views, k, -1), 1, 2)
        features.append(h.reshape(rows * k, num_views, -1))
        first += num_views
    h = jnp.concatenate(features, axis=1)
    z, stats = train(stats, "projector", h.reshape(-1, h.shape[2]))
    p = z
    if "predictor" in params and encoder.predictor is not None:
        p, stats = train(stats, "predictor", z)
    z, p = (x.astype(jnp.float32).reshape(*h.shape[:2], -1) for x in (z, p))
    return Embeddings(z, p, stats)


def features(encoder: Encoder, params: Collection, stats: Collection, images: Images) -> Array:
    """Apply the backbone in evaluation mode and return features [n, f] in float32.

    ``params`` and ``stats`` are the variables of the backbone.
    """
    return _apply(encoder, "net", params, stats, images, train=False).astype(jnp.float32)


def features_in_training(
    encoder: Encoder,
    params: Collection,
    stats: Collection,
    images: Images,
    *,
    axis_name: str | None,
    keys: Array | None,
) -> tuple[Array, Collection]:
    """Apply the backbone in training mode, with BatchNorm over all devices.

    ``params`` and ``stats`` are the variables of the backbone. ``keys`` [n] are random keys of the
    examples, or None.

    Returns:
        Features [n, f] in float32, and new BatchNorm statistics.
    """
    encoder = encoder._replace(norm_group=0)  # The group was chosen for the pretraining devices.
    h, new = _train(
        encoder, {"net": params}, {"net": stats}, "net", images, axis_name=axis_name, keys=keys
    )
    return h.astype(jnp.float32), new["net"]


def project(encoder: Encoder, params: Collection, stats: Collection, h: Array) -> Array:
    """Apply the projector in evaluation mode to features [n, f] and return embeddings [n, d]."""
    return _apply(encoder, "projector", params, stats, h, train=False).astype(jnp.float32)


def _apply(
    encoder: Encoder, name: str, params: Collection, stats: Collection, x: Images, **options: Any
) -> Any:
    """Apply one of the networks, such as "projector", in the precision of the encoder.

    Parameters are cast here, at each use, so that gradients of several uses are added in float32.
    """
    dtype = PRECISIONS[encoder.precision]
    variables = {"params": _cast(params, dtype), "batch_stats": stats}
    return encoder.modules()[name].apply(variables, _cast(x, dtype), **options)


def _train(
    encoder: Encoder,
    params: Collection,
    stats: Collection,
    name: str,
    x: Images,
    *,
    axis_name: str | None,
    **options: Any,
) -> tuple[Array, dict[str, Any]]:
    """Apply one network in training mode. Return its output and the new statistics by network."""
    norm_axis = None if encoder.norm_group == 1 else axis_name
    options |= {"train": True, "axis_name": norm_axis, "mutable": ["batch_stats"]}
    with batch_norm_groups(encoder.norm_group, norm_axis):
        y, updated = _apply(encoder, name, params[name], stats[name], x, **options)
    new = updated.get("batch_stats", {})
    if encoder.norm_group:  # The groups of devices have different statistics.
        new = collectives.mean(new, axis_name)
    return y, {**stats, name: new}


def _first_view(group: Images) -> Images:
    return jax.tree.map(lambda x: x[0], group)


def _cast(tree: T, dtype: DTypeLike) -> T:
    """Cast floating-point leaves of a tree. Integer leaves (indices) are left unchanged."""

    def cast(x: Array) -> Array:
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, tree)


def find_channels(
    net: nn.Module, variables: VariableDict, sides: tuple[int, ...], candidates: tuple[int, ...]
) -> int:
    """Find the number of channels of the images or videos that a backbone accepts.

    Args:
        net: the backbone.
        variables: {"params", "batch_stats"} of the backbone.
        sides: (height, width) of an image, or (frames, height, width) of a video.
        candidates: numbers of channels to try.

    Raises:
        ValueError: if the backbone takes none of them.
    """
    last: Exception = ValueError("no number to try")
    for channels in candidates:
        image = jax.ShapeDtypeStruct((1, *sides, channels), jnp.float32)
        try:
            jax.eval_shape(lambda x: net.apply(variables, x, train=False), image)
        except Exception as error:  # Flax raises several types for a kernel of another shape.
            last = error
            continue
        return channels
    raise ValueError(
        f"the backbone accepts no images of {' x '.join(map(str, sides))} with "
        f"{', '.join(map(str, candidates))} channels ({one_line(last)})"
    ) from last
