"""Train on data of your own: a function that returns images and labels.

    jaxssl train --config.data.name=examples/own_data.py:stripes --workdir runs/own_data
    python examples/own_data.py

The function may also return a pair (train, test), or any object with __len__ and __getitem__. If it
takes the argument path, it gets the value of --config.data.path.
"""

from typing import Any

import numpy as np

import jaxssl

DIRECTIONS = 8


def stripes(count: int = 2000, side: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Draw stripes of random width and phase, whose direction is the class.

    Returns:
        uint8 images [count, side, side, 1] and labels [count].
    """
    rng = np.random.default_rng(0)
    labels = np.arange(count) % DIRECTIONS
    angle = np.pi * labels / DIRECTIONS
    frequency, phase = rng.uniform(0.6, 1.2, count), rng.uniform(0, 2 * np.pi, count)
    y, x = np.mgrid[:side, :side]
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    waves = np.sin(frequency[:, None, None] * along + phase[:, None, None])
    noise = rng.normal(0, 0.3, (count, side, side))
    pixels = np.clip(127 + 80 * (waves + noise), 0, 255)
    return pixels.astype(np.uint8)[..., None], labels


def main(workdir: str = "runs/own_data", config: Any = "digits") -> jaxssl.Run:
    """Pretrain on the stripes. A fifth of them is set aside for the evaluation."""
    return jaxssl.train(config, data=stripes(), workdir=workdir)


if __name__ == "__main__":
    main()
