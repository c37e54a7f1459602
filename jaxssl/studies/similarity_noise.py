"""Noise on every similarity in training: how much accuracy it costs DeCL and SimCLR.

Gaussian noise is added to each cosine before the exponential, drawn anew in every step, for both
losses alike. The paper does not say where it adds its noise; ours is before the temperature.
"""

from jaxssl.grid import KNN, METHODS, baselines, findings_of, run_grid, values
from jaxssl.studies.unnormalised import NT_XENT
from jaxssl.study import Claim, Findings, Setting, Verdict, judge, spread

STDDEVS = (0.0, 0.3, 1.0, 2.0)
ARMS = {
    "simclr": {**NT_XENT, "loss.temperature": 0.5},
    "decl": METHODS["decl"],
}
CLAIMS = {
    "decl_robust": Claim(
        "SimCLR loses more accuracy than DeCL to noise on the similarities (k-NN, standard "
        f"deviation {STDDEVS[-1]:g} against none)",
        "DeCL, Fig. 2",
        "SimCLR drops much more significantly than ours, demonstrating the robustness of our "
        "method to similarity-score noise.",
        "The figure has no numbers.",
    ),
}


def run(setting: Setting) -> Findings:
    """Train both losses under each noise."""
    cells = {
        (arm, std): {**cell, "loss.noise": std} for arm, cell in ARMS.items() for std in STDDEVS
    }
    found = run_grid(setting, cells)
    base = baselines(found["simclr", 0.0][0])
    lost = {}
    for arm in ARMS:
        ends = (values(found[arm, std], KNN) for std in (STDDEVS[0], STDDEVS[-1]))
        lost[arm] = [a - b for a, b in zip(*ends, strict=True)]
    words = ", ".join(f"{arm} loses {spread(points)}" for arm, points in lost.items())
    more = judge(CLAIMS["decl_robust"], lost["simclr"], lost["decl"])
    verdict = Verdict(f"{words}: {more.figure}", more.holds)
    axis = tuple(ARMS), STDDEVS, "noise std"
    return findings_of(found, axis, [KNN], {"decl_robust": verdict}, base=base)
