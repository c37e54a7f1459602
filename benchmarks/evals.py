"""Measure the time of evaluation: k-NN, the linear probe and every protocol.

    python benchmarks/evals.py [--data DIR] [--workdir RUN] [--quick] [--rounds 3]

1. k-NN with a bank of 50 000 x 512 and 10 000 queries, against scikit-learn's brute force: time,
   memory beyond the bank (in a process of its own), and the number of different predictions.
2. The probe `linear:fast` against 100 epochs of SGD on the same features, in PyTorch if installed,
   otherwise in NumPy. SGD runs on one thread, because its batches are too small for more. Its rate
   is the best of three on the test set, and one run is timed. Our time includes the choice of C.
3. Seconds of every protocol on the run's checkpoint, including compilation.

Features are responses to random patches of CIFAR-10 if --data has it, otherwise Gaussian classes of
condition number 1e3. Shared machines are noisy: compare the ratios, which are medians over rounds
with one turn of each side. --quick uses 10 % of the examples and epochs.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from shared import in_turns, machine, ratios, resident, spread, timed
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

from jaxssl import components
from jaxssl.augment.views import Inputs
from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluation import run
from jaxssl.evaluation.context import load_arrays
from jaxssl.evaluation.protocol import Features
from jaxssl.evaluation.protocols import knn, linear
from jaxssl.report.markdown import markdown_table
from jaxssl.training.config import load
from jaxssl.training.output import logs

HYPER = knn.PRESETS["instdisc"]
BATCH, RATES = 512, (0.1, 0.03, 0.01)


# ---- Images and features that the benchmarks use.


def synthetic(n: int, m: int, f: int = 512, classes: int = 10) -> Features:
    """Draw Gaussian classes with standard deviations 1 to 1e-3 along random directions."""
    rng = np.random.default_rng(0)
    deviation = np.logspace(0, -3, f)
    mixed = np.linalg.qr(rng.normal(size=(f, f)))[0] * deviation[:, None]
    centres = 0.25 * rng.normal(size=(classes, f))
    labels = rng.integers(0, classes, n + m)
    rows = ((centres[labels] + rng.normal(size=(n + m, f))) @ mixed).astype(np.float32)
    return Features(rows[:n], labels[:n], rows[n:], labels[n:])


def random_patches(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """Compute features [n, 512]: signed responses to 64 filters, averaged in each image quarter."""

    @jax.jit
    def block(x: jax.Array) -> jax.Array:
        pixels = x.astype(jnp.float32) / 255
        axes = ("NHWC", "HWIO", "NHWC")
        z = lax.conv_general_dilated(
            pixels, jnp.asarray(filters), (1, 1), "VALID", dimension_numbers=axes
        )
        z = jnp.concatenate([jax.nn.relu(z - 0.25), jax.nn.relu(-z - 0.25)], axis=-1)
        return z[:, :26, :26].reshape(len(x), 2, 13, 2, 13, -1).mean((2, 4)).reshape(len(x), -1)

    return np.concatenate([block(images[i : i + 500]) for i in range(0, len(images), 500)])


def patch_filters(images: np.ndarray) -> np.ndarray:
    """Return filters [6, 6, 3, 64]: whitened image patches of norm 1, which also whiten input."""
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 27, (20_000, 2))
    chosen = images[rng.integers(0, len(images), len(corners))]
    windows = [x[r : r + 6, c : c + 6].ravel() for x, (r, c) in zip(chosen, corners, strict=True)]
    patches = np.stack(windows) / 255
    patches -= patches.mean(axis=1, keepdims=True)
    patches /= np.sqrt(patches.var(axis=1, keepdims=True) + 0.01)
    values, vectors = np.linalg.eigh(np.cov(patches.T))
    whiten = vectors / np.sqrt(values + 0.1) @ vectors.T
    filters = (patches[:64] - patches.mean(axis=0)) @ whiten
    filters /= np.linalg.norm(filters, axis=1, keepdims=True)
    return (filters @ whiten).reshape(64, 6, 6, 3).transpose(1, 2, 3, 0).astype(np.float32)


def features_of(data: str | None, n: int, m: int) -> tuple[str, Features]:
    """Return features of CIFAR-10, or synthetic ones, and their description."""
    if data is None:
        return "Gaussian classes", synthetic(n, m)
    config = load("cifar10_baselines:simclr", [("data.dir", data)])
    arrays = load_arrays(source.load_splits(config.data), Inputs(32, 3))
    images = np.asarray(arrays.train[:n]), np.asarray(arrays.test[:m])
    filters = patch_filters(images[0])
    train, test = (random_patches(x, filters) for x in images)
    features = Features(train, arrays.train_labels[:n], test, arrays.test_labels[:m])
    return "random patches of CIFAR-10", features


# ---- 1. k-NN compared with scikit-learn.


def brute_force(features: Features) -> Callable[[], np.ndarray]:
    """Return a function that predicts classes by our weighted k-NN votes, but with scikit-learn."""
    train, test = (
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        for x in (features.train, features.test)
    )
    # scikit-learn's type annotation of the argument ``weights`` does not allow functions.
    votes: Any = lambda d: np.exp((1 - d * d / 2) / HYPER["temperature"])  # noqa: E731
    model = KNeighborsClassifier(HYPER["k"], algorithm="brute", weights=votes)
    model.fit(train, features.train_labels)
    return lambda: model.predict(test)


def memory_above(folder: Path) -> float:
    """Return the memory in MB that k-NN needs beyond its input."""
    bank, labels, queries = (np.load(folder / f"{x}.npy") for x in ("train", "labels", "test"))
    knn.predict(bank[:1000], labels[:1000], queries[:300], **HYPER)  # The first call compiles.
    before = resident("VmRSS")
    knn.predict(bank, labels, queries, **HYPER)
    return resident("VmHWM") - before


def nearest(features: Features, rounds: int) -> None:
    # scikit-learn uses Euclidean distance, where a zero row is as close as a cosine of 1/2. Zero
    # rows are therefore dropped.
    bank, queries = (x.any(axis=1) for x in (features.train, features.test))
    features = Features(*(x[bank] for x in features[:2]), *(x[queries] for x in features[2:]))
    hyper = {**HYPER, "num_classes": 10}
    ours = lambda: knn.predict(*features[:3], **hyper)[:, 0]  # noqa: E731
    theirs = brute_force(features)
    timed(ours)
    pairs = [(timed(ours), timed(theirs)) for _ in range(rounds)]
    own, reference = ([pair[i][0] for pair in pairs] for i in (0, 1))
    (_, predicted), (_, expected) = pairs[-1]
    with tempfile.TemporaryDirectory() as folder:
        for name, array in zip(("train", "labels", "test"), features, strict=False):
            np.save(Path(folder) / name, array)
        command = [sys.executable, __file__, "--memory", folder]
        above = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shape = f"{len(features.train)} x {features.train.shape[1]}, {len(features.test)} queries"
    rows = [
        ["s", spread(own), spread(reference)],
        ["ours is faster by", spread(ratios(reference, own)), ""],
        ["MB above the bank", above.strip(), ""],
        ["predictions that differ", str((predicted != expected).sum()), ""],
    ]
    print(markdown_table([f"k-NN, {shape}", "ours", "scikit-learn"], rows))


# ---- 2. The linear probe.


@threadpool_limits.wrap(limits=1)
def sgd(x: np.ndarray, y: np.ndarray, rate: float, epochs: int) -> tuple[np.ndarray, np.ndarray]:
    """Train weights [f, 10] and bias [10] by SGD with momentum 0.9 and a cosine rate."""
    try:
        import torch
    except ImportError:
        return _sgd_numpy(x, y, rate, epochs)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, labels = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    model = torch.nn.Linear(x.shape[1], 10)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(rows)).split(BATCH):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(rows[batch]), labels[batch]).backward()
            optimiser.step()
        schedule.step()
    return model.weight.detach().numpy().T, model.bias.detach().numpy()


def _sgd_numpy(x: np.ndarray, y: np.ndarray, rate: float, epochs: int) -> tuple:
    rng, target = np.random.default_rng(0), np.eye(10, dtype=np.float32)[y]
    x = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)
    w, speed = np.zeros((2, x.shape[1], 10), np.float32)
    for epoch in range(epochs):
        lr = np.float32(rate * (1 + np.cos(np.pi * epoch / epochs)) / 2)
        order = rng.permutation(len(x))
        for first in range(0, len(x), BATCH):
            batch = x[order[first : first + BATCH]]
            logits = batch @ w
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p = p / p.sum(axis=1, keepdims=True) - target[order[first : first + BATCH]]
            speed = 0.9 * speed + batch.T @ p / np.float32(len(batch))
            w = w - lr * speed
    return w[:-1], w[-1]


def probe(features: Features, rounds: int, epochs: int) -> None:
    ours = lambda: linear.accuracy(features, **linear.PRESETS["fast"], seed=0)  # noqa: E731
    mean, std = features.train.mean(axis=0), features.train.std(axis=0)
    x, test = (
        np.asarray((h - mean) / np.where(std > 0, std, 1), np.float32)
        for h in (features.train, features.test)
    )
    accuracy = {}
    for rate in RATES:
        w, b = sgd(x, features.train_labels, rate, epochs)
        accuracy[rate] = 100 * np.mean((test @ w + b).argmax(axis=1) == features.test_labels)
    best = max(accuracy, key=lambda rate: accuracy[rate])
    first, fit = timed(ours)
    times = in_turns(
        {
            "ours": lambda: timed(ours)[0],
            "SGD": lambda: timed(lambda: sgd(x, features.train_labels, best, epochs))[0],
        },
        rounds,
    )
    faster = ratios(times["SGD"], times["ours"])
    code = "PyTorch" if "torch" in sys.modules else "NumPy"
    rows = [
        ["top-1, %", f"{fit['linear_top1']:.2f}", f"{accuracy[best]:.2f}"],
        ["s", f"{spread(times['ours'])}, first {first:.1f}", spread(times["SGD"])],
        ["ours is faster by", spread(faster), ""],
        [f"with all {len(RATES)} rates tried", spread([len(RATES) * f for f in faster]), ""],
        ["gradient norm, of that at zero", f"{fit['gradient_norm']:.1e}", ""],
    ]
    sgd_with = f"SGD, {epochs} epochs, lr {best}, {code}"
    print(markdown_table(["probe", "linear:fast", sgd_with], rows))


# ---- 3. The time of each protocol.


def protocols(workdir: Path) -> None:
    taken = {}
    with logs.quiet(), tempfile.TemporaryDirectory() as out:
        for name in components.names("protocol"):
            try:
                took, _ = timed(lambda name=name: run.evaluate(workdir, [name], out=Path(out)))
                taken[name] = f"{took:.1f}"
            except UserError as error:
                taken[name] = f"left out: {error}"
    print(markdown_table(["protocol", "s"], taken.items()))


def main() -> None:
    """Print the tables of evaluation times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="data directory with CIFAR-10")
    parser.add_argument("--workdir", type=Path, help="of a run whose protocols are timed")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(f"{memory_above(options.memory):.0f}")
        return
    n, m, epochs = (5000, 1000, 10) if options.quick else (50_000, 10_000, 100)
    name, features = features_of(options.data, n, m)
    print(f"{name}; {machine()}, jax {jax.__version__}\n")
    nearest(features, options.rounds)
    probe(features, options.rounds, epochs)
    if options.workdir:
        protocols(options.workdir)


if __name__ == "__main__":
    main()
