"""Check losses, solvers and training steps on a device against the CPU.

Every check returns its cases, their largest deviation and the bound that it must keep.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from shared import ROOT, Training, source_of

from jaxssl import distributed, solvers
from jaxssl.training import config as configs
from jaxssl.training.state import TrainState, shardings

sys.path.append(str(ROOT / "tests"))  # test cases of the losses, and their oracles

ORACLE = 3e-5  # largest relative error of a float32 loss against its float64 oracle
GRADIENT = 1e-4  # bound of a float32 loss gradient's error, see `relative`
HALF = 2.0**-6  # bound of a bfloat16 gradient's error: two units in the last place of 1
SOLVER = 1e-3  # bound of a solver's error, relative to the largest dual variable
STEP = 1e-2  # bound of a float32 update's error, relative to the norm of the update
LEARNING_RATE = 0.1  # learning rate of plain SGD, where the update is proportional to the gradient
BATCH = 16  # number of images in a step


def cpu() -> jax.Device:
    """Return the CPU device, which computes the reference values."""
    return jax.devices("cpu")[0]


def summary(deviations: Mapping[str, float], bound: float) -> dict[str, Any]:
    """Summarise a check's deviations. With a NaN, the check fails."""
    beyond = sorted(name for name, value in deviations.items() if not value <= bound)
    largest = float(np.max(list(deviations.values())))
    return {
        "cases": len(deviations),
        "beyond": beyond,
        "largest": largest if np.isfinite(largest) else None,
        "bound": bound,
    }


def check_losses(*, cases: str, part: Sequence[int]) -> dict[str, Any]:
    """Check losses on all kinds of pairs: values against float64 loops, gradients against the CPU.

    Args:
        cases: "all" settings of the tests, or only the "defaults".
        part: (i, n), the i-th of n parts of the cases, from 0.
    """
    import loss_cases as table
    import oracles

    chosen = (table.CASES if cases == "all" else table.DEFAULTS)[part[0] :: part[1]]
    z = table.embeddings()
    values: dict[str, float] = {}
    for kind in sorted({kind for case in chosen for kind in table.kinds(case)}):
        fitting = [case for case in chosen if kind in table.kinds(case)]

        def run(z: jax.Array, kind: str = kind, fitting: Sequence[Any] = fitting) -> Any:
            return {str(case): case.loss(table.pairs_of(kind, z)) for case in fitting}

        losses = jax.device_get(jax.jit(run)(jax.device_put(z, jax.devices()[0])))
        pairs = table.pairs_of(kind, jnp.asarray(z))
        for case in fitting:
            extra = {k: np.asarray(v) for k, v in table.inputs(pairs, case.extra).items()}
            exact = getattr(oracles, case.name)(pairs, **extra, **dict(case.hyper))
            gap = np.abs(losses[str(case)] - exact) / (1 + np.abs(exact))
            values[f"{case}, {kind}"] = float(gap.max())

    def gradients(z: jax.Array) -> Any:
        def mean(z: jax.Array, case: Any) -> jax.Array:
            return case.loss(table.pairs_of(table.kinds(case)[0], z)).mean()

        return {str(case): jax.grad(mean)(z, case) for case in chosen}

    out = {"values": summary(values, ORACLE)}
    for dtype, bound in (("float32", GRADIENT), ("bfloat16", HALF)):
        ours, theirs = on_both(gradients, jnp.asarray(z, dtype))
        gaps = {name: relative(ours[name], theirs[name]) for name in ours}
        out[f"gradients, {dtype}"] = summary(gaps, bound)
    return out


def solve_duals(solve: Callable[..., Any], z: jax.Array) -> jax.Array:
    """Solve the duals of embeddings [m, d]. Row i and row i + m / 2 are a pair."""
    m = len(z)
    kernel = jnp.exp(-(1 - jnp.matmul(z, z.T, precision="highest")))
    positive = jnp.arange(m, dtype=jnp.int32)
    excluded = jnp.stack([(positive + m // 2) % m, positive], 1)
    return solve(kernel, positive, excluded, C=10.0).alpha


def check_solvers() -> dict[str, Any]:
    """Check every solver on 32 and 256 embeddings against the CPU's solution."""
    gaps, enough = {}, {"num_steps": 2000, "tol": 1e-6}
    for rows in (32, 256):
        z = np.random.default_rng(0).normal(size=(rows, 64))
        z = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
        for name, options in (("pgd", enough), ("admm", enough), ("inv", {})):
            solve = partial(getattr(solvers, f"svm_dual_{name}"), **options)
            both = on_both(partial(solve_duals, solve), z)
            gaps[f"svm_dual_{name}, {rows} rows"] = relative(*both)
    return {"solutions": summary(gaps, SOLVER)}


def check_steps(*, precision: str, steps: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Check the update of a whole training step, including views and loss, against the CPU.

    In float32, with products in full precision, the update must equal the CPU's. In bfloat16, the
    distance of the update from the CPU's float32 update must be at most twice the distance of the
    CPU's bfloat16 update.

    Args:
        precision: "float32" or "bf16".
        steps: pairs of method and network.
    """
    gaps, repeated = {}, []
    for arm, network in steps:
        exact, state = take_step(arm, network, "float32", cpu(), None)
        ours, _ = take_step(arm, network, precision, jax.devices()[0], state)
        again, _ = take_step(arm, network, precision, jax.devices()[0], state)
        name = f"{arm}, {network}"
        repeated += [name] if np.array_equal(ours, again) else []
        gaps[name] = distance(ours, exact)
        if precision != "float32":
            theirs, _ = take_step(arm, network, precision, cpu(), state)
            gaps[name] /= 2 * distance(theirs, exact)
    updates = summary(gaps, STEP if precision == "float32" else 1.0)
    return {"updates": {**updates, "repeated": len(repeated)}}


def take_step(
    arm: str, network: str, precision: str, device: jax.Device, start: TrainState | None
) -> tuple[np.ndarray, TrainState]:
    """Take a training step and return its update as one vector, and the state before it."""
    from record_plan import ARMS

    nets = {"resnet18": {}, "convnet": {"net.name": "convnet"}}
    values = {
        **ARMS[arm],
        **nets[network],
        **{"batch_size": BATCH, "precision": precision, "data.cache": "device"},
        **{"optim.name": "sgd", "optim.lr": LEARNING_RATE, "optim.weight_decay": 0.0},
        # No warm-up, which would begin with a rate of 0, because the first step is compared.
        **{"schedule.name": "constant", "schedule.warmup_epochs": 0.0},
    }
    config = load_config("paper", values)
    images = np.random.default_rng(0).integers(0, 256, (2 * BATCH, 32, 32, 3), np.uint8)
    mesh = distributed.make_mesh([device])
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        training = Training(config, source_of(list(images), (32, 32, 3)), mesh)
        start = training.state if start is None else start
        # The state is copied, because the step donates it.
        state = jax.tree.map(jnp.copy, start)
        layout = shardings(training.parts.method, state, mesh, "none")
        training.state = jax.device_put(state, layout)
        training.step()
    both = (jax.tree.leaves(jax.device_get(tree.params)) for tree in (training.state, start))
    update = [np.ravel(a - b) for a, b in zip(*both, strict=True)]
    return np.concatenate(update), start


def load_config(name: str, values: Mapping[str, Any], data: Sequence[Sequence[str]] = ()) -> Any:
    """Return the complete config of a variant of `configs/studies.py` with changed values."""
    own = [(key, x if isinstance(x, str) else repr(x)) for key, x in values.items()]
    return configs.load(f"studies:{name}", [*map(tuple, data), *own])


def on_both(function: Callable[[jax.Array], Any], z: Any) -> tuple[Any, Any]:
    """Call a function on the accelerator and on the CPU, and return both results."""
    return tuple(
        jax.device_get(jax.jit(function)(jax.device_put(z, device)))
        for device in (jax.devices()[0], cpu())
    )


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference relative to the largest entry of ``theirs`` (at least 1)."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the norm of the difference relative to the norm of ``theirs``."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
