"""Data set of videos in a folder or an archive: `data.name=video data.path=PATH`.

The path holds video files, or, if it has none, folders of frames. Their class is the folder around
them:

    CLASS/clip.mp4                    also .avi, .mkv, .webm and .mov, decoded by PyAV
    CLASS/clip/00001.jpg              the frames of one clip, in the order of their numbers
    CLASS/clip/flow_x_00001.jpg       optical flow in two pictures, one for each channel,
    CLASS/clip/flow_y_00001.jpg       0 to 255; 127.5, rounded, is no motion

Classes may lie below SPLIT folders, or be missing, as for `folder`. The central square of every
frame is stored. It is reduced to `data.frame_size` pixels a side, but never enlarged. A frame of
128 pixels a side has 49 kB before its lossless compression.
"""

import importlib.util
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Unpack

import numpy as np
import tensorflow_datasets as tfds
from ml_collections import ConfigDict
from PIL import Image

from jaxssl.data import integrity
from jaxssl.data.decoders import decoding, files
from jaxssl.data.formats import _layout, user_files
from jaxssl.data.formats._layout import Layout, SplitOptions
from jaxssl.errors import UserError, abbreviate, one_line

# This suffix is appended to a clip's name before the hash that selects the test split. Earlier
# versions split prepared data sets this way.
HASH_SUFFIX = ".ppm"
SUFFIXES = (".mp4", ".avi", ".mkv", ".webm", ".mov")
# FFmpeg is restricted to these formats. A playlist could name any file or host.
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,avi,matroska,webm"
# UCF-101 cuts the clips c01, c02, ... of a group from one video, such as v_Archery_g01_c02.avi.
GROUP = re.compile(r"(.*_g\d+)_c\d+(\.\w+)?")
FLOW_NAME = re.compile(r"flow_([xy])_(.+)")
MAX_CLIP = 2**31  # largest video file, and largest decoded clip, in bytes
MAX_INCOMPLETE = 2 * MAX_CLIP  # largest total size of decoded frames of unfinished clips, in bytes


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
        shape = (None, None, None, self.layout.channels)
        clip = tfds.features.Tensor(shape=shape, dtype=np.uint8, encoding="zlib")
        return self._describe(clip, {"kind": "video", "shape": None, "skipped": []})

    def _read(self, classes: Mapping[str, str]) -> Iterator[user_files.Checked]:
        layout, everything = self.layout, self.builder_config.source.read(max_bytes=MAX_CLIP)
        wanted = {name: layout.files[name] for name in classes}
        for name, clip in read_clips(everything, wanted, layout.channels, layout.frame_size):
            yield user_files.Checked(name, clip, clip if isinstance(clip, str) else clip.shape[:2])

    def _shape(self, sizes: set[tuple[int, int]]) -> list[int | None] | None:
        lengths, sides = (set(values) for values in zip(*sizes, strict=True))
        length = lengths.pop() if len(lengths) == 1 else None
        return [length, max(sides), max(sides), self.layout.channels]


def builder(data: ConfigDict, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return the TFDS builder for the present files of a folder of videos.

    Args:
        data: "path", "frame_size", "test_fraction", "split_seed" and "on_error".
        data_dir: folder of prepared sets. None is TFDS' default.

    Raises:
        UserError: if the path does not exist, holds no clips, has an unknown layout, or holds
            videos while PyAV is not installed.
    """
    suffixes = (*SUFFIXES, *decoding.SUFFIXES)
    source = user_files.locate(data, "a folder or an archive of videos", suffixes)
    size = data["frame_size"]
    if not 1 <= size <= integrity.MAX_SIDE:
        raise UserError(f"data.frame_size must be in [1, {integrity.MAX_SIDE}], got {size}")
    split: SplitOptions = {"test_fraction": data["test_fraction"], "split_seed": data["split_seed"]}
    content = (*source.content, *split.values(), size)

    def make_layout() -> Layout:
        layout = arrange(user_files.list_names(source), source.path, **split)
        if importlib.util.find_spec("av") is None and any(map(_is_video, layout.files)):
            raise UserError(
                f"data.path={source.path} holds videos, which need PyAV: pip install "
                "'jaxssl[video]', or extract the frames of each video into a folder of pictures"
            )
        user_files.log_left_out(layout.other, "not part of a clip")
        return layout._replace(frame_size=size)

    return user_files.find_builder(Builder, source, content, data_dir, make_layout)


def arrange(names: Iterable[str], path: str, **split: Unpack[SplitOptions]) -> Layout:
    """Assign clips to splits and classes by the names of the files below ``path``.

    Args:
        names: relative to ``path``, with slashes.
        path: for messages.
        **split: see `SplitOptions`.

    Raises:
        UserError: without any clips, or if the layout is not understood.
    """
    names = sorted(names)
    videos = [name for name in names if _is_video(name)]
    frames = [name for name in names if name.lower().endswith(decoding.SUFFIXES)]
    if not videos and not frames:
        raise UserError(
            f"data.path={path} holds no videos ({len(names)} other files); expected files ending "
            f"in {', '.join(SUFFIXES)}, or folders of frames"
        )
    channels = 3
    clips: dict[str, list[str]] = {name: [name] for name in videos}
    if not videos:
        channels = _find_channels(frames, path)
        for name in sorted(frames, key=_by_numbers):
            clips.setdefault(name.rpartition("/")[0], []).append(name)
    if "" in clips:
        raise UserError(
            f"data.path={path}: {abbreviate(clips[''])} are not in a folder; expected a folder of "
            "frames for each clip"
        )
    splits, classes = _layout.assign(
        list(clips), path, noun="clips", hash_suffix=HASH_SUFFIX, group=_group_of, **split
    )
    other = tuple(sorted({*names} - {*(videos or frames)}))
    return Layout(splits, classes, other, {k: tuple(v) for k, v in clips.items()}, channels)


def _group_of(name: str) -> str:
    """Return what the names of clips of one video share, or the name of a clip on its own."""
    found = GROUP.fullmatch(name)
    return found[1] if found else name


@dataclass
class _PartialClip:
    """The frames of a clip whose files have not all been read yet.

    Attributes:
        frames: the decoded frames by the names of their files. A video is a single entry.
        num_bytes: of the frames.
        problem: the reason why the clip cannot be read, or "".
    """

    frames: dict[str, np.ndarray] = field(default_factory=dict)
    num_bytes: int = 0
    problem: str = ""


def read_clips(
    everything: files.Files, clips: Mapping[str, Sequence[str]], channels: int, size: int
) -> Iterator[tuple[str, np.ndarray | str]]:
    """Yield video clips, each as soon as the last of the clip's files has been read.

    Args:
        everything: files in any order, as `files.read_files` yields them.
        clips: the files of each clip.
        channels: 3 for RGB, 2 for optical flow.
        size: side s of the frames in pixels. Smaller frames are not enlarged.

    Yields:
        The name of a clip, and uint8 [t, s, s, c] or the reason why it cannot be read.

    Raises:
        UserError: if frames of too many clips are mixed.
    """
    clip_of = {name: clip for clip, names in clips.items() for name in names}
    missing = {clip: len(names) for clip, names in clips.items()}
    unfinished: dict[str, _PartialClip] = {}
    for name, read in everything:
        clip = clip_of.get(name)
        if clip is None:
            continue
        missing[clip] -= 1
        partial = unfinished.setdefault(clip, _PartialClip())
        if not partial.problem:
            try:
                data = read()
                if name == clip:
                    pixels = _decode_video(data, size)
                else:
                    pixels = _decode_frame(data, channels, size)
                partial.num_bytes += pixels.nbytes
                if partial.num_bytes > MAX_CLIP:
                    raise OSError(_too_long())
                partial.frames[name] = pixels
            except UserError:  # The whole archive is refused.
                raise
            except Exception as error:  # Decoders raise many exception types for damaged data.
                file = f"{PurePosixPath(name).name}: " if name != clip else ""
                unfinished[clip] = partial = _PartialClip(problem=file + one_line(error))
        if sum(x.num_bytes for x in unfinished.values()) > MAX_INCOMPLETE:
            mixed = sum(bool(x.frames) for x in unfinished.values())
            raise UserError(
                f"the frames of {mixed} clips, such as {clip}, are mixed in the archive; "
                "unpack it, or pack it again with the frames of each clip together"
            )
        if not missing[clip]:
            del unfinished[clip]
            yield clip, partial.problem or _join(clips[clip], partial.frames, channels)
    yield from ((clip, "has lost files since it was found") for clip in clips if missing[clip])


def _join(
    names: Sequence[str], frames: Mapping[str, np.ndarray], channels: int
) -> np.ndarray | str:
    """Join the frames of a clip in order, or return the reason why that fails."""
    in_order = [frames[name] for name in names]
    if in_order[0].ndim == 4:  # The only file is a video, not a frame.
        return in_order[0]
    sides = sorted({len(frame) for frame in in_order})
    if len(sides) > 1:
        return f"its frames have from {sides[0]} to {sides[-1]} pixels a side"
    if channels == 3:
        return np.stack(in_order)
    planes: dict[str, dict[str, np.ndarray]] = {"x": {}, "y": {}}
    for name, plane in zip(names, in_order, strict=True):
        if match := _match_flow(name):
            planes[match[1]][match[2]] = plane
    if alone := sorted(planes["x"].keys() ^ planes["y"].keys()):
        return f"one of flow_x_{alone[0]} and flow_y_{alone[0]} is missing"
    return np.stack([np.concatenate([x, planes["y"][k]], 2) for k, x in planes["x"].items()])


def _decode_video(data: bytes, size: int) -> np.ndarray:
    """Decode a video file to [t, s, s, 3]. A truncated file may go unnoticed."""
    import av
    from av.error import FFmpegError

    try:
        container: Any = av.open(io.BytesIO(data), options={"format_whitelist": FORMATS})
    except FFmpegError as error:  # FFmpeg's message is an error number.
        raise OSError("is not a video in a supported format, or is cut short") from error
    frames = []
    with container:
        stream = container.streams.best("video")
        if stream is None:
            raise OSError("has no pictures, only sound or data")
        if stream.width * stream.height > decoding.MAX_PIXELS:
            raise OSError(
                f"has {stream.width} x {stream.height} pixels in a frame, which is too many"
            )
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            picture = frame.to_image()
            if frame.rotation:  # The video was recorded with a turned phone.
                picture = picture.rotate(frame.rotation, expand=True)
            frames.append(_centre_square(picture, size))
            if len(frames) * frames[0].nbytes > MAX_CLIP:
                raise OSError(_too_long())
    if not frames:
        raise OSError("has no frames that can be decoded")
    return np.stack(frames)


def _decode_frame(data: bytes, channels: int, size: int) -> np.ndarray:
    """Decode an image file to a frame [s, s, 3], or an optical-flow plane to [s, s, 1]."""
    if not data:
        raise OSError("is empty")
    channels = 1 if channels == 2 else 3
    return _centre_square(decoding.open_picture(data, channels, upright=True), size)


def _centre_square(picture: decoding.Picture, size: int) -> np.ndarray:
    """Crop the centre square of a picture, and shrink it to at most ``size`` pixels a side."""
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    size = min(side, size)
    box = (left, top, left + side, top + side)
    return decoding.pixels(picture.resize((size, size), Image.Resampling.BILINEAR, box=box))


def _too_long() -> str:
    return f"has more than {MAX_CLIP >> 20} MiB of frames; cut it, or reduce data.frame_size"


def _find_channels(frames: Sequence[str], path: str) -> int:
    """Return 2 channels if the file names indicate optical flow, else 3.

    Raises:
        UserError: if only some are optical flow.
    """
    flow = [name for name in frames if _match_flow(name)]
    if 0 < len(flow) < len(frames):
        rest = sorted(set(frames) - set(flow))
        raise UserError(
            f"data.path={path} holds optical flow, such as {abbreviate(flow[:1])}, and other "
            f"pictures, such as {abbreviate(rest[:1])}; name a folder that holds only one of them"
        )
    return 2 if flow else 3


def _match_flow(name: str) -> re.Match[str] | None:
    return FLOW_NAME.fullmatch(PurePosixPath(name).name)


def _is_video(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _by_numbers(name: str) -> list[object]:
    """Return a sort key that puts 2.jpg before 10.jpg."""
    return [int(x) if i % 2 else x for i, x in enumerate(re.split("([0-9]+)", name))]
