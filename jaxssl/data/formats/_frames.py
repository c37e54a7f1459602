"""From the files of videos, or of their frames, to clips [t, s, s, c] of uint8 pixels."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from jaxssl.data import decoding, files
from jaxssl.data.formats import folder
from jaxssl.errors import UserError, one_line

SUFFIXES = (".mp4", ".avi", ".mkv", ".webm", ".mov")
# Those of the suffixes, and no others that FFmpeg would try: a playlist may name any file or host.
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,avi,matroska,webm"
PAIR = re.compile(r"flow_([xy])_(.+)")
MOST = 2**31  # bytes of a video file, and of a clip's decoded frames
WAITING = 2 * MOST  # bytes of the frames of clips that are not complete yet


def read(
    every: Iterable[tuple[str, files.Read]],
    clips: Mapping[str, Sequence[str]],
    channels: int,
    size: int,
) -> Iterator[tuple[str, np.ndarray | str]]:
    """Each clip [t, s, s, c] uint8, or what is wrong with it, as soon as all of it was read.

    Args:
        every: files in any order, as `files.read_all` gives them.
        clips: the files of each.
        channels: 3 are RGB, 2 are flow.
        size: the side s, or less where frames are smaller.

    Raises:
        UserError: if the frames of too many clips come mixed.
    """
    owner = {name: clip for clip, names in clips.items() for name in names}
    missing = {clip: len(names) for clip, names in clips.items()}
    found: dict[str, dict[str, np.ndarray]] = {}
    wrong: dict[str, str] = {}
    held: Counter[str] = Counter()  # bytes
    for name, load in every:
        if (clip := owner.get(name)) is None:
            continue
        missing[clip] -= 1
        if clip not in wrong:
            try:
                pixels = _video(load(), size) if name == clip else _frame(load(), channels, size)
                held[clip] += pixels.nbytes
                if held[clip] > MOST:
                    raise OSError(_too_long())
                found.setdefault(clip, {})[name] = pixels
            except Exception as error:  # the decoders raise all sorts
                file = f"{PurePosixPath(name).name}: " if name != clip else ""
                wrong[clip] = file + one_line(error)
                found.pop(clip, None)
                del held[clip]
        if held.total() > WAITING:
            raise UserError(
                f"the frames of {len(held)} clips, such as {clip}, come mixed in the archive; "
                "unpack it, or pack it anew with the frames of each clip together"
            )
        if not missing[clip]:
            del held[clip]
            yield clip, wrong.pop(clip, "") or _joined(clips[clip], found.pop(clip), channels)
    yield from ((clip, "is no longer there as a whole") for clip in clips if missing[clip])


def _joined(
    names: Sequence[str], found: Mapping[str, np.ndarray], channels: int
) -> np.ndarray | str:
    """A clip of its files in order, or what is wrong with it."""
    parts = [found[name] for name in names]
    if parts[0].ndim == 4:  # a video
        return parts[0]
    sides = sorted({len(part) for part in parts})
    if len(sides) > 1:
        return f"its frames have from {sides[0]} to {sides[-1]} pixels a side"
    if channels == 3:
        return np.stack(parts)
    planes: dict[str, dict[str, np.ndarray]] = {"x": {}, "y": {}}
    for name, part in zip(names, parts, strict=True):
        axis, rest = PAIR.fullmatch(PurePosixPath(name).name).groups()
        planes[axis][rest] = part
    if alone := sorted(planes["x"].keys() ^ planes["y"].keys()):
        return f"of flow_x_{alone[0]} and flow_y_{alone[0]} there is only one"
    pairs = [np.concatenate([part, planes["y"][rest]], 2) for rest, part in planes["x"].items()]
    return np.stack(pairs)


def _video(data: bytes, size: int) -> np.ndarray:
    """[t, s, s, 3]; a video that is cut short may just end."""
    import av

    try:
        container = av.open(io.BytesIO(data), options={"format_whitelist": FORMATS})
    except av.error.FFmpegError as error:  # its message is about a place in memory
        raise OSError("is no video that is known here, or cut short") from error
    frames = []
    with container:
        stream = container.streams.best("video")
        if stream is None:
            raise OSError("has no pictures")
        if stream.width * stream.height > decoding.MAX_PIXELS:
            raise OSError(f"has {stream.width} x {stream.height} pixels, too many")
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            picture = frame.to_image()
            if frame.rotation:  # held by a phone
                picture = picture.rotate(frame.rotation, expand=True)
            frames.append(_square(picture, size))
            if len(frames) * frames[0].nbytes > MOST:
                raise OSError(_too_long())
    if not frames:
        raise OSError("has no frames")
    return np.stack(frames)


def _frame(data: bytes, channels: int, size: int) -> np.ndarray:
    """[s, s, 3], or [s, s, 1] of flow."""
    if not data:
        raise OSError("is empty")
    return _square(decoding.open_picture(data, 1 if channels == 2 else 3, upright=True), size)


def _square(picture: Image.Image, size: int) -> np.ndarray:
    """[s, s, c]: the centre square of a picture, made smaller if need be."""
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    size = min(side, size)
    box = (left, top, left + side, top + side)
    return decoding.pixels(picture.resize((size, size), Image.Resampling.BILINEAR, box=box))


def _too_long() -> str:
    return f"has more than {MOST >> 20} MiB of frames; cut it, or set a smaller data.frame_size"


def channels_of(frames: Sequence[str], path: str) -> int:
    """3, or 2 if the pictures are optical flow by their names.

    Raises:
        UserError: if some are.
    """
    flow = [name for name in frames if PAIR.fullmatch(PurePosixPath(name).name)]
    if 0 < len(flow) < len(frames):
        rest = sorted(set(frames) - set(flow))
        raise UserError(
            f"data.path={path} holds optical flow, such as {folder.some(flow[:1])}, and other "
            f"pictures, such as {folder.some(rest[:1])}; name a folder that holds one of them only"
        )
    return 2 if flow else 3


def is_video(name: str) -> bool:
    """Whether a file is a video by its name."""
    return name.lower().endswith(SUFFIXES)


def by_numbers(name: str) -> list[Any]:
    """Sorts 2.jpg before 10.jpg."""
    return [int(x) if i % 2 else x for i, x in enumerate(re.split("([0-9]+)", name))]
