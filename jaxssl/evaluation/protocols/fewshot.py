"""Few-shot probes: linear classifier on a few labels of each class, over several draws."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from jaxssl.components import Settings
from jaxssl.evaluation import protocol as base
from jaxssl.evaluation.features import l2_normalise
from jaxssl.losses.objective import check
from jaxssl.training.config.schedules import learning_rate

log = logging.getLogger("jaxssl")
# ELEVATER's settings are the same for every number of shots.
ELEVATER = {
    "draws": 3,
    "lr": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    "held_out": 0.2,
    "search_epochs": 10,
    "epochs": 50,
    "warmup_epochs": 5,
    "batch_size": 64,
    "momentum": 0.9,
}
PRESETS: base.Presets = {
    "default": {"shots": (1, 5), "draws": 20, "C": 10.0, "max_iter": 1000},
    "elevater": {"shots": (5,), **ELEVATER},
    "elevater_20": {"shots": (20,), **ELEVATER},
    "elevater_50": {"shots": (50,), **ELEVATER},
}
RANGES = {"shots": ">= 1", "draws": ">= 1", "max_iter": ">= 1"}
# Of ELEVATER. The number of warm-up epochs is also below the number of epochs.
RANGES |= {"lr": "> 0", "momentum": "in [0, 1)", "batch_size": ">= 2"}
RANGES |= {"search_epochs": ">= 1", "warmup_epochs": ">= 0"}
DECAYS = np.logspace(-6, 6, 97)  # weight decays that ELEVATER searches
COARSE, SPANS = 16, (8, 4, 2, 1)  # tries every 16th decay, then neighbours of the best
EPSILON = 1e-5  # epsilon of BatchNorm
LARGE = 2**18  # number of weights from which several BLAS threads are faster than one
Labelled = tuple[Array, Array]  # features [n, f] float32 and labels [n] int32 in [0, c)


def evaluate(
    train_features: ArrayLike,
    train_labels: ArrayLike,
    test_features: ArrayLike,
    test_labels: ArrayLike,
    *,
    preset: str = "default",
    seed: int = 0,
    **settings: object,
) -> dict[str, float]:
    """Compute the few-shot accuracy of features, with the settings of a preset.

        scores = fewshot.evaluate(train_features, train_labels, test_features, test_labels)

    Features are [n, f] and [m, f], labels are class indices [n] and [m].
    `jaxssl.evaluation.protocols` describes the arguments, which four protocols share. The preset
    "default" fits logistic regression to 1 and to 5 examples per class. The others are ELEVATER's
    probes. Settings are arguments of `accuracy` or, for ELEVATER's presets, of `elevater`, and
    ``shots`` may be a tuple. ``seed`` draws the shots.

    Returns:
        The mean "fewshot_1shot_top1" and the standard deviation "fewshot_1shot_top1_std" over the
        draws in percent, and so on for the other numbers of shots and metrics.

    Raises:
        ValueError: if a class has fewer training examples than shots, or an argument is invalid.
    """
    features = base.check_features(train_features, train_labels, test_features, test_labels)
    # The probes take different settings, and each preset lists all settings of its probe.
    presets = {preset: PRESETS[preset]} if preset in PRESETS else PRESETS
    chosen = base.choose_settings(presets, preset, "default", settings)
    results = list(_by_shots(features, chosen, base.check_seed(seed)))
    stddevs = {f"{result.metric}_std": result.std or 0.0 for result in results}
    return {result.metric: result.value for result in results} | stddevs


def accuracy(
    features: base.Features, *, shots: int, draws: int, C: float, max_iter: int, seed: int
) -> np.ndarray:
    """Compute the test accuracy of logistic regression for each draw of training examples.

    Features are L2-normalised. The draws do not depend on the features, so that features can be
    compared.

    Args:
        features: features of a training and a test set.
        shots: examples per class, >= 1.
        draws: number of draws, >= 1.
        C: inverse L2 strength, fixed because the labels are too few to choose it.
        max_iter: maximum number of L-BFGS steps.
        seed: seed of the draws.

    Returns:
        [draws] accuracies in percent.

    Raises:
        ValueError: if a class has fewer than ``shots`` training examples, a setting is out of
            range, or a feature is not finite.
    """
    check(RANGES, "setting", shots=shots, draws=draws, max_iter=max_iter)
    features.require_finite()
    train, labels, test = features.train, features.train_labels, l2_normalise(features.test)
    # scikit-learn's solver suits few examples.
    model, accuracies = LogisticRegression(C=C, max_iter=max_iter), []
    # Small matrix products do not gain from several BLAS threads.
    threads = 1 if train.shape[1] * len(np.unique(labels)) < LARGE else None
    with threadpool_limits(threads), warnings.catch_warnings():
        # With weak regularisation on separable features, max_iter stops the fit on purpose.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for draw in range(draws):
            rng = np.random.default_rng((seed, shots, draw))
            drawn = base.draw_shots(labels, shots, rng).ravel()
            model.fit(l2_normalise(train[drawn]), labels[drawn])
            accuracies.append(100 * model.score(test, features.test_labels))
    return np.array(accuracies)


class Outcomes(NamedTuple):
    """Results of ELEVATER's linear probe, arrays [draws] over random draws of the training images.

    Attributes:
        accuracy: in percent.
        mean_per_class: the mean of the accuracies on each test class, in percent.
        lr: the chosen learning rates.
        weight_decay: the chosen weight decays.
    """

    accuracy: np.ndarray
    mean_per_class: np.ndarray
    lr: np.ndarray
    weight_decay: np.ndarray


def elevater(
    features: base.Features,
    *,
    shots: int,
    draws: int,
    lr: tuple[float, ...],
    held_out: float,
    search_epochs: int,
    epochs: int,
    warmup_epochs: int,
    batch_size: int,
    momentum: float,
    seed: int,
) -> Outcomes:
    """Compute the accuracy of ELEVATER's linear probe, tuned on the few labels alone.

    The classifier is a BatchNorm without scale and offset, then a linear layer. It is trained by
    SGD with L2 on weights and biases. To choose learning rate and weight decay, some shots of each
    class are held out, and every candidate is trained on the others for ``search_epochs`` at a
    constant rate. For each rate, 7 of the 97 weight decays `DECAYS` are tried, then both neighbours
    of the best at distances of 8, 4, 2 and 1. Ties go to the first candidate. The classifier is
    then trained on all shots with linear warm-up and cosine decay. The draws do not depend on the
    features.

    Differs from the released code in six points. That code configures the schedule but does not
    apply it. It tests BatchNorm with running averages, which ten steps leave near their initial
    values, instead of the statistics of the training rows. It reports the best epoch on the test
    set, and this function the last. It also scores a candidate by its best epoch. It trains two
    neighbouring weight decays both with the left one. It draws initial weights and order for every
    candidate, whereas here all candidates of a draw share them.

    Args:
        features: features of a training and a test set.
        shots: examples per class, >= 2.
        draws: number of draws, >= 1.
        lr: learning rates to choose from, > 0, in ascending order.
        held_out: share of the shots to choose on, rounded up, in (0, 1).
        search_epochs: epochs of a candidate, >= 1.
        epochs: epochs of the final classifier, > warmup_epochs.
        warmup_epochs: >= 0.
        batch_size: >= 2.
        momentum: in [0, 1).
        seed: seed of draws, order and initial weights.

    Raises:
        ValueError: as `accuracy`, or if the shots are too few to hold one out.

    References:
        Li et al., ELEVATER: A Benchmark and Toolkit for Evaluating Language-Augmented Visual
        Models, 2022; github.com/Computer-Vision-in-the-Wild/Elevater_Toolkit_IC at 00d0af7, its
        search at 6d17a5c.
    """
    number_held = math.ceil(held_out * shots)
    if not 0 < number_held < shots:
        raise ValueError(f"{shots} shots are too few to hold {held_out:.0%} of them out; take more")
    check(RANGES, "setting", draws=draws, lr=lr, momentum=momentum, batch_size=batch_size)
    check(RANGES, "setting", search_epochs=search_epochs, warmup_epochs=warmup_epochs)
    if warmup_epochs >= epochs:
        raise ValueError(f"warmup_epochs must be < epochs={epochs}, got {warmup_epochs}")
    features.require_finite()
    train, labels, test, test_labels = features
    classes, y = np.unique(labels, return_inverse=True)
    f, c = train.shape[1], len(classes)
    class_sizes = np.array([np.sum(test_labels == label) for label in classes])
    test_y = np.where(np.isin(test_labels, classes), np.searchsorted(classes, test_labels), -1)
    test_set = _on_device(test, test_y)

    def run_draw(draw: int) -> tuple[float, float, float, float]:
        """Tune and test the classifier on one draw, and return the fields of `Outcomes`."""
        rng = np.random.default_rng((seed, shots, draw))
        drawn = base.draw_shots(labels, shots, rng)
        held, fitted = drawn[:, :number_held].ravel(), drawn[:, number_held:].ravel()
        search_batches = batches(len(fitted), batch_size, search_epochs, rng)
        final_batches = batches(drawn.size, batch_size, epochs, rng)
        # Initial weights and biases have the distribution of PyTorch's linear layers.
        start = rng.uniform(-(f**-0.5), f**-0.5, (f + 1, c)).astype(np.float32)
        count = partial(num_correct, start=start, momentum=momentum)

        # ---- The search, at a constant learning rate.
        constant = np.ones(len(search_batches), np.float32)
        examples = _on_device(train[fitted], y[fitted]), _on_device(train[held], y[held])
        score = partial(count, *examples, search_batches, constant)
        best = search(lambda lr, decay: score(lr, decay).sum(axis=1), lr)

        # ---- The final classifier.
        steps = len(final_batches)
        warmup = warmup_epochs * steps // epochs
        rate = learning_rate("cosine", 1.0, warmup_steps=warmup, total_steps=steps)
        rates = np.asarray(jax.vmap(rate)(np.arange(steps, dtype=np.int32)))
        every = _on_device(train[drawn.ravel()], y[drawn.ravel()])
        hyper = np.array(best, np.float32)[:, None]
        [number] = np.asarray(count(every, test_set, final_batches, rates, *hyper))
        per_class = np.sum(number / np.maximum(class_sizes, 1)) / len(np.unique(test_labels))
        return 100 * number.sum() / len(test_y), 100 * per_class, *best

    return Outcomes(*np.array([run_draw(draw) for draw in range(draws)]).T)


def search(score: Callable[..., np.ndarray], lr: tuple[float, ...]) -> tuple[float, float]:
    """Choose a learning rate and a weight decay as ELEVATER does.

    Args:
        score: ``(rates [k], decays [k]) -> [k]``, the scores of candidates, >= 0, higher is better.
        lr: the k learning rates to choose from.

    Returns:
        The best learning rate and decay. Ties go to the first rate and the decay tried first.
    """
    rates = np.array(lr, np.float32)
    best_index, best = np.zeros(len(lr), int), np.full(len(lr), -1.0)

    def attempt(index: np.ndarray) -> None:
        """Score each rate with the decay of its index, and keep the better ones."""
        nonlocal best_index, best
        scores = np.asarray(score(rates, DECAYS[index].astype(np.float32)), np.float64)
        best_index = np.where(scores > best, index, best_index)
        best = np.maximum(scores, best)

    for first in range(0, len(DECAYS), COARSE):
        attempt(np.full(len(lr), first))
    for span in SPANS:
        centre = best_index
        attempt(np.maximum(centre - span, 0))
        attempt(np.minimum(centre + span, len(DECAYS) - 1))
    chosen = int(best.argmax())
    return float(lr[chosen]), float(DECAYS[best_index[chosen]])


@jax.jit
def num_correct(
    train: Labelled,
    test: Labelled,
    batches: Array,
    rates: Array,
    lr: Array,
    decay: Array,
    *,
    start: Array,
    momentum: float,
) -> Array:
    r"""Train BatchNorm and a linear layer with k settings, and count correct predictions by class.

    .. math:: v \leftarrow m v + g + \lambda W, \quad W \leftarrow W - \eta_t v

    Args:
        train: n examples.
        test: m examples. Label -1 is never predicted.
        batches: [steps, b] int32 indices into ``train``, -1 for padding.
        rates: [steps] float32, learning rates relative to ``lr``.
        lr: [k] float32.
        decay: [k] float32, lambda.
        start: [f + 1, c] float32 initial weights. The last row is the bias.
        momentum: m.

    Returns:
        [k, c] int32 counts, 0 for settings that diverge.
    """
    (x, y), (test_x, test_y) = train, test
    targets = jax.nn.one_hot(y, start.shape[1])
    dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)

    def train_one(lr: Array, decay: Array) -> Array:
        def step(
            state: tuple[Array, Array], now: tuple[Array, Array]
        ) -> tuple[tuple[Array, Array], None]:
            (w, v), (batch, rate) = state, now
            is_real = (batch >= 0)[:, None]
            z = _normalise(x[batch], x[batch], is_real)
            share = is_real.astype(x.dtype) / jnp.sum(is_real, dtype=x.dtype)
            error = (jax.nn.softmax(dot(z, w)) - targets[batch]) * share
            v = momentum * v + dot(z.T, error) + decay * w
            return (w - rate * lr * v, v), None

        (w, _), _ = lax.scan(step, (start, jnp.zeros_like(start)), (batches, rates))
        return w

    z = _normalise(test_x, x)

    def count(w: Array) -> Array:
        logits = dot(z, w)
        hit = (jnp.argmax(logits, axis=1) == test_y) & jnp.all(jnp.isfinite(logits), axis=1)
        return jnp.zeros(start.shape[1], jnp.int32).at[test_y].add(hit.astype(jnp.int32))

    # The settings are evaluated one after the other. The logits of all of them would be large.
    return lax.map(count, jax.vmap(train_one)(lr, decay))


def batches(n: int, batch_size: int, epochs: int, rng: np.random.Generator) -> np.ndarray:
    """Shuffle n examples in each epoch and divide them into batches.

    Returns:
        [steps, min(n, batch_size)] int32 indices. The last batch of an epoch is padded with -1. It
        is dropped if it has only one example, which has no variance.
    """
    size = min(n, batch_size)
    number = max(1, (n + size - 2) // size)
    order = np.full((epochs, number * size), -1, np.int32)
    used = min(n, number * size)
    for row in order:
        row[:used] = rng.permutation(n)[:used]
    return order.reshape(-1, size)


def run(context: base.EvalContext, *, seed: int, preset: str = "default") -> list[base.Result]:
    """Evaluate the few-shot probe for each number of shots, as mean and std over the draws.

    Numbers of shots that some class does not have are left out, if a smaller number remains.
    """
    settings = PRESETS[preset]
    fewest = int(np.unique(context.features.train_labels, return_counts=True)[1].min())
    fitting = tuple(shots for shots in settings["shots"] if shots <= fewest)
    if 0 < len(fitting) < len(settings["shots"]):
        log.warning("few-shot: a class has %d training examples; tested are %s", fewest, fitting)
        settings = {**settings, "shots": fitting}
    return list(_by_shots(context.features, settings, seed, preset=preset))


def _by_shots(
    features: base.Features, settings: Settings, seed: int, **details: object
) -> Iterator[base.Result]:
    """Yield the results of each number of shots, with the settings that were chosen."""
    for shots in np.atleast_1d(settings["shots"]).tolist():
        chosen = {**settings, "shots": shots}
        if "C" in settings:
            scores = {"top1": accuracy(features, **chosen, seed=seed)}
        else:
            outcome = elevater(features, **chosen, seed=seed)
            scores = {"top1": outcome.accuracy, "mean_per_class": outcome.mean_per_class}
            chosen["chosen_lr"] = outcome.lr.tolist()
            chosen["chosen_weight_decay"] = outcome.weight_decay.tolist()
        scores = {f"fewshot_{shots}shot_{name}": values for name, values in scores.items()}
        yield from base.make_results(scores, **details, **chosen)


def _on_device(x: np.ndarray, y: np.ndarray) -> Labelled:
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32)


def _normalise(x: Array, batch: Array, is_real: Array | None = None) -> Array:
    """Apply BatchNorm to x [n, f], and append a 1 for the bias.

    The statistics are taken over the rows of ``batch`` [m, f] where ``is_real`` [m, 1] is True.
    """
    mean = jnp.mean(batch, axis=0, keepdims=True, where=is_real)
    variance = jnp.var(batch, axis=0, keepdims=True, where=is_real)
    z = (x - mean) * lax.rsqrt(variance + EPSILON)
    return jnp.concatenate([z, jnp.ones_like(z[:, :1])], axis=1)


protocol = base.Protocol(run, PRESETS)
