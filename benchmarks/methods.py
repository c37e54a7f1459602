"""Compare methods on the digits with equal budgets: accuracy of probes, and speed.

    python benchmarks/methods.py [--seeds 0 1 2] [--batch 64] [--epochs 10] [--only auc_cl mmcl]

Appends one JSON line per run to --out and prints a table of all lines. Runs that --out already has
are not repeated. A file with runs of another commit is refused. Settings are configs/digits.py with
the changes in `METHODS`. The learning rate is scaled by the square root of the batch size over 64.
"""

import argparse
import json
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from shared import Training, parse_overrides, timed

from jaxssl import distributed
from jaxssl.augment.views import Inputs
from jaxssl.data import source
from jaxssl.evaluation.context import extract_features, load_arrays
from jaxssl.evaluation.features import extract
from jaxssl.evaluation.protocol import EvalContext
from jaxssl.evaluation.protocols import fewshot, knn, linear
from jaxssl.report.markdown import markdown_table
from jaxssl.training import collapse
from jaxssl.training.config import load
from jaxssl.training.output import git
from jaxssl.training.programs import make_encoder

PREDICTOR = "predictor.name=mlp predictor.pred_hidden_dim=256"
# An EMA that is fast enough for runs of 200 steps.
EMA = "method.momentum={'schedule':'cosine','start':0.95,'end':1.0}"


def momentum(loss: str, preset: str, more: str) -> str:
    """Return overrides for the method that has a momentum network, or two equal ones."""
    return f"method.name=momentum method.preset={preset} loss.name={loss} {more}"


METHODS = {
    "untrained": "optim.lr=1e-30",
    "auc_cl": "",
    "auc_cl (paper)": "loss.name=auc_cl loss.preset=paper",
    "auc_cl (released_cifar)": "loss.name=auc_cl loss.preset=released_cifar",
    "mmcl (pgd)": "loss.name=mmcl loss.gamma=0.5 loss.num_steps=100",
    "mmcl (inv)": "loss.name=mmcl loss.gamma=0.5 loss.solver=inv",
    "decl (buffer)": "loss.name=decl loss.weight=alternate",
    "decl (momentum)": momentum("decl", "moco_v3", f"{EMA} {PREDICTOR} loss.rate=momentum"),
    "tcl (3 views)": "loss.name=tcl views=3 loss.temperature=0.5",
    "tcl (labels)": (
        "loss.name=tcl method.labels=True loss.temperature=0.1 loss.k1=5000.0 loss.k2=1.0"
    ),
    "nt_xent": "loss.name=nt_xent loss.temperature=0.5",
    "sup_con (labels)": "loss.name=sup_con method.labels=True",
    "cross_entropy (labels)": (
        "loss.name=cross_entropy method.labels=True views=1 head.proj_layers=0"
    ),
    "dcl": "loss.name=dcl loss.temperature=0.5",
    "dclw": "loss.name=dclw loss.temperature=0.5",
    "debiased": "loss.name=debiased",
    "hcl": "loss.name=hcl",
    "sogclr": "loss.name=sogclr loss.temperature=0.5",
    "spectral": "loss.name=spectral",
    "moco_v3": momentum("info_nce", "moco_v3", f"{EMA} {PREDICTOR}"),
    "moco_v2": momentum(
        "info_nce", "moco_v2", f"{EMA} loss.scale_by_temperature=False method.queue_size=512"
    ),
    "byol": momentum("byol", "byol", f"{EMA} {PREDICTOR}"),
    "simsiam": momentum(
        "simsiam",
        "simsiam",
        "predictor.name=mlp predictor.pred_hidden_dim=32 head.proj_last_norm=bn_fixed",
    ),
    "nnclr": momentum("nnclr", "nnclr", f"loss.support_size=512 {PREDICTOR}"),
    "ressl": momentum("ressl", "ressl", f"{EMA} method.queue_size=512"),
    "barlow_twins": "loss.name=barlow_twins",
    "vicreg": "loss.name=vicreg",
    "w_mse": "loss.name=w_mse head.proj_output_dim=32",
    "swav": "loss.name=swav loss.num_prototypes=50",
    "dino": momentum(
        "dino", "dino", f"{EMA} head.name=dino head.proj_hidden_dim=256 head.proj_output_dim=256"
    ),
}


def train(overrides: str, seed: int, batch: int, epochs: int) -> dict[str, float]:
    """Train and evaluate one run, and return its accuracies, loss and speed."""
    rate = "" if "optim.lr" in overrides else f"optim.lr={3e-3 * (batch / 64) ** 0.5}"
    size = f"seed={seed} batch_size={batch} epochs={epochs} schedule.warmup_epochs={epochs / 20}"
    config = load("digits", parse_overrides(f"{size} {rate} {overrides}"))
    splits = source.load_splits(config.data)
    inputs = Inputs(config.augment.size, splits.train.shape[2])
    data = load_arrays(splits, inputs)
    training = Training(config, splits.train, distributed.make_mesh())
    timed(training.step)  # The first step compiles.
    seconds, (metrics, z) = timed(training.step, training.parts.total_steps - 1)
    encode = make_encoder(training.parts.method, inputs)
    variables = training.state.params, training.state.carried
    read = partial(extract, apply=encode, variables=variables, mesh=training.mesh)
    context = EvalContext(extract_features(read, data))
    rows = [*fewshot.run(context, seed=seed), *linear.run(context, seed=seed)]
    rows += knn.run(context, seed=seed, preset="cifar_simclr")
    accuracies = {row.metric: row.value for row in rows if row.metric.endswith("top1")}
    spread = collapse.embedding_metrics(z)
    return accuracies | {
        "images_per_second": batch / seconds,
        "loss": float(metrics["loss"]),
        "feature_std": float(spread["feature_std"]),
        "effective_rank": float(spread["effective_rank"]),
    }


SHOWN = ("fewshot_1shot_top1", "fewshot_5shot_top1", "linear_top1", "knn_top1")


def table(lines: list[dict]) -> str:
    """Return a table of means and deviations over seeds, with a row per batch size and method."""
    heads = ["batch", "method", "one-shot", "five-shot", "linear", "k-NN", "images/s", "seeds"]
    rows = []
    for batch, method in product(sorted({line["batch"] for line in lines}), METHODS):
        runs = [x for x in lines if x["method"] == method and x["batch"] == batch]
        if runs:
            columns = [[run[name] for run in runs] for name in SHOWN]
            cells = [
                f"{np.mean(x):.1f}" + (f" ± {np.std(x, ddof=1):.1f}" if len(x) > 1 else "")
                for x in columns
            ]
            speed = f"{np.median([run['images_per_second'] for run in runs]):.0f}"
            rows.append([str(batch), method, *cells, speed, str(len(runs))])
    return markdown_table(heads, rows)


def main() -> None:
    """Train the missing runs and print the table of all methods."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", nargs="+", default=list(METHODS), help="parts of names")
    parser.add_argument("--out", type=Path, default=Path("runs/methods.jsonl"))
    args = parser.parse_args()
    if not any(part in name for part in args.only for name in METHODS):
        parser.error(f"no method has {' or '.join(args.only)} in its name: {', '.join(METHODS)}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    if args.out.exists():
        lines = [json.loads(line) for line in args.out.read_text().splitlines()]
    commit = git.current_commit()
    if others := {line.get("commit", "") for line in lines} - {commit}:
        known = " and ".join(x or "an unknown commit" for x in sorted(others))
        parser.error(f"{args.out} has runs of {known}, and this is {commit}; choose another --out")
    keys = ("method", "batch", "seed", "epochs")
    done = {tuple(line[key] for key in keys) for line in lines}
    for seed, batch, name in product(args.seeds, args.batch, METHODS):
        run = dict(zip(keys, (name, batch, seed, args.epochs), strict=True))
        if tuple(run.values()) in done or not any(part in name for part in args.only):
            continue
        run |= {"commit": commit, **train(METHODS[name], seed, batch, args.epochs)}
        lines.append(run)
        with args.out.open("a") as file:
            file.write(json.dumps(run) + "\n")
        shown = ", ".join(f"{run[key]:.1f}" for key in (*SHOWN, "images_per_second"))
        print(f"{name}, batch {batch}, seed {seed}: {shown}", flush=True)
    print(table([line for line in lines if line["epochs"] == args.epochs]))


if __name__ == "__main__":
    main()
