"""Noise in the denominator of a two-score loss, direct descent against DeCL.

The study minimises -log(e^s1 / (e^s1 + e^s2)) with Gaussian noise on the denominator in every step
(the paper writes the ratio, the log is ours). Direct descent divides by the noisy denominator. DeCL
draws u from Gamma(1, rate), where the rate is a moving average of the noisy denominators, and
descends u (e^s1 + e^s2) - s1. With the regulariser 0.1 (s1^2 + s2^2) the optimum is
s1 = -s2 = 0.82. The paper prints other end points: (2.97, 0.34) for DeCL and (0.15, 0.04) for
direct descent.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from matplotlib.figure import Figure
from scipy.optimize import root_scalar
from scipy.special import expit

from jaxssl.studies.study import Findings, Picture, Setting, Table, Verdict, read_claims
from jaxssl.studies.verdicts import OPPOSITE, decide, judge, spread

STEPS, RATE = 500, 0.2  # number of steps and learning rate, as in the paper
RUNS, SHOWN = 1000, 10  # runs to measure, and runs to draw. The paper measures ten.
REGULARISER = 0.1
AVERAGE = 0.1  # weight of a new denominator in its moving average, which the paper does not state
WINDOW = 50  # number of steps over which the picture averages
LAST = 100  # number of last steps that are averaged for the end point of a run
JUMP = 10.0  # A step that moves a score further than this has divided by almost zero.
MOST_LOGIT = 8.0  # largest |s2 - s1| in the picture of the loss
# decl_mean replaces the Gamma sample u of DeCL by its mean, 1 / rate.
ARMS = ("direct", "decl", "decl_mean")
UNUSED = ("scale", "dataset", "seeds", "config")
CLAIMS = read_claims("toy_noise")
PRINTED = (2.97, 0.34)


class Problem(NamedTuple):
    """Variance of the noise, and weight of the regulariser (0 for none)."""

    variance: float
    weight: float


PLAIN, REGULARISED = Problem(0.2, 0.0), Problem(0.1, REGULARISER)  # variances as in the paper


class Ends(NamedTuple):
    """End points [runs, 2] and largest steps [runs] of one method's runs."""

    last: np.ndarray
    largest_steps: np.ndarray


def run(setting: Setting) -> Findings:
    """Run direct descent and DeCL from the same starts under the same noise."""
    optimum = _optimum()
    paths: dict[tuple[str, Problem], np.ndarray] = {}  # scores [runs, 1 + steps, 2]
    ends: dict[tuple[str, Problem], Ends] = {}
    data: dict[str, object] = {"optimum": optimum.tolist()}
    for problem in (PLAIN, REGULARISED):
        for name in ARMS:
            path = np.asarray(_descend(name, *problem), np.float64)
            largest_steps = np.abs(np.diff(path, axis=1)).max(axis=(1, 2))
            end = Ends(path[:, -LAST:].mean(axis=1), largest_steps)
            paths[name, problem], ends[name, problem] = path, end
            numbers = {key: value.tolist() for key, value in end._asdict().items()}
            data[f"{name} {problem.variance:g}"] = numbers
    tables, pictures = [_table(ends, optimum)], [_picture(paths, optimum)]
    return Findings(tables, pictures, _verdicts(ends, optimum), data, f"{RUNS} runs")


def _table(ends: Mapping[tuple[str, Problem], Ends], optimum: np.ndarray) -> Table:
    rows = []
    for (name, problem), (last, steps) in ends.items():
        cells = [f"{problem.variance:g}", f"{problem.weight:g}" if problem.weight else "none"]
        cells += [f"{np.sum(steps > JUMP)}", f"{steps.max():.3g}"]
        cells += [*(spread(values.tolist()) for values in last.T), spread(_ratio(last).tolist(), 3)]
        distance = spread(np.linalg.norm(last - optimum, axis=1).tolist())
        rows.append((name, *cells, distance if problem.weight else "–"))
    heading = ("", "variance", "regulariser", "runs that diverge", "largest step", "s1", "s2")
    note = (
        f"Means of the last {LAST} of {STEPS} steps, over {RUNS} runs. Ratio is "
        "e^s1 / (e^s1 + e^s2). Distance is the distance to the optimum "
        f"({optimum[0]:.2f}, {optimum[1]:.2f}). A run diverges if a single step moves a score "
        f"by more than {JUMP:g}."
    )
    return Table("End points", (*heading, "ratio", "distance"), rows, note)


def _ratio(scores: np.ndarray) -> np.ndarray:
    """Return e^s1 / (e^s1 + e^s2) of scores [runs, 2]."""
    return expit(scores[:, 0] - scores[:, 1])


def _verdicts(ends: Mapping[tuple[str, Problem], Ends], optimum: np.ndarray) -> dict[str, Verdict]:
    diverged = {arm: (ends[arm, PLAIN].largest_steps > JUMP).tolist() for arm in ARMS}
    jumps = {arm: sum(runs) for arm, runs in diverged.items()}
    ratios = (
        f"{arm} {spread(_ratio(ends[arm, PLAIN].last).tolist(), 3)}" for arm in ("direct", "decl")
    )
    text = f"{jumps['decl']} of {RUNS} runs diverge; final ratio: {', '.join(ratios)}"
    converges = Verdict(text, not jumps["decl"])
    offsets = {arm: ends[arm, REGULARISED].last - optimum for arm in ARMS}
    distances = {arm: np.linalg.norm(offset, axis=1).tolist() for arm, offset in offsets.items()}
    text = ", ".join(f"{arm} {spread(values)}" for arm, values in distances.items())
    s1, s2 = mean_end = ends["decl", REGULARISED].last.mean(axis=0)
    is_printed = bool(np.abs(mean_end - PRINTED).max() < 0.1)
    nearer = judge(CLAIMS["decl_nearer"], distances["direct"], distances["decl"])
    diverges = judge(CLAIMS["direct_diverges"], diverged["direct"], diverged["decl"], digits=3)
    text_of_jumps = f"{jumps['direct']} of {RUNS} direct runs, {jumps['decl']} of DeCL's"
    return {
        "direct_diverges": diverges.after(text_of_jumps),
        "decl_converges": converges,
        "decl_nearer": nearer.after(f"distances {text}"),
        "less_biased": _judge_bias(offsets),
        "printed_end": Verdict(f"({s1:.2f}, {s2:.2f})", is_printed),
    }


def _judge_bias(offsets: dict[str, np.ndarray]) -> Verdict:
    """Judge whether the mean end point of DeCL is nearer to the optimum than direct descent's."""
    biases = {name: float(np.linalg.norm(runs.mean(axis=0))) for name, runs in offsets.items()}
    errors = {
        name: float(np.sqrt(np.trace(np.cov(runs.T)) / len(runs))) for name, runs in offsets.items()
    }
    text = ", ".join(f"{name} {biases[name]:.3f} ± {errors[name]:.3f}" for name in offsets)
    error = 1.96 * float(np.hypot(errors["direct"], errors["decl"]))
    gap = biases["direct"] - biases["decl"]
    return Verdict(f"off by: {text}", decide(gap - error, gap + error), OPPOSITE)


def _optimum() -> np.ndarray:
    """Return the minimum of the regularised objective: 0.2 s1 = sigmoid(-2 s1), s2 = -s1."""
    bracket = 0.0, 1 / REGULARISER
    s = root_scalar(lambda s: 2 * REGULARISER * s - expit(-2 * s), bracket=bracket).root
    return np.array([s, -s])


@partial(jax.jit, static_argnums=0)
def _descend(name: str, variance: float, weight: float) -> Array:
    """Descend on the noisy two-score loss and return the scores [runs, 1 + steps, 2]."""

    def run(key: Array) -> Array:
        start_key, noise_key = jax.random.split(key)
        start = jax.random.normal(start_key, (2,))

        def step(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
            s, rate = carry
            noise, draw = jax.random.split(key)
            e = jnp.exp(s)
            noisy = jnp.sum(e) + jnp.sqrt(variance) * jax.random.normal(noise)
            rate = (1 - AVERAGE) * rate + AVERAGE * noisy
            sampled = jax.random.exponential(draw) if name == "decl" else 1.0
            # The average of noisy denominators may be negative, so the rate is kept positive.
            pull = e / noisy if name == "direct" else e * sampled / jnp.maximum(rate, 1e-3)
            gradient = pull - jnp.array([1.0, 0.0]) + 2 * weight * s
            s = jnp.clip(s - RATE * gradient, -1e6, 50.0)  # The clip keeps exp finite.
            return (s, rate), s

        keys = jax.random.split(noise_key, STEPS)
        path = lax.scan(step, (start, jnp.sum(jnp.exp(start))), keys)[1]
        return jnp.concatenate([start[None], path])

    return jax.vmap(run)(jax.random.split(jax.random.key(0), RUNS))


def _distance(run: np.ndarray, optimum: np.ndarray) -> np.ndarray:
    """Return the distance of the mean of the last `WINDOW` steps to the optimum, [steps]."""
    sums = np.cumsum(np.concatenate([np.zeros((1, 2)), run]), axis=0)
    last = np.arange(1, len(sums))
    first = np.maximum(last - WINDOW, 0)
    return np.linalg.norm((sums[last] - sums[first]) / (last - first)[:, None] - optimum, axis=1)


def _picture(paths: Mapping[tuple[str, Problem], np.ndarray], optimum: np.ndarray) -> Picture:
    """Plot the loss without regulariser, and the distance to the optimum with it, for some runs."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = {"direct": ("#0b5394", ":"), "decl": ("#b45309", "-"), "decl_mean": ("#222222", "--")}
    for name, (colour, dashes) in styles.items():
        label: str | None = name
        style = {"color": colour, "linestyle": dashes, "alpha": 0.8, "linewidth": 0.9}
        for i in range(SHOWN):
            plain, regularised = paths[name, PLAIN][i], paths[name, REGULARISED][i]
            loss = np.logaddexp(0, np.clip(plain[:, 1] - plain[:, 0], -MOST_LOGIT, MOST_LOGIT))
            left.plot(loss, label=label, **style)
            right.plot(_distance(regularised, optimum), label=label, **style)
            label = None  # The runs of a method share one legend entry.
    left.set(title=f"variance {PLAIN.variance:g}", ylabel="loss without noise")
    title = f"variance {REGULARISED.variance:g}, regularised"
    right.set(title=title, ylabel="distance to the optimum")
    for axes in (left, right):
        axes.set(xlabel="step")
        axes.legend()
    caption = (
        f"{SHOWN} runs each, from the same starts. Left: the difference of the scores is clipped "
        f"to ±{MOST_LOGIT:g}. Right: distance of the mean of the last {WINDOW} steps to the "
        "optimum."
    )
    alt = (
        f"curves of {SHOWN} runs each of direct descent (dotted), DeCL (solid) and DeCL with the "
        "mean of u (dashed); see the table"
    )
    return Picture("runs", figure, alt, caption)
