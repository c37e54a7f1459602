"""Measure the time of the input pipeline: reading, transfer and augmentation.

    python benchmarks/input.py [--rounds 5] [--steps 1]

1. Augmentation of 256 pairs of 32 x 32 images (SimCLR's for CIFAR) against Pillow on all cores, and
   against kornia if installed.
2. A batch from the device's memory and its augmentation, against a training step of the small
   network of the studies and of a ResNet-18.
3. Images a second that are read from disk: 32 x 32 PNG and 256 x 256 JPEG files, with threads and
   processes, and the time to decode and crop one JPEG.

Shared machines are noisy: compare the ratios, which are medians over rounds with one turn of each
contender.
"""

import argparse
import io
import logging
import math
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import jax
import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from shared import Training, in_turns, parse_overrides, ratios, source_of, spread, timed

from jaxssl import distributed
from jaxssl.augment import recipes
from jaxssl.augment.views import make_views
from jaxssl.data import batches
from jaxssl.data.decoders import decoding
from jaxssl.report.markdown import markdown_table
from jaxssl.training.config import load

BATCH = 256
RATIO = math.log(4 / 3)
JITTER = dict(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)


def smooth(rng: np.random.Generator, size: int) -> Image.Image:
    """Return a random image that compresses like a photograph."""
    coarse = Image.fromarray(rng.integers(0, 256, (size // 8, size // 8, 3), np.uint8))
    picture = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), np.int16)
    noise = rng.integers(-8, 9, picture.shape)
    return Image.fromarray(np.clip(picture + noise, 0, 255).astype(np.uint8))


def encoded(picture: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    picture.save(file, format=kind)
    return file.getvalue()


def seconds(call: Callable[[], object], times: int = 1) -> float:
    """Return the seconds of a call until its result is ready."""
    return timed(call, times)[0]


# ---- 1. Augmentation.


def ours(images: np.ndarray) -> Callable[[], object]:
    """Return a compiled function that makes two views of each image."""
    augment = jax.jit(make_views([recipes.simclr(size=32)] * 2))
    key, index = jax.random.key(0), np.arange(len(images), dtype=np.int32)
    on_device = jax.device_put(images)
    return lambda: augment(key, on_device, index)["views"]


def pillow_view(image: Image.Image, draw: random.Random) -> np.ndarray:
    """Return SimCLR's view of one image, as PyTorch input pipelines compute it."""
    area, aspect = 1024 * draw.uniform(0.08, 1.0), math.exp(draw.uniform(-RATIO, RATIO))
    w, h = min(32.0, math.sqrt(area * aspect)), min(32.0, math.sqrt(area / aspect))
    left, top = draw.uniform(0, 32 - w), draw.uniform(0, 32 - h)
    box = (left, top, left + w, top + h)
    view = image.resize((32, 32), Image.Resampling.BILINEAR, box=box)
    if draw.random() < 0.5:
        view = ImageOps.mirror(view)
    if draw.random() < 0.8:
        changes = list(JITTER)
        draw.shuffle(changes)
        for change in changes:
            view = pillow_jitter(view, change, draw)
    if draw.random() < 0.2:
        view = view.convert("L").convert("RGB")
    return np.asarray(view, np.float32) / 127.5 - 1


def pillow_jitter(view: Image.Image, change: str, draw: random.Random) -> Image.Image:
    strength = JITTER[change]
    if change == "hue":
        h, s, v = view.convert("HSV").split()
        shift = round(255 * draw.uniform(-strength, strength))
        h = h.point([(i + shift) % 256 for i in range(256)])
        return Image.merge("HSV", (h, s, v)).convert("RGB")
    enhance = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }[change]
    return enhance(view).enhance(draw.uniform(1 - strength, 1 + strength))


def pillow_views(images: np.ndarray, seed: int) -> np.ndarray:
    draw = random.Random(seed)
    pictures = [Image.fromarray(image) for image in images]
    return np.stack([[pillow_view(image, draw) for image in pictures] for _ in range(2)])


def kornia_views(images: np.ndarray) -> Callable[[], object] | None:
    try:
        import kornia.augmentation as K
        import torch
    except ImportError:
        return None
    augment = torch.nn.Sequential(
        K.RandomResizedCrop((32, 32), scale=(0.08, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
    )
    planar = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).float() / 255
    twice = torch.cat([planar, planar])

    def views() -> None:
        with torch.no_grad():
            augment(twice)

    return views


def augmentation(rounds: int) -> None:
    rng = np.random.default_rng(0)
    images = np.stack([np.asarray(smooth(rng, 32)) for _ in range(BATCH)])
    cores = os.cpu_count() or 1
    mine, kornia = ours(images), kornia_views(images)
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        parts = np.array_split(images, cores)

        def pillow() -> None:
            list(pool.map(pillow_views, parts, range(cores)))

        contenders = {
            "ours": partial(seconds, mine, 10),
            f"Pillow, {cores} processes": partial(seconds, pillow, 2),
        }
        if kornia:
            contenders["kornia"] = partial(seconds, kornia, 5)
        in_turns(contenders, 1)  # The first calls compile, and start the processes.
        times = in_turns(contenders, rounds)
    rows = [
        [name, spread([2 * BATCH / t for t in taken], 0), spread(ratios(taken, times["ours"]), 1)]
        for name, taken in times.items()
    ]
    heading = ["augmentation, 256 pairs of 32 x 32", "images/s", "ours is faster by"]
    print(markdown_table(heading, rows))


# ---- 2. Augmentation from the device's memory, compared with a training step.


def beside_a_step(name: str, network: str, batch_size: int, rounds: int, steps: int) -> None:
    """Print the times of a training step, of its batch and of its augmentation.

    Args:
        name: config of the run, on random images of CIFAR-10's number and size.
        network: what the table calls its network.
        batch_size: images of a batch.
        rounds: times that each part is measured.
        steps: training steps of a measurement.
    """
    overrides = parse_overrides(f"batch_size={batch_size} data.cache=device")
    config = load(name, overrides)
    records = list(np.random.default_rng(0).integers(0, 256, (50_000, 32, 32, 3), np.uint8))
    data = source_of(records, (32, 32, 3))
    training = Training(config, data, distributed.make_mesh())
    augment, batch = jax.jit(training.parts.augment), training.batches.next()
    view = partial(augment, jax.random.key(0), batch["input"], batch["index"])
    timed(partial(training.step, batch))
    timed(view)
    times = in_turns(
        {
            "step": partial(seconds, partial(training.step, batch), steps),
            "batch": partial(seconds, training.batches.next, 20),
            "augmentation": partial(seconds, view, 10),
        },
        rounds,
    )
    rows = [
        [name, spread([1000 * t for t in taken], 1)]
        + [spread([100 * ratio for ratio in ratios(taken, times["step"])], 3)]
        for name, taken in times.items()
    ]
    heading = [f"{network}, {batch_size} pairs of 32 x 32", "ms", "% of the step"]
    print(markdown_table(heading, rows))


# ---- 3. Reading batches from disk.


def streams(rounds: int) -> None:
    rng = np.random.default_rng(0)
    mesh = distributed.make_mesh()
    small = source_of([encoded(smooth(rng, 32), "png") for _ in range(2048)], (32, 32, 3))
    jpegs = [encoded(smooth(rng, 256), "jpeg") for _ in range(256)] * 8
    large = source_of(jpegs, (256, 256, 3))
    none = decoding.Crops((), (), 32)
    two = (decoding.Crop(224, (0.2, 1.0), (3 / 4, 4 / 3)),) * 2
    cases = {
        "PNG 32": (small, none, BATCH),
        "JPEG 256, two crops of 224": (large, decoding.Crops(two, (), 224), 64),
    }
    rows = []
    for name, (source, crops, size) in cases.items():
        for workers in (0, 2):
            rates, first = [], []
            for _ in range(rounds):
                stream = batches.make_batches(
                    source, size, seed=0, crops=crops, mesh=mesh, cache="none", workers=workers
                )
                first.append(seconds(stream.next))
                # Take the batches that were read ahead, which would distort the rate.
                seconds(stream.next, 8)
                rates.append(size / seconds(stream.next, max(1, 1024 // size)))
                stream.close()
            kind = f"{workers} processes" if workers else "threads"
            rows.append([f"{name}, {kind}", spread(rates, 0), spread(first, 1)])
    print(markdown_table(["stream", "images/s", "first batch, s"], rows))

    def decode(then: Callable[[Image.Image, np.random.Generator], object]) -> None:
        draw = np.random.default_rng(0)
        for data in jpegs[:128]:
            then(decoding.open_picture(data, 3), draw)

    steps = {
        "decode": lambda picture, draw: None,
        "decode, middle": lambda picture, draw: decoding.centre(picture, 224),
        "decode, two crops": lambda picture, draw: decoding.random_crops(picture, two, draw),
    }
    calls = {name: partial(seconds, partial(decode, then)) for name, then in steps.items()}
    times = in_turns(calls, rounds)
    rows = [[name, spread([128 / t for t in taken], 0)] for name, taken in times.items()]
    print(markdown_table(["JPEG of 256 x 256, one thread", "images/s"], rows))


def main() -> None:
    """Print the tables of input times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="ResNet-18 steps a round")
    arguments = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)
    augmentation(arguments.rounds)
    streams(arguments.rounds)
    beside_a_step("studies:small", "small network", 64, arguments.rounds, 20)
    rounds = min(arguments.rounds, 3)
    beside_a_step("cifar10_baselines:simclr", "ResNet-18", BATCH, rounds, arguments.steps)


if __name__ == "__main__":
    main()
