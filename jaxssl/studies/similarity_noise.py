"""How much accuracy noise on the similarities costs DeCL and SimCLR.

Gaussian noise is drawn in every step, in the same way for both losses. The paper does not say where
it adds the noise, so both readings are trained: noise on each cosine, before the temperature, and
noise on each score exp(cosine / tau).
"""

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, Results
from jaxssl.studies.study import Findings, Setting, Verdict, read_claims
from jaxssl.studies.unnormalised import NT_XENT
from jaxssl.studies.verdicts import judge, spread

STDDEVS = (0.0, 0.3, 1.0, 2.0)
LOSSES = {"simclr": {**NT_XENT, "loss.temperature": 0.5}, "decl": METHODS["decl"]}
# Maps a claim to the place where it adds noise.
READINGS = {"decl_robust": "similarity", "decl_robust_score": "score"}
ARMS = {
    f"{name}, noise on the {place}": {**cell, "loss.noise_on": place}
    for name, cell in LOSSES.items()
    for place in READINGS.values()
}
PAPER = "simclr"
CLAIMS = read_claims("similarity_noise")


def run(setting: Setting) -> Findings:
    """Train DeCL and SimCLR with noise of each strength on the similarity or on the score."""
    cells = grid.cross(ARMS, {std: {"loss.noise": std} for std in STDDEVS})
    results = grid.run_grid(setting, cells)
    verdicts = {claim: _judge_loss(claim, place, results) for claim, place in READINGS.items()}
    return grid.grid_findings(results, "noise std", [KNN], CLAIMS, verdicts)


def _judge_loss(claim: str, place: str, results: Results) -> Verdict:
    """Judge whether the strongest noise costs SimCLR more accuracy than DeCL."""
    lost = {}
    for name in LOSSES:
        arm = f"{name}, noise on the {place}"
        ends = (grid.seed_values(results[arm, std], KNN) for std in (STDDEVS[0], STDDEVS[-1]))
        lost[name] = [a - b for a, b in zip(*ends, strict=True)]
    text = ", ".join(f"{name} loses {spread(points)}" for name, points in lost.items())
    return judge(CLAIMS[claim], lost["simclr"], lost["decl"]).after(text)
