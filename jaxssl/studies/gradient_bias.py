"""Bias of the minibatch gradient against the whole data set's, by batch size.

Gradients with respect to a linear map of fixed embeddings, or, with --workdir RUN, with respect to
a trained encoder and its projector on images of the run's training set. The truth is the gradient
of the same loss over all N examples at once. Every loss is the one that is trained, with the
settings of `grid.METHODS`: a loss that weighs the negatives by how many there are is another
loss at another batch size, and its distance to the loss of all N counts as bias. That concerns
NT-Xent, which has them in one sum with the positive, and "auc_cl_sum", eq. 8's sum over the
negatives. In the extra row "simclr_weighted" each negative weighs (N - 1) / (B - 1), as if there
were N, which leaves the bias of the estimate alone; nobody trains it. "decl" is DeCL's first loss;
DeCL and SogCLR have seen every example some times before, at the same parameters. --methods takes
any loss by the name of its file; one whose scale changes with the batch, such as mmcl, is biased by
that alone, which the cosine in the JSON document leaves out.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import hypot
from typing import Any, NamedTuple

import jax
import matplotlib
import numpy as np
from jax import Array
from jax import numpy as jnp
from matplotlib.figure import Figure
from scipy.stats import norm

from jaxssl.augment.views import preprocess
from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluation import gallery
from jaxssl.losses.objective import Objective
from jaxssl.models import encoder as networks
from jaxssl.pretrained.load import load_pretrained
from jaxssl.report.images import DASHES, MARKERS, STYLE
from jaxssl.studies.bias_estimate import BiasEstimate, Embed, estimate_gradient_bias
from jaxssl.studies.grid import METHODS, cell_config
from jaxssl.studies.study import (
    Claim,
    Findings,
    Picture,
    Setting,
    Table,
    Verdict,
    bonferroni_level,
    combine_verdicts,
    decide,
)
from jaxssl.training.config import arguments, factory, read_config

EXAMPLES, CLASSES, DIM = 512, 10, 16  # of the fixed embeddings
WITHIN, BETWEEN = 0.6, 0.3  # deviations of an example in its class, of a view in its example
IMAGES = 256  # of a run
SMALL = 0.1  # a bias below it is taken for none
BATCHES = (8, 16, 32, 64)  # at most an eighth of N: drawn without replacement, bias ends at N
VISITS = (0, 1, 3, 10, 30)
DRAWS, DRAWS_OF_ENCODER = 4096, 512  # half as many of losses that remember
REMEMBER = ("sogclr", "decl", "decl_mean")

Arm = Callable[[int], tuple[Objective, Objective | None]]  # of the batch size


FLAGS = ("methods", "batch_sizes", "workdir")
CLAIMS = {
    "auc_cl_unbiased": Claim(
        "AUC-CL's minibatch gradient has no bias at any batch size (below 0.1, ours)",
        "AUC-CL, Theorem 3.3",
        "Then the stochastic gradients in our algorithm are unbiased.",
    ),
    "auc_cl_sum_unbiased": Claim(
        "The same of eq. 8 as it is printed, a sum over the negatives (below 0.1, ours)",
        "AUC-CL, Theorem 3.3",
        "Then the stochastic gradients in our algorithm are unbiased.",
    ),
    "simclr_biased": Claim(
        "SimCLR's minibatch gradient is biased, the more the smaller the batch",
        "DeCL, Section 2.1",
        "Thus, using negative samples from a minibatch can cause gradient bias with minibatch "
        "stochastic optimization, leading to sub-optimal solutions.",
    ),
    "simclr_root": Claim(
        "SimCLR's error falls no faster than 1 / √B: the exponent of its bias in B is at least "
        "-0.5 (the bias at fixed parameters stands for the error, ours)",
        "AUC-CL, Section 1",
        "SimCLR suffers an optimization error at least in the order of O(1/√B) for the objective’s "
        "gradient norm.",
    ),
    "decl_shrinks": Claim(
        "DeCL's bias shrinks as its rates are averaged over steps",
        "DeCL, Section 2.2.3",
        "In both ways, the rate parameters of the Gamma posteriors are expected to converge to the "
        "expectation of the corresponding similarity scores.",
    ),
    "sogclr_shrinks": Claim(
        "SogCLR's bias shrinks as its averages are formed (released weight, 0.9)",
        "AUC-CL, Section 2.2",
        "Although these works provide remedies, the principle working mechanism is based on an "
        "asymptotically diminishing bias.",
    ),
}


class Point(NamedTuple):
    """Where gradients are taken."""

    embed: Embed
    params: Any
    num_examples: int
    words: str


def run(setting: Setting) -> Findings:
    """Measure every loss at every batch size."""
    point = _encoder(setting) if setting.workdir else _linear_map()
    arms = _arms(setting, point.num_examples)
    names = setting.methods or tuple(arms)
    for name in set(names) - set(arms):  # any other loss, with its own defaults
        made = factory("loss", name)()
        arms[name] = lambda size, made=made: (made, None)
    batches = setting.batch_sizes or tuple(b for b in BATCHES if 8 * b <= point.num_examples)
    if not batches or not 2 <= min(batches) <= max(batches) <= point.num_examples:
        raise UserError(
            f"--batch_sizes must be in 2 to {point.num_examples}, the examples there are; got "
            f"{','.join(map(str, batches)) or 'none'}"
        )
    draws, chunk = (DRAWS_OF_ENCODER, 16) if setting.workdir else (DRAWS, 128)
    found: dict[str, dict[int, dict[int, BiasEstimate]]] = {}
    for name in names:
        visits = VISITS if name in REMEMBER else VISITS[:1]
        for size in batches:
            objective, target = arms[name](size)
            measured = estimate_gradient_bias(
                objective,
                *point[:3],
                size,
                target=target,
                visits=visits,
                draws=draws // 2 if name in REMEMBER else draws,
                chunk=chunk,
                level=bonferroni_level(len(batches)),
            )
            found.setdefault(name, {})[size] = dict(zip(visits, measured, strict=True))
            print(f"{name}, batch {size}: bias {_cell(measured[-1])}", flush=True)
    return Findings(
        _tables(found, batches, point),
        _pictures(found, batches),
        _verdicts(found),
        _data(found),
        point.words,
    )


def _arms(setting: Setting, num_examples: int) -> dict[str, Arm]:
    def trained(name: str, **changed: Any) -> Objective:
        """The loss of a method; what is learned stays as it begins."""
        loss = cell_config(setting, METHODS[name]).loss
        return factory("loss", loss.name)(**{**arguments(loss), **changed})

    simclr = trained("simclr")
    temperature = METHODS["simclr"]["loss.temperature"]

    def weighted(size: int) -> tuple[Objective, Objective]:
        weight = (num_examples - 1) / (size - 1)
        tcl = factory("loss", "tcl")
        return tcl(k1=0.0, k2=weight, temperature=temperature), simclr

    one = {"weight": 1.0}  # loss 1 alone
    exact = trained("decl", **one, rate="batch", u="mean")
    decl = {"decl": trained("decl", **one), "decl_mean": trained("decl", **one, u="mean")}
    same = {
        "simclr": simclr,
        **{name: trained(name) for name in ("dcl", "auc_cl", "auc_cl_sum")},
        "spectral": factory("loss", "spectral")(),
        "sogclr": trained("sogclr"),
    }
    return {
        **{name: lambda size, made=made: (made, None) for name, made in same.items()},
        **{name: lambda size, made=made: (made, exact) for name, made in decl.items()},
        "simclr_weighted": weighted,
    }


def _linear_map() -> Point:
    """Classes of Gaussian embeddings, two noisy views each, and the identity map of them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, DIM))
    own = centres[np.arange(EXAMPLES) % CLASSES] + WITHIN * rng.normal(size=(EXAMPLES, DIM))
    views = np.stack([own + BETWEEN * rng.normal(size=own.shape) for _ in range(2)])
    z = jnp.asarray(views, jnp.float32)
    words = f"a linear map of {EXAMPLES} fixed embeddings of {DIM} dimensions, {CLASSES} classes"
    return Point(lambda weights, index: z[:, index] @ weights, jnp.eye(DIM), EXAMPLES, words)


def _encoder(setting: Setting) -> Point:
    """A run's network in evaluation mode, on two views of its first training images."""
    found = load_pretrained(setting.workdir)
    if "projector" not in found.variables or not (setting.workdir / "config.json").exists():
        raise UserError(f"--workdir {setting.workdir}: expected a run, whose projector is known")
    config = read_config(setting.workdir)
    images = source.load(config.data, config.data.train_split)
    count = min(IMAGES, len(images))
    made = gallery.example_views(config, images, count)[1]["views"]  # [n, V, s, s, c] uint8
    views = jnp.asarray(made[:, :2].swapaxes(0, 1))
    net, projector = found.variables["net"], found.variables["projector"]
    stats = net["batch_stats"], projector["batch_stats"]
    inputs = found.inputs._replace(crop=0.0)  # views are of the network's size, and whole

    def embed(params: Any, index: Array) -> Array:
        batch = views[:, index]
        flat = batch.reshape(-1, *batch.shape[2:])
        h = networks.features(found.encoder, params[0], stats[0], preprocess(flat, inputs))
        z = networks.project(found.encoder, params[1], stats[1], h)
        return z.reshape(*batch.shape[:2], -1)

    params = jax.tree.map(jnp.asarray, (net["params"], projector["params"]))
    number = sum(leaf.size for leaf in jax.tree.leaves(params))
    words = f"{number:,} parameters of {setting.workdir.name}, two views of {count} images"
    return Point(embed, params, count, words)


def _tables(found: Mapping, batches: tuple[int, ...], point: Point) -> list[Table]:
    heading = ("", *(f"batch {size}" for size in batches))
    bias, noise = [], []
    for name, sizes in found.items():
        for visits in next(iter(sizes.values())):
            label = f"{name}, {visits} epochs seen" if name in REMEMBER else name
            bias.append((label, *(_cell(sizes[size][visits]) for size in batches)))
            if visits in (VISITS[0], VISITS[-1]):
                noise.append((label, *(f"{sizes[s][visits].deviation:.2f}" for s in batches)))
    note = f"""|E g - g*| / |g*| with intervals that hold together at 95 %, of {point.words}.
simclr_weighted is no loss that is trained."""
    what = "sqrt(E |g - E g|²) / |g*|: how far a single minibatch's gradient is from their mean."
    return [
        Table("Bias of the gradient", heading, bias, note.replace("\n", " ")),
        Table("Deviation of the gradient", heading, noise, what),
    ]


def _cell(bias: BiasEstimate) -> str:
    return f"{bias.bias:.3f} [{bias.low:.3f}, {bias.high:.3f}]"


def _pictures(found: Mapping, batches: tuple[int, ...]) -> list[Picture]:
    last = {
        name: {size: list(of.values())[-1] for size, of in sizes.items()}
        for name, sizes in found.items()
    }
    figure, axes = _axes("batch size")
    for i, (name, biases) in enumerate(last.items()):
        # Side by side, so that no bar hides another.
        xs = [size * 2 ** (0.05 * (i - len(last) / 2)) for size in batches]
        _line(axes, i, name, xs, [biases[size] for size in batches])
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(size) for size in batches])
    figure.legend(loc="outside right upper", fontsize="small")
    caption = """Bars are intervals that hold together at 95 %. An arrow down from an empty marker:
the interval reaches 0, there may be no bias, and it is at most so large. Losses that remember are
shown at their last visit."""
    alt = "bias against batch size; the table has it"
    pictures = [Picture("batch", figure, alt, caption.replace("\n", " "))]
    chains = {name: sizes for name, sizes in found.items() if name in REMEMBER}
    if chains:
        size = batches[0]
        figure, axes = _axes(f"epochs seen before, batch size {size}")
        for i, (name, sizes) in enumerate(chains.items()):
            xs = [x + 0.15 * i for x in sizes[size]]
            _line(axes, i, name, xs, list(sizes[size].values()))
        figure.legend(loc="outside right upper", fontsize="small")
        caption = "Averages over steps take the place of averages over a large batch."
        pictures.append(Picture("visits", figure, "bias against epochs; see the table", caption))
    return pictures


def _axes(xlabel: str) -> tuple[Figure, Any]:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.add_subplot(xlabel=xlabel, ylabel="bias, |E g - g*| / |g*|", yscale="log")
    return figure, axes


def _line(axes: Any, i: int, name: str, xs: list[float], biases: list[BiasEstimate]) -> None:
    style = {"marker": MARKERS[i % len(MARKERS)], "color": f"C{i}", "markersize": 5}
    known = [(x, b) for x, b in zip(xs, biases, strict=True) if b.low > 0]
    none = [(x, b) for x, b in zip(xs, biases, strict=True) if b.low == 0]
    axes.plot([], [], linestyle=DASHES[i % len(DASHES)], label=name, **style)
    if known:
        x, middle = zip(*((x, b.bias) for x, b in known), strict=True)
        bars = np.array([(b.bias - b.low, b.high - b.bias) for _, b in known]).T
        line = {"linestyle": DASHES[i % len(DASHES)], "capsize": 3}
        axes.errorbar(x, middle, bars, **line, **style)
    if none:
        x, most = zip(*((x, b.high) for x, b in none), strict=True)
        down = {"uplims": True, "linestyle": "none", "markerfacecolor": "white"}
        axes.errorbar(x, most, 0.3 * np.array(most), **down, **style)


def _verdicts(found: Mapping) -> dict[str, Verdict]:
    verdicts = {}
    for name in ("auc_cl", "auc_cl_sum"):
        if name in found:
            parts = {f"B={size}": _unbiased(of[0]) for size, of in found[name].items()}
            verdicts[f"{name}_unbiased"] = combine_verdicts(parts)
    if "simclr" in found and len(found["simclr"]) > 1:
        biases = {size: of[0] for size, of in sorted(found["simclr"].items())}
        steps = {
            f"B={small}: {_cell(a)}": Verdict(f"B={large}: {_cell(b)}", _falls(a, b))
            for (small, a), (large, b) in pairwise(biases.items())
        }
        words = "; ".join(f"B={size}: {_cell(bias)}" for size, bias in biases.items())
        verdicts["simclr_biased"] = Verdict(words, combine_verdicts(steps).holds)
        slope = _exponent(biases, float(norm.ppf((1 + bonferroni_level(len(biases))) / 2)))
        if slope:
            middle, half = slope
            holds = decide(middle - half + 0.5, middle + half + 0.5)
            verdicts["simclr_root"] = Verdict(f"B^({middle:.2f} ± {half:.2f})", holds)
    for name in ("decl", "sogclr"):
        if name in found:
            size = min(found[name])
            first, *_, last = found[name][size].values()
            words = f"B={size}: {_cell(first)} at first, {_cell(last)} after {VISITS[-1]} epochs"
            verdicts[f"{name}_shrinks"] = Verdict(words, _falls(first, last))
    return verdicts


def _falls(first: BiasEstimate, last: BiasEstimate) -> bool | None:
    """Whether a bias is above another that was estimated apart from it."""
    gap = first.bias - last.bias
    low = gap - hypot(first.bias - first.low, last.high - last.bias)
    return decide(low, gap + hypot(first.high - first.bias, last.bias - last.low))


def _unbiased(bias: BiasEstimate) -> Verdict:
    """No bias: the interval has 0 in it and ends below 0.1."""
    small = True if bias.high < SMALL else None
    return Verdict(_cell(bias), small if bias.low == 0 else False)


def _exponent(
    biases: Mapping[int, BiasEstimate], width: float = 1.96
) -> tuple[float, float] | None:
    """Slope of log bias against log B by weighted least squares, and its 95 % interval's half.

    ``width`` is the standard errors that make half of a bias's interval. Where the points are on no
    line, the slope's interval is as wide as they scatter. None if fewer than three batch sizes have
    a bias.
    """
    known = {size: bias for size, bias in biases.items() if bias.low > 0}
    if len(known) < 3:
        return None
    x = np.log([float(size) for size in known])
    y = np.log([bias.bias for bias in known.values()])
    weight = np.array([2 * width * b.bias / (b.high - b.low) for b in known.values()]) ** 2
    x, y = (v - np.average(v, weights=weight) for v in (x, y))
    total = np.sum(weight * x**2)
    slope = np.sum(weight * x * y) / total
    scatter = np.sum(weight * (y - slope * x) ** 2) / (len(known) - 2)
    return float(slope), float(1.96 * np.sqrt(max(scatter, 1.0) / total))


def _data(found: Mapping) -> dict[str, Any]:
    return {
        name: {size: {v: bias._asdict() for v, bias in of.items()} for size, of in sizes.items()}
        for name, sizes in found.items()
    }
