"""Videos of a folder or an archive as a data set: `data.name=video data.path=PATH`.

It holds videos, or folders of frames if there is no video; their class is the folder around them:

    CLASS/clip.mp4                    also .avi, .mkv, .webm and .mov; PyAV decodes them
    CLASS/clip/00001.jpg              the frames of one clip, sorted by name, numbers by value
    CLASS/clip/flow_x_00001.jpg       optical flow: two channels of which 128 is no motion, the
    CLASS/clip/flow_y_00001.jpg       other one in a second picture

Classes may lie below SPLIT folders, or be missing, as those of `folder`. Of every frame the centre
square is kept, at most `data.frame_size` pixels a side and never enlarged, so that the clips of a
set differ in the number of frames only. All frames are stored without loss, and a frame of 128
pixels a side has 49 kB.
"""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from jaxssl.data import dataset_info, decoding, files
from jaxssl.data.formats import _frames as frames
from jaxssl.data.formats import _versions as versions
from jaxssl.data.formats import folder
from jaxssl.errors import UserError

log = logging.getLogger("jaxssl")
STAND_IN = ".ppm"  # makes a clip's name one that `folder.arrange` takes for a picture's
RULES = 1  # counts up when the same folder would be prepared in another way


class Layout(NamedTuple):
    """Which clips belong to which split, and what they are made of.

    Attributes:
        splits: for each split the name of every clip and its class; "" is none.
        classes: sorted; label i is the i-th one.
        files: of each clip: a video, or its frames in order; of flow, all x before all y.
        channels: 3 are RGB, 2 are flow.
        other: files that are left out.
    """

    splits: dict[str, dict[str, str]]
    classes: tuple[str, ...]
    files: dict[str, tuple[str, ...]]
    channels: int
    other: tuple[str, ...]


@dataclasses.dataclass
class Config(tfds.core.BuilderConfig):
    """One folder in one state; its name holds a fingerprint of both."""

    root: Path = Path()
    inside: str = ""
    layout: Layout | None = dataclasses.field(default=None, repr=False)  # TFDS logs the others
    on_error: str = "stop"
    frame_size: int = 128


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Clips as pixels, their class and their name.

    The metadata holds [frames, s, s, c], where frames are None if clips differ and s is the largest
    side (see `decode`), and the clips left out.
    """

    name = "video"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        layout = self.builder_config.layout
        shape = (None, None, None, layout.channels)
        features: dict[str, Any] = {
            "clip": tfds.features.Tensor(shape=shape, dtype=np.uint8, encoding="zlib"),
            "file": tfds.features.Text(),
        }
        if layout.classes:
            features["label"] = tfds.features.ClassLabel(names=list(layout.classes))
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Videos of {self.builder_config.root}",
            features=tfds.features.FeaturesDict(features),
            metadata=tfds.core.MetadataDict({"kind": "video", "shape": None, "skipped": []}),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        sizes: set[tuple[int, int]] = set()
        layout = self.builder_config.layout
        return {split: self._generate_examples(split, sizes) for split in layout.splits}

    def _generate_examples(
        self, split: str, sizes: set[tuple[int, int]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Called for one split after the other; the last one knows about all of them."""
        config, metadata = self.builder_config, self.info.metadata
        layout = config.layout
        classes, bad = layout.splits[split], []
        wanted = {name: layout.files[name] for name in classes}
        every = files.read_all(config.root, config.inside, largest=frames.MOST)
        for name, clip in frames.read(every, wanted, layout.channels, config.frame_size):
            if isinstance(clip, str):
                bad.append(f"{name}: {clip}")
                continue
            sizes.add(clip.shape[:2])
            example = {"clip": clip, "file": name}
            if layout.classes:
                example["label"] = classes[name] or -1
            yield name, example
        metadata["skipped"] += bad
        if len(bad) == len(classes):
            raise UserError(
                f"none of the {len(bad)} clips of {split!r} in {config.root} can be read "
                f"({folder.some(bad)}); mend them or name another folder"
            )
        lengths, sides = (set(values) for values in zip(*sizes, strict=True))
        length = lengths.pop() if len(lengths) == 1 else None
        metadata["shape"] = [length, max(sides), max(sides), layout.channels]
        if metadata["skipped"] and config.on_error == "stop" and split == [*layout.splits][-1]:
            raise UserError(unreadable(config.root, metadata["skipped"]))


def builder(data: Mapping[str, Any], data_dir: str | None) -> tfds.core.DatasetBuilder:
    """The builder of a folder in its present state, which its name holds a fingerprint of.

    Args:
        data: "path", "frame_size", "test_fraction", "split_seed" and "on_error".
        data_dir: where prepared sets lie; None is TFDS' own place.

    Raises:
        UserError: if the folder is none, holds no clips, has a layout that is not understood, or
            holds videos and PyAV is missing.
    """
    path, on_error, fraction = data["path"], data["on_error"], data["test_fraction"]
    size, seed = data["frame_size"], data["split_seed"]
    if not path:
        raise UserError("data.name='video' needs data.path: a folder or an archive of videos")
    versions.check_on_error(on_error)
    if not 0 <= fraction < 1:
        raise UserError(f"data.test_fraction={fraction} must lie in [0, 1)")
    if not 1 <= size <= dataset_info.SIDE:
        raise UserError(f"data.frame_size={size} must lie in [1, {dataset_info.SIDE}]")
    root, inside = files.locate(path)
    stamp = files.stamp(root, (*frames.SUFFIXES, *decoding.SUFFIXES))
    state = RULES, stamp, inside, str(root.resolve()), fraction, seed, size
    name = versions.name_of(path, state, "video")
    if found := versions.prepared(Builder, name, data_dir):
        return found
    config = Config(name, root=root, inside=inside, on_error=on_error, frame_size=size)
    names = [name for name, _ in files.read_all(root, inside)]
    if inside and not names:
        raise UserError(f"data.path={path}: the archive {root} has no folder {inside!r}")
    config.layout = arrange(names, path, test_fraction=fraction, split_seed=seed)
    if any(frames.is_video(name) for name in config.layout.files):
        try:
            import av  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"data.path={path} holds videos, which PyAV decodes: pip install 'jaxssl[video]', "
                "or bring the frames of each as a folder of pictures"
            ) from error
    if other := config.layout.other:
        found = folder.some(other)
        log.info("data       %d files are no part of a clip and left out: %s", len(other), found)
    return Builder(data_dir=data_dir, config=config)


def decode(record: Mapping[str, Any], side: int | None = None) -> np.ndarray:
    """A clip of a prepared set, [t, h, w, c] uint8.

    Args:
        record: as TFDS reads it.
        side: pixels that frames are resized to; those of a set's metadata are its largest frames',
            and some are smaller if `data.frame_size` is larger than they were. None leaves them.
    """
    clip = np.asarray(record["clip"], np.uint8)
    if side is None or clip.shape[1:3] == (side, side):
        return clip
    t, _, _, c = clip.shape
    out = np.empty((t, side, side, c), np.uint8)
    for i, k in np.ndindex(t, c):
        plane = Image.fromarray(clip[i, :, :, k])
        out[i, :, :, k] = plane.resize((side, side), Image.Resampling.BILINEAR)
    return out


def window(
    clip: np.ndarray, frames: int, stride: int, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Every ``stride``-th frame of a part of a clip; one that is too short starts again at its end.

    Args:
        clip: [t, h, w, c], t > 0.
        frames: of the result, > 0.
        stride: frames from one to the next, > 0.
        rng: draws the start; None is the middle, of which the larger rest follows.

    Returns:
        [frames, h, w, c].

    Differs from CoCLR's released code: that repeats the first frame before a clip too short.
    """
    rest = len(clip) - ((frames - 1) * stride + 1)
    start = 0
    if rest > 0:
        start = rest // 2 if rng is None else int(rng.integers(rest + 1))
    return clip[(start + stride * np.arange(frames)) % len(clip)]


def arrange(
    names: Iterable[str], path: str, *, test_fraction: float = 0.2, split_seed: int = 0
) -> Layout:
    """Clips, splits and classes from the names of the files below ``path``; see `folder.arrange`.

    Raises:
        UserError: if there are no clips, or the layout is not understood.
    """
    names = sorted(names)
    videos = [name for name in names if frames.is_video(name)]
    stills = [name for name in names if name.lower().endswith(decoding.SUFFIXES)]
    clips: dict[str, list[str]] = {}
    channels = 3
    if videos:
        clips = {name: [name] for name in videos}
    elif stills:
        channels = frames.channels_of(stills, path)
        for name in sorted(stills, key=frames.by_numbers):
            clips.setdefault(name.rpartition("/")[0], []).append(name)
    else:
        raise UserError(
            f"data.path={path} holds no videos ({len(names)} other files); expected files ending "
            f"in {', '.join(frames.SUFFIXES)}, or folders of frames"
        )
    if "" in clips:
        raise UserError(
            f"data.path={path}: {folder.some(clips[''])} lie in no folder; expected a folder of "
            "frames for each clip"
        )
    stand_ins = [f"{name}{STAND_IN}" for name in clips]
    try:
        found = folder.arrange(stand_ins, path, test_fraction=test_fraction, split_seed=split_seed)
    except UserError as error:  # about the stand-ins, but as true of the clips
        message = str(error).replace(STAND_IN, "").replace("for pictures", "for clips")
        raise UserError(message) from error
    splits = {
        split: {name.removesuffix(STAND_IN): label for name, label in of.items()}
        for split, of in found.splits.items()
    }
    used = {name for of in clips.values() for name in of}
    other = tuple(name for name in names if name not in used)
    return Layout(splits, found.classes, {k: tuple(v) for k, v in clips.items()}, channels, other)


def unreadable(root: Path, bad: Sequence[str]) -> str:
    """The message about clips that cannot be read."""
    return (
        f"{len(bad)} of the clips in {root} cannot be read ({folder.some(bad)}); mend or remove "
        "them, or leave them out with data.on_error=skip"
    )
