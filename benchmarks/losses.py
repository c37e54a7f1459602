"""Time losses and solvers against reference implementations.

    python benchmarks/losses.py                  # everything; four minutes on two CPU cores
    python benchmarks/losses.py --only mmcl auc  # rows whose names contain these words

Our function and the reference run in turn in one process, at least once, until `--rounds` rounds or
`--seconds` have passed. A function whose first call takes half of the seconds is called only once.
A row is printed as soon as it is measured. "ratio" is the median over rounds of the time of the
reference divided by ours (more than 1: ours is faster), with the smallest and largest in brackets.
"MB" is XLA's temporary memory. "differ" is the largest difference of the two first outputs relative
to the largest entry. Losses are timed with their gradient. Some rows have no reference.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import Array, lax
from jax import numpy as jnp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from shared import machine, timed

from jaxssl import losses, solvers

BETA, STEPS, TOL = 0.1, 1000, 1e-4
HIGHEST = lax.Precision.HIGHEST
HEADS = ("ms", "ref. ms", "ratio", "MB", "ref. MB", "differ", "target")
WIDTHS = (10, 10, 30, 10, 10, 10, 16)


class Row(NamedTuple):
    """Two functions to compare in time, their arguments, and the target ratio."""

    name: str
    ours: Callable[..., Any]
    reference: Callable[..., Any] | None
    args: tuple[Array, ...]
    target: str = ""


def embeddings(views: int, b: int, d: int = 128) -> Array:
    """Draw unit embeddings [views, b, d] in 16 clusters, as of a half-trained encoder."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(16, d))[np.arange(b) % 16]
    z = centre + 0.5 * rng.normal(size=(b, d)) + 0.2 * rng.normal(size=(views, b, d))
    return jnp.asarray(z / np.linalg.norm(z, axis=-1, keepdims=True), jnp.float32)


# The released code of MMCL builds its SVM duals like this, with a dense matrix for every anchor.


def problem(views: int, b: int) -> tuple[Array, Array, Array]:
    """Return the kernel matrix, each anchor's positive index and its excluded indices."""
    rows = embeddings(views, b).reshape(views * b, -1)
    kernel = jnp.exp(-BETA * (2 - 2 * jnp.matmul(rows, rows.T, precision=HIGHEST)))
    own = jnp.arange(views * b, dtype=jnp.int32)
    excluded = jnp.stack([(own + k * b) % (views * b) for k in range(views)][::-1], axis=1)
    return kernel, excluded[:, 0], excluded


def dense(kernel: Array, positive: Array, excluded: Array) -> tuple[Array, Array]:
    """Return each anchor's dense dual matrix [n, f, f] and its candidates' indices [n, f]."""
    m, q = kernel.shape[0], excluded.shape[1]
    gone = jnp.any(jnp.arange(m)[None, :, None] == excluded[:, None, :], axis=2)
    free = jnp.argsort(gone, axis=1, stable=True)[:, : m - q]
    beside = jnp.take_along_axis(kernel[positive], free, axis=1)
    delta = kernel[free[:, :, None], free[:, None, :]] - beside[:, :, None] - beside[:, None, :]
    return delta + 1 + BETA * jnp.eye(m - q)[None], free


def scatter(alpha: Array, free: Array, m: int) -> Array:
    """Scatter solutions [n, f], which lack the excluded candidates, to all m candidates."""
    n = alpha.shape[0]
    return jnp.zeros((n, m), alpha.dtype).at[jnp.arange(n)[:, None], free].set(alpha)


def dense_pgd(kernel: Array, positive: Array, excluded: Array) -> Array:
    delta, free = dense(kernel, positive, excluded)
    eta = lax.rsqrt(jnp.sum(delta * delta, axis=(1, 2)))[:, None]

    def advance(_, state):
        x, y, a = state
        image = jnp.einsum("njl,nl->nj", delta, y, precision=HIGHEST)
        new = jnp.maximum(y - eta * (image - 2), 0)
        following = (jnp.sqrt(a**4 + 4 * a**2) - a**2) / 2
        return new, new + a * (1 - a) / (a**2 + following) * (new - x), following

    zero = jnp.zeros(free.shape, kernel.dtype)
    alpha = lax.fori_loop(0, STEPS, advance, (zero, zero, jnp.ones((), kernel.dtype)))[0]
    return scatter(alpha, free, kernel.shape[0])


def dense_inv(kernel: Array, positive: Array, excluded: Array) -> Array:
    delta, free = dense(kernel, positive, excluded)
    alpha = jnp.linalg.solve(delta, jnp.full((*free.shape, 1), 2, kernel.dtype))[:, :, 0]
    return scatter(jnp.maximum(alpha, 0), free, kernel.shape[0])


def duals() -> Iterator[Row]:
    alpha = lambda solve, **kw: lambda *args: solve(*args, regularization=BETA, **kw).alpha  # noqa: E731
    certified = {"tol": TOL, "num_steps": STEPS}
    same = {"num_steps": STEPS, "step": "frobenius", "restart": False}
    pgd = alpha(solvers.svm_dual_pgd, **certified)
    admm = alpha(solvers.svm_dual_admm, **certified)
    inv = alpha(solvers.svm_dual_inv)
    one, two, large = problem(1, 256), problem(2, 256), problem(1, 1024)
    yield Row("mmcl pgd to 1e-4, B=256", pgd, dense_pgd, one, "100 x")
    warm = alpha(solvers.svm_dual_pgd, **certified, init="inv")
    yield Row("mmcl pgd from inv to 1e-4, B=256", warm, dense_pgd, one, "100 x")
    yield Row("mmcl admm to 1e-4, B=256", admm, dense_pgd, one, "500 x")
    yield Row("mmcl pgd, the same 1000 steps", alpha(solvers.svm_dual_pgd, **same), dense_pgd, one)
    yield Row("mmcl inv, B=256", inv, dense_inv, one, "100 x")
    yield Row("mmcl inv, both views, B=256", inv, dense_inv, two, "100 x")
    yield Row("mmcl pgd to 1e-4, B=1024", pgd, None, large, "200 MB")
    yield Row("mmcl admm to 1e-4, B=1024", admm, None, large, "200 MB")
    yield Row("mmcl inv, B=1024", inv, None, large, "200 MB")


def with_gradient(loss: Callable[..., Array], **hyper: Any) -> Callable[..., Any]:
    return jax.value_and_grad(lambda z1, z2, **kw: loss(z1, z2, **hyper, **kw), argnums=(0, 1))


def labelled(loss: Callable[..., Array], **hyper: Any) -> Callable[..., Any]:
    return lambda z1, z2, y: with_gradient(loss, labels=y, **hyper)(z1, z2)


def optax_ntxent(z1: Array, z2: Array, temperature: float = 0.5) -> tuple[Array, Any]:
    def loss(z1, z2):
        labels = jnp.tile(jnp.arange(len(z1)), 2)
        return optax.losses.ntxent(jnp.concatenate([z1, z2]), labels, temperature=temperature)

    return jax.value_and_grad(loss, argnums=(0, 1))(z1, z2)


def all_losses() -> Iterator[Row]:
    small, medium, large = (tuple(embeddings(2, b)) for b in (256, 4096, 16384))
    classes = jnp.arange(4096, dtype=jnp.int32) % 100
    blocks = {"block_size": 256}
    for b, target in ((64, ""), (256, ""), (1024, ""), (4096, "15 x")):
        by = lambda form: with_gradient(losses.auc_cl, b=0.2, form=form)  # noqa: E731
        args = tuple(embeddings(2, b))
        yield Row(f"auc_cl by moments, B={b}", by("moments"), by("matrix"), args, target)
    for loss in (losses.nt_xent, losses.tcl, losses.dcl, losses.info_nce, losses.clip):
        ours, plain = with_gradient(loss, **blocks), with_gradient(loss)
        target = "1.43 x, 80 MB" if loss in (losses.nt_xent, losses.tcl) else ""
        yield Row(f"{loss.__name__} in blocks, B=4096", ours, plain, medium, target)
    for loss in (losses.sup_con, losses.tcl):
        ours, plain = labelled(loss, **blocks), labelled(loss)
        name = f"{loss.__name__} in blocks, labels, B=4096"
        yield Row(name, ours, plain, (*medium, classes), "1.43 x, 80 MB")
    ours, plain = with_gradient(losses.nt_xent, **blocks), with_gradient(losses.nt_xent)
    yield Row("nt_xent in blocks, B=256", ours, plain, small)
    ours = with_gradient(losses.nt_xent, block_size=128)
    yield Row("nt_xent in blocks, B=16384", ours, None, large, "200 MB")
    yield Row("nt_xent against optax, 512 pairs", plain, optax_ntxent, embeddings(2, 512), "50 x")


def compare(row: Row, rounds: int, seconds: float) -> list[str]:
    """Time our function and the reference in turns, and return the cells of a table row."""
    begin = time.perf_counter()
    sides = [side for side in (row.ours, row.reference) if side is not None]
    compiled = [jax.jit(side).lower(*row.args).compile() for side in sides]
    memory = [run.memory_analysis().temp_size_in_bytes / 1e6 for run in compiled]
    calls = [partial(run, *row.args) for run in compiled]
    once, first = zip(*map(timed, calls), strict=True)
    # The first call counts as the first round if it took more than half of ``seconds``.
    taken = [[t if t > seconds / 2 else clock(c) for c, t in zip(calls, once, strict=True)]]
    while len(taken) < rounds and time.perf_counter() - begin < seconds:
        taken.append([clock(call) for call in calls])
    times = np.array(taken)
    cells = [row.name, f"{1e3 * np.median(times[:, 0]):.3g}", "", "", f"{memory[0]:.3g}", "", ""]
    if row.reference is not None:
        ratio = times[:, 1] / times[:, 0]
        cells[2] = f"{1e3 * np.median(times[:, 1]):.3g}"
        cells[3] = f"{np.median(ratio):.3g} [{ratio.min():.3g}-{ratio.max():.3g}]"
        cells[5] = f"{memory[1]:.3g}"
        cells[6] = f"{max(map(difference, *map(jax.tree.leaves, first))):.1e}"
    return [*cells, row.target]


def difference(ours: jax.Array, theirs: jax.Array) -> float:
    """Return the largest difference of two arrays, relative to the largest entry of the second."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max())


def clock(call: Callable[[], Any]) -> float:
    """Call a function for half a second, and return the seconds of the fastest call."""
    taken: list[float] = []
    while sum(taken) < 0.5:
        taken.append(timed(call)[0])
    return min(taken)


def line(cells: Sequence[str]) -> str:
    """Format table cells in aligned columns."""
    first, *others = cells
    wide = zip(others, WIDTHS, strict=True)
    return first.ljust(38) + "".join(cell.rjust(width) for cell, width in wide)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of a row, at most")
    parser.add_argument("--seconds", type=float, default=6, help="of a row, after which it ends")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names")
    options = parser.parse_args()
    rows = [row for row in (*duals(), *all_losses()) if any(x in row.name for x in options.only)]
    if not rows:
        parser.error(f"no row has {' or '.join(options.only)} in its name")
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{machine()}, jax {jax.__version__}")
    console.print(line(("", *HEADS)))
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    bar = Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("", total=len(rows))
        for row in rows:
            bar.update(task, description=row.name)
            console.print(line(compare(row, options.rounds, options.seconds)), markup=False)
            bar.advance(task)
    views = jnp.stack([jax.random.normal(jax.random.key(0), (64, 128))] * 2)  # two identical views
    for name, loss in (("ours", with_gradient(losses.nt_xent)), ("optax", optax_ntxent)):
        run = jax.jit(lambda z, loss=loss: loss(z[0], z[1], temperature=0.005))
        finite = all(jnp.isfinite(x).all() for x in jax.tree.leaves(run(views)))
        word = "finite" if finite else "not finite"
        console.print(f"nt_xent and its gradient at temperature 0.005, {name}: {word}")


if __name__ == "__main__":
    main()
