"""k-nearest-neighbour classification: weighted vote of the nearest training examples."""

import logging
from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from numpy.typing import ArrayLike

from jaxssl.evaluation import protocol as base
from jaxssl.evaluation.nearest_neighbours import QUERY_BLOCK, neighbours, slices
from jaxssl.losses.objective import check

log = logging.getLogger("jaxssl")

# These are settings of public implementations. Each preset gives the predictions of its
# implementation.
PRESETS: base.Presets = {
    # Sources: zhirongw/lemniscate.pytorch test.py `kNN`, lightly utils/benchmarking/knn.py
    # `knn_predict`.
    "instdisc": {"k": 200, "temperature": 0.1},
    # Sources: leftthomas/SimCLR, chingyaoc/DCL and anshulbshah/MMCL CIFAR100, each main.py `test`.
    "cifar_simclr": {"k": 200, "temperature": 0.5},
    # Sources: facebookresearch/dino and rohan1561/AUC-CL, each eval_knn.py `knn_classifier`. k=20
    # is also in vturrisi/solo-learn utils/knn.py. MoCo-v3's code has no k-NN.
    "moco_v3_10": {"k": 10, "temperature": 0.07},
    "moco_v3_20": {"k": 20, "temperature": 0.07},
    "moco_v3_100": {"k": 100, "temperature": 0.07},
    "moco_v3_200": {"k": 200, "temperature": 0.07},
    # Source: lemniscate.pytorch test.py `NN`, the class of the nearest neighbour.
    "uniform": {"k": 1, "temperature": 1.0, "weight": "equal"},
    # Source: rohan1561/AUC-CL cifar/main.py `test`. Only the weight "exp" has a temperature.
    "auc_cl_cifar": {"k": 200, "temperature": 1.0, "weight": "linear"},
}
DEFAULT = "cifar_simclr"
RANGES = {"k": ">= 1", "temperature": "> 0"}
WEIGHTS = ("exp", "linear", "equal")
MAX_CLASSES = 10**6  # The table of the votes of 100 queries then takes 400 MB.
MAX_EXPONENT = 60.0  # largest exponent of a vote, so that sums of votes stay finite in float32
SMALLEST = 2.0**-126  # smallest temperature, so that exponents stay finite in float32


def evaluate(
    train_features: ArrayLike,
    train_labels: ArrayLike,
    test_features: ArrayLike,
    test_labels: ArrayLike,
    *,
    preset: str = "default",
    **settings: object,
) -> dict[str, float]:
    """Compute the k-NN accuracy of features, with the settings of a preset.

        scores = knn.evaluate(train_features, train_labels, test_features, test_labels, k=20)

    Features are [n, f] and [m, f], labels are class indices [n] and [m].
    `jaxssl.evaluation.protocols` describes the arguments, which four protocols share. "default" is
    the preset "cifar_simclr": k = 200, temperature 0.5. Settings are arguments of `accuracy`.

    Returns:
        "knn_top1" and "knn_top5" in percent, see `accuracy`.
    """
    features = base.check_features(train_features, train_labels, test_features, test_labels)
    return accuracy(features, **base.choose_settings(PRESETS, preset, DEFAULT, settings))


def accuracy(
    features: base.Features, *, k: int, temperature: float, weight: str = "exp"
) -> dict[str, float]:
    """Compute the accuracy of a weighted vote of the k nearest training examples by cosine.

    Classes without votes are ranked last, by class number, as in the public implementations. With
    few neighbours or classes, "knn_top5" therefore says little.

    Args:
        features: features of the bank and of the queries, possibly memory maps. Labels are below
            `MAX_CLASSES`. Classes that the bank lacks get no votes.
        k: number of neighbours. At most n are used.
        temperature: T, > 0, of the weight "exp".
        weight: weight of a vote, see `votes`.

    Returns:
        "knn_top1" and "knn_top5" (100 for five classes or fewer), in percent.

    Raises:
        ValueError: if a setting or a label of the bank is out of range, or features are not finite.
    """
    train, train_labels, test, test_labels = features
    num_classes = max(int(x.max(initial=0)) for x in (train_labels, test_labels)) + 1
    hyper = {"k": k, "temperature": temperature, "weight": weight, "num_classes": num_classes}
    ranked = predict(train, train_labels, test, top=5, **hyper)
    return base.top1_top5(ranked, test_labels, "knn_")


def predict(
    train_features: Array | np.ndarray,
    train_labels: Array | np.ndarray,
    test_features: Array | np.ndarray,
    *,
    k: int,
    temperature: float,
    num_classes: int | None = None,
    weight: str = "exp",
    top: int | None = None,
) -> np.ndarray:
    """Rank the classes of each query by votes. Ties go to the smaller class index.

    Args:
        train_features: [n, f], the bank, possibly a memory map.
        train_labels: [n] int in [0, num_classes).
        test_features: [m, f], possibly a memory map.
        k: number of neighbours; at most n are used.
        temperature: T, > 0; ignored by the weight "linear".
        num_classes: c, at most `MAX_CLASSES`. Default: the largest label plus one.
        weight: weight of a vote, see `votes`.
        top: number of classes to return, the best first. Default: all.

    Returns:
        [m, c] int32, or [m, top]. The first column is the prediction.

    Raises:
        ValueError: if a setting is out of range, shapes do not match, features are not finite, or
            labels are not class numbers.

    References:
        Wu et al., Unsupervised Feature Learning via Non-Parametric Instance Discrimination, 2018,
        3.4.
    """
    labels = base.check_indices("train_labels", train_labels, len(train_features), base.CLASSES)
    if num_classes is None:
        num_classes = int(labels.max(initial=0)) + 1
    check(RANGES, "setting", k=k, temperature=temperature)
    if weight not in WEIGHTS:
        raise ValueError(f"weight must be one of {', '.join(WEIGHTS)}, got {weight!r}")
    if not 1 <= num_classes <= MAX_CLASSES:
        raise ValueError(
            f"num_classes must be between 1 and {MAX_CLASSES}, got {num_classes}; "
            "number classes from 0"
        )
    if labels.max(initial=0) >= num_classes:
        raise ValueError(
            f"labels must be below the number of classes {num_classes}, got {labels.max()}"
        )
    similarity, index = neighbours(train_features, test_features, k)
    labels = labels[index].astype(np.int32)
    hyper = {"num_classes": num_classes, "temperature": temperature, "weight": weight}
    top = min(top or num_classes, num_classes)
    ranked = [
        lax.top_k(votes(similarity[part], labels[part], **hyper), top)[1]
        for part in slices(len(labels), max(QUERY_BLOCK, min(1000, 2**22 // num_classes)))
    ]
    return np.concatenate(ranked)


@partial(jax.jit, static_argnames=("num_classes", "weight"))
def votes(
    similarity: Array | np.ndarray,
    labels: Array | np.ndarray,
    *,
    num_classes: int,
    temperature: float,
    weight: str = "exp",
) -> Array:
    r"""Sum the vote weights of each query's neighbours by class.

    .. math:: v_c = \sum_{j: y_j = c} e^{s_j / T} \quad \mathrm{or} \quad
        \sum_{j: y_j = c} (1 + s_j) / 2

    If the temperature is too small for float32, all votes of a query are scaled by a common factor.

    Args:
        similarity: [m, k] float32 in [-1, 1], nearest first.
        labels: [m, k] int in [0, c).
        num_classes: c.
        temperature: T, > 0.
        weight: "exp", "linear", or "equal", which counts neighbours.

    Returns:
        [m, c] float32. Weights are added nearest first on every device, so that classes with equal
        weights get exactly equal votes.
    """
    if weight == "linear":
        weights = 0.5 * (jnp.asarray(similarity) + 1)
    elif weight == "equal":
        weights = jnp.ones_like(similarity, jnp.float32)
    else:
        similarity, tau = jnp.asarray(similarity), jnp.maximum(temperature, SMALLEST)
        nearest = similarity[:, :1]
        # Similarities are subtracted before the division, which would round their difference.
        exponent = (similarity - nearest) / tau
        largest = jnp.clip(nearest / tau, -MAX_EXPONENT, MAX_EXPONENT)
        weights = jnp.exp(exponent + largest)
    row = jnp.arange(len(weights), dtype=jnp.int32)

    def add(total: Array, one: tuple[Array, Array]) -> tuple[Array, None]:
        label, amount = one
        return total.at[row, label].add(amount, unique_indices=True), None

    none = jnp.zeros((len(weights), num_classes), weights.dtype)
    return lax.scan(add, none, (jnp.asarray(labels, jnp.int32).T, weights.T))[0]


def run(context: base.EvalContext, *, seed: int, preset: str = DEFAULT) -> list[base.Result]:
    """Evaluate k-NN classification with the settings of a preset."""
    settings, features = PRESETS[preset], context.features
    scores = accuracy(features, **settings)
    if settings["k"] >= len(features.train):
        number = len(features.train)
        log.warning("k-NN with k=%d: all %d training examples vote", settings["k"], number)
    k = min(settings["k"], len(features.train))
    return base.make_results(scores, preset=preset, **{**settings, "k": k})


protocol = base.Protocol(run, PRESETS)
