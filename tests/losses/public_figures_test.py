"""Values and gradients of public implementations (golden/README.md), in float64.

contract_test.py compares float32 with float64 oracles.
"""

import re
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from marks import long_except

from jaxssl import losses
from jaxssl.losses.auc_cl import PRESETS
from jaxssl.losses.pairs import pair_towers, pair_views, unit
from jaxssl.solvers import svm_dual_admm, svm_dual_pgd

close = np.testing.assert_allclose
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "losses.npz")
CASES = sorted({key.rsplit("/", 1)[0] for key in GOLDEN if not key.startswith("inputs/")})
LABELS = GOLDEN["inputs/labels"]
SINGLETONS = GOLDEN["supcon/hobbit_supcon_singletons_t0p1/labels"]
OTHERS = ~np.eye(8, dtype=bool)


def golden(case: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(f"{case}/"): GOLDEN[k] for k in GOLDEN if k.startswith(f"{case}/")}


def key(name: str):
    return jnp.asarray(GOLDEN[f"inputs/{name}"])


def directions(v):
    return jnp.asarray(GOLDEN["lejepa/official_w0p5/directions"], v[0].dtype)


def mochi_draws(v):
    return jnp.asarray(GOLDEN["mochi/davidsvy_t0p2/draws"], v[0].dtype)


def towers(query, name: str, **options):
    return pair_towers(query, key(name).astype(query.dtype), **options)


def from_queue(query, **options):
    return towers(query, "key2", queue=key("queue"), batch_negatives=False, **options)


def auc_cl(v, b, alpha):
    preset = {**PRESETS["released_cifar"], "alpha": alpha}
    # AUC-CL adds the constant -2B in the released code, and 2 alpha - alpha^2 in the paper.
    return losses.auc_cl_loss(pair_views(v), b, **preset) - 16 - 2 * alpha + alpha**2


def mmcl(v, **hyper):
    return losses.mmcl_loss(pair_towers(v[1], v[0]), **hyper)


def mmcl_inv(v, kernel, number, C, beta=0.1):
    # The released code divides the squared distance of the RBF kernel by `number`.
    gamma = 1 if number is None else 1 / number if kernel == "rbf" else number
    return mmcl(v, kernel=kernel, gamma=gamma, C=C, solver="inv", regularization=beta)


# Name -> function that makes pairs of two views v.
PAIRS = {
    "views": pair_views,
    "labels": lambda v: pair_views(v, labels=LABELS),
    "towers": lambda v: pair_towers(*v),
    "key2": lambda v: towers(v[0], "key2"),
    "queue": lambda v: from_queue(v[0]),
    "singletons": lambda v: pair_views(v[:1], labels=SINGLETONS),
    "small": lambda v: pair_towers(0.3 * v[0], 0.3 * v[1]),
    "halfnorm": lambda v: pair_towers(0.5 * v[0], 0.5 * v[1]),
    "four features": lambda v: pair_towers(v[0][:, :4], v[1][:, :4]),
}
VICREG = r"negfree/%s_25_25_1"
# Pattern of a case's name -> (loss, key of PAIRS, settings whose values the pattern captures,
# other settings).
TABLE = {
    r"nt_xent/(?:lightly_ntxent|leftthomas_simclr)_t(.*)": ("nt_xent", "views", "temperature"),
    r"supcon/hobbit_simclr_t(.*)": ("nt_xent", "views", "temperature"),
    r"supcon/(?:hobbit|tclrepo)_supcon_t([^_]*)": ("sup_con", "labels", "temperature"),
    r"supcon/hobbit_supcon_t(.*)_base(.*)": ("sup_con", "labels", "temperature base_temperature"),
    r"supcon/hobbit_supcon_singletons_t(.*)": ("sup_con", "singletons", "temperature"),
    r"tcl/sup_k1_(.*)_k2_(.*)_t(.*)": ("tcl", "labels", "k1 k2 temperature"),
    r"tcl/ssl_k1_(.*)_k2_(.*)_t(.*)": ("tcl", "views", "k1 k2 temperature"),
    r"nt_xent/debiased_tauplus(.*)_t(.*)": ("debiased", "views", "positive_prior temperature"),
    r"nt_xent/hcl_beta(.*)_tauplus(.*)_t(.*)": ("hcl", "views", "beta positive_prior temperature"),
    r"nt_xent/hcl_easy_t(.*)": ("hcl", "views", "temperature", {"beta": 0, "positive_prior": 0}),
    r"dcl/lightly_dcl_t(.*)": ("dcl", "views", "temperature"),
    r"dcl/lightly_dclw_t(.*)_s(.*)": ("dclw", "views", "temperature sigma"),
    r"graphcl/graphcl_loss_t(.*)": ("graphcl", "towers", "temperature"),
    r"moco/mocov3_solo_oneway_t(.*)": ("info_nce", "key2", "temperature"),
    r"moco/mocov2plus_t(.*)": ("info_nce", "queue", "temperature", {"scale_by_temperature": False}),
    r"moco/nnclr_t(.*)": ("nnclr", "towers", "temperature"),
    r"moco/ressl_q(.*)_k(.*)": ("ressl", "queue", "student_temperature teacher_temperature"),
    r"negfree/(?:\w*)_barlow_l([^_]*)": ("barlow_twins", "towers", "off_diagonal_weight"),
    r"negfree/solo_barlow_l(.*)_scale(.*)": ("barlow_twins", "towers", "off_diagonal_weight scale"),
    VICREG % "(?:lightly|official)_vicreg": ("vicreg", "towers", ""),
    VICREG % "lightly_vicreg_small": ("vicreg", "small", ""),
    VICREG % "solo_vicreg": ("vicreg", "towers", "", {"variance_weight": 50.0}),
    r"negfree/solo_byol": ("byol", "towers", ""),
    r"negfree/solo_simsiam": ("simsiam", "towers", ""),
    r"negfree/spectral_official_mu(\d*)": ("spectral", "towers", "mu"),
    r"negfree/spectral_official_mu(.*)_halfnorm": ("spectral", "halfnorm", "mu"),
    r"negfree/wmse_htdt_dim4": ("w_mse", "four features", "", {"epsilon": 0.0}),
}


def per_anchor(loss: str, pairs: str, names: str, settings=None):
    """Return the loss [n] as a function of two views and of the numbers in a case's name."""
    loss = getattr(losses, f"{loss}_loss")
    return lambda v, *numbers: loss(
        PAIRS[pairs](v), **dict(zip(names.split(), numbers, strict=True)), **(settings or {})
    )


# Released code whose anchors are the first view alone returns the first 8 of our 16 losses.
LOSSES = {name: per_anchor(*row) for name, row in TABLE.items()} | {
    r"auc_cl/auc_cifar_b(.*)_alpha(.*)": auc_cl,
    r"supcon/hobbit_supcon_one_t(.*)": lambda v, t: losses.sup_con_loss(
        pair_views(v, labels=LABELS), temperature=t
    )[:8],
    r"dcl/ramin_dcl_oneway_t(.*)": lambda v, t: losses.dcl_loss(pair_views(v), temperature=t)[:8],
    r"dcl/ramin_dclw_oneway_t(.*)_s(.*)": lambda v, t, sigma: losses.dclw_loss(
        pair_views(v), temperature=t, sigma=sigma, stop_weight_gradient=False
    )[:8],
    r"moco/mocov3_official_sym_t(.*)": lambda v, t: (
        losses.info_nce_loss(towers(v[0], "key2"), temperature=t)
        + losses.info_nce_loss(towers(v[1], "key1"), temperature=t)
    ),
    r"lejepa/official_w(.*)": lambda v, weight: losses.lejepa_loss(
        pair_towers(*v), directions(v), weight=weight
    ),
    r"arb/released_groups(.*)": lambda v, groups: losses.arb_loss(
        pair_towers(*v), groups=int(groups)
    ),
    r"mochi/davidsvy_t(.*)": lambda v, t: losses.mochi_loss(
        from_queue(v[0]), mochi_draws(v), temperature=t, hardest=8, mixed=6, mixed_with_anchor=4
    ),
    r"mmcl_main/inv_([a-z]*)([\dp]*)_C([^_]*)": mmcl_inv,
    r"mmcl_main/inv_(rbf)(.*)_C(.*)_reg(.*)": mmcl_inv,
    r"mmcl_cifar/inv_gamma(.*)_C(.*)": lambda v, s, C: mmcl_inv(v, "rbf", s, C),
}


def number(text: str):
    if re.fullmatch(r"m?\d+(p\d+)?", text):
        return float(text.replace("p", ".").replace("m", "-"))
    return {"inf": np.inf, "": None}.get(text, text)


@cache
def losses_of(family: str) -> dict:
    """case -> loss of two views, of all cases in one file."""
    actual = {}
    for case in CASES:
        matches = ((re.fullmatch(name, case), loss) for name, loss in LOSSES.items())
        for match, loss in matches:
            if match and case.startswith(f"{family}/"):
                numbers = [number(text) for text in match.groups()]
                actual[case] = lambda v, loss=loss, numbers=numbers: loss(v, *numbers).mean()
    return actual


def inputs_of(case: str) -> str:
    """Whether a code takes raw embeddings or rows at length 1."""
    return "z" if any("/grad_z" in k for k in GOLDEN if k.startswith(f"{case}/")) else "x"


@cache
def values_of(family: str):
    """{case: (value, gradients)}: one program for a file."""
    with jax.enable_x64(True):
        views = {s: [jnp.asarray(GOLDEN[f"inputs/{s}{i}"]) for i in "12"] for s in "xz"}
        run = lambda views: {  # noqa: E731
            case: jax.value_and_grad(loss)(views[inputs_of(case)])
            for case, loss in losses_of(family).items()
        }
        return jax.tree.map(np.asarray, jax.jit(run)(views))


def tangent(gradient: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The part of a gradient along the sphere.

    Implementations that treat unit rows as free variables also return the radial part. It is zero
    here, because the loss normalises inside.
    """
    return gradient - np.sum(gradient * rows, axis=-1, keepdims=True) * rows


FAMILIES = sorted({case.split("/")[0] for case in CASES} - {"fastclip", "sogclr", "mmcl_exact"})


@pytest.mark.parametrize("case", [case for family in FAMILIES for case in losses_of(family)])
def test_loss_and_gradient_equal_the_public_implementation(case):
    public = golden(case)
    value, gradients = values_of(case.split("/")[0])[case]
    scale = max(1.0, float(np.abs(public["loss"])))
    close(value, public["loss"], rtol=1e-9, atol=1e-10 * scale)
    letter = inputs_of(case)
    for i, actual in enumerate(gradients, 1):
        expected = public.get(f"grad_{letter}{i}", public.get(f"grad_h{i}"))
        if expected is None:
            continue
        if letter == "z" and "halfnorm" not in case:  # halfnorm embeddings are not normalised
            expected = tangent(expected, GOLDEN[f"inputs/z{i}"])
        if expected.shape != actual.shape:
            actual = actual[:, : expected.shape[1]]
        scale = max(1.0, np.abs(expected).max())
        close(actual, expected, rtol=1e-9, atol=1e-10 * scale)


def test_every_stored_value_of_a_public_implementation_is_tested():
    used = {case for family in FAMILIES for case in losses_of(family)}
    left = {case.split("/")[0] for case in CASES if case not in used and "/pgd_" not in case}
    assert left == {"fastclip", "sogclr", "mmcl_exact"}


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("auc_cl/")])
def test_auc_cl_gradient_of_b_equals_the_released_code(case):
    b, alpha = (number(text) for text in re.fullmatch(r".*_b(.*)_alpha(.*)", case).groups())
    with jax.enable_x64(True):
        v = [jnp.asarray(GOLDEN[f"inputs/z{i}"]) for i in "12"]
        actual = jax.grad(lambda b: auc_cl(v, b, alpha).mean())(b)
        close(actual, golden(case)["grad_b"].squeeze(), rtol=1e-9)


def square(alpha: np.ndarray) -> np.ndarray:
    """[8, 8] matrix from rows without the diagonal."""
    out = np.zeros((8, 8))
    out[OTHERS] = alpha.reshape(-1)
    return out


def kernel(name: str, s: float | None, letter: str) -> jax.Array:
    z = unit(jnp.asarray(GOLDEN[f"inputs/{letter}1"]))
    cosine = z @ z.T
    if name == "tanh":
        return jnp.tanh(s * cosine)
    return cosine if name == "linear" else jnp.exp((2 * cosine - 2) / s)


PGD = [c for c in CASES if "/pgd_" in c]


@pytest.mark.parametrize("case", long_except(PGD[:3], PGD))
def test_mmcl_pgd_equals_the_released_code_step_by_step(case):
    public = golden(case)
    if case.startswith("mmcl_cifar"):
        name, s, C = "rbf", *map(number, re.fullmatch(r".*gamma(.*)_C(.*)", case).groups())
        letter, momentum, step = "z", "nest", "eta"
    else:
        pattern = r"mmcl_main/pgd_([a-z]*)([\dp]*)_C([^_]*)_(nest|van)_(eta|norm).*"
        name, s, C, momentum, step = map(number, re.fullmatch(pattern, case).groups())
        letter = "x"
    with jax.enable_x64(True):
        anchors = jnp.arange(8)
        hyper = {"C": C, "accelerated": momentum == "nest", "restart": False}
        hyper |= {"num_steps": int(public["n_iter_index"]) + 1}
        hyper |= {"step": 1e-3 if step == "eta" else "frobenius"}
        hyper |= {"momentum_start": public.get("momentum_alpha0", 1.0)}
        init = jnp.asarray(square(public["alpha_init"]))
        problem = kernel(name, s, letter), anchors, anchors[:, None]
        actual = svm_dual_pgd(*problem, init=init, **hyper)
        close(actual.alpha, square(public["alpha"]), rtol=1e-9, atol=1e-9)
        # One step of length zero gives our loss at the released code's alpha.
        v = [jnp.asarray(GOLDEN[f"inputs/{letter}{i}"]) for i in "12"]
        hyper = {"C": C, "alpha_init": jnp.asarray(square(public["alpha"]))}
        hyper |= {"kernel": name, "gamma": 1 if s is None else 1 / s if name == "rbf" else s}
        loss = lambda v: mmcl(v, num_steps=1, step=1e-300, **hyper).mean()  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(v)
    close(value, public["loss"], rtol=1e-9)
    for i, gradient in enumerate(gradients, 1):
        expected = public[f"grad_{letter}{i}"]
        if letter == "z":
            expected = tangent(expected, GOLDEN[f"inputs/z{i}"])
        close(gradient, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("mmcl_exact/")])
def test_pgd_and_admm_reach_the_optimum_of_bounded_least_squares(case):
    s, C = map(number, re.fullmatch(r".*rbf(.*)_C(.*)", case).groups())
    public = golden(case)
    with jax.enable_x64(True):
        problem = kernel("rbf", s, "x"), jnp.arange(8), jnp.arange(8)[:, None]
        for solve, num_steps in ((svm_dual_pgd, 3000), (svm_dual_admm, 1000)):
            actual = solve(*problem, C=C, num_steps=num_steps, tol=1e-15)
            close(actual.objective, public["objective_exact"], rtol=1e-10)
            close(actual.alpha, square(public["alpha_exact"]), atol=1e-6)


def released_steps(case: str, objective, params, memory, pair, letter: str):
    """Compare three steps with public figures; yield the figures and our memory of each step."""

    @jax.jit
    def step(v, memory, index):
        def loss(v):
            return objective.loss(pair(v, index), params, memory, step=0, key=None)[:2]

        return jax.value_and_grad(loss, has_aux=True)(v)

    for k in range(3):
        public = golden(f"{case}/step{k}")
        names = [f"{letter}{i}" for i in "12"]
        v = [jnp.asarray(public.get(name, GOLDEN[f"inputs/{name}"])) for name in names]
        if k > 0 and "log_u" in memory:
            memory = {**memory, "log_u": jnp.maximum(memory["log_u"], -700)}
        (value, memory), gradients = step(v, memory, jnp.asarray(public.get("index", np.arange(8))))
        close(value, public["loss"], rtol=1e-9)
        for name, rows, gradient in zip(names, v, gradients, strict=True):
            expected = public[f"grad_{name}"]
            expected = tangent(expected, rows) if letter == "z" else expected
            close(gradient, expected, rtol=1e-9, atol=1e-10)
        yield public, memory


STEPS = ("sogclr_tau0p1_gamma0p9", "sogclr_tau0p1_gamma0p6", "isogclr_tau0p1_gamma0p9")


@pytest.mark.parametrize("name", STEPS)
def test_three_steps_of_sogclr_and_isogclr_equal_libauc(name):
    """In LibAUC either all examples of a batch start their average or none."""
    hyper = {"gamma": number(name[-3:]), "individual_temperature": name.startswith("iso")}
    objective = losses.objective("sogclr", **hyper)
    with jax.enable_x64(True):
        params, memory = objective.init(jax.random.key(0), 16, 16)
        memory = jax.tree.map(lambda x: x.astype(jnp.float64), memory)
        if "temperature" in memory:  # Replace the float32 value of 0.1.
            memory["temperature"] = jnp.full(16, 0.1, jnp.float64)
        steps = released_steps(f"sogclr/{name}", objective, params, memory, pair_views, "x")
        for public, after in steps:
            close(np.exp(after["log_u"]), public["u_after"], rtol=1e-9, atol=1e-300)
            if "tau_after" in public:
                close(after["temperature"], public["tau_after"], rtol=1e-9)


def test_three_steps_of_fastclip_equal_the_released_code():
    """In its first epoch the released Adam has no decay."""
    settings = {"temperature": 0.1, "gamma": 0.6, "rho": 0.5, "temperature_lr": 0.01}
    objective = losses.objective("fastclip", beta1=0.0, beta2=0.0, **settings)
    with jax.enable_x64(True):
        _, memory = objective.init(jax.random.key(0), 8, 16)
        memory = jax.tree.map(lambda x: x.astype(jnp.float64), memory)
        for tower in memory.values():
            tower["temperature"] = jnp.full(8, 0.1, jnp.float64)
        pair = lambda z, index: pair_towers(*z)  # noqa: E731
        case = "fastclip/individual_gamma0p6"
        for public, after in released_steps(case, objective, {}, memory, pair, "z"):
            for name, figure in (("log_u", "log_u_after"), ("temperature", "tau_after")):
                actual = [after[tower][name] for tower in ("query", "key")]
                close(actual, public[figure], rtol=1e-9)
