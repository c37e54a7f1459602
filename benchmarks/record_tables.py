"""Write the tables of docs/record.json into the pages of docs/."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import record_trace
from record_plan import METHOD_NAMES, SCALES, SWEPT
from shared import spread

from jaxssl.report.markdown import narrow_table, wrap_text
from jaxssl.studies import verdicts
from jaxssl.training.output.file_io import write_text

BEGIN, END = "<!-- record: written by benchmarks/record.py -->", "<!-- end of record -->"
TITLES = {"performance.md": "Performance", "measurements.md": "Measurements"}
HEADINGS = dict.fromkeys(TITLES, "On an accelerator")
# lightly's benchmark, docs.lightly.ai/self-supervised-learning/getting_started/benchmarks.html:
# ResNet-18, 200 epochs, batch 128, k = 200, T = 0.1, best epoch.
LIGHTLY = {"simclr_sgd": "84.7", "byol_sgd": "86.9"}
METRICS = {"k-NN, T = 0.1": "knn 0.1", "k-NN, T = 0.5": "knn 0.5", "linear": "linear"}
PYTORCH = {
    "PyTorch's time / ours": "torch_ratio",
    "PyTorch with CUDA graphs / ours": "graph_ratio",
}
Figure = Mapping[str, Any]


def pages(record: Mapping[str, Any]) -> dict[str, str]:
    """Write the tables of a record.json as Markdown, by the documentation page that shows them."""
    kinds: dict[str, dict[str, Figure]] = {}
    for name, figure in record["figures"].items():
        kind, _, rest = name.partition("/")
        kinds.setdefault(kind, {})[rest] = figure
    tables = {
        "performance.md": [
            *(make(kinds[kind]) for kind, make in SPEED.items() if kind in kinds),
            _provenance({n: f for kind in SPEED for n, f in kinds.get(kind, {}).items()}),
        ],
        "measurements.md": [
            *(make(kinds["run"], record["scale"]) for make in RUNS if "run" in kinds),
            _provenance(kinds.get("run", {})),
        ],
    }
    return {page: _wrap("\n".join(filter(None, texts))) for page, texts in tables.items()}


def _wrap(text: str) -> str:
    """Wrap the lines of a text that are not rows of a table."""
    lines = text.split("\n")
    indents = ["  " if line.startswith("- ") else "" for line in lines]
    return "\n".join(
        line if line.startswith("|") else wrap_text(line, indent)
        for line, indent in zip(lines, indents, strict=True)
    )


def insert(path: Path, text: str) -> None:
    """Replace the text of a page between the markers, or append it to a page without markers.

    The rest of the page is kept.
    """
    block = f"{BEGIN}\n\n{text or 'Nothing has been measured yet.'}\n{END}"
    if path.exists():
        page = path.read_text(encoding="utf-8")
    else:
        page = f"# {TITLES[path.name]}\n"
    whole = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if whole.search(page):
        page = whole.sub(lambda _: block, page, count=1)
    else:
        page = f"{page.rstrip()}\n\n## {HEADINGS[path.name]}\n\n{block}\n"
    write_text(path, page)


def _checks(figures: Mapping[str, Figure]) -> str:
    merged: dict[tuple[str, str], list[Figure]] = {}
    for name, figure in figures.items():
        whole = re.sub(r"-\d+$", "", name).replace("-", ", ")  # "losses-1" is a part of "losses"
        for what, values in figure["values"].items():
            merged.setdefault((whole, what), []).append(values)
    rows = []
    for names, parts in merged.items():
        largest = [part["largest"] for part in parts]
        rows.append(
            [
                *names,
                str(sum(part["cases"] for part in parts)),
                "not finite" if None in largest else f"{max(largest):.1e}",
                f"{parts[0]['bound']:.1e}",
                ", ".join(case for part in parts for case in part["beyond"]) or "none",
            ]
        )
    heading = ["check", "of", "cases", "largest deviation", "bound", "beyond the bound"]
    note = (
        "Deviations of the device's figures from float64 loops (values) or from the CPU's figures, "
        "relative to the largest entry (or 1, if that is larger) or to the norm of the update. In "
        "bf16 the distance of an update from the CPU's float32 update is divided by twice that of "
        "the CPU's bf16 update.\n"
    )
    return f"**Correctness.** {note}\n{narrow_table(heading, rows)}"


def _speed(figures: Mapping[str, Figure]) -> str:
    heading = ["network, batch, precision", "images/s", "% of the matrix product"]
    measured = [f["values"] for f in figures.values()]
    peers = {title: k for title, k in PYTORCH.items() if any(k in values for values in measured)}
    rows, parts = [], []
    names = [n for f in figures.values() for n in f["values"]["seconds"]]
    names = [n for n in dict.fromkeys(names) if n != "matrix product"]
    for values in measured:
        row = ", ".join([values["network"], str(values["batch"]), values["precision"]])
        ratios = [spread(values[key]) if key in values else "–" for key in peers.values()]
        share = spread([100 * share for share in values["share_of_peak"]], 1)
        rows.append([row, spread(values["images_per_second"], 0), share, *ratios])
        times = {**values["seconds"], "host": values["host"]}
        cells = (_milliseconds(times[n]) if n in times else "–" for n in (*names, "host"))
        parts.append([row, *cells])
    table = narrow_table([*heading, *peers], rows)
    of_parts = narrow_table([heading[0], *names, "host, until handed over"], parts)
    note = (
        "SimCLR's step on images that lie on the device. Median [smallest-largest] of the rounds."
    )
    if peers:
        note += (
            " PyTorch is compiled in its default mode, and with CUDA graphs of network and loss."
        )
    return (
        f"**Speed.** {note}\n\n{table}\nMilliseconds of the parts, each timed alone:\n\n{of_parts}"
    )


def _traces(figures: Mapping[str, Figure]) -> str:
    heading = ["network, batch, precision", *(f"{group}, %" for group in record_trace.SHOWN)]
    rows = []
    for name, figure in figures.items():
        values = figure["values"]
        shares = (f"{100 * values[group]:.1f}" for group in record_trace.SHOWN)
        rows.append([name.replace("-", ", "), *shares, f"{values['kernels']:.0f}"])
    note = (
        "Times of kernels in the trace, as shares of a step that is not profiled. Gaps are the "
        "rest of that step.\n"
    )
    return f"**Where the time goes.** {note}\n{narrow_table([*heading, 'kernels a step'], rows)}"


def _attention(figures: Mapping[str, Figure]) -> str:
    rows = []
    for figure in figures.values():
        values = figure["values"]
        for form in dict.fromkeys([*values["layer"], *values["refused"]]):
            cells = (
                _milliseconds(values[part][form]) if form in values[part] else "–"
                for part in ("layer", "step")
            )
            rows.append([form, *cells, values["refused"].get(form, "")])
    heading = ["attention", "layer, forward and backward, ms", "training step, ms", "refused"]
    return f"**Attention of a ViT.**\n\n{narrow_table(heading, rows)}"


SPEED: dict[str, Callable[[Mapping[str, Figure]], str]] = {
    "check": _checks,
    "speed": _speed,
    "trace": _traces,
    "attention": _attention,
}


def _methods(figures: Mapping[str, Figure], scale: str) -> str:
    batch = SCALES[scale].batch
    some = next(iter(figures.values()))["values"]
    runs = {arm: _seeds(figures, arm, batch) for arm in METHOD_NAMES}
    rows = [
        [
            METHOD_NAMES[arm],
            *_accuracies(of_arm),
            _accuracy(of_arm, ("best", "knn 0.1")),
            str(len(of_arm)),
        ]
        for arm, of_arm in runs.items()
        if of_arm
    ]
    heading = ["method", *METRICS, "best epoch, T = 0.1", "seeds"]
    tables = [narrow_table(heading, rows)]
    if scale == "paper":  # lightly uses the data and the network of the scale "paper".
        rows = [[METHOD_NAMES[arm], LIGHTLY[arm]] for arm in LIGHTLY if runs[arm]]
        table = narrow_table(["method", "k-NN, T = 0.1"], rows)
        if rows:
            tables.append(f"Published by lightly, best epoch, on CIFAR-10's own pixels:\n\n{table}")
    note = (
        f"{some['data']}, {some['epochs']:g} epochs, batch {batch}. Top-1 in percent, mean ± "
        "standard deviation over seeds, of the last epoch. k-NN has k = 200. The best epoch has "
        "the best online k-NN on the test images, which is optimistic."
    )
    return "\n".join([f"**Methods.** {note}\n", *tables])


def _batches(figures: Mapping[str, Figure], scale: str) -> str:
    sizes = sorted({SCALES[scale].batch, *SCALES[scale].batches})
    rows = []
    for arm in SWEPT:
        runs = [_seeds(figures, arm, size) for size in sizes]
        for title, metric in METRICS.items() if any(runs) else ():
            cells = [_accuracy(of_size, ("last", metric)) for of_size in runs]
            rows.append([METHOD_NAMES[arm], title, *cells])
    if sum(bool(_seeds(figures, arm, size)) for arm in SWEPT for size in sizes) < 2:
        return ""
    heading = ["method", "last epoch", *(f"batch {size}" for size in sizes)]
    return f"**By batch size.**\n\n{narrow_table(heading, rows)}"


def _runs(figures: Mapping[str, Figure], scale: str) -> str:
    rows = []
    for name, figure in figures.items():
        values = figure["values"]
        speed = values.get("images_per_second")  # Runs that diverged have none.
        minutes = f"{figure['minutes']:.1f}"
        cells = minutes, f"{speed:.0f}" if speed else "–", figure["commit"]
        rows.append([name, *_accuracies([figure]), *cells])
    heading = ["run, last epoch", *METRICS, "minutes", "images/s", "commit"]
    note = "**Runs**, with training and evaluation, in part beside checks."
    return f"{note}\n\n{narrow_table(heading, rows)}"


RUNS = (_methods, _batches, _runs)


def _seeds(figures: Mapping[str, Figure], arm: str, batch: int) -> list[Figure]:
    return [f for name, f in figures.items() if name.startswith(f"{arm}-b{batch}-s")]


def _accuracies(runs: Sequence[Figure]) -> list[str]:
    return [_accuracy(runs, ("last", metric)) for metric in METRICS.values()]


def _accuracy(runs: Sequence[Figure], column: tuple[str, str]) -> str:
    epoch, metric = column
    accuracies = [(run["values"][epoch] or {}).get(metric) for run in runs]
    return verdicts.spread(accuracies) if runs else "–"


def _milliseconds(seconds: Iterable[float]) -> str:
    return f"{1000 * np.median(list(seconds)):.2f}"


def _provenance(figures: Mapping[str, Figure]) -> str:
    """Return device, versions and commits of all figures of a page."""
    lines: dict[str, None] = {}
    for figure in figures.values():
        versions = ", ".join(f"{name} {number}" for name, number in figure["versions"].items())
        lines[f"{figure['device']}; {versions}; commit {figure['commit']}"] = None
    if not lines:
        return ""
    minutes = sum(figure["minutes"] for figure in figures.values())
    measured = "\n".join(f"- {line}" for line in lines)
    return f"Measured in {minutes:.1f} minutes on:\n\n{measured}\n"
