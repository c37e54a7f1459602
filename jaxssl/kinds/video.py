"""The kind of examples "video": video clips."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import tensorflow_datasets as tfds
from flax.typing import VariableDict
from jax import Array
from jax import numpy as jnp
from ml_collections import ConfigDict
from PIL import Image

from jaxssl.augment.image import resize
from jaxssl.augment.video import FLOW, centre_window, per_frame, span, ten_crops
from jaxssl.augment.views import HALF, Inputs, make_views, standardise, to_float
from jaxssl.data import batches, integrity
from jaxssl.data.batches import Batch, Order, Plan, Reader, assemble
from jaxssl.data.decoders import decoding, files
from jaxssl.data.decoders.arrays import LazyArray
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.kind import Kind, Opened, Settings, Shape
from jaxssl.data.records import Record
from jaxssl.data.splits import Source
from jaxssl.errors import UserError
from jaxssl.kinds import image
from jaxssl.models.encoder import find_channels

RAW_SIZE = 16  # Frames are resized to this many pixels a side for raw features.
COPIES = 10  # crops of each clip in evaluation, see `augment.video.ten_crops`
FRAMES = 4  # number of frames of a clip that a report shows


class VideoInputs(NamedTuple):
    """Input format that a video network expects.

    Attributes:
        size: side of a frame in pixels.
        frames: number of frames, taken from the middle of a video.
        stride: distance between frames.
        channels: number of channels, 1 (grey), 2 (flow) or 3 (RGB).
        copies: 1 for the whole frames, or 10 for `video.ten_crops`.
    """

    size: int
    frames: int
    stride: int
    channels: int
    copies: int = 1

    kind = "video"
    axes = "t, h, w, c"

    @property
    def span(self) -> int:
        """Return the number of consecutive video frames that one input covers."""
        return span(self.frames, self.stride)

    def prepare(self, videos: Array) -> Array:
        """Map uint8 videos [n, t, h, w, c] to inputs [n copies, frames, size, size, c]."""

        def prepare_one(video: Array) -> Array:
            video = centre_window(to_float(video), self.frames, stride=self.stride)
            if self.copies == 1:
                return per_frame(lambda frame: resize(frame, self.size), video)[None]
            return ten_crops(video, self.size)

        inputs = jax.vmap(prepare_one)(videos)
        return standardise(inputs.reshape(-1, *inputs.shape[2:]), HALF)


class ReadClips(NamedTuple):
    """Function that reads a batch of clips, as an object that can be pickled.

    Attributes:
        source: the training split.
        crops: number of frames of each view, see `Crops.frames`. None keeps the clips, which must
            have one length.
        seed: seed of the windows, together with the batch number and the example's index.
    """

    source: Source
    crops: Crops | None
    seed: int

    def __call__(self, step: int, indices: np.ndarray) -> Batch:
        """Read the clips at ``indices`` int32 [b] for batch number ``step``."""
        if self.crops is None:
            examples = self.source.read(indices)
            return assemble(np.stack([example.input for example in examples]), examples, indices)
        examples, views = [], []
        # One clip is read at a time, because a whole batch could take many gigabytes.
        for i, index in enumerate(indices):
            [example] = self.source.read(indices[i : i + 1])
            rng = np.random.default_rng((self.seed, step, int(index)))
            windows = [read_window(example.input, n, 1, rng) for n in self.crops.frames]
            views.append(np.stack(windows))
            examples.append(example._replace(input=None))
        return assemble({"views": np.stack(views)}, examples, indices)


def open_clips(folder: Path, features: object, metadata: Settings, data: object) -> Opened:
    """Return shape [t, s, s, c] (t may be None) and decoder of a prepared data set of clips.

    Raises:
        UserError: if the metadata hold no such shape.
    """
    shape: Any = metadata.get("shape")
    valid = isinstance(shape, list | tuple) and len(shape) == 4 and shape[3] in (1, 2, 3)
    valid = valid and (shape[0] is None or integrity.is_side(shape[0]))
    if not valid or shape[1] != shape[2] or not integrity.is_side(shape[1]):
        raise integrity.damaged(folder, f"the clips have shape {shape!r:.80}")
    # Otherwise all clips would be decompressed to find their labels.
    for_labels: dict[str, object] = {"clip": tfds.decode.SkipDecoding()}
    return Opened(tuple(shape), partial(_decode, side=shape[1]), for_labels=for_labels)


def _decode(record: Record, side: int) -> np.ndarray:
    return resize_clip(np.asarray(record["clip"], np.uint8), side)


def plan(source: Source, crops: Crops, cache: str, workers: int) -> Plan:
    """Choose how clips get to the device: streamed by threads.

    Raises:
        UserError: if they shall be kept on the device, or read by processes.
    """
    if workers > 0:
        raise UserError(f"data.workers={workers} is without use for clips; set -1")
    if cache == "device":
        raise UserError("data.cache='device' cannot hold clips, which are streamed; set 'auto'")
    differ = source.shape[0] is None
    lengths = "different lengths" if differ else "one length"
    return Plan(False, crops if differ else None, 0, f"clips of {lengths}, streamed by threads")


def make_reader(source: Source, order: Order, rows: int, crops: Crops | None) -> Reader:
    """Build the reader of batches of clips."""
    return batches.make_reader(ReadClips(source, crops, order.seed), source, order.batch_size)


def array(source: Source, inputs: VideoInputs) -> LazyArray:
    """Return the middle frames of all clips of a split, [n, frames, h, w, c]."""

    def decode(indices: np.ndarray) -> Iterator[np.ndarray]:
        for i in range(len(indices)):
            [example] = source.read(indices[i : i + 1])
            yield read_window(example.input, inputs.span, 1)

    shape = (len(source), inputs.span, *source.shape[1:])
    return LazyArray(decode, shape, files.cpu_count())


def find_crops(size: int, views: Sequence[Settings], small: Sequence[object]) -> Crops:
    """Return the number of consecutive frames that the host cuts for each view.

    It is the same for views of different strides, because the frames of all views are stacked.

    Raises:
        UserError: if the views have different numbers of frames.
    """
    if missing := sorted({"frames", "stride"} - set.intersection(*map(set, views))):
        raise UserError(f"augment.name: an augmentation of clips needs the argument {missing[0]}")
    if len({view["frames"] for view in views}) > 1:
        raise UserError(
            "second_view.frames: all views have the same number of frames; set augment.frames"
        )
    longest = max(span(view["frames"], view["stride"]) for view in views)
    return Crops((), (), size, (longest,) * len(views))


def view_shapes(config: ConfigDict, inputs: VideoInputs) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the views of a batch of two as `jax.ShapeDtypeStruct`."""
    sides = (inputs.frames, inputs.size, inputs.size, inputs.channels)
    return {"views": jax.ShapeDtypeStruct((config.views, 2, *sides), jnp.float32)}


def make_inputs(config: ConfigDict, shape: Shape) -> VideoInputs:
    """Return the input format of a run's network for clips of ``shape`` [t, h, w, c]."""
    values = config.augment
    return VideoInputs(values.size, values.frames, values.stride, shape[-1])


def infer_inputs(config: ConfigDict, net: nn.Module, variables: VariableDict) -> VideoInputs:
    """Return the input format of a trained video network. Its variables give the channels."""
    sides = (config.augment.frames, config.augment.size, config.augment.size)
    return make_inputs(config, (find_channels(net, variables, sides, (3, 2, 1)),))


def fit_inputs(inputs: VideoInputs, test: Source) -> VideoInputs:
    """Return an encoder's input format for the evaluation of several crops of each clip.

    Raises:
        UserError: if the clips of a data set do not fit the encoder.
    """
    channels, frames = test.shape[-1], test.shape[0]
    if channels != inputs.channels or (frames or inputs.span) < inputs.span:
        raise UserError(
            f"the encoder takes clips of {inputs.span} frames or more and {inputs.channels} "
            f"channels, {test.name!r} has {frames or 'any number'} and {channels}"
        )
    return inputs._replace(copies=COPIES)


def pixels(examples: LazyArray, extract: Callable[..., np.ndarray]) -> np.ndarray:
    """Return pixels of all frames in [0, 1] as features [n, f], resized to 16 x 16."""
    return extract(examples, partial(image.shrink, Inputs(RAW_SIZE, examples.shape[4])))


def show(source: Source, indices: np.ndarray, size: int) -> np.ndarray:
    """Return one image for each clip: a grid of frames."""
    return np.stack([frame_grid(example.input) for example in source.read(indices)])


def frame_grid(clip: np.ndarray) -> np.ndarray:
    """Arrange four evenly spaced frames of a clip [t, h, w, c] in a grid [2 h, 2 w, 1 or 3].

    Of optical flow, only the displacements along x are shown.
    """
    places = np.linspace(0, len(clip) - 1, FRAMES).round().astype(int)
    first, second, third, last = image.draw(clip[places])
    return np.concatenate([np.concatenate([first, second], 1), np.concatenate([third, last], 1)])


def draw(examples: np.ndarray) -> np.ndarray:
    """Draw each clip of [..., t, h, w, c] as a `frame_grid`."""
    grids = [frame_grid(clip) for clip in examples.reshape(-1, *examples.shape[-4:])]
    return np.stack(grids).reshape(*examples.shape[:-4], *grids[0].shape)


def resize_clip(clip: np.ndarray, side: int) -> np.ndarray:
    """Resize the frames of a uint8 clip [t, h, w, c] to [t, side, side, c]."""
    if clip.shape[1:3] == (side, side):
        return clip
    pictures = [decoding.from_pixels(frame) for frame in clip]
    resized = [x.resize((side, side), Image.Resampling.BILINEAR) for x in pictures]
    return np.stack([decoding.pixels(picture) for picture in resized])


def read_window(
    clip: np.ndarray, frames: int, stride: int, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Take every ``stride``-th frame from a random start in a clip. Short clips are repeated.

    Args:
        clip: [t, h, w, c], t > 0.
        frames: number of frames of the result, > 0.
        stride: distance between the chosen frames, > 0.
        rng: draws the first frame. With None the window is in the middle. If the frames left over
            are odd in number, one more of them follows the window than precedes it.

    Returns:
        [frames, h, w, c].

    Differs from CoCLR's released code, which repeats the first frame before a clip that is too
    short.
    """
    start, rest = 0, len(clip) - span(frames, stride)  # frames that are left over
    if rest > 0:
        start = rest // 2 if rng is None else int(rng.integers(rest + 1))
    return clip[(start + stride * np.arange(frames)) % len(clip)]


kind = Kind(
    units="clips",
    left_out=image.kind.left_out,
    data="video",
    open=open_clips,
    describe=image.describe,
    plan=plan,
    make_reader=make_reader,
    array=array,
    views=make_views,
    find_crops=find_crops,
    view_shapes=view_shapes,
    inputs=make_inputs,
    infer_inputs=infer_inputs,
    fit_inputs=fit_inputs,
    raw_features=pixels,
    show=show,
    draw=draw,
    is_drawn=lambda inputs: inputs.channels != FLOW,
    frames=FRAMES,
)
