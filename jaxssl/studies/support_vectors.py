"""MMCL's support vectors, and how many have the class of the query.

The study solves the SVMs of a finished MMCL run for two views of random training images, with
the run's kernel. The negatives of a query are the first views of all other images. C is the run's,
then 1, which lets some negatives reach the bound: suspected false negatives.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxssl.data import kind, source
from jaxssl.errors import UserError
from jaxssl.evaluation import gallery, loss_inspection
from jaxssl.evaluation.features import encode_images
from jaxssl.evaluation.loss_inspection import SupportVectors, same_class_share, support_vectors
from jaxssl.evaluation.protocol import subset
from jaxssl.pretrained.load import load_pretrained
from jaxssl.studies import grid
from jaxssl.studies.kernels import mmcl
from jaxssl.studies.study import Findings, Picture, Setting, Table, read_claims
from jaxssl.studies.verdicts import judge, spread
from jaxssl.training.config import read_config

IMAGES = 256
BINDING_C = 1.0  # a C so small that some negatives reach the bound
NUM_QUERIES, NUM_NEGATIVES = 6, 5  # numbers of queries and negatives in the picture
FLAGS = ("workdir",)
UNUSED_WITH_WORKDIR = ("scale", "dataset", "seeds", "config")
PAPER = "mmcl"
CLAIMS = read_claims("support_vectors")
COLUMNS = {  # fields of `SupportVectors` by the heading of their column
    "support vectors": "support",
    "at C": "at_bound",
    "same class: support vectors": "same_class_support",
    "same class: at C": "same_class_bound",
    "same class: all negatives": "same_class_all",
}


class Analysis(NamedTuple):
    """The support vectors of a run with the images and labels of the batch.

    Attributes:
        C: of the run.
        at_run_C: support vectors with the run's C.
        binding: support vectors with `BINDING_C`.
        images: [n, h, w, 1 or 3] uint8, the analysed images as they are drawn.
        labels: [n] int, -1 for an unlabelled image.
        class_names: of the data set.
    """

    C: float
    at_run_C: SupportVectors
    binding: SupportVectors
    images: np.ndarray
    labels: np.ndarray
    class_names: Sequence[str]


def run(setting: Setting) -> Findings:
    """Analyse the support vectors of --workdir, or of an MMCL run of every seed."""
    if setting.workdir:
        workdirs, where = [setting.workdir], setting.workdir.resolve().name
    else:
        results = grid.run_grid(setting, {"mmcl": mmcl(setting)})
        workdirs = [result.workdir for result in results["mmcl"] if result.is_finite]
        if not workdirs:
            raise UserError("every run with mmcl has diverged, so there is nothing to analyse")
        where = grid.describe_runs(results)
    runs = [_analyse(workdir) for workdir in workdirs]
    at_run_C = _shares([run.at_run_C for run in runs])
    binding = _shares([run.binding for run in runs])
    data = {"at_run_C": at_run_C, "binding": binding}
    labels = f"C = {runs[0].C:g} (the run's)", f"C = {BINDING_C:g}"
    rows = [
        (label, *(spread(_points(shares)) for shares in by_field.values()))
        for label, by_field in zip(labels, data.values(), strict=True)
    ]
    comparisons = {
        "same_class": (at_run_C["same_class_support"], at_run_C["same_class_all"]),
        "false_negatives": (binding["same_class_bound"], list(map(_same_class_below, runs))),
    }
    verdicts = {
        key: judge(CLAIMS[key], *map(_points, shares))
        for key, shares in comparisons.items()
        if not any(None in values for values in shares)
    }
    note = (
        f"Of {len(runs[0].images)} training images, {len(runs)} runs. A share of the same class "
        "above the share among all negatives marks false negatives."
    )
    table = Table("Shares, %", ("", *COLUMNS), rows, note)
    return Findings([table], [_picture(runs[0])], verdicts, data, where)


def _shares(solved: Sequence[SupportVectors]) -> dict[str, list[float | None]]:
    """Return the shares of `COLUMNS` by field, with a value for each run."""
    return {field: [getattr(one, field) for one in solved] for field in COLUMNS.values()}


def _analyse(workdir: Path) -> Analysis:
    config = read_config(workdir)
    if config.loss.name != "mmcl":
        raise UserError(f"--workdir must be a run with mmcl, got {workdir} with {config.loss.name}")
    encoder = load_pretrained(workdir)  # first, because loading checks the config
    if not kind.get(encoder.inputs.kind).pictures or config.views < 2:
        raise UserError(f"--workdir must be a run with two views of images, got {workdir}")
    train = source.load(config.data, config.data.train_split)
    drawn = train.take(subset(len(train), IMAGES, seed=config.seed))
    images, pairs = gallery.example_views(config, drawn, IMAGES)
    views = pairs["views"][:, 0]  # [n, s, s, c], already of the network's size
    z = encode_images(encoder, views, encoder.inputs._replace(crop=0.0))
    settings = loss_inspection.mmcl_settings(workdir, config, len(train), encoder.metadata["step"])
    labels = np.array([example.label for example in drawn.read(np.arange(len(images)))])
    return Analysis(
        C=settings["C"],
        at_run_C=support_vectors(z, labels, **settings),
        binding=support_vectors(z, labels, **{**settings, "C": BINDING_C}),
        images=images,
        labels=labels,
        class_names=train.class_names,
    )


def _same_class_below(run: Analysis) -> float | None:
    """Return the share of the query's class among the support vectors below the bound."""
    alpha = run.binding.alpha
    chosen = (alpha > 0) & (alpha < np.float32(BINDING_C))
    return same_class_share(run.labels, chosen)


def _points(shares: Sequence[float | None]) -> list[float]:
    """Return the shares that are known, in percentage points."""
    return [100 * share for share in shares if share is not None]


def _picture(run: Analysis) -> Picture:
    """Draw query images, each next to support vectors with the largest alpha and other images."""
    queries = loss_inspection.one_of_each(run.labels, NUM_QUERIES)
    columns = 2 * NUM_NEGATIVES + 1
    figure = Figure(figsize=(1.15 * columns, 1.5 * len(queries)), layout="constrained")
    rows = figure.subplots(len(queries), columns, squeeze=False)
    for axes in rows.flat:
        axes.axis("off")
    for row, query in zip(rows, queries, strict=True):
        alpha = run.binding.alpha[query]
        largest = np.argsort(-alpha, kind="stable")[: min(NUM_NEGATIVES, np.count_nonzero(alpha))]
        zero = np.setdiff1d(np.flatnonzero(alpha == 0), [query])[:NUM_NEGATIVES]
        _show(row[0], run, query, query, "query")
        for axes, index in zip(row[1:], largest, strict=False):
            bound = " = C" if alpha[index] >= np.float32(BINDING_C) else ""
            _show(axes, run, query, index, f"α {alpha[index]:.2f}{bound}")
        for axes, index in zip(row[NUM_NEGATIVES + 1 :], zero, strict=False):
            _show(axes, run, query, index, "α 0")
    caption = (
        f"On the left a query, then up to {NUM_NEGATIVES} support vectors with the largest α (C = "
        f"{BINDING_C:g}), then up to {NUM_NEGATIVES} that are no support vectors. A dashed frame "
        "marks images of another class than the query's."
    )
    alt = f"{len(queries)} query images with support vectors and others; α stands above each"
    return Picture("gallery", figure, alt, caption)


def _show(axes: Axes, run: Analysis, query: int, index: int, title: str) -> None:
    """Draw an image, in a dashed frame if the image is of another class than the query."""
    image = run.images[index]
    image = image[:, :, 0] if image.shape[2] == 1 else image
    axes.axis("on")
    axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    label = run.labels[index]
    name = run.class_names[label] if label >= 0 else ""
    axes.set_title(f"{title}\n{name}", fontsize=8, parse_math=False)
    axes.set(xticks=[], yticks=[])
    other = label != run.labels[query]
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=3)
        spine.set(color="#b00020" if other else "#1a73c7", linestyle="--" if other else "-")
