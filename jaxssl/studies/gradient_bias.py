"""Bias of the minibatch gradient relative to the full-data gradient, by batch size.

Gradients are taken with respect to random linear maps of random embeddings, one of each for every
seed, or, with --workdir RUN, with respect to a trained encoder and its projector on images of the
run's training set. The reference is the gradient of the same loss over all N examples at once. A
single run may refute a claim, but does not show that it holds.

Every loss is measured as it is trained, with the settings of `compared_methods.METHODS`. A loss
that weighs the negatives by their number is a different loss at every batch size, and its distance
from the loss of all N examples counts as bias. This concerns NT-Xent, which sums the negatives
together with the positive, and "auc_cl_sum", the sum over the negatives of eq. 8. In the extra row
"simclr_weighted", each negative is weighted by (N - 1) / (B - 1), as if the batch contained all N
examples, so that only the bias of the estimator remains. Nobody trains with this loss. "decl" is
DeCL's first loss. DeCL and SogCLR fill their memory by some epochs at the same parameters. Other
losses with memory, such as nnclr, are measured with the memory that they start from.

--methods also takes any loss without labels by the name of its file, with its default settings. If
the scale of a loss changes with the batch size, as mmcl's does, the scale alone counts as bias. The
cosine in the JSON document ignores it. --config.loss.KEY sets keys that `METHODS` leaves open.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax.typing import Collection
from jax import Array
from jax import numpy as jnp
from matplotlib.axes import Axes
from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.data import kind, source
from jaxssl.errors import UserError
from jaxssl.evaluation import gallery
from jaxssl.losses.objective import Objective
from jaxssl.models import encoder as networks
from jaxssl.pretrained.load import is_run, load_pretrained
from jaxssl.report.images import DASHES, MARKERS
from jaxssl.studies import study, verdicts
from jaxssl.studies.bias_estimate import BiasEstimate, Embed, estimate_gradient_bias
from jaxssl.studies.cells import Cell, cell_config
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.plots import make_axes
from jaxssl.training.config import arguments, factory
from jaxssl.training.output.console import show

# numbers of examples, classes and dimensions of the fixed embeddings
EXAMPLES, CLASSES, DIM = 512, 10, 16
WITHIN, BETWEEN = 0.6, 0.3  # standard deviations of examples in a class, and of views of an example
IMAGES = 256  # number of training images of a run that are used
SMALL = 0.1  # A smaller relative bias counts as no bias.
# at most N / 8 of the N examples, because batches without replacement have no bias at N
BATCHES = (8, 16, 32, 64)
VISITS = (0, 1, 3, 10, 30)
DRAWS, ENCODER_DRAWS = 2048, 512  # random batches for each seed, of linear maps and of an encoder
WITH_MEMORY = ("sogclr", "decl", "decl_mean")
BIAS_AXIS = {"ylabel": "bias, |E g - g*| / |g*|", "yscale": "log"}
DECL = {**METHODS["decl"], "loss.weight": 1.0}  # the first loss
# The config values of each loss that is measured by default. None stands for the loss's defaults.
ARMS: dict[str, Cell | None] = {
    **{name: METHODS.get(name) for name in "simclr dcl auc_cl auc_cl_sum spectral sogclr".split()},
    "decl": DECL,
    "decl_mean": {**DECL, "loss.u": "mean"},
    "simclr_weighted": METHODS["simclr"],
}
# Bias of the gradient for each seed, by loss, batch size, and epochs that the memory has seen.
Estimates = Mapping[str, Mapping[int, Mapping[int, Sequence[BiasEstimate]]]]

FLAGS = ("methods", "batch_sizes", "workdir")
UNUSED_WITH_WORKDIR = ("scale", "dataset", "seeds")
CLAIMS = study.read_claims("gradient_bias")


class Point(NamedTuple):
    """An embedding function with the parameters at which gradients are computed.

    Attributes:
        embed: ``(params, index [b]) -> [V, b, d]``.
        params: its parameters.
        num_examples: number of examples that it embeds.
        description: in words.
        draws: number of random batches of an estimate. Losses with memory use a quarter of them.
        chunk: number of batches computed together.
    """

    embed: Embed
    params: object
    num_examples: int
    description: str
    draws: int
    chunk: int


class Losses(NamedTuple):
    """The measured loss, and the loss of the reference gradient if it is another one."""

    measured: Objective
    reference: Objective | None


def run(setting: study.Setting) -> study.Findings:
    """Measure the gradient bias of every loss at every batch size."""
    by_file = [name for name in components.names("loss") if name not in ARMS]
    of_user = filter(components.is_custom, setting.methods)
    names = study.select_methods(setting.methods, tuple(ARMS), (*by_file, *of_user))
    _check_overrides(setting, names)
    if setting.workdir:
        points = [_encoder(setting.workdir)]
        where = points[0].description
    else:
        points = list(map(_linear_map, range(setting.seeds)))
        where = f"{len(points)} linear maps, each of {points[0].description}"
    count = points[0].num_examples
    sizes = setting.batch_sizes or tuple(b for b in BATCHES if 8 * b <= count)
    if not sizes or not 2 <= min(sizes) <= max(sizes) < count:
        raise UserError(
            f"--batch_sizes must be at least 2 and below {count}, the number of examples, "
            f"got {','.join(map(str, sizes)) or 'none'}"
        )
    # Made before the first is measured, so that a loss that needs labels is refused at once.
    losses = {(name, size): _losses(setting, name, count, size) for name in names for size in sizes}
    level = verdicts.bonferroni_level(len(sizes) * len(points))
    estimates: dict[str, dict[int, dict[int, list[BiasEstimate]]]] = {name: {} for name in names}
    data: dict[str, dict[int, object]] = {name: {} for name in names}
    for (name, size), of_size in losses.items():
        by_visits = _estimate(of_size, points, size, level, has_memory=name in WITH_MEMORY)
        estimates[name][size] = by_visits
        data[name][size] = {v: [e._asdict() for e in seeds] for v, seeds in by_visits.items()}
        show(f"{name}, batch {size}: bias {_format(list(by_visits.values())[-1])}")
    pictures = [_batch_size_picture(estimates, sizes)]
    if set(names) & set(WITH_MEMORY):
        pictures.append(_visits_picture(estimates, sizes[0]))
    tables = _tables(estimates, sizes, where)
    return study.Findings(tables, pictures, _verdicts(estimates), data, where)


def _estimate(
    losses: Losses, points: Sequence[Point], batch_size: int, level: float, *, has_memory: bool
) -> dict[int, list[BiasEstimate]]:
    """Return the bias at every point, after each number of visits of a loss with memory."""
    visits = VISITS if has_memory else VISITS[:1]
    measured = [
        estimate_gradient_bias(
            losses.measured,
            point.embed,
            point.params,
            point.num_examples,
            batch_size,
            target=losses.reference,
            visits=visits,
            draws=point.draws // 4 if has_memory else point.draws,
            # A chunk is a group of the jackknife. With few groups its interval is wide.
            chunk=max(1, point.chunk // 8) if has_memory else point.chunk,
            level=level,
            seed=seed,
        )
        for seed, point in enumerate(points)
    ]
    return {v: [of_point[i] for of_point in measured] for i, v in enumerate(visits)}


def _check_overrides(setting: study.Setting, names: Sequence[str]) -> None:
    """Raise UserError for a config key that does not change the measured losses."""
    if setting.dataset:
        raise UserError("--dataset does not change the losses of this study; leave it out")
    for key, _ in setting.overrides:
        cells = map(ARMS.get, names)
        if not key.startswith("loss.") or any(cell is None or key in cell for cell in cells):
            raise UserError(
                f"--config.{key} does not change the losses of this study; leave it out"
            )


def _losses(setting: study.Setting, name: str, num_examples: int, batch_size: int) -> Losses:
    """Return the loss of this name for batches of one size.

    Raises:
        UserError: if it needs labels.
    """

    def objective(**changes: object) -> Objective:
        """Return the loss of the method, with learned parameters at their initial values."""
        cell = ARMS.get(name)
        if cell is None:
            return factory("loss", name)()
        loss = cell_config(setting, cell).loss
        return factory("loss", loss.name)(**{**arguments(loss), **changes})

    if name == "simclr_weighted":
        weight = (num_examples - 1) / (batch_size - 1)
        temperature = METHODS["simclr"]["loss.temperature"]
        weighted = factory("loss", "tcl")(k1=0.0, k2=weight, temperature=temperature)
        return Losses(weighted, objective())
    measured = objective()
    if measured.needs_labels:
        raise UserError(f"--methods: {name!r} needs labels, which this study lacks; leave it out")
    is_decl = name in ("decl", "decl_mean")
    return Losses(measured, objective(rate="batch", u="mean") if is_decl else None)


def _linear_map(seed: int) -> Point:
    """Draw a Gaussian matrix, and Gaussian embeddings of examples with two noisy views each."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, DIM))
    examples = centres[np.arange(EXAMPLES) % CLASSES] + WITHIN * rng.normal(size=(EXAMPLES, DIM))
    views = np.stack([examples + BETWEEN * rng.normal(size=examples.shape) for _ in range(2)])
    matrix = rng.normal(size=(DIM, DIM)) / np.sqrt(DIM)
    params = jnp.asarray(matrix, jnp.float32), jnp.asarray(views, jnp.float32)
    text = f"{EXAMPLES} fixed embeddings of {DIM} dimensions, {CLASSES} classes"
    return Point(_embed_linearly, params, EXAMPLES, text, DRAWS, chunk=128)


def _embed_linearly(params: tuple[Array, Array], index: Array) -> Array:
    """Multiply views by a matrix. Both are arguments, so that seeds share one compiled program."""
    matrix, views = params
    return jax.lax.stop_gradient(views)[:, index] @ matrix


def _encoder(workdir: Path) -> Point:
    """Return a run's network in evaluation mode, applied to two views of the first images.

    Raises:
        UserError: if it is no run, or a run without two views of images.
    """
    network = load_pretrained(workdir)
    config = ConfigDict(network.metadata.get("config", {}))  # {} for a weights file
    has_pictures = kind.get(network.inputs.kind).pictures
    if not is_run(workdir) or not has_pictures or config.views < 2:
        raise UserError(f"--workdir must be a run with two views of images, got {workdir}")
    images = source.load(config.data, config.data.train_split)
    pairs = gallery.example_views(config, images, IMAGES)[1]["views"]  # [n, V, s, s, c] uint8
    views = jnp.asarray(pairs[:, :2].swapaxes(0, 1))
    count = views.shape[1]
    net, projector = network.variables["net"], network.variables["projector"]
    stats = net["batch_stats"], projector["batch_stats"]
    inputs = network.inputs._replace(crop=0.0)  # Views already have the network's size.

    def embed(params: tuple[Collection, Collection], index: Array) -> Array:
        batch = views[:, index]
        flat = batch.reshape(-1, *batch.shape[2:])
        h = networks.features(network.encoder, params[0], stats[0], inputs.prepare(flat))
        z = networks.project(network.encoder, params[1], stats[1], h)
        return z.reshape(*batch.shape[:2], -1)

    params = jax.tree.map(jnp.asarray, (net["params"], projector["params"]))
    number = sum(leaf.size for leaf in jax.tree.leaves(params))
    text = f"{number:,} parameters of {workdir.resolve().name}, two views of {count} images"
    return Point(embed, params, count, text, ENCODER_DRAWS, chunk=16)


def _tables(estimates: Estimates, sizes: tuple[int, ...], where: str) -> list[study.Table]:
    heading = ("", *(f"batch {size}" for size in sizes))
    bias, noise = [], []
    for name, by_size in estimates.items():
        for visits in by_size[sizes[0]]:
            label = f"{name}, {visits} epochs seen" if name in WITH_MEMORY else name
            of_sizes = [by_size[size][visits] for size in sizes]
            bias.append((label, *map(_format, of_sizes)))
            if visits in (VISITS[0], VISITS[-1]):
                deviations = (verdicts.mean(e.deviation for e in seeds) for seeds in of_sizes)
                noise.append((label, *(f"{deviation:.2f}" for deviation in deviations)))
    bias_note = (
        "Mean of |E g - g*| / |g*| over seeds, with an interval that spans those of all seeds, of "
        f"{where}. The intervals of a row hold together at 95 %."
    )
    noise_note = "sqrt(E |g - E g|²) / |g*|: the deviation of a single minibatch's gradient."
    return [
        study.Table("Bias of the gradient", heading, bias, bias_note),
        study.Table("Deviation of the gradient", heading, noise, noise_note),
    ]


def _pool(estimates: Sequence[BiasEstimate]) -> BiasEstimate:
    """Return the mean bias estimate of the seeds, with an interval that spans all of theirs."""
    middle = BiasEstimate(*map(verdicts.mean, zip(*estimates, strict=True)))
    return middle._replace(low=min(e.low for e in estimates), high=max(e.high for e in estimates))


def _format(estimates: Sequence[BiasEstimate]) -> str:
    estimate = _pool(estimates)
    return f"{estimate.bias:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _batch_size_picture(estimates: Estimates, sizes: tuple[int, ...]) -> study.Picture:
    figure, axes = make_axes(xlabel="batch size", **BIAS_AXIS)
    for i, (name, by_size) in enumerate(estimates.items()):
        # Intervals are drawn side by side, so that none hides another.
        xs = [size * 2 ** (0.05 * (i - len(estimates) / 2)) for size in sizes]
        _plot_bias(axes, i, name, xs, [_pool(list(by_size[size].values())[-1]) for size in sizes])
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    figure.legend(loc="outside right upper", fontsize="small")
    caption = (
        "Bars are intervals; those of a loss hold together at 95 %. An empty marker with an arrow "
        "down: the interval contains 0, and the marker is its upper end. Losses with memory are "
        "shown after their last epoch."
    )
    return study.Picture("batch", figure, "bias against batch size; see the table", caption)


def _visits_picture(estimates: Estimates, size: int) -> study.Picture:
    with_memory = {name: by[size] for name, by in estimates.items() if name in WITH_MEMORY}
    figure, axes = make_axes(xlabel=f"epochs seen before, batch size {size}", **BIAS_AXIS)
    for i, (name, by_visits) in enumerate(with_memory.items()):
        pooled = list(map(_pool, by_visits.values()))
        _plot_bias(axes, i, name, [x + 0.15 * i for x in by_visits], pooled)
    figure.legend(loc="outside right upper", fontsize="small")
    caption = "Averages over steps take the place of averages over a large batch."
    return study.Picture("visits", figure, "bias against epochs; see the table", caption)


def _plot_bias(
    axes: Axes, i: int, name: str, xs: list[float], estimates: list[BiasEstimate]
) -> None:
    """Plot the intervals of the i-th loss at xs, as an upper bound where they contain 0."""
    marker, dashes = MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)]
    errorbar = partial(axes.errorbar, marker=marker, color=f"C{i}", markersize=5)
    axes.plot([], [], linestyle=dashes, label=name, marker=marker, color=f"C{i}", markersize=5)
    x = np.array(xs)
    bias, low, high = np.array([(e.bias, e.low, e.high) for e in estimates]).T
    biased = low > 0
    if biased.any():
        bars = [(bias - low)[biased], (high - bias)[biased]]
        errorbar(x[biased], bias[biased], bars, linestyle=dashes, capsize=3)
    if not biased.all():
        x, high = x[~biased], high[~biased]
        errorbar(x, high, 0.3 * high, uplims=True, linestyle="none", markerfacecolor="white")


def _verdicts(estimates: Estimates) -> dict[str, study.Verdict]:
    judged = {}
    for name in ("auc_cl", "auc_cl_sum"):
        if name in estimates:
            by_size = {f"B={size}": _judge_unbiased(by[0]) for size, by in estimates[name].items()}
            judged[f"{name}_unbiased"] = verdicts.combine_verdicts(by_size)
    values = {size: _biases(by[0]) for size, by in sorted(estimates.get("simclr", {}).items())}
    if len(values) > 1:
        falls = {f"B={a} less B={b}": (values[a], values[b]) for a, b in pairwise(values)}
        judged["simclr_biased"] = verdicts.judge_all(CLAIMS["simclr_biased"], falls, digits=3)
    if slopes := _slopes(values):
        root = verdicts.judge(CLAIMS["simclr_root"], slopes, [-0.5] * len(slopes))
        root = root.after(f"exponent {verdicts.spread(slopes)}, less -0.5")
        judged["simclr_root"] = root._replace(failure=study.REFUTED)
    for name in ("decl", "sogclr"):
        if name in estimates:
            size = min(estimates[name])
            first, *_, last = map(_biases, estimates[name][size].values())
            start, end = verdicts.mean(first), verdicts.mean(last)
            text = f"B={size}: {start:.3f} at first, {end:.3f} after {VISITS[-1]} epochs"
            claim = CLAIMS[f"{name}_shrinks"]
            judged[f"{name}_shrinks"] = verdicts.judge(claim, first, last, digits=3).after(text)
    return judged


def _biases(estimates: Sequence[BiasEstimate]) -> list[float]:
    return [estimate.bias for estimate in estimates]


def _judge_unbiased(estimates: Sequence[BiasEstimate]) -> study.Verdict:
    """Judge whether gradients are unbiased: all intervals contain 0 and end below `SMALL`."""
    text = _format(estimates)
    if any(estimate.low > 0 for estimate in estimates):
        return study.Verdict(text, False)
    is_small = len(estimates) > 1 and all(estimate.high < SMALL for estimate in estimates)
    return study.Verdict(text, True if is_small else None)


def _slopes(biases: Mapping[int, Sequence[float]]) -> list[float]:
    """Fit the slope of log bias against log batch size for each seed.

    Args:
        biases: the bias of each seed, by batch size.

    Returns:
        The slopes, [] with fewer than three batch sizes or with a bias of 0.
    """
    rows = np.array(list(biases.values()))
    if len(rows) < 3 or not rows.all():
        return []
    return np.polyfit(np.log(list(biases)), np.log(rows), 1)[0].tolist()
