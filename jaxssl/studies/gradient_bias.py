"""Bias of the minibatch gradient relative to the full-data gradient, by batch size.

Gradients are taken with respect to a linear map of fixed embeddings or, with --workdir RUN, with
respect to a trained encoder and its projector on images of the run's training set. The reference is
the gradient of the same loss over all N examples at once.

Every loss is measured as it is trained, with the settings of `compared_methods.METHODS`. A loss
that weighs the negatives by their number is a different loss at every batch size, and its distance
from the loss of all N examples counts as bias. This concerns NT-Xent, which sums the negatives
together with the positive, and "auc_cl_sum", the sum over the negatives of eq. 8. In the extra row
"simclr_weighted", which nobody trains, each negative weighs (N - 1) / (B - 1), as if the batch had
N examples. This leaves the bias of the estimate alone. "decl" is DeCL's first loss. DeCL and SogCLR
fill their memory by some epochs at the same parameters.

--methods takes any loss by the name of its file. A loss whose scale changes with the batch size,
such as mmcl, is biased by the scale alone, unlike the cosine in the JSON document.
"""

from collections.abc import Mapping
from itertools import pairwise
from math import hypot
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from matplotlib.axes import Axes
from scipy.stats import norm

from jaxssl.augment.views import preprocess
from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluation import gallery
from jaxssl.losses.objective import Objective
from jaxssl.models import encoder as networks
from jaxssl.pretrained.load import load_pretrained
from jaxssl.report.images import DASHES, MARKERS
from jaxssl.studies.bias_estimate import BiasEstimate, Embed, estimate_gradient_bias
from jaxssl.studies.cells import cell_config
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.plots import make_axes
from jaxssl.studies.study import Findings, Picture, Setting, Table, Verdict, read_claims
from jaxssl.studies.verdicts import bonferroni_level, combine_verdicts, decide
from jaxssl.training.config import arguments, factory, read_config
from jaxssl.training.output.console import show

# numbers of examples, classes and dimensions of the fixed embeddings
EXAMPLES, CLASSES, DIM = 512, 10, 16
WITHIN, BETWEEN = 0.6, 0.3  # standard deviations of examples in a class, and of views of an example
IMAGES = 256  # number of training images of a run that are used
SMALL = 0.1  # A smaller bias counts as none.
# at most N / 8, because the bias of batches without replacement vanishes at N
BATCHES = (8, 16, 32, 64)
VISITS = (0, 1, 3, 10, 30)
DRAWS, ENCODER_DRAWS = 4096, 512  # half as many for losses with state between steps
WITH_MEMORY = ("sogclr", "decl", "decl_mean")

ARMS = (
    *("simclr", "dcl", "auc_cl", "auc_cl_sum", "spectral"),
    *("sogclr", "decl", "decl_mean", "simclr_weighted"),
)
# bias by loss, batch size and number of visits
Estimates = Mapping[str, Mapping[int, Mapping[int, BiasEstimate]]]

FLAGS = ("methods", "batch_sizes", "workdir")
CLAIMS = read_claims("gradient_bias")


class Point(NamedTuple):
    """An embedding function with the parameters at which gradients are computed."""

    embed: Embed
    params: Any
    num_examples: int
    description: str


def run(setting: Setting) -> Findings:
    """Measure the gradient bias of every loss at every batch size."""
    point = _encoder(setting.workdir) if setting.workdir else _linear_map()
    names = setting.methods or ARMS
    sizes = setting.batch_sizes or tuple(b for b in BATCHES if 8 * b <= point.num_examples)
    if not sizes or not 2 <= min(sizes) <= max(sizes) <= point.num_examples:
        raise UserError(
            f"--batch_sizes must be between 2 and {point.num_examples}, the number of examples, "
            f"got {','.join(map(str, sizes)) or 'none'}"
        )
    losses = {
        (name, size): _losses(setting, name, point.num_examples, size)
        for name in names
        for size in sizes
    }
    draws, chunk = (ENCODER_DRAWS, 16) if setting.workdir else (DRAWS, 128)
    estimates: dict[str, dict[int, dict[int, BiasEstimate]]] = {name: {} for name in names}
    for (name, size), (objective, target) in losses.items():
        visits = VISITS if name in WITH_MEMORY else VISITS[:1]
        measured = estimate_gradient_bias(
            objective,
            *point[:3],
            size,
            target=target,
            visits=visits,
            draws=draws // 2 if name in WITH_MEMORY else draws,
            chunk=chunk,
            level=bonferroni_level(len(sizes)),
        )
        estimates[name][size] = dict(zip(visits, measured, strict=True))
        show(f"{name}, batch {size}: bias {_format(measured[-1])}")
    data = {
        name: {
            size: {v: e._asdict() for v, e in by_visits.items()} for size, by_visits in by.items()
        }
        for name, by in estimates.items()
    }
    return Findings(
        _tables(estimates, sizes, point),
        _pictures(estimates, sizes),
        _verdicts(estimates),
        data,
        point.description,
    )


def _losses(
    setting: Setting, name: str, num_examples: int, batch_size: int
) -> tuple[Objective, Objective | None]:
    """Return the loss of a name, and the loss of the reference gradient if it is another."""

    def objective(method: str, **changes: object) -> Objective:
        """Return the loss of a method, with learned parameters at their initial values."""
        loss = cell_config(setting, METHODS[method]).loss
        return factory("loss", loss.name)(**{**arguments(loss), **changes})

    if name == "simclr_weighted":
        weight = (num_examples - 1) / (batch_size - 1)
        temperature = METHODS["simclr"]["loss.temperature"]
        weighted = factory("loss", "tcl")(k1=0.0, k2=weight, temperature=temperature)
        return weighted, objective("simclr")
    if name in ("decl", "decl_mean"):
        mean = {"u": "mean"} if name == "decl_mean" else {}
        exact = objective("decl", weight=1.0, rate="batch", u="mean")
        return objective("decl", weight=1.0, **mean), exact
    is_trained = name in ARMS and name in METHODS
    # Any other loss has its default settings.
    return objective(name) if is_trained else factory("loss", name)(), None


def _linear_map() -> Point:
    """Return an identity map on Gaussian embeddings, with two noisy views of each example."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, DIM))
    examples = centres[np.arange(EXAMPLES) % CLASSES] + WITHIN * rng.normal(size=(EXAMPLES, DIM))
    views = np.stack([examples + BETWEEN * rng.normal(size=examples.shape) for _ in range(2)])
    z = jnp.asarray(views, jnp.float32)
    text = f"a linear map of {EXAMPLES} fixed embeddings of {DIM} dimensions, {CLASSES} classes"
    return Point(lambda weights, index: z[:, index] @ weights, jnp.eye(DIM), EXAMPLES, text)


def _encoder(workdir: Path) -> Point:
    """Return the network of a run in evaluation mode, with two views of its first images."""
    network = load_pretrained(workdir)
    if "projector" not in network.variables or not (workdir / "config.json").exists():
        raise UserError(f"--workdir must be a run with a projector, got {workdir}")
    config = read_config(workdir)
    images = source.load(config.data, config.data.train_split)
    count = min(IMAGES, len(images))
    pairs = gallery.example_views(config, images, count)[1]["views"]  # views [n, V, s, s, c] uint8
    views = jnp.asarray(pairs[:, :2].swapaxes(0, 1))
    net, projector = network.variables["net"], network.variables["projector"]
    stats = net["batch_stats"], projector["batch_stats"]
    inputs = network.inputs._replace(crop=0.0)  # Views already have the network's size.

    def embed(params: Any, index: Array) -> Array:
        batch = views[:, index]
        flat = batch.reshape(-1, *batch.shape[2:])
        h = networks.features(network.encoder, params[0], stats[0], preprocess(flat, inputs))
        z = networks.project(network.encoder, params[1], stats[1], h)
        return z.reshape(*batch.shape[:2], -1)

    params = jax.tree.map(jnp.asarray, (net["params"], projector["params"]))
    number = sum(leaf.size for leaf in jax.tree.leaves(params))
    text = f"{number:,} parameters of {workdir.name}, two views of {count} images"
    return Point(embed, params, count, text)


def _tables(estimates: Estimates, sizes: tuple[int, ...], point: Point) -> list[Table]:
    heading = ("", *(f"batch {size}" for size in sizes))
    bias, noise = [], []
    for name, by_size in estimates.items():
        for visits in next(iter(by_size.values())):
            label = f"{name}, {visits} epochs seen" if name in WITH_MEMORY else name
            line = [by_size[size][visits] for size in sizes]
            bias.append((label, *map(_format, line)))
            if visits in (VISITS[0], VISITS[-1]):
                noise.append((label, *(f"{estimate.deviation:.2f}" for estimate in line)))
    bias_note = (
        "|E g - g*| / |g*| with intervals that hold together at 95 %, of "
        f"{point.description}. simclr_weighted is no loss that is trained."
    )
    noise_note = "sqrt(E |g - E g|²) / |g*|: the deviation of a single minibatch's gradient."
    return [
        Table("Bias of the gradient", heading, bias, bias_note),
        Table("Deviation of the gradient", heading, noise, noise_note),
    ]


def _format(estimate: BiasEstimate) -> str:
    return f"{estimate.bias:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _pictures(estimates: Estimates, sizes: tuple[int, ...]) -> list[Picture]:
    axis = {"ylabel": "bias, |E g - g*| / |g*|", "yscale": "log"}
    figure, axes = make_axes(xlabel="batch size", **axis)
    for i, (name, by_size) in enumerate(estimates.items()):
        # Intervals are drawn side by side, so that none hides another.
        xs = [size * 2 ** (0.05 * (i - len(estimates) / 2)) for size in sizes]
        _plot_bias(axes, i, name, xs, [list(by_size[size].values())[-1] for size in sizes])
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    figure.legend(loc="outside right upper", fontsize="small")
    caption = (
        "Bars are intervals that hold together at 95 %. An empty marker with an arrow down: the "
        "interval contains 0, and the marker is its upper end. Losses with memory are shown after "
        "their last epoch."
    )
    pictures = [Picture("batch", figure, "bias against batch size; see the table", caption)]
    with_memory = {name: by for name, by in estimates.items() if name in WITH_MEMORY}
    if with_memory:
        figure, axes = make_axes(xlabel=f"epochs seen before, batch size {sizes[0]}", **axis)
        for i, (name, by_size) in enumerate(with_memory.items()):
            by_visits = by_size[sizes[0]]
            _plot_bias(axes, i, name, [x + 0.15 * i for x in by_visits], list(by_visits.values()))
        figure.legend(loc="outside right upper", fontsize="small")
        caption = "Averages over steps take the place of averages over a large batch."
        pictures.append(Picture("visits", figure, "bias against epochs; see the table", caption))
    return pictures


def _plot_bias(
    axes: Axes, i: int, name: str, xs: list[float], estimates: list[BiasEstimate]
) -> None:
    style: dict[str, Any] = {
        "marker": MARKERS[i % len(MARKERS)],
        "color": f"C{i}",
        "markersize": 5,
    }
    dashes = DASHES[i % len(DASHES)]
    biased = [(x, e) for x, e in zip(xs, estimates, strict=True) if e.low > 0]
    unbiased = [(x, e) for x, e in zip(xs, estimates, strict=True) if e.low == 0]
    axes.plot([], [], linestyle=dashes, label=name, **style)
    if biased:
        x, middle = zip(*((x, e.bias) for x, e in biased), strict=True)
        bars = np.array([(e.bias - e.low, e.high - e.bias) for _, e in biased]).T
        axes.errorbar(x, middle, bars, linestyle=dashes, capsize=3, **style)
    if unbiased:
        x, high = zip(*((x, e.high) for x, e in unbiased), strict=True)
        arrow: dict[str, Any] = {"uplims": True, "linestyle": "none", "markerfacecolor": "white"}
        axes.errorbar(x, high, 0.3 * np.array(high), **arrow, **style)


def _verdicts(estimates: Estimates) -> dict[str, Verdict]:
    verdicts = {}
    for name in ("auc_cl", "auc_cl_sum"):
        if name in estimates:
            parts = {f"B={size}": _judge_unbiased(by[0]) for size, by in estimates[name].items()}
            verdicts[f"{name}_unbiased"] = combine_verdicts(parts)
    if len(estimates.get("simclr", {})) > 1:
        biases = {size: by[0] for size, by in sorted(estimates["simclr"].items())}
        text = "; ".join(f"B={size}: {_format(bias)}" for size, bias in biases.items())
        falls = [_falls(small, large) for small, large in pairwise(biases.values())]
        holds = False if False in falls else None if None in falls else True
        verdicts["simclr_biased"] = Verdict(text, holds)
        slope = _exponent(biases, float(norm.ppf((1 + bonferroni_level(len(biases))) / 2)))
        if slope:
            middle, half = slope
            holds = decide(middle - half + 0.5, middle + half + 0.5)
            verdicts["simclr_root"] = Verdict(f"B^({middle:.2f} ± {half:.2f})", holds)
    for name in ("decl", "sogclr"):
        if name in estimates:
            size = min(estimates[name])
            first, *_, last = estimates[name][size].values()
            text = f"B={size}: {_format(first)} at first, {_format(last)} after {VISITS[-1]} epochs"
            verdicts[f"{name}_shrinks"] = Verdict(text, _falls(first, last))
    return verdicts


def _falls(first: BiasEstimate, last: BiasEstimate) -> bool | None:
    """Decide whether the first of two independent estimates is above the last."""
    gap = first.bias - last.bias
    low = gap - hypot(first.bias - first.low, last.high - last.bias)
    return decide(low, gap + hypot(first.high - first.bias, last.bias - last.low))


def _judge_unbiased(estimate: BiasEstimate) -> Verdict:
    """Judge whether the gradient is unbiased: the interval contains 0 and ends below `SMALL`."""
    small = True if estimate.high < SMALL else None
    return Verdict(_format(estimate), small if estimate.low == 0 else False)


def _exponent(
    biases: Mapping[int, BiasEstimate], width: float = 1.96
) -> tuple[float, float] | None:
    """Fit the slope of log bias against log batch size by weighted least squares.

    Args:
        biases: by batch size.
        width: half of an interval of a bias, in standard errors.

    Returns:
        The slope and half of its 95 % interval, which grows with the scatter of the points around
        the line. None if fewer than three batch sizes have a bias.
    """
    biased = {size: bias for size, bias in biases.items() if bias.low > 0}
    if len(biased) < 3:
        return None
    x = np.log([float(size) for size in biased])
    y = np.log([bias.bias for bias in biased.values()])
    weight = np.array([2 * width * b.bias / (b.high - b.low) for b in biased.values()])
    (slope, offset), covariance = np.polyfit(x, y, 1, w=weight, cov="unscaled")
    scatter = np.sum((weight * (y - slope * x - offset)) ** 2) / (len(biased) - 2)
    return float(slope), float(1.96 * np.sqrt(max(scatter, 1.0) * covariance[0, 0]))
