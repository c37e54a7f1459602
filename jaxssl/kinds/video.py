"""Video clips."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.typing import VariableDict
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl.augment.video import span
from jaxssl.augment.views import Inputs, VideoInputs, make_views
from jaxssl.data import integrity
from jaxssl.data.batches import Batch, assemble, first_examples, shapes_of
from jaxssl.data.decoders import clips
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.decoders.lazy_array import LazyArray
from jaxssl.data.kind import Kind, Opened
from jaxssl.data.plan import Plan
from jaxssl.data.splits import Source
from jaxssl.errors import UserError
from jaxssl.kinds import image
from jaxssl.models.encoder import find_channels

RAW_SIZE = 16  # Frames are resized to this many pixels a side for raw features.
FLOW = 2  # channels of optical flow, which cannot be shown as colours
COPIES = 10  # crops of each clip in evaluation, see `augment.video.ten_crops`
FRAMES = 4  # of a drawing


class Reader(NamedTuple):
    """Reader of batches of clips.

    Attributes:
        source: the training split.
        crops: number of frames of each view. None keeps the clips, which must have one length.
        seed: seed of the windows, together with the batch number and the example's index.
        batch_size: number of examples of a whole batch.
    """

    source: Source
    crops: Crops | None
    seed: int
    batch_size: int = 1

    def __call__(self, step: int, indices: np.ndarray) -> Batch:
        """Read the clips at ``indices`` int32 [b] for batch number ``step``."""
        examples = self.source.read(indices)
        if self.crops is None:
            return assemble(np.stack([one.input for one in examples]), examples, indices)
        views = []
        for index, example in zip(indices, examples, strict=True):
            rng = np.random.default_rng((self.seed, step, int(index)))
            windows = [clips.window(example.input, n, 1, rng) for n in self.crops.frames]
            views.append(np.stack(windows))
        return assemble({"views": np.stack(views)}, examples, indices)

    def example(self) -> Batch:
        """Return a batch of the first two clips."""
        return first_examples(self, self.source)

    def shapes(self) -> Batch:
        """Return the shapes of a whole batch as `jax.ShapeDtypeStruct`."""
        return shapes_of(self.example(), self.batch_size)


def open_clips(folder: Path, info: Any, metadata: Mapping[str, Any], data: Any) -> Opened:
    """Find the shape of the clips of a prepared data set."""
    del info, data
    shape = integrity.clip_shape(folder, metadata.get("shape"))
    return Opened(shape, {"decode": partial(_decode, side=shape[1])})


def _decode(record: Mapping[str, Any], side: int) -> np.ndarray:
    return clips.resize(np.asarray(record["clip"], np.uint8), side)


def plan(source: Source, crops: Crops, cache: str, workers: int) -> Plan:
    """Choose how clips get to the device: streamed by threads.

    Raises:
        UserError: if they shall be kept on the device.
    """
    del crops, workers
    if cache == "device":
        raise UserError("data.cache='device' cannot hold clips, which are streamed; set 'auto'")
    lengths = "different lengths" if source.shape[0] is None else "one length"
    return Plan(False, source.shape[0] is None, 0, f"clips of {lengths}, streamed by threads")


def make_reader(
    source: Source,
    order: Callable[[int], np.ndarray],
    batch_size: int,
    rows: int,
    crops: Crops | None,
    seed: int,
) -> Reader:
    """Build the reader of batches of clips."""
    del order, rows
    return Reader(source, crops, seed, batch_size)


def array(source: Source, inputs: VideoInputs) -> LazyArray:
    """Return the middle frames of all clips of a split, [n, frames, h, w, c]."""

    def decode(indices: np.ndarray) -> Any:
        return (clips.window(example.input, inputs.span, 1) for example in source.read(indices))

    return LazyArray(decode, (len(source), inputs.span, *source.shape[1:]))


def views(recipes: Sequence[Any], crops: Sequence[Any]) -> Any:
    """Return the function that draws the views of clips."""
    if crops:
        raise ValueError("clips have no small crops; set crops.number=0")
    return make_views(recipes)


def find_crops(size: int, views: Sequence[Any], small: Sequence[Any]) -> Crops:
    """Return the number of consecutive frames of each view, which the host can cut."""
    del small
    return Crops((), (), size, tuple(span(v["frames"], v["stride"]) for v in views))


def view_shapes(config: ConfigDict, inputs: VideoInputs) -> dict[str, Any]:
    """Return the views of a batch of two as `jax.ShapeDtypeStruct`."""
    sides = (inputs.frames, inputs.size, inputs.size, inputs.channels)
    return {"views": jax.ShapeDtypeStruct((config.views, 2, *sides), jnp.float32)}


def make_inputs(config: ConfigDict, shape: tuple[Any, ...]) -> VideoInputs:
    """Return the inputs of a run's network, which sees clips of ``shape`` [t, h, w, c]."""
    values = config.augment
    return VideoInputs(values.size, values.frames, values.stride, shape[-1])


def infer_inputs(config: ConfigDict, net: Any, variables: VariableDict) -> VideoInputs:
    """Return the inputs of a trained network, whose channels its variables tell."""
    sides = (config.augment.frames, config.augment.size, config.augment.size)
    return make_inputs(config, (find_channels(net, variables, sides, (3, 2, 1)),))


def fit_inputs(inputs: VideoInputs, test: Source) -> VideoInputs:
    """Evaluate several crops of each clip.

    Raises:
        UserError: if the clips of a data set do not fit the encoder.
    """
    channels, frames = test.shape[-1], test.shape[0]
    if channels != inputs.channels or (frames or inputs.span) < inputs.span:
        raise UserError(
            f"the encoder takes clips of {inputs.span} frames or more and {inputs.channels} "
            f"channels, {test.name!r} has {frames or 'any'} and {channels}"
        )
    return inputs._replace(copies=COPIES)


def pixels(examples: Any, part: slice | None, extract: Callable[..., np.ndarray]) -> np.ndarray:
    """Return pixels of all frames in [0, 1] as features [n, f], resized to 16 x 16."""
    return extract(examples, image.shrink, Inputs(RAW_SIZE, examples.shape[4]), part)


def show(source: Source, indices: np.ndarray, size: int) -> np.ndarray:
    """Return a drawing of each clip."""
    del size
    return np.stack([frame_grid(example.input) for example in source.read(indices)])


def frame_grid(clip: np.ndarray) -> np.ndarray:
    """Arrange four evenly spaced frames of a clip [t, h, w, c] in a grid [2 h, 2 w, c]."""
    places = np.linspace(0, len(clip) - 1, FRAMES).round().astype(int)
    first, second, third, last = clip[places]
    return np.concatenate([np.concatenate([first, second], 1), np.concatenate([third, last], 1)])


def draw(examples: np.ndarray) -> np.ndarray:
    """Draw each clip of [..., t, h, w, c] as a `frame_grid`."""
    grids = [frame_grid(clip) for clip in examples.reshape(-1, *examples.shape[-4:])]
    return np.stack(grids).reshape(*examples.shape[:-4], *grids[0].shape)


kind = Kind(
    units="clips",
    data="video",
    open=open_clips,
    describe=image.describe,
    plan=plan,
    make_reader=make_reader,
    array=array,
    views=views,
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
