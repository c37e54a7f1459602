"""Few-shot probes: classifiers fitted to n labelled examples of each class, many draws."""

import math
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from threadpoolctl import threadpool_limits

from jaxssl.evaluation.protocol import EvalContext, Features, Protocol, Result
from jaxssl.evaluation.protocols.linear import fit

# ELEVATER's benchmark; another number of shots differs in nothing else.
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
PRESETS: dict[str, dict[str, Any]] = {
    "default": {"shots": (1, 5), "draws": 20, "C": 10.0, "max_iter": 1000},
    "elevater": {"shots": (5,), **ELEVATER},
    "elevater_20": {"shots": (20,), **ELEVATER},
    "elevater_50": {"shots": (50,), **ELEVATER},
}
DECAYS = np.logspace(-6, 6, 97)  # weight decays that ELEVATER chooses from
COARSE, SPANS = 16, (8, 4, 2, 1)  # places between those it tries first, and around the best then
EPSILON = 1e-5  # of BatchNorm


def evaluate(
    features: Features, *, shots: int, draws: int, C: float, max_iter: int, seed: int
) -> np.ndarray:
    """Test accuracy of each draw of ``shots`` training examples a class.

    Features are set to length 1; the classifier is multinomial logistic regression. Draw r takes
    the same examples whatever the features are, so that features can be compared.

    Args:
        features: of a training and a test set.
        shots: examples of each class.
        draws: how many times examples are drawn.
        C: inverse L2 strength, fixed: with so few labels there is nothing to choose it on.
        max_iter: of L-BFGS.
        seed: of the draws.

    Returns:
        [draws] accuracies in percent.

    Raises:
        ValueError: if a class has fewer than ``shots`` training examples.
    """
    labels = features.train_labels
    train, test = _unit(features.train), _unit(features.test)
    accuracy = []
    # Products of a few rows are done before a second BLAS thread has begun.
    with threadpool_limits(1):
        for draw in range(draws):
            rng = np.random.default_rng((seed, shots, draw))
            chosen = draw_shots(labels, shots, rng).ravel()
            model = fit(train[chosen], labels[chosen], C, max_iter)
            accuracy.append(100 * model.score(test, features.test_labels))
    return np.array(accuracy)


def elevater(
    features: Features,
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
) -> dict[str, np.ndarray]:
    """ELEVATER's linear probe: learning rate and weight decay are chosen on the shots alone.

    BatchNorm without scale and offset over the features' channels, then a linear layer, by SGD with
    L2 on weights and biases. Some shots of each class are held out; every candidate is trained on
    the others for ``search_epochs`` at a constant rate and scored on those held out. For each rate
    7 of the 97 weight decays `DECAYS` are tried, then both neighbours of the best at a distance of
    8, 4, 2 and 1; of equal ones the first counts. The classifier is then trained on all shots, at a
    rate that warms up in a straight line and falls by a cosine. Draw r takes the same examples
    whatever the features are.

    Differs from the released code: there the schedule is configured but not applied; BatchNorm is
    tested with running averages, which ten steps leave near their start (here: with the statistics
    of the rows it was trained on); the best epoch counts, which is in the end the best on the test
    set (here: the last); of two neighbours both are trained with the left one's decay (here: each
    with its own); and every candidate has first weights and an order of its own (here: all of a
    draw share them).

    Args:
        features: of a training and a test set.
        shots: examples of each class, >= 2.
        draws: how many times examples are drawn.
        lr: learning rates to choose from, > 0, smallest first.
        held_out: share of the shots that chooses, rounded up, in (0, 1).
        search_epochs: of a candidate, >= 1.
        epochs: of the final classifier, > warmup_epochs.
        warmup_epochs: >= 0.
        batch_size: >= 2.
        momentum: in [0, 1).
        seed: of draws, order and first weights.

    Returns:
        "accuracy" and "mean_per_class", the mean over the classes of the test set of the accuracy
        on each, both in percent, "lr" and "weight_decay" of each draw, all [draws].

    Raises:
        ValueError: if a class has fewer than ``shots`` training examples, or so few shots cannot be
            divided.

    References:
        Li et al., ELEVATER: A Benchmark and Toolkit for Evaluating Language-Augmented Visual
        Models, 2022; github.com/Computer-Vision-in-the-Wild/Elevater_Toolkit_IC at 00d0af7, its
        search at 6d17a5c.
    """
    number_held = math.ceil(held_out * shots)
    if not 0 < number_held < shots:
        raise ValueError(
            f"{shots} shots cannot be divided into some to fit and {held_out:.0%} to choose on"
        )
    classes, y = np.unique(features.train_labels, return_inverse=True)
    f, c = features.train.shape[1], len(classes)
    test_y = np.searchsorted(classes, features.test_labels)
    of_class = np.array([np.sum(features.test_labels == label) for label in classes])
    test = _on_device(features.test, np.where(np.isin(features.test_labels, classes), test_y, -1))
    found = []
    for draw in range(draws):
        rng = np.random.default_rng((seed, shots, draw))
        chosen = draw_shots(features.train_labels, shots, rng)
        held, kept, every = (
            _on_device(features.train[places], y[places])
            for places in map(np.ravel, (chosen[:, :number_held], chosen[:, number_held:], chosen))
        )
        search_batches = batches(c * (shots - number_held), batch_size, search_epochs, rng)
        final_batches = batches(c * shots, batch_size, epochs, rng)
        steps = len(final_batches)
        rates = warmup_cosine(steps, warmup_epochs * steps // epochs)
        start = rng.uniform(-(f**-0.5), f**-0.5, (f + 1, c)).astype(np.float32)  # as PyTorch begins
        right = partial(num_right, start=start, momentum=momentum)
        constant = np.ones(len(search_batches), np.float32)
        score = partial(right, kept, held, search_batches, constant)
        best = search(lambda *candidates, score=score: score(*candidates).sum(axis=1), lr)
        hyper = np.array(best, np.float32)[:, None]
        [number] = np.asarray(right(every, test, final_batches, rates, *hyper))
        per_class = np.sum(number / np.maximum(of_class, 1)) / len(np.unique(features.test_labels))
        found.append((100 * number.sum() / len(test_y), 100 * per_class, *best))
    names = ("accuracy", "mean_per_class", "lr", "weight_decay")
    return dict(zip(names, np.array(found).T, strict=True))


def search(score: Any, lr: tuple[float, ...]) -> tuple[float, float]:
    """ELEVATER's choice of a learning rate and a weight decay.

    Args:
        score: ``(rates [k], decays [k]) -> [k]`` of candidates, higher is better, >= 0.
        lr: the k rates to choose from.

    Returns:
        The best rate and decay; of equally good ones the first rate, and of its decays the one that
        was tried first.
    """
    place, best = np.zeros(len(lr), int), np.full(len(lr), -1.0)

    def attempt(places: np.ndarray) -> None:
        nonlocal place, best
        found = np.asarray(
            score(np.array(lr, np.float32), DECAYS[places].astype(np.float32)), np.float64
        )
        place, best = np.where(found > best, places, place), np.maximum(found, best)

    for first in range(0, len(DECAYS), COARSE):
        attempt(np.full(len(lr), first))
    for span in SPANS:
        centre = place
        attempt(np.maximum(centre - span, 0))
        attempt(np.minimum(centre + span, len(DECAYS) - 1))
    chosen = int(best.argmax())
    return float(lr[chosen]), float(DECAYS[place[chosen]])


@jax.jit
def num_right(
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    batches: np.ndarray,
    rates: np.ndarray,
    lr: np.ndarray,
    decay: np.ndarray,
    *,
    start: np.ndarray,
    momentum: float,
) -> Array:
    r"""Right answers by class of BatchNorm and a linear layer trained with each of k settings.

    .. math:: v \leftarrow m v + g + \lambda W, \quad W \leftarrow W - \eta_t v

    Args:
        train: [n, f] float32 and labels [n] int32 in [0, c).
        test: the same, of m examples; label -1 is never right.
        batches: [steps, b] int32 places in ``train``, -1 for none.
        rates: [steps] float32, as a share of ``lr``.
        lr: [k] float32.
        decay: [k] float32, lambda.
        start: [f + 1, c] float32 first weights; the last row is the bias.
        momentum: m.

    Returns:
        [k, c] int32, how many examples of each class; 0 for settings that diverge.
    """
    x, y = train
    targets = jax.nn.one_hot(y, start.shape[1])
    dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)

    def trained(lr: Array, decay: Array) -> Array:
        def step(state: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[Any, None]:
            (w, v), (batch, rate) = state, now
            real = (batch >= 0).astype(x.dtype)[:, None]
            z = _normalised(x[batch], *_moments(x[batch], real))
            error = (jax.nn.softmax(dot(z, w)) - targets[batch]) * real / jnp.sum(real)
            v = momentum * v + dot(z.T, error) + decay * w
            return (w - rate * lr * v, v), None

        (w, _), _ = lax.scan(step, (start, jnp.zeros_like(start)), (batches, rates))
        return w

    z = _normalised(test[0], *_moments(x, jnp.ones_like(x[:, :1])))

    def right(w: Array) -> Array:
        logits = dot(z, w)
        hit = (jnp.argmax(logits, axis=1) == test[1]) & jnp.all(jnp.isfinite(logits), axis=1)
        return jnp.zeros(start.shape[1], jnp.int32).at[test[1]].add(hit.astype(jnp.int32))

    # One after the other: the logits of all settings at once would be large.
    return lax.map(right, jax.vmap(trained)(lr, decay))


def batches(n: int, batch_size: int, epochs: int, rng: np.random.Generator) -> np.ndarray:
    """[steps, min(n, batch_size)] int32 places of n examples, in another order each epoch.

    The last batch of an epoch is filled up with -1. It is left out if it has one example only,
    which has no variance.
    """
    size = min(n, batch_size)
    number = max(1, (n + size - 2) // size)
    found = np.full((epochs, number * size), -1, np.int32)
    used = min(n, number * size)
    for row in found:
        row[:used] = rng.permutation(n)[:used]
    return found.reshape(-1, size)


def warmup_cosine(steps: int, warmup_steps: int) -> np.ndarray:
    """[steps] float32 rates, from 0 to 1 in ``warmup_steps`` < ``steps``, then towards 0."""
    step = np.arange(steps)
    fall = np.pi * (step - warmup_steps) / (steps - warmup_steps)
    rise = step / max(warmup_steps, 1)
    return np.where(step < warmup_steps, rise, (1 + np.cos(fall)) / 2).astype(np.float32)


def draw_shots(labels: np.ndarray, shots: int, rng: np.random.Generator) -> np.ndarray:
    """[classes, shots] places of examples of each class in ``labels`` [n], in random order.

    Raises:
        ValueError: if a class has too few.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < shots:
        rare = classes[counts.argmin()]
        raise ValueError(f"class {rare} has {counts.min()} training examples, {shots} are needed")
    return np.stack(
        [rng.choice(np.flatnonzero(labels == c), shots, replace=False) for c in classes]
    )


def run(context: EvalContext, *, seed: int, preset: str = "default") -> list[Result]:
    """A preset's probe for each of its numbers of shots; mean and deviation over the draws."""
    settings = dict(PRESETS[preset])
    rows = []
    for shots in settings.pop("shots"):
        details = {"preset": preset, "shots": shots, **settings}
        if preset == "default":
            figures = {"top1": evaluate(context.features, shots=shots, **settings, seed=seed)}
        else:
            found = elevater(context.features, shots=shots, **settings, seed=seed)
            figures = {"top1": found["accuracy"], "mean_per_class": found["mean_per_class"]}
            details |= {f"chosen_{name}": found[name].tolist() for name in ("lr", "weight_decay")}
        for name, values in figures.items():
            metric = f"fewshot_{shots}shot_{name}"
            rows.append(Result(metric, float(values.mean()), float(values.std()), details))
    return rows


def _on_device(x: np.ndarray, y: np.ndarray) -> tuple[Array, Array]:
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32)


def _moments(x: Array, real: Array) -> tuple[Array, Array]:
    """[1, f] mean and variance of the rows of x [n, f] for which real [n, 1] is 1."""
    count = jnp.sum(real)
    mean = jnp.sum(real * x, axis=0, keepdims=True) / count
    return mean, jnp.sum(real * (x - mean) ** 2, axis=0, keepdims=True) / count


def _normalised(x: Array, mean: Array, variance: Array) -> Array:
    """[n, f + 1] rows after BatchNorm, and a 1 for the bias."""
    z = (x - mean) * lax.rsqrt(variance + EPSILON)
    return jnp.concatenate([z, jnp.ones_like(z[:, :1])], axis=1)


def _unit(features: np.ndarray) -> np.ndarray:
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


protocol = Protocol(run, PRESETS)
