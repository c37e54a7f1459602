"""Values and gradients of public codes, in float64. tests/golden/README.md says whose."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl.losses import auc_cl_loss, nt_xent_loss
from jaxssl.losses.auc_cl import PRESETS
from jaxssl.pairs import pair_views

GOLDEN = np.load(Path(__file__).parent / "golden" / "losses.npz")
EXACT = {"rtol": 1e-9, "atol": 1e-10}
AUC_CL = sorted({k.split("/")[1] for k in GOLDEN if k.startswith("auc_cl/")})
NT_XENT = sorted({k.split("/")[1] for k in GOLDEN if k.startswith("nt_xent/")})


@pytest.mark.parametrize("case", AUC_CL)
def test_auc_cl_released_cifar_equals_the_authors_code(case):
    b, alpha = (float(GOLDEN[f"auc_cl/{case}/{name}"]) for name in ("b", "alpha"))
    preset = {**PRESETS["released_cifar"], "alpha": alpha}
    with jax.enable_x64(True):
        z1, z2, b = (jnp.asarray(x) for x in (GOLDEN["inputs/z1"], GOLDEN["inputs/z2"], b))
        loss = lambda z1, z2, b: auc_cl_loss(pair_views([z1, z2]), b, **preset).mean()  # noqa: E731
        value, gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))(z1, z2, b)
        # Their constant is -2B, the paper's 2 alpha - alpha^2.
        theirs = GOLDEN[f"auc_cl/{case}/loss"] + 2 * len(z1) + 2 * alpha - alpha**2
        np.testing.assert_allclose(value, theirs, **EXACT)
        for found, name in zip(gradient, ("z1", "z2", "b"), strict=True):
            expected = GOLDEN[f"auc_cl/{case}/grad_{name}"].squeeze()
            if name != "b":
                expected = _tangent(expected, GOLDEN[f"inputs/{name}"])
            np.testing.assert_allclose(found, expected, **EXACT)


@pytest.mark.parametrize("case", NT_XENT)
def test_nt_xent_equals_public_codes(case):
    golden = {k.split("/")[2]: v for k, v in GOLDEN.items() if k.startswith(f"nt_xent/{case}/")}
    names = [name.removeprefix("grad_") for name in golden if name.startswith("grad_")]
    labels = GOLDEN["inputs/labels"] if "supcon" in case else None
    with jax.enable_x64(True):
        inputs = [jnp.asarray(GOLDEN[f"inputs/{name}"]) for name in names]
        loss = lambda x: nt_xent_loss(  # noqa: E731
            pair_views(x, labels=labels), temperature=float(golden["temperature"])
        ).mean()
        value, gradients = jax.value_and_grad(loss)(inputs)
    np.testing.assert_allclose(value, golden["loss"], **EXACT)
    for name, rows, found in zip(names, inputs, gradients, strict=True):
        expected = golden[f"grad_{name}"]
        if name.startswith("z"):
            expected = _tangent(expected, np.asarray(rows))
        np.testing.assert_allclose(found, expected, **EXACT)


def _tangent(gradient, rows):
    """The part of a gradient along the sphere.

    Codes that take unit rows as free variables give the rest too; normalising inside the loss, as
    we do, removes it.
    """
    return gradient - np.sum(gradient * rows, axis=-1, keepdims=True) * rows
