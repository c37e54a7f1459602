"""Pretrain on the digits, and continue on other images from there and from random weights.

    python examples/continue_pretraining.py fashion_mnist_idx.tar.xz

The argument is a tar archive with the four files of Fashion-MNIST or MNIST, unpacked and in no
folder: `gunzip *.gz && tar cJf fashion_mnist_idx.tar.xz *-ubyte`. Its first 2,000 training images
are used without labels, and its first 2,000 test images to compare the few-shot accuracy.
"""

import sys
import tarfile
from typing import Any

import numpy as np

import jaxssl

COUNT = 2000
SETTINGS = {"augment.size": 16, "schedule.warmup_epochs": 1.0, "eval.protocols": ("fewshot",)}


def read(archive: str, count: int = COUNT) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return the first training and test examples, each as images [n, 28, 28, 1] and labels."""
    splits = []
    with tarfile.open(archive) as files:
        for split in ("train", "t10k"):
            arrays = []
            for name, header in (("images-idx3", 16), ("labels-idx1", 8)):
                file = files.extractfile(f"{split}-{name}-ubyte")
                assert file is not None
                arrays.append(np.frombuffer(file.read(), np.uint8, offset=header))
            splits.append((arrays[0].reshape(-1, 28, 28, 1)[:count], arrays[1][:count]))
    return tuple(splits)


def main(
    data: Any, workdir: str = "runs/continued", config: Any = "digits", **settings: Any
) -> dict[str, dict[str, float]]:
    """Train the three runs, and return the few-shot accuracies of the last two by their start."""
    settings = {**SETTINGS, "epochs": 10, **settings}
    longer = {**settings, "epochs": 5 * settings["epochs"]}
    digits = jaxssl.train(config, workdir=f"{workdir}/digits", **longer)
    accuracies = {}
    for name, init in (("digits", digits), ("random", None)):
        folder = f"{workdir}/from_{name}"
        run = jaxssl.train(config, data=data, init=init, workdir=folder, **settings)
        accuracies[name] = {
            row["metric"]: row["value"] for row in run.results if row["features"] == "pretrained"
        }
    return accuracies


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for start, values in main(read(sys.argv[1])).items():
        print(start, {metric: round(value, 2) for metric, value in values.items()})
