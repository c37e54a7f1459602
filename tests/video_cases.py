"""Clips made by tests, and the sets that they become."""

from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from file_cases import picture, pixels_of

from jaxssl.data.formats import video
from jaxssl.kinds import video as clips

SIZE = 16
SHAPE = (8, 12, 3)  # shape of a frame, whose central square is 8 x 8
SETTINGS = {
    "name": "video",
    "on_error": "stop",
    "test_fraction": 0.2,
    "split_seed": 0,
    "frame_size": SIZE,
}


def loader(prepared):
    """Prepares a folder where need be and opens it, as sources do."""
    tfds.disable_progress_bar()

    def load(path, **changes):
        data = SETTINGS | {"path": str(path)} | changes
        builder = video.builder(data, str(prepared))
        if not Path(builder.data_dir).exists():
            builder.download_and_prepare(file_format="array_record")
            builder = video.builder(data, str(prepared))
        return builder

    return load


def examples(opened, split="train"):
    """Class and pixels of each clip."""
    records = opened.as_data_source(split, file_format="array_record")
    side, out = opened.info.metadata["shape"][1], {}
    for record in records.__getitems__(list(range(len(records)))):
        label = record.get("label", -1)
        name = opened.info.features["label"].names[label] if label >= 0 else ""
        out[record["file"].decode()] = name, clips.resize_clip(record["clip"], side)
    assert len(out) == len(records)
    return out


def classes_of(opened, split="train"):
    return {name: c for name, (c, _) in examples(opened, split).items()}


def stills(clip, count=3, shape=SHAPE):
    """The frames of a clip as files; numbers have no leading zeros."""
    names = [f"{clip}/f{i}.png" for i in range(8, 8 + count)]
    return {name: picture(name, shape) for name in names}


def of_stills(clip, count=3, shape=SHAPE):
    """What they are to become."""
    names = [f"{clip}/f{i}.png" for i in range(8, 8 + count)]
    left, side = (shape[1] - shape[0]) // 2, shape[0]
    return np.stack([pixels_of(name, shape)[:, left : left + side] for name in names])


def several(*names, **options):
    return {k: v for name in names for k, v in stills(name, **options).items()}


FOUR = several("a/1", "a/2", "b/1", "b/2")
