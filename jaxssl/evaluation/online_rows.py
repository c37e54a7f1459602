"""Rows of results.json with the metrics that a run measured on the test split while it trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxssl.report.workdir import is_finite

# metric of metrics.jsonl to its unit in results.json
ONLINE_METRICS = {"knn_top1": "%", "online_linear_top1": "%", "held_out_loss": ""}


def online_rows(
    metrics: Sequence[Mapping[str, Any]], fields: Mapping[str, Any], knn_preset: str
) -> list[dict[str, Any]]:
    """Return the online metrics of the last evaluation, and of the one with the best k-NN.

    The best evaluation is the latest of equals, like the checkpoint that a run keeps as "best".
    Values that are not finite are left out.

    Args:
        metrics: the rows of metrics.jsonl.
        fields: fields of a results row that identify the encoder and the data set.
        knn_preset: the preset of the online k-NN.
    """
    evaluations = [row for row in metrics if any(is_finite(row.get(m)) for m in ONLINE_METRICS)]
    ranked = [row for row in evaluations if is_finite(row.get("knn_top1"))]
    chosen = {"last": evaluations[-1:]}
    chosen["best"] = sorted(ranked, key=lambda row: (row["knn_top1"], row["step"]))[-1:]
    rows = []
    for checkpoint, evaluation in chosen.items():
        for row in evaluation:
            common = {**fields, "checkpoint": checkpoint, "step": row["step"], "std": None}
            # The preset keeps both rows apart where the last evaluation is also the best.
            details = {"preset": checkpoint, "knn": knn_preset}
            rows += [
                {"protocol": "online", "metric": metric, "value": row[metric], "unit": unit}
                | {"details": details, **common}
                for metric, unit in ONLINE_METRICS.items()
                if is_finite(row.get(metric))
            ]
    return rows
