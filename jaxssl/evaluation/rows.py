"""Fields of the rows of results.json, and the rows of metrics measured during training."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from jaxssl.components import Settings
from jaxssl.data.fingerprint import fingerprint
from jaxssl.data.splits import Splits
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.report.results import Row
from jaxssl.report.workdir import is_finite
from jaxssl.training.output.metrics_writer import Row as Metrics

# Maps a metric of metrics.jsonl to its unit in results.json.
ONLINE_METRICS = {"knn_top1": "%", "online_linear_top1": "%", "held_out_loss": ""}


def online_rows(metrics: Iterable[Metrics], fields: Settings, knn_preset: str) -> list[Row]:
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
    ranked.sort(key=lambda row: (row["knn_top1"], row["step"]))
    chosen = [("last", row) for row in evaluations[-1:]] + [("best", row) for row in ranked[-1:]]
    return [
        Row(
            protocol="online",
            metric=metric,
            value=row[metric],
            std=None,
            unit=unit,
            # The field "preset" tells the rows apart if the last evaluation is also the best.
            details={"preset": checkpoint, "knn": knn_preset},
            **{**fields, "checkpoint": checkpoint, "step": row["step"]},
        )
        for checkpoint, row in chosen
        for metric, unit in ONLINE_METRICS.items()
        if is_finite(row.get(metric))
    ]


def feature_fields(encoder: PretrainedEncoder, kind: str, layer: str) -> Settings:
    """Return the fields of a results row that identify the encoder and its features.

    Args:
        encoder: the encoder.
        kind: kind of features, one of `jaxssl.report.results.KINDS`.
        layer: "backbone" or "projector". It is replaced by "pixels" for raw features.
    """
    facts = encoder.metadata
    lengths = facts.get("config", {}).get("extended") if kind == "pretrained" else None
    return {
        **({"extended": list(lengths)} if lengths else {}),
        **{name: facts.get(name) for name in ("source", "loss", "checkpoint")},
        "step": {"raw": None, "untrained": 0}.get(kind, facts.get("step")),
        "features": kind,
        "layer": layer if kind != "raw" else "pixels",
    }


def data_fields(
    splits: Splits, settings: Settings, encoder: PretrainedEncoder, identity: str, seed: int
) -> Settings:
    """Return the fields of a results row that identify the data set and the random draws.

    The field "data" is a hash that distinguishes data sets, networks and weights files of the same
    name.

    Args:
        splits: the data set.
        settings: the group `config.data`.
        encoder: the encoder.
        identity: distinguishes the encoder from others of its name: the path of its file, or a
            digest of its weights. "" for a run with results in its workdir.
        seed: seed of the protocols' random draws.
    """
    classes = Path(settings["classes"]).name
    relevant = {k: v for k, v in settings.items() if k not in ("dir", "cache", "workers")}
    hashed = [relevant, dict(encoder.metadata["net"]), identity or None]
    if identity:  # The flags of the command choose the inputs of a weights file.
        hashed.append(encoder.inputs)
    text = json.dumps(hashed, default=str, sort_keys=True)
    return {
        "dataset": splits.test.name + (f" ({classes})" if classes else ""),
        "data": hashlib.sha1(text.encode()).hexdigest()[:10],
        "bank": splits.bank.split,
        "bank_size": len(splits.bank),
        "split": splits.test.split,
        "split_size": len(splits.test),
        "seed": seed,
    }


def content(splits: Splits) -> str:
    """Return the field "content" of a results row: a hash of the bank and test examples.

    Raises:
        UserError: if an example cannot be read.
    """
    text = fingerprint(splits.bank) + fingerprint(splits.test)
    return hashlib.sha1(text.encode()).hexdigest()[:10]
