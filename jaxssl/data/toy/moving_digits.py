"""Generated clips of moving digits, for demos and tests."""

from collections.abc import Callable

import numpy as np
import tensorflow_datasets as tfds
from jax.typing import ArrayLike

from jaxssl.data import KeyedExamples, toy
from jaxssl.data.toy import digits

SIZES = {"train": 600, "test": 200}
FRAMES, SIDE = 12, 32
SHAPE = (FRAMES, SIDE, SIDE, 1)
SCALE = 2  # factor by which scikit-learn's 8 x 8 digits are enlarged
SPEED = 2.0, 3.0  # range of a digit's speed in pixels a frame
RADIUS = 3.0, 4.5  # range of the radius of circles and oscillations in pixels

# Displacement to the right and down, in pixels, after a distance in pixels. The point (x, y) has
# moved that distance on a circle, clockwise because y points down.
MOTIONS: dict[str, Callable[..., tuple[ArrayLike, ArrayLike]]] = {
    "right": lambda distance, x, y: (distance, 0),
    "left": lambda distance, x, y: (-distance, 0),
    "down": lambda distance, x, y: (0, distance),
    "up": lambda distance, x, y: (0, -distance),
    "clockwise": lambda distance, x, y: (x, y),
    "anticlockwise": lambda distance, x, y: (x, -y),
    "to and fro": lambda distance, x, y: (x, 0),
    "up and down": lambda distance, x, y: (0, x),
}


class Builder(toy.ToyBuilder):
    """Clips of a handwritten digit that moves over a black canvas. The class is the motion.

    A clip has 12 grey frames of 32x32 pixels. The motions are right, left, down, up, clockwise,
    anticlockwise, to and fro, up and down. A digit that leaves the canvas enters it on the other
    side. Digit, start, speed and radius are random. The start is uniform, hence so is the position
    in every single frame, which therefore does not reveal the class. A mirrored or reversed clip
    may belong to another class. Digits of "test" do not occur in "train".
    """

    name = "moving_digits"
    metadata = {"kind": "video", "shape": list(SHAPE)}

    def _features(self) -> dict[str, object]:
        return {
            "clip": tfds.features.Tensor(shape=SHAPE, dtype=np.uint8, encoding="zlib"),
            "label": tfds.features.ClassLabel(names=list(MOTIONS)),
        }

    def _split_generators(self, dl_manager: object) -> dict[str, object]:
        return {
            split: self._generate_examples(split, images[indices])
            for split, (images, _, indices) in digits.load_splits().items()
        }

    def _generate_examples(self, split: str, images: np.ndarray) -> KeyedExamples:
        rng = np.random.default_rng(list(SIZES).index(split))
        for i in range(SIZES[split]):
            motion = list(MOTIONS)[i % len(MOTIONS)]
            image = rng.choice(images).repeat(SCALE, 0).repeat(SCALE, 1)
            yield i, {"clip": draw_video(rng, motion, image), "label": motion}


def draw_video(rng: np.random.Generator, motion: str, image: np.ndarray) -> np.ndarray:
    """Move a digit over a black canvas from a random start. The digit wraps around the edges.

    Args:
        rng: the same numbers are drawn for every motion.
        motion: a key of `MOTIONS`.
        image: [h, w] uint8, h and w at most `SIDE`.

    Returns:
        [`FRAMES`, `SIDE`, `SIDE`, 1] uint8.
    """
    start = rng.integers(SIDE, size=2)
    speed, radius = rng.uniform(*SPEED), rng.uniform(*RADIUS)
    distance = speed * np.arange(FRAMES)
    angle = distance / radius + rng.uniform(0, 2 * np.pi)
    x, y = MOTIONS[motion](distance, radius * np.cos(angle), radius * np.sin(angle))
    canvas = np.zeros((SIDE, SIDE), np.uint8)
    canvas[: image.shape[0], : image.shape[1]] = image
    path = np.stack(np.broadcast_arrays(y, x), axis=1)
    steps = np.round(path - path[0]).astype(int) + start
    return np.stack([np.roll(canvas, step, (0, 1)) for step in steps])[..., None]
