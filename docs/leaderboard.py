"""Draw the picture and the table of README.md from a document of the study `batch_size`.

python docs/leaderboard.py docs/studies/small/batch_size-simclr-simclr_tuned-auc_cl-decl.json
"""

import json
import re
import sys
from pathlib import Path
from statistics import mean, stdev

import matplotlib
from matplotlib.figure import Figure

from jaxssl.studies.verdicts import interval

DOCS = Path(__file__).parent
METRIC = "knn_top1"
NAMES = {
    "auc_cl": "AUC-CL",
    "decl": "DeCL",
    "mmcl": "MMCL",
    "tcl": "TCL",
    "simclr_tuned": "SimCLR, temperature 0.05",
    "simclr": "SimCLR, temperature 0.5",
    "dcl": "DCL",
    "sogclr": "SogCLR",
    "moco_v3": "MoCo-v3",
}
COLOURS = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#0072b2", "#56b4e9")  # Okabe and Ito
TABLE = re.compile(r"(<!-- docs/leaderboard.py.*?-->\n).*?(<!-- end -->)", re.DOTALL)

Accuracies = dict[str, dict[int, list[float]]]  # by loss and batch size, one for each seed


def read(path: Path) -> tuple[Accuracies, float]:
    """Return the accuracies of a document, and that of its untrained network."""
    data = json.loads(path.read_text(encoding="utf-8"))["data"]
    accuracies: Accuracies = {name: {} for name in NAMES}
    for cell, metrics in data["results"].items():
        name, size = cell.split()
        accuracies[name][int(size)] = metrics[METRIC]
    untrained = data["baselines"]["untrained"][METRIC]
    return {name: sizes for name, sizes in accuracies.items() if sizes}, untrained


def table(accuracies: Accuracies, untrained: float) -> str:
    """Return the table, in bold what cannot be told from the best loss of a batch size."""
    sizes = sorted({size for cells in accuracies.values() for size in cells})
    rows = [f"| loss | {' | '.join(f'B = {size}' for size in sizes)} |", "|---" * 4 + "|"]
    best = {size: max(accuracies.values(), key=lambda cells: mean(cells[size])) for size in sizes}
    for name, cells in accuracies.items():
        texts = []
        for size in sizes:
            values, others = cells[size], best[size][size]
            text = f"{mean(values):.1f} ± {stdev(values):.1f}"
            low, _ = interval([b - a for a, b in zip(values, others, strict=True)])
            texts.append(text if values is not others and low > 0 else f"**{text}**")
        rows.append(f"| {NAMES[name]} | {' | '.join(texts)} |")
    rows.append(f"| untrained network | {' | '.join([f'{untrained:.1f}'] * len(sizes))} |")
    return "\n".join(rows) + "\n"


def draw(accuracies: Accuracies, untrained: float, dark: bool) -> None:
    """Plot the accuracies against the batch size, for a page in light or dark colours."""
    text = "#e6e6e6" if dark else "#1b1b1b"
    style = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), text)
    lines = {"axes.edgecolor": "#808080", "grid.color": "#80808040", "axes.grid": True}
    hidden = {"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "jaxssl"}
    with matplotlib.rc_context({**style, **lines, **hidden}):
        figure = Figure(figsize=(7, 3.4), layout="constrained")
        axes = figure.add_subplot(xlabel="batch size", ylabel="k-NN top-1, %")
        for (name, cells), colour in zip(accuracies.items(), COLOURS, strict=False):
            values = list(cells.values())
            axes.errorbar(
                list(cells),
                [mean(v) for v in values],
                [stdev(v) for v in values],
                color=colour,
                marker="o",
                capsize=3,
                label=NAMES[name],
            )
        axes.axhline(untrained, color="#808080", linestyle=":", label="untrained network")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes := list(next(iter(accuracies.values()))), map(str, sizes))
        axes.minorticks_off()
        figure.legend(loc="outside right center", frameon=False)
        path = DOCS / f"leaderboard-{'dark' if dark else 'light'}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})


def main(document: Path) -> None:
    """Write both pictures, and the table into README.md."""
    accuracies, untrained = read(document)
    for dark in (False, True):
        draw(accuracies, untrained, dark)
    page = DOCS.parent / "README.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(
        TABLE.sub(lambda m: m[1] + table(accuracies, untrained) + m[2], text), encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
