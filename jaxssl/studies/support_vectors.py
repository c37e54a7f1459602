"""MMCL's support vectors: which images they are, and whether of the query's class.

Of a run with MMCL, at the end of training, with its kernel: two views of its first training images,
the negatives of a query being the first views of all other images. C is the run's, and 1, which
lets some negatives reach the bound: suspected false negatives.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluation import gallery, loss_inspection
from jaxssl.evaluation.features import extract
from jaxssl.evaluation.hard_negatives import same_class_share
from jaxssl.evaluation.support_vectors import SupportVectors, support_vectors
from jaxssl.pretrained.encoder import make_encode
from jaxssl.pretrained.load import load_pretrained
from jaxssl.studies.grid import run_grid, where
from jaxssl.studies.kernels import mmcl
from jaxssl.studies.study import Claim, Findings, Picture, Setting, Table, judge, spread
from jaxssl.training.config import read_config

IMAGES = 256
BINDING = 1.0  # a C that binds
QUERIES, SHOWN = 6, 5
FLAGS = ("workdir",)
PAPER = "mmcl"
CLAIMS = {
    "same_class": Claim(
        "Support vectors are more often of the query's class than all negatives (points of their "
        "share)",
        "MMCL, Fig. 4",
        "The figure clearly shows that object instances from a similar class gets a high α, "
        "suggesting that they lie on or inside the margin",
        "Pictures alone.",
    ),
    "false_negatives": Claim(
        "Negatives at the bound C are more often of the query's class than the support vectors "
        "below it (points; C = 1, ours)",
        "MMCL, Contrastive Learning Meets SVMs",
        "equal to C for misclassified points, which are perhaps hard or false negatives",
    ),
}
SHARES = ("support", "at_bound", "same_class_support", "same_class_bound", "same_class_all")
HEADINGS = ("support vectors", "at C", "same class: support vectors", "at C", "all negatives")


def run(setting: Setting) -> Findings:
    """Look at --workdir, or at an MMCL run of every seed."""
    workdirs, words = [setting.workdir], str(setting.workdir)
    if not setting.workdir:
        found = run_grid(setting, {"mmcl": mmcl(setting)})
        workdirs, words = [outcome.workdir for outcome in found["mmcl"]], where(found)
    looked = [_look(workdir) for workdir in workdirs]
    rows, data = [], {}
    for key in ("own", "binding"):
        of = [look[key] for look in looked]
        name = f"C = {looked[0]['C']:g} (the run's)" if key == "own" else f"C = {BINDING:g}"
        data[key] = {share: [getattr(one, share) for one in of] for share in SHARES}
        rows.append((name, *(_percent(data[key][share]) for share in SHARES)))
    verdicts = {}
    if None not in data["own"]["same_class_support"]:
        shares = (data["own"][key] for key in ("same_class_support", "same_class_all"))
        shares = ([100 * x for x in share] for share in shares)
        verdicts["same_class"] = judge(CLAIMS["same_class"], *shares)
    below = [_below(look) for look in looked]
    bound = data["binding"]["same_class_bound"]
    if None not in bound and None not in below:
        shares = ([100 * x for x in share] for share in (bound, below))
        verdicts["false_negatives"] = judge(CLAIMS["false_negatives"], *shares)
    note = f"""Of {looked[0]["count"]} training images, {len(looked)} runs. A share of the same
class that exceeds that among all negatives marks false negatives."""
    table = Table("Shares, %", ("", *HEADINGS), rows, note.replace("\n", " "))
    return Findings([table], [_picture(looked[0])], verdicts, data, words)


def _look(workdir: Path) -> dict[str, Any]:
    config = read_config(workdir)
    if config.loss.name != "mmcl":
        raise UserError(f"--workdir {workdir}: expected a run with mmcl, got {config.loss.name!r}")
    train = source.load(config.data, config.data.train_split)
    views, images = _views(config, train)
    labels = train.labels[: len(images)]
    backbone = load_pretrained(workdir)
    mesh = distributed.local_mesh()
    variables = distributed.replicate(backbone.variables, mesh)
    encode = make_encode(backbone, backbone.inputs._replace(crop=0.0), "projector")
    z1, z2 = (extract(views[:, v], encode, variables, mesh) for v in range(2))
    own = loss_inspection.mmcl_settings(workdir, config, len(train), backbone.metadata["step"])
    labels = labels if train.labelled else None
    return {
        "own": support_vectors(z1, z2, labels, **own),
        "binding": support_vectors(z1, z2, labels, **{**own, "C": BINDING}),
        "C": own["C"],
        "count": len(images),
        "images": images,
        "labels": labels,
        "names": train.class_names,
    }


def _views(config: ConfigDict, train: source.Source) -> tuple[np.ndarray, np.ndarray]:
    images, made = gallery.example_views(config, train, IMAGES)
    return made["views"], images


def _below(look: dict[str, Any]) -> float | None:
    """Share of the query's class among the support vectors that are not at the bound."""
    alpha = look["binding"].alpha
    chosen = (alpha > 0) & (alpha < np.float32(BINDING))
    return same_class_share(look["labels"], chosen)


def _percent(shares: list[float | None]) -> str:
    return spread([100 * share for share in shares if share is not None])


def _picture(look: dict[str, Any]) -> Picture:
    """Queries, their support vectors of the largest alpha, and images that are none."""
    found: SupportVectors = look["binding"]
    images, labels = look["images"], look["labels"]
    queries = loss_inspection.one_of_each(
        np.zeros(len(images)) if labels is None else labels, QUERIES
    )
    figure = Figure(figsize=(1.15 * (2 * SHOWN + 1), 1.5 * len(queries)), layout="constrained")
    grid = figure.subplots(len(queries), 2 * SHOWN + 1, squeeze=False)

    def show(axes: Any, place: int, title: str, other: bool) -> None:
        image = images[place]
        image = image[:, :, 0] if image.shape[2] == 1 else image
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_title(title, fontsize=8, parse_math=False)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=True, linewidth=3)
            spine.set(
                **({"color": "#b00020", "linestyle": "--"} if other else {"color": "#1a73c7"})
            )

    for row, query in zip(grid, queries, strict=True):
        alpha = found.alpha[query]
        order = np.argsort(-alpha, kind="stable")
        zero = np.setdiff1d(np.flatnonzero(alpha == 0), [query])[:SHOWN]
        show(row[0], query, f"query\n{_class(look, query)}", other=False)
        for axes, place in zip(row[1 : SHOWN + 1], order[:SHOWN], strict=True):
            mark = " = C" if alpha[place] >= np.float32(BINDING) else ""
            text = f"α {alpha[place]:.2f}{mark}\n{_class(look, place)}"
            show(axes, place, text, other=labels is not None and labels[place] != labels[query])
        for axes in row[SHOWN + 1 :]:
            axes.axis("off")
        for axes, place in zip(row[SHOWN + 1 :], zero, strict=False):
            axes.axis("on")
            text = f"α 0\n{_class(look, place)}"
            show(axes, place, text, other=labels is not None and labels[place] != labels[query])
    caption = f"""Left a query, then the {SHOWN} negatives with the largest α (C = {BINDING:g}),
then up to {SHOWN} that are no support vectors; a solid frame is of the query's class, a dashed one
is not."""
    alt = f"{len(queries)} query images with support vectors and others; α stands above each"
    return Picture("gallery", figure, alt, caption.replace("\n", " "))


def _class(look: dict[str, Any], place: int) -> str:
    labels = look["labels"]
    return "" if labels is None or labels[place] < 0 else str(look["names"][labels[place]])
