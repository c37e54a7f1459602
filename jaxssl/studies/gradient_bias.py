"""Bias of the minibatch gradient against the whole data set's, by batch size.

Gradients with respect to a linear map of fixed embeddings, or, with --workdir RUN, with respect to
a trained encoder and its projector on images of the run's training set. The truth is the gradient
of the loss over all N examples at once. "auc_cl" is the recommended loss, which averages over the
negatives. Two losses weigh the negatives by how many there are, so that another batch size is
another loss, and the distance to the loss of all N counts as bias: "auc_cl_sum", eq. 8's sum over
the negatives, and "simclr". In "simclr_weighted" the negatives weigh (N - 1) / (B - 1), as if there
were N, which leaves the bias of the estimate alone.
DeCL and SogCLR have seen every example some times before, at the same parameters. --methods takes
any loss by the name of its file; one whose scale changes with the batch, such as mmcl, is biased by
that alone, which the cosine in the JSON document leaves out.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import matplotlib
import numpy as np
from jax import Array
from jax import numpy as jnp
from matplotlib.figure import Figure

from jaxssl import encoder as networks
from jaxssl import gallery
from jaxssl.augment.views import preprocess
from jaxssl.bias import Bias, Embed, gradient_bias
from jaxssl.config import component
from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluate import read_config
from jaxssl.features import load_backbone
from jaxssl.losses.auc_cl import PRESETS as AUC_CL
from jaxssl.objective import Objective
from jaxssl.plots import DASHES, MARKERS, STYLE
from jaxssl.study import Claim, Findings, Picture, Setting, Table, Verdict

TEMPERATURE = 0.2
EXAMPLES, CLASSES, DIM = 512, 10, 16  # of the fixed embeddings
WITHIN, BETWEEN = 0.6, 0.3  # deviations of an example in its class, of a view in its example
IMAGES = 256  # of a run
BATCHES = (8, 16, 32, 64)  # at most an eighth of N: drawn without replacement, bias ends at N
VISITS = (0, 1, 3, 10, 30)
DRAWS, DRAWS_OF_ENCODER = 4096, 512  # half as many of losses that remember
REMEMBER = ("sogclr", "decl", "decl_mean")

Arm = Callable[[int], tuple[Objective, Objective | None]]  # of the batch size


FLAGS = ("methods", "batch_sizes", "workdir")
CLAIMS = {
    "auc_cl_unbiased": Claim(
        "AUC-CL's minibatch gradient has no bias at any batch size (intervals with 0, below 0.1)",
        "AUC-CL, Theorem 3.3",
    ),
    "simclr_biased": Claim(
        "SimCLR's minibatch gradient is biased, the more the smaller the batch",
        "AUC-CL, Section 1; DeCL, Section 2.1",
    ),
    "simclr_root": Claim(
        "SimCLR's bias falls no slower than 1 / sqrt(B), the order of SogCLR's bound",
        "AUC-CL, Section 2",
    ),
    "decl_shrinks": Claim(
        "DeCL's bias shrinks as its rates are averaged over steps", "DeCL, Section 2.2.3"
    ),
    "sogclr_shrinks": Claim(
        "SogCLR's bias shrinks as its averages are formed (released weight, 0.9)",
        "AUC-CL, Section 2",
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
    arms = _arms(point.num_examples)
    names = setting.methods or tuple(arms)
    for name in set(names) - set(arms):  # any other loss, with its own defaults
        made = component("loss", name)()
        arms[name] = lambda size, made=made: (made, None)
    batches = setting.batch_sizes or tuple(b for b in BATCHES if 8 * b <= point.num_examples)
    if not batches or not 2 <= min(batches) <= max(batches) <= point.num_examples:
        raise UserError(
            f"--batch_sizes must be in 2 to {point.num_examples}, the examples there are; got "
            f"{','.join(map(str, batches)) or 'none'}"
        )
    draws, chunk = (DRAWS_OF_ENCODER, 16) if setting.workdir else (DRAWS, 128)
    found: dict[str, dict[int, dict[int, Bias]]] = {}
    for name in names:
        visits = VISITS if name in REMEMBER else VISITS[:1]
        for size in batches:
            objective, target = arms[name](size)
            measured = gradient_bias(
                objective,
                *point[:3],
                size,
                target=target,
                visits=visits,
                draws=draws // 2 if name in REMEMBER else draws,
                chunk=chunk,
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


def _arms(num_examples: int) -> dict[str, Arm]:
    tau = {"temperature": TEMPERATURE}
    kinds: Mapping[str, Any] = {name: _objective(name) for name in ("nt_xent", "dcl", "spectral")}

    def simclr_weighted(size: int) -> tuple[Objective, Objective]:
        weight = (num_examples - 1) / (size - 1)
        return _objective("tcl")(k1=0.0, k2=weight, **tau), kinds["nt_xent"](**tau)

    exact = _objective("decl")(rate="batch", u="mean", **tau)
    return {
        "simclr": lambda size: (kinds["nt_xent"](**tau), None),
        "simclr_weighted": simclr_weighted,
        "dcl": lambda size: (kinds["dcl"](**tau), None),
        "auc_cl": lambda size: (_objective("auc_cl")(**AUC_CL["recommended"]), None),
        "auc_cl_sum": lambda size: (_objective("auc_cl")(**AUC_CL["paper"]), None),
        "spectral": lambda size: (kinds["spectral"](), None),
        "sogclr": lambda size: (_objective("sogclr")(**tau), None),
        "decl": lambda size: (_objective("decl")(**tau), exact),
        "decl_mean": lambda size: (_objective("decl")(u="mean", **tau), exact),
    }


def _objective(name: str) -> Callable[..., Objective]:
    return component("loss", name)


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
    found = load_backbone(setting.workdir)
    if found.projector is None or not (setting.workdir / "config.json").exists():
        raise UserError(f"--workdir {setting.workdir}: expected a run, whose projector is known")
    config = read_config(setting.workdir)
    images = source.load(config.data, config.data.train_split)
    count = min(IMAGES, len(images))
    made = gallery.pairs(config, images, count)[1]["views"]  # [n, V, s, s, c] uint8
    views = jnp.asarray(made[:, :2].swapaxes(0, 1))
    stats = found.net.batch_stats, found.projector.batch_stats
    inputs = found.inputs._replace(crop=0.0)  # views are of the network's size, and whole

    def embed(params: Any, index: Array) -> Array:
        batch = views[:, index]
        flat = batch.reshape(-1, *batch.shape[2:])
        h = networks.features(found.encoder, params[0], stats[0], preprocess(flat, inputs))
        z = networks.project(found.encoder, params[1], stats[1], h)
        return z.reshape(*batch.shape[:2], -1)

    params = jax.tree.map(jnp.asarray, (found.net.params, found.projector.params))
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
    note = f"|E g - g*| / |g*| with 95 % intervals, of {point.words}."
    what = "sqrt(E |g - E g|²) / |g*|: how far a single minibatch's gradient is from their mean."
    return [
        Table("Bias of the gradient", heading, bias, note),
        Table("Deviation of the gradient", heading, noise, what),
    ]


def _cell(bias: Bias) -> str:
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
    caption = """Bars are 95 % intervals. An arrow down from an empty marker: the interval reaches
0, there may be no bias, and it is at most so large. Losses that remember are shown at their last
visit."""
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


def _line(axes: Any, i: int, name: str, xs: list[float], biases: list[Bias]) -> None:
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
    if "auc_cl" in found:
        biases = {size: of[0] for size, of in found["auc_cl"].items()}
        words = "; ".join(f"B={size}: {_cell(bias)}" for size, bias in biases.items())
        none = all(bias.low == 0 and bias.high < 0.1 for bias in biases.values())
        verdicts["auc_cl_unbiased"] = Verdict(words, none)
    if "simclr" in found and len(found["simclr"]) > 1:
        biases = {size: of[0] for size, of in sorted(found["simclr"].items())}
        falls = all(a.low > b.high for a, b in pairwise(biases.values()))
        words = "; ".join(f"B={size}: {_cell(bias)}" for size, bias in biases.items())
        verdicts["simclr_biased"] = Verdict(words, falls)
    slopes = {
        name: _exponent({size: of[0] for size, of in found[name].items()})
        for name in ("simclr", "simclr_weighted")
        if name in found
    }
    if "simclr" in slopes and None not in slopes.values():
        words = ", ".join(f"{name} B^({s:.2f} ± {e:.2f})" for name, (s, e) in slopes.items())
        verdicts["simclr_root"] = Verdict(words, all(s - e <= -0.5 for s, e in slopes.values()))
    for name in ("decl", "sogclr"):
        if name in found:
            size = min(found[name])
            first, *_, last = found[name][size].values()
            words = f"B={size}: {_cell(first)} at first, {_cell(last)} after {VISITS[-1]} epochs"
            verdicts[f"{name}_shrinks"] = Verdict(words, last.high < first.low)
    return verdicts


def _exponent(biases: Mapping[int, Bias]) -> tuple[float, float] | None:
    """Slope of log bias against log B by weighted least squares, and its 95 % interval's half.

    Where the points are on no line, the interval is as wide as they scatter. None if fewer than
    three batch sizes have a bias.
    """
    known = {size: bias for size, bias in biases.items() if bias.low > 0}
    if len(known) < 3:
        return None
    x = np.log([float(size) for size in known])
    y = np.log([bias.bias for bias in known.values()])
    weight = np.array([2 * 1.96 * b.bias / (b.high - b.low) for b in known.values()]) ** 2
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
