"""Losses on graphs: accuracy of an SVM over ten folds, with the settings of GraphCL.

The runs are the variants of `configs/graphs/tu.py`, at every scale. --config.data.path is a folder
or an archive of TU sets, and --dataset=MUTAG,DD names sets in it. Raw counts (degrees, tags, sizes)
and the untrained network use the first seed.
"""

from collections.abc import Iterable
from pathlib import Path

from jaxssl.configs.graphs.tu import VARIANTS
from jaxssl.errors import UserError
from jaxssl.studies import grid
from jaxssl.studies.grid import SVM, Comparison
from jaxssl.studies.run_results import first_run
from jaxssl.studies.study import Findings, Setting, read_claims, select_methods

DEFAULT = ("graphcl", "mmcl", "auc_cl", "decl")
SETS = ("MUTAG", "DD", "REDDIT-BINARY", "REDDIT-MULTI-5K", "IMDB-BINARY")  # of MMCL, Table 4
PROTOCOLS = {"svm": SVM}
FLAGS = ("methods",)
CLAIMS = read_claims("graphs")


def run(setting: Setting) -> Findings:
    """Train every loss on every data set of graphs, and judge MMCL against GraphCL."""
    others = tuple(name for name in VARIANTS if name not in DEFAULT)
    methods = select_methods(setting.methods, DEFAULT, others)
    folder = Path(dict(setting.overrides).get("data.path", ""))
    results, baselines, verdicts = {}, {}, {}
    paths = setting.dataset.split(",") if setting.dataset else SETS
    stems = [Path(path).stem for path in paths]
    if "" in stems or len({*stems}) < len(stems):
        raise UserError(f"--dataset={setting.dataset} has an empty name, or a name twice")
    for path, name in zip(paths, stems, strict=True):
        results |= _train(setting, methods, folder / path)
        first = first_run({arm: results[arm, name] for arm in methods})
        for features, metrics in grid.baselines(first, PROTOCOLS).items():
            baselines[features, name] = [first._replace(metrics=metrics)]
        claim = name.replace("-", "")
        if claim in CLAIMS:
            verdicts[claim] = Comparison(SVM, {"": (("mmcl", name), ("graphcl", name))})
    findings = grid.grid_findings(
        results, "", [SVM], CLAIMS, verdicts, has_baselines=False, pictured=()
    )
    table = grid.accuracy_table({**results, **baselines}, "", SVM, {})
    data = {**findings.data, "baselines": grid.metrics_by_cell(baselines)}
    names = dict.fromkeys(name for _, name in baselines)
    where = f"{', '.join(names)}, {findings.where.partition(', ')[2]}"
    return findings._replace(tables=[table], data=data, where=where)


def _train(setting: Setting, methods: Iterable[str], path: Path) -> grid.Results:
    """Train every loss on the data set of graphs at a path, by (loss, name of the data set)."""
    overrides = {**dict(setting.overrides), "data.path": str(path)}
    on_set = setting._replace(dataset="", overrides=tuple(overrides.items()))
    results = {}
    for arm in methods:
        out = setting.out / "graphs" / path.stem / arm
        of_arm = on_set._replace(config=f"graphs/tu:{arm}", out=out)
        results |= grid.run_grid(of_arm, {(arm, path.stem): {}}, PROTOCOLS)
    return results
