"""Noise on every similarity in training: how much accuracy it costs DeCL and SimCLR.

Gaussian noise is drawn anew in every step, for both losses alike. The paper does not say where it
adds its noise, so both readings are trained: to each cosine, before the temperature, and to each
score exp(cosine / tau).
"""

from jaxssl.studies.grid import KNN, METHODS, Grid, baselines, grid_findings, run_grid, values
from jaxssl.studies.study import Claim, Findings, Setting, Verdict, judge, spread
from jaxssl.studies.unnormalised import NT_XENT

STDDEVS = (0.0, 0.3, 1.0, 2.0)
LOSSES = {"simclr": {**NT_XENT, "loss.temperature": 0.5}, "decl": METHODS["decl"]}
READINGS = ("similarity", "score")
ARMS = {
    f"{name}, noise on the {where}": {**cell, "loss.noise_on": where}
    for name, cell in LOSSES.items()
    for where in READINGS
}
CLAIMS = {
    "decl_robust": Claim(
        "SimCLR loses more accuracy than DeCL to noise on the similarities (k-NN, standard "
        f"deviation {STDDEVS[-1]:g} against none)",
        "DeCL, Fig. 2",
        "SimCLR drops much more significantly than ours, demonstrating the robustness of our "
        "method to similarity-score noise.",
        "The figure has no numbers. The noise is on the cosines.",
    ),
    "decl_robust_score": Claim(
        "SimCLR loses more accuracy than DeCL to noise on the scores (k-NN, standard deviation "
        f"{STDDEVS[-1]:g} against none)",
        "DeCL, Fig. 2",
        "SimCLR drops much more significantly than ours, demonstrating the robustness of our "
        "method to similarity-score noise.",
        "The figure has no numbers. The noise is on exp(cosine / tau).",
    ),
}


def run(setting: Setting) -> Findings:
    """Train both losses under each noise."""
    cells = {
        (arm, std): {**cell, "loss.noise": std} for arm, cell in ARMS.items() for std in STDDEVS
    }
    found = run_grid(setting, cells)
    base = baselines(found[next(iter(ARMS)), STDDEVS[0]][0])
    verdicts = {
        claim: _verdict(CLAIMS[claim], found, where)
        for claim, where in zip(CLAIMS, READINGS, strict=True)
    }
    axis = tuple(ARMS), STDDEVS, "noise std"
    return grid_findings(found, axis, [KNN], verdicts, base=base)


def _verdict(claim: Claim, found: Grid, where: str) -> Verdict:
    """Whether SimCLR loses more to the strongest noise of a reading than DeCL."""
    lost = {}
    for name in LOSSES:
        arm = f"{name}, noise on the {where}"
        ends = (values(found[arm, std], KNN) for std in (STDDEVS[0], STDDEVS[-1]))
        lost[name] = [a - b for a, b in zip(*ends, strict=True)]
    words = ", ".join(f"{name} loses {spread(points)}" for name, points in lost.items())
    more = judge(claim, lost["simclr"], lost["decl"])
    return Verdict(f"{words}: {more.measured}", more.holds)
