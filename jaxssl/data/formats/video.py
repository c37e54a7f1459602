"""Data set of videos in a folder or an archive: `data.name=video data.path=PATH`.

The path holds video files, or, if it has none, folders of frames. Their class is the folder around
them:

    CLASS/clip.mp4                    also .avi, .mkv, .webm and .mov, decoded by PyAV
    CLASS/clip/00001.jpg              the frames of one clip, in the order of their numbers
    CLASS/clip/flow_x_00001.jpg       optical flow in two pictures, one for each channel,
    CLASS/clip/flow_y_00001.jpg       the value 128 is no motion

Classes may lie below SPLIT folders, or be missing, as for `folder`. The centre square of every
frame is kept. It is reduced to `data.frame_size` pixels a side, but never enlarged. Frames are
stored without loss. A frame of 128 pixels a side takes 49 kB.
"""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from ml_collections import ConfigDict

from jaxssl.data import integrity
from jaxssl.data.decoders import decoding, files
from jaxssl.data.formats import _frames, _layout, user_files
from jaxssl.data.formats._layout import Layout
from jaxssl.data.formats.user_files import abbreviate
from jaxssl.errors import UserError

# This suffix is appended to a clip's name before the hash that selects the test split. Earlier
# versions split prepared data sets this way.
HASH_SUFFIX = ".ppm"


class Builder(_layout.Builder, skip_registration=True):
    """TFDS builder of video clips with class and file name.

    The metadata hold the shape [frames, s, s, c] and the clips left out. The number of frames is
    None if clips differ in it. s is the largest side of a frame. Smaller frames are resized when
    they are read.
    """

    name = "video"
    noun = "clips"
    title = "Videos"
    feature = "clip"

    def _info(self) -> tfds.core.DatasetInfo:
        return self._describe({"kind": "video", "shape": None, "skipped": []})

    def _feature(self) -> tfds.features.FeatureConnector:
        shape = (None, None, None, self.builder_config.contents.channels)
        return tfds.features.Tensor(shape=shape, dtype=np.uint8, encoding="zlib")

    def _read(
        self, classes: Mapping[str, str]
    ) -> Iterator[tuple[str, np.ndarray | None, tuple[int, int] | str]]:
        config = self.builder_config
        layout: Layout = config.contents
        wanted = {name: layout.files[name] for name in classes}
        everything = files.read_files(config.root, config.inside, max_bytes=_frames.MAX_CLIP)
        clips = _frames.read_clips(everything, wanted, layout.channels, config.frame_size)
        for name, clip in clips:
            if isinstance(clip, str):
                yield name, None, clip
            else:
                yield name, clip, (clip.shape[0], clip.shape[1])

    def _shape(self, sizes: set[tuple[int, int]]) -> list[int | None] | None:
        lengths, sides = (set(values) for values in zip(*sizes, strict=True))
        length = lengths.pop() if len(lengths) == 1 else None
        return [length, max(sides), max(sides), self.builder_config.contents.channels]


def builder(data: ConfigDict, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return the TFDS builder of a folder of videos as it is now.

    Args:
        data: "path", "frame_size", "test_fraction", "split_seed" and "on_error".
        data_dir: folder of prepared sets. None is TFDS' default.

    Raises:
        UserError: if the path does not exist, holds no clips, has an unknown layout, or holds
            videos while PyAV is not installed.
    """
    suffixes = (*_frames.SUFFIXES, *decoding.SUFFIXES)
    source = user_files.locate(data, "a folder or an archive of videos", suffixes)
    _layout.check_fraction(data)
    size = data["frame_size"]
    if not 1 <= size <= integrity.MAX_SIDE:
        raise UserError(f"data.frame_size must be in [1, {integrity.MAX_SIDE}], got {size}")
    split = {"test_fraction": data["test_fraction"], "split_seed": data["split_seed"]}
    content = (*source.content, *split.values(), size)

    def fields() -> dict[str, object]:
        layout = arrange(user_files.list_names(source), source.path, **split)
        if any(map(_frames.is_video, layout.files)) and importlib.util.find_spec("av") is None:
            raise UserError(
                f"data.path={source.path} holds videos, which need PyAV: pip install "
                "'jaxssl[video]', or extract the frames of each video into a folder of pictures"
            )
        user_files.log_left_out(layout.other, "do not belong to a clip")
        return {"contents": layout, "frame_size": size}

    return user_files.find_builder(Builder, source, content, data_dir, fields, default="video")


def arrange(names: Iterable[str], path: str, **split: Any) -> Layout:
    """Assign clips to splits and classes by the names of the files below ``path``.

    Args:
        names: relative to ``path``, with slashes.
        path: for messages.
        **split: "test_fraction" and "split_seed", see `_layout.assign`.

    Raises:
        UserError: if there are no clips, or the layout is not understood.
    """
    names = sorted(names)
    videos = [name for name in names if _frames.is_video(name)]
    frames = [name for name in names if name.lower().endswith(decoding.SUFFIXES)]
    if not videos and not frames:
        raise UserError(
            f"data.path={path} holds no videos ({len(names)} other files); expected files ending "
            f"in {', '.join(_frames.SUFFIXES)}, or folders of frames"
        )
    channels = 3
    clips: dict[str, list[str]] = {name: [name] for name in videos}
    if not videos:
        channels = _frames.channels_of(frames, path)
        for name in sorted(frames, key=_frames.by_numbers):
            clips.setdefault(name.rpartition("/")[0], []).append(name)
    if "" in clips:
        raise UserError(
            f"data.path={path}: {abbreviate(clips[''])} are not in a folder; expected a folder of "
            "frames for each clip"
        )
    splits, classes = _layout.assign(
        list(clips), path, noun="clips", hash_suffix=HASH_SUFFIX, **split
    )
    used = {name for files_of_clip in clips.values() for name in files_of_clip}
    other = tuple(name for name in names if name not in used)
    return Layout(splits, classes, other, {k: tuple(v) for k, v in clips.items()}, channels)
