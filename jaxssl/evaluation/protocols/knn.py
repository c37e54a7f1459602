"""k-nearest-neighbour classification with weighted votes."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import distributed
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result

# The settings of public codes, whose predictions these are.
PRESETS = {
    # zhirongw/lemniscate.pytorch test.py `kNN`; lightly utils/benchmarking/knn.py `knn_predict`.
    "instdisc": {"k": 200, "temperature": 0.1},
    # leftthomas/SimCLR, chingyaoc/DCL and anshulbshah/MMCL CIFAR100: main.py `test`.
    "cifar_simclr": {"k": 200, "temperature": 0.5},
    # facebookresearch/dino and rohan1561/AUC-CL: eval_knn.py `knn_classifier`; k=20 is that of
    # vturrisi/solo-learn utils/knn.py too. MoCo-v3's own code has none.
    "moco_v3_10": {"k": 10, "temperature": 0.07},
    "moco_v3_20": {"k": 20, "temperature": 0.07},
    "moco_v3_100": {"k": 100, "temperature": 0.07},
    "moco_v3_200": {"k": 200, "temperature": 0.07},
    # lemniscate.pytorch test.py `NN`: the class of the nearest.
    "uniform": {"k": 1, "temperature": 1.0},
    # rohan1561/AUC-CL cifar/main.py `test`. This weight has no temperature.
    "auc_cl_cifar": {"k": 200, "temperature": 1.0, "weight": "linear"},
}
WEIGHTS = ("exp", "linear")
QUERY_BLOCK = 100  # queries at a time: their similarities stay in cache
BANK_BLOCK = 2**26  # bytes of the bank, and of the queries, that are on the device at a time
THREADS = min(8, os.cpu_count() or 1)  # that search at the same time
MAX_CLASSES = 100_000  # votes are counted in a table of all class numbers
LARGEST = 60.0  # exponent of a vote: exp of it, added up over any bank, is finite in float32


def evaluate(
    train_features: Array | np.ndarray,
    train_labels: Array | np.ndarray,
    test_features: Array | np.ndarray,
    test_labels: Array | np.ndarray,
    *,
    k: int,
    temperature: float,
    weight: str = "exp",
) -> dict[str, float]:
    """Accuracy of the votes of the k most cosine-similar training examples.

    Several processes share the work: each calls this with its part of both sets, and gets the
    figures of the whole.

    A class without a vote stands behind those with one, in the order of the class numbers, as in
    the public codes: with few neighbours or classes, "knn_top5" means little.

    Args:
        train_features: [n, f], the bank; it may be a memory map.
        train_labels: [n] int in [0, `MAX_CLASSES`).
        test_features: [m, f]; it may be a memory map.
        test_labels: [m] int in [0, `MAX_CLASSES`). A class that the bank lacks gets no votes.
        k: neighbours; all n if there are fewer.
        temperature: T, > 0; "linear" does without.
        weight: of a vote, as in `votes`.

    Returns:
        "knn_top1" and "knn_top5" (100 if there are five classes or fewer), in percent.

    Raises:
        ValueError: if a setting is out of range, features and labels differ in length or width,
            features are not finite, or labels are not class numbers.
    """
    distributed.raise_together(
        lambda: _check(train_features, train_labels, test_features, test_labels)
    )
    test_labels = np.asarray(test_labels)
    largest = max(np.max(train_labels, initial=0), test_labels.max(initial=0))
    num_classes = int(distributed.gather_processes(largest).max()) + 1
    ranked = _ranking(
        *(train_features, train_labels, test_features),
        **{"k": k, "temperature": temperature, "weight": weight},
        num_classes=num_classes,
        top=5,
    )
    hit = ranked == test_labels[:, None]
    return {
        "knn_top1": 100.0 * distributed.mean_over_processes(hit[:, 0]),
        "knn_top5": 100.0 * distributed.mean_over_processes(hit.any(axis=1)),
    }


def _check(
    train_features: Array | np.ndarray,
    train_labels: Array | np.ndarray,
    test_features: Array | np.ndarray,
    test_labels: Array | np.ndarray,
) -> None:
    """Raise ValueError for what `evaluate` would raise it for later, when others wait."""
    _checked_labels(train_labels, train_features, None)
    _checked_labels(test_labels, test_features, None)
    if distributed.process_count() > 1:
        for name, rows in (("the bank", train_features), ("queries", test_features)):
            for part in _parts(len(rows), BANK_BLOCK // (4 * rows.shape[1])):
                _unit_rows(rows, part, name)


def predict(
    train_features: Array | np.ndarray,
    train_labels: Array | np.ndarray,
    test_features: Array | np.ndarray,
    *,
    k: int,
    temperature: float,
    num_classes: int | None = None,
    weight: str = "exp",
) -> np.ndarray:
    """Classes of each query, those with more votes first; of equal ones the smaller number.

    Args:
        train_features: [n, f], the bank; it may be a memory map.
        train_labels: [n] int in [0, num_classes).
        test_features: [m, f]; it may be a memory map.
        k: neighbours; all n if there are fewer.
        temperature: T, > 0; "linear" does without.
        num_classes: c, up to `MAX_CLASSES`; by default the largest label and one.
        weight: of a vote, as in `votes`.

    Returns:
        [m, c] int32; the first column is the prediction.

    Raises:
        ValueError: as `evaluate` does.

    References:
        Wu et al., Unsupervised Feature Learning via Non-Parametric Instance Discrimination, 2018,
        3.4.
    """
    if num_classes is None:
        num_classes = int(np.max(train_labels, initial=0)) + 1
    return _ranking(
        *(train_features, train_labels, test_features),
        **{"k": k, "temperature": temperature, "weight": weight},
        num_classes=num_classes,
        top=num_classes,
    )


@partial(jax.jit, static_argnames=("num_classes", "weight"))
def votes(
    similarity: Array | np.ndarray,
    labels: Array | np.ndarray,
    *,
    num_classes: int,
    temperature: float,
    weight: str = "exp",
) -> Array:
    r"""Summed weights of each query's neighbours, by class.

    .. math:: v_c = \sum_{j: y_j = c} e^{s_j / T} \quad \mathrm{or} \quad
        \sum_{j: y_j = c} (1 + s_j) / 2

    Votes of too small a temperature for float32 are given a common factor.

    Args:
        similarity: [m, k] float32 in [-1, 1], nearest first.
        labels: [m, k] int in [0, c).
        num_classes: c.
        temperature: T, > 0.
        weight: "exp" or "linear".

    Returns:
        [m, c] float32. Equal weights in equal number give equal votes, to the bit: they are added
        in order, nearest first, on any device.
    """
    if weight == "linear":
        weights = 0.5 * (jnp.asarray(similarity) + 1)
    else:
        exponent = jnp.asarray(similarity) / temperature
        nearest = exponent[:, :1]
        weights = jnp.exp(exponent - (nearest - jnp.clip(nearest, -LARGEST, LARGEST)))
    row = jnp.arange(len(weights), dtype=jnp.int32)

    def add(total: Array, one: tuple[Array, Array]) -> tuple[Array, None]:
        label, amount = one
        return total.at[row, label].add(amount, unique_indices=True), None

    none = jnp.zeros((len(weights), num_classes), weights.dtype)
    return lax.scan(add, none, (jnp.asarray(labels, jnp.int32).T, weights.T))[0]


def neighbours(
    bank: Array | np.ndarray, queries: Array | np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine similarities and places of the k rows of ``bank`` nearest to each query.

    Both sides are taken in blocks. Above them, memory is some four times `BANK_BLOCK`, the result,
    and `QUERY_BLOCK` rows of similarities for each of `THREADS`, whatever the lengths.

    Args:
        bank: [n, f], any length, of any type of numbers.
        queries: [m, f], any length, of any type of numbers.
        k: neighbours; n if there are fewer.

    Returns:
        [m, k] float32 and int32, nearest first; of equal ones the first in the bank. A zero row
        has similarity 0 to all.

    Raises:
        ValueError: if there are no rows, their widths differ, or one is not finite in float32.
    """
    if bank.ndim != 2 or queries.ndim != 2 or bank.shape[1] != queries.shape[1]:
        raise ValueError(
            "features must be [n, f] and [m, f] of the same f, got "
            f"{list(bank.shape)} and {list(queries.shape)}"
        )
    if 0 in (*bank.shape, *queries.shape):
        raise ValueError(
            f"no features: {list(bank.shape)} in the bank, {list(queries.shape)} asked"
        )
    found = [
        _search(bank, _unit_rows(queries, part, "queries"), min(k, len(bank)))
        for part in _parts(len(queries), BANK_BLOCK // (4 * queries.shape[1]))
    ]
    similarity, place = (np.concatenate(x) for x in zip(*found, strict=True))
    return similarity, place


def _neighbours_of_all(
    bank: Array | np.ndarray, labels: np.ndarray, queries: Array | np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Similarities and labels of the nearest rows in the banks of all processes."""
    if distributed.process_count() == 1:
        similarity, place = neighbours(bank, queries, k)
        return similarity, labels[place]
    count, asked = distributed.gather_processes(np.int32([len(bank), len(queries)])).T
    k = min(k, int(count.sum()))
    found = []
    for part in _parts(int(asked.max()), BANK_BLOCK // (4 * bank.shape[1] * len(count))):
        own = np.zeros((part.stop - part.start, bank.shape[1]), np.float32)
        mine = np.asarray(queries[part], np.float32)
        own[: len(mine)] = mine
        # Everyone looks for everyone's neighbours in its own bank.
        every = distributed.gather_processes(own).reshape(-1, bank.shape[1])
        similarity, place = neighbours(bank, every, k)
        short = ((0, 0), (0, k - place.shape[1]))
        nearest = np.pad(similarity, short, constant_values=-np.inf), np.pad(labels[place], short)
        first = distributed.process_index() * len(own)
        similarity, label = (
            np.moveaxis(distributed.gather_processes(x)[:, first : first + len(mine)], 0, 1)
            for x in nearest
        )
        similarity, label = (x.reshape(len(mine), -1) for x in (similarity, label))
        order = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        found.append([np.take_along_axis(x, order, axis=1) for x in (similarity, label)])
    similarity, label = (np.concatenate(x) for x in zip(*found, strict=True))
    return similarity, label


def _search(bank: Array | np.ndarray, queries: Array, k: int) -> tuple[np.ndarray, np.ndarray]:
    """`neighbours` of a block of unit queries."""
    m, f = queries.shape
    # On a CPU one core finds the largest of a block, and all take part in its products.
    threads = min(THREADS, -(-m // QUERY_BLOCK))
    devices = (jax.local_devices() * threads)[:threads]
    queries = jnp.pad(queries, ((0, -m % (threads * QUERY_BLOCK)), (0, 0)))
    shares = list(map(jax.device_put, queries.reshape(threads, -1, QUERY_BLOCK, f), devices))
    del queries
    shape = (*shares[0].shape[:2], k)
    none = jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32)
    best = [jax.device_put(none, device) for device in devices]
    with ThreadPoolExecutor(threads) as pool:
        for part in _parts(len(bank), BANK_BLOCK // (4 * f)):
            rows = _unit_rows(bank, part, "the bank")
            copies = {device: jax.device_put(rows, device) for device in set(devices)}
            rows = [copies[device] for device in devices]
            best = list(pool.map(_nearer_now, best, shares, rows, [part.start] * threads))
            del rows, copies
    similarity, place = (np.concatenate(x).reshape(-1, k)[:m] for x in zip(*best, strict=True))
    return similarity, place


def _nearer_now(best: tuple[Array, Array], queries: Array, bank: Array, first: int) -> tuple:
    """`_nearer`, waited for: parts of the bank would pile up in memory."""
    return jax.block_until_ready(_nearer(*best, queries, bank, first))


def _parts(length: int, size: int) -> list[slice]:
    """As few nearly equal parts as are not much longer than ``size``."""
    size = -(-length // max(1, round(length / max(1, size))))
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


def _unit_rows(features: Array | np.ndarray, part: slice, name: str) -> Array:
    """A part of the features, divided by max(norm, 1e-12), on the device.

    NumPy divides as `torch.nn.functional.normalize` does; XLA would multiply by 1 / norm, and rows
    of the same direction would no longer be equal.
    """
    rows = np.asarray(features[part]).astype(np.float32, copy=False)
    largest = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))
    if not np.isfinite(largest).all():
        row = part.start + int(np.argmin(np.isfinite(largest)))
        raise ValueError(f"features must be finite, row {row} of {name} is not")
    # A power of two rounds nothing, and keeps squares from overflowing.
    scale = np.ldexp(np.float32(1), -np.clip(np.frexp(largest)[1], -120, 126))
    # At a multiple of 64 bytes, a CPU device takes the array as it is, without a copy.
    space = np.empty(rows.size + 15, np.float32)
    begin = -space.ctypes.data % 64 // 4
    rows = np.multiply(
        rows, scale[:, None], out=space[begin : begin + rows.size].reshape(rows.shape)
    )
    norm = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.maximum(norm, np.float32(1e-12) * scale)[:, None]
    return jax.device_put(rows, may_alias=True)


@jax.jit
def _nearer(similarity: Array, place: Array, queries: Array, bank: Array, first: int) -> tuple:
    """The best so far, or better ones from a part of the bank that begins at ``first``."""
    k = similarity.shape[-1]

    def of_block(block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        query, old, old_place = block
        found = jnp.matmul(query, bank.T, precision=lax.Precision.HIGHEST)
        found, where = lax.top_k(found, min(k, len(bank)))
        found = jnp.concatenate([old, found], axis=1)
        where = jnp.concatenate([old_place, where.astype(jnp.int32) + first], axis=1)
        found, chosen = lax.top_k(found, k)
        return found, jnp.take_along_axis(where, chosen, axis=1)

    return lax.map(of_block, (queries, similarity, place))


def _ranking(
    train_features: Array | np.ndarray,
    train_labels: Array | np.ndarray,
    test_features: Array | np.ndarray,
    *,
    k: int,
    temperature: float,
    weight: str,
    num_classes: int,
    top: int,
) -> np.ndarray:
    """The first ``top`` columns of `predict`, or all."""
    if k < 1 or not 0 < temperature < np.inf:
        raise ValueError(f"k must be >= 1 and temperature > 0, got {k} and {temperature}")
    if weight not in WEIGHTS:
        raise ValueError(f"weight must be one of {', '.join(WEIGHTS)}, got {weight!r}")
    if not 1 <= num_classes <= MAX_CLASSES:
        raise ValueError(
            f"labels must be class numbers below {MAX_CLASSES}, these have {num_classes} classes"
        )
    labels = _checked_labels(train_labels, train_features, num_classes)
    similarity, labels = _neighbours_of_all(train_features, labels, test_features, k)
    hyper = {"num_classes": num_classes, "temperature": temperature, "weight": weight}
    ranked = [
        lax.top_k(votes(similarity[part], labels[part], **hyper), min(top, num_classes))[1]
        for part in _parts(len(labels), max(QUERY_BLOCK, min(1000, 2**22 // num_classes)))
    ]
    return np.concatenate(ranked)


def _checked_labels(
    labels: Array | np.ndarray, features: Array | np.ndarray, num_classes: int | None
) -> np.ndarray:
    """Labels of the features, class numbers from 0."""
    labels = np.asarray(labels)
    if labels.shape != features.shape[:1]:
        raise ValueError(
            "features and labels must have the same length, got "
            f"{list(features.shape)} and {list(labels.shape)}"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if labels.min(initial=0) < 0:
        raise ValueError(f"labels must be class numbers from 0, got {labels.min()}")
    if num_classes is not None and labels.max(initial=0) >= num_classes:
        raise ValueError(f"labels must be below {num_classes} classes, got {labels.max()}")
    return labels.astype(np.int32)


def run(context: EvalContext, *, seed: int, preset: str = "cifar_simclr") -> list[Result]:
    """`evaluate` with a preset's settings."""
    del seed
    hyper = PRESETS[preset]
    scores = evaluate(*context.features, **hyper)
    return [
        Result(metric, value, None, {"preset": preset, **hyper}) for metric, value in scores.items()
    ]


protocol = Protocol(run, PRESETS, shared_presets=tuple(PRESETS))
