"""K-NN accuracy of MMCL's variants and SimCLR by epoch."""

from statistics import fmean

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.convergence import curve_findings, read_series
from jaxssl.studies.kernels import mmcl
from jaxssl.studies.study import Findings, Setting, read_claims
from jaxssl.studies.verdicts import judge_all, judge_similar

PAPER = "mmcl"
CLOSE = 1.0  # accuracy difference in percentage points that counts as close
VARIANTS = ("mmcl_pgd", "mmcl_inv")
CLAIMS = read_claims("convergence_mmcl")


def run(setting: Setting) -> Findings:
    """Read the online k-NN accuracy of the runs of MMCL and SimCLR and judge the claims."""
    arms = {
        "simclr": METHODS["simclr"],
        "mmcl_pgd": mmcl(setting),
        "mmcl_inv": {**mmcl(setting), "loss.solver": "inv"},
    }
    results = grid.run_grid(setting, arms)
    series = read_series(results)
    means = {
        name: [fmean(seed) for seed in zip(*values, strict=True)]
        for name, (_, values) in series.items()
    }
    pairs = {f"{name} over simclr": (means[name], means["simclr"]) for name in VARIANTS}
    pgd, inv = (series[name][1][-1] for name in VARIANTS)
    verdicts = {
        "mmcl_sooner": judge_all(CLAIMS["mmcl_sooner"], pairs),
        "variants_similar": judge_similar({"pgd - inv": (pgd, inv)}, CLOSE),
    }
    return curve_findings(series, verdicts, grid.describe_runs(results))
