"""The kind of examples "image": images without captions."""

import math
from collections.abc import Callable, Sequence
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
from tensorflow_datasets.core.features import FeaturesDict

from jaxssl.augment.colour import RGB
from jaxssl.augment.image import CROP_NUMBERS, random_crop_box
from jaxssl.augment.recipes import needs_rgb
from jaxssl.augment.views import Inputs, make_views, measured_scale, resize_images
from jaxssl.data import batches, integrity
from jaxssl.data.batches import Batch, Order, Plan, Reader, assemble, cache_limit
from jaxssl.data.decoders import decoding, files
from jaxssl.data.decoders.arrays import LazyArray, check_shape
from jaxssl.data.decoders.decoding import MAX_CHANNELS, Crop, Crops, Picture
from jaxssl.data.kind import Kind, Opened, Settings, Shape
from jaxssl.data.records import CAPTION_FEATURES, CaptionReader, PictureReader, find_feature
from jaxssl.data.splits import Source
from jaxssl.errors import UserError
from jaxssl.models.encoder import find_channels

RAW_SIZE = 32  # Larger images are resized to this many pixels a side for raw features.
MAX_RAW = 2**30  # largest number of pixels whose features, 4 GiB, are computed in memory
MEASURED = 1024  # images, evenly spaced in the split, used to measure channel means and stds
MEASURED_AT_ONCE = 64  # of these images are in memory at the same time
SMALLEST_STD = 1 / 255  # lower limit of a channel's standard deviation


class ReadImages(NamedTuple):
    """Function that reads a batch of images, as an object that can be pickled.

    Attributes:
        source: the training split.
        crops: crops to cut. None keeps the images, which must have one size.
        seed: seed of the crops, together with the batch number and the example's index.
        captions: whether the tokens of the captions are read too.
    """

    source: Source
    crops: Crops | None
    seed: int
    captions: bool = False

    def __call__(self, step: int, indices: np.ndarray) -> Batch:
        """Read the examples at ``indices`` int32 [b] for batch number ``step``."""
        examples, cuts = [], []
        # One picture is decoded at a time, because a whole batch could take many gigabytes.
        for index, example in zip(indices, self.source.decode(indices, self.captions), strict=True):
            cuts.append(self._cut(step, int(index), example.input))
            examples.append(example._replace(input=None))
        inputs = jax.tree.map(lambda *arrays: np.stack(arrays), *cuts)
        if self.captions:
            texts = [example.text for example in examples if example.text is not None]
            inputs = {"image": inputs, "text": np.stack(texts)}
        return assemble(inputs, examples, indices)

    def everything(self) -> Batch:
        """Return all examples in the form of one batch. The images must have one size."""
        images, labels = self.source.images(0)[:], self.source.labels
        inputs = {"image": images, "text": self.source.texts} if self.captions else images
        index = np.arange(len(labels), dtype=np.int32)
        return {"input": inputs, "label": labels, "index": index}

    def _cut(self, step: int, index: int, picture: Picture) -> np.ndarray | dict[str, np.ndarray]:
        """Return the whole image or its centre, uint8 [h, w, c], or its views and small crops."""
        if self.crops is None:
            whole = decoding.pixels(picture)
            check_shape(whole, self.source.shape, index)
            return whole
        if not self.crops.views:
            return decoding.centre(picture, self.crops.size)
        rng = np.random.default_rng((self.seed, step, index))
        cut = {"views": np.stack(decoding.random_crops(picture, self.crops.views, rng))}
        if self.crops.crops:
            cut["crops"] = np.stack(decoding.random_crops(picture, self.crops.crops, rng))
        return cut


def open_images(
    folder: Path, features: FeaturesDict, metadata: Settings, data: ConfigDict
) -> Opened:
    """Find the images, and captions if any, of a prepared data set.

    Raises:
        UserError: if the set has no images of integers, or their shape is impossible.
    """
    image = find_feature(features, tfds.features.Image, "image")
    if image is None:
        raise UserError(f"{data['name']!r} has no image feature; it has {', '.join(features)}")
    if features[image].np_dtype == np.float32:  # TFDS stores the bytes of a float as RGBA.
        raise UserError(f"{data['name']!r} has float images; expected images of 8 or 16 bits")
    shape = _find_shape(folder, features[image], metadata)
    text = next((name for name in CAPTION_FEATURES if name in features), None)
    decode = PictureReader(image, shape[2], bool(metadata.get("upright")))
    captions = CaptionReader(text, data["context"]) if text else None
    return Opened(shape, decode, captions, {image: tfds.decode.SkipDecoding()})


def _find_shape(folder: Path, feature: Any, metadata: Settings) -> Shape:
    """Return [h, w, c] of the images as they are decoded, where h and w may be None."""
    shape: Any = metadata.get("shape") or feature.shape
    channels = metadata.get("channels")
    # An alpha channel is not decoded, unless the metadata name the number of channels.
    expected = (1, 3, 4, None) if channels is None else (channels,)
    valid = isinstance(shape, list | tuple) and len(shape) == 3 and shape[2] in expected
    valid = valid and all(side is None or integrity.is_side(side) for side in shape)
    if not valid or channels not in (None, *range(1, MAX_CHANNELS + 1)):
        raise integrity.damaged(folder, f"the images have shape {shape!r:.80}")
    return (*shape[:2], channels or (1 if shape[2] == 1 else 3))


def describe(shape: Shape) -> str:
    """Describe the size of the images, or of clips [t, s, s, c], in words."""
    if None in shape:
        return "many sizes" if len(shape) == 3 else "many lengths"
    return "x".join(str(length) for length in shape)


def plan(source: Source, crops: Crops, cache: str, workers: int) -> Plan:
    """Choose whether images are cached on the device, or read and cropped on the host.

    Raises:
        UserError: if images of many sizes shall be kept on the device.
    """
    if not source.one_size:
        if cache == "device":
            raise UserError(
                f"data.cache='device': the pictures of {source.name!r} have many sizes and must be "
                "cropped on the host; leave it at 'auto'"
            )
        cached, why = False, "pictures of many sizes"
    elif cache != "auto":
        cached, why = cache == "device", "as data.cache asks"
    else:
        needed, limit = len(source) * math.prod(source.shape), cache_limit()
        cached = needed <= limit and not source.streamed
        why = f"{needed / 2**20:.1f} MiB, the limit is {limit / 2**20:.0f} MiB"
    if cached:
        return Plan(True, None, 0, f"kept on the device ({why}), cropped there")
    host = not source.one_size or (bool(crops.views) and min(source.shape[:2]) > crops.size)
    cores = files.cpu_count()
    if workers == -1:  # Processes would copy examples that are in memory.
        in_memory = any(part.path is None and not part.streamed for part, _ in source.parts)
        threads = cores <= 4 or in_memory or batches.why_unsendable(source, batches.SENT_BYTES)
        workers = 0 if threads else cores // 2
    elif workers and (reason := batches.why_unsendable(source)):
        raise UserError(
            f"data.workers={workers}: the data cannot be sent to reading processes ({reason}); set "
            "data.workers=0, or open files when items are read"
        )
    readers = {0: "threads", 1: "1 process"}.get(workers, f"{workers} processes")
    where = f"cropped to {crops.size} on the host" if host else "cropped on the device"
    way = f"streamed by {readers} ({why}), {where}"
    centre = 0.0 if source.one_size else decoding.CENTRE_SHARE
    return Plan(False, crops if host else None, workers, way, centre)


def make_reader(
    source: Source, order: Order, rows: int, crops: Crops | None, captions: bool = False
) -> Reader:
    """Build the reader of batches of images, and of their captions if ``captions``."""
    read = ReadImages(source, crops, order.seed, captions)
    return batches.make_reader(read, source, order.batch_size, read.everything)


def find_crops(size: int, views: Sequence[Settings], small: Sequence[Settings]) -> Crops:
    """Return the settings of the random resized crops of the views, which the host can cut.

    Recipes that crop in another way get the centre of the image.

    Raises:
        UserError: on an invalid range of areas or aspect ratios.
    """
    by_recipe = [_find_crop(values) for values in (*views, *small)]
    crops = tuple(crop for crop in by_recipe if crop is not None)
    if len(crops) < len(by_recipe):  # A recipe crops in another way.
        return Crops((), (), size)
    return Crops(crops[: len(views)], crops[len(views) :], size)


def _find_crop(values: Settings) -> Crop | None:
    """Return a recipe's random resized crop, or None if the recipe crops in another way."""
    area = values.get("crop_scale")
    if not isinstance(area, list | tuple) or len(area) != 2 or values.get("crop") == "pad":
        return None
    scale, ratio = tuple(area), tuple(values.get("crop_ratio", (3 / 4, 4 / 3)))
    try:
        u = jax.ShapeDtypeStruct((CROP_NUMBERS,), jnp.float32)
        # Tracing `random_crop_box` checks the ranges of scale and ratio.
        jax.eval_shape(lambda u: random_crop_box(u, (1, 1), scale, ratio), u)
    except ValueError as error:
        raise UserError(str(error)) from error
    return Crop(values["size"], scale, ratio)


def statistics(normalise: str, source: Source, size: int) -> dict[str, tuple[float, ...]]:
    """Return channel means and stds for the group `config.data`, or {} to scale pixels to [-1, 1].

    Args:
        normalise: `config.data.normalise`, "auto" (as it is for grey and RGB images), "half" ([-1,
            1]) or "measured".
        source: the training split. `MEASURED` of its images are read.
        size: side of the centre that is measured of images of different sizes.

    Returns:
        The statistics of each channel for values in [0, 1], rounded to four decimals.
    """
    if normalise == "half" or (normalise == "auto" and source.shape[-1] in (1, 3)):
        return {}
    chosen = np.linspace(0, len(source) - 1, min(len(source), MEASURED)).astype(np.int64)
    images, values = source.lazy_images(size), np.arange(256)
    # Counts of each value take less memory than all pixels as float64.
    counts = np.zeros((source.shape[-1], len(values)))
    for block in np.array_split(chosen, -(-len(chosen) // MEASURED_AT_ONCE)):
        channels = images[block].reshape(-1, source.shape[-1]).T
        counts += [np.bincount(channel, minlength=len(values)) for channel in channels]
    number = counts[0].sum()
    mean = counts @ values / number
    std = np.sqrt((counts * np.square(values - mean[:, None])).sum(axis=1) / number)
    return {
        "mean": tuple((mean / 255).round(4).tolist()),
        "std": tuple(np.maximum(std / 255, SMALLEST_STD).round(4).tolist()),
    }


def view_shapes(config: ConfigDict, inputs: Inputs) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the views and small crops of a batch of two as `jax.ShapeDtypeStruct`."""

    def images(number: int, side: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((number, 2, side, side, inputs.channels), jnp.float32)

    views = {"views": images(config.views, inputs.size)}
    if config.crops.number:
        views["crops"] = images(config.crops.number, config.crops.get("size", inputs.size))
    return views


def make_inputs(config: ConfigDict, shape: Shape) -> Inputs:
    """Return the input format of a run's network for images of ``shape`` [h, w, c]."""
    scale = measured_scale(config.data)
    return Inputs(config.augment.size, shape[-1], **(scale._asdict() if scale else {}))


def infer_inputs(config: ConfigDict, net: nn.Module, variables: VariableDict) -> Inputs:
    """Return the input format of a trained image network. Its variables give the channels."""
    size, scale = config.augment.size, measured_scale(config.data)
    candidates = (len(scale.mean),) if scale else (3, 1, 2, *range(4, MAX_CHANNELS + 1))
    return make_inputs(config, (find_channels(net, variables, (size, size), candidates),))


def fit_inputs(inputs: Inputs, test: Source) -> Inputs:
    """Adapt the input format of an encoder to a data set of images.

    Raises:
        UserError: if the images are not grey and have other channels.
    """
    if test.shape[-1] not in (1, inputs.channels):
        raise UserError(
            f"the encoder takes {inputs.channels}-channel images, {test.name!r} has "
            f"{test.shape[-1]}-channel images"
        )
    # Images of different sizes are already centre-cropped when they are read.
    return inputs if test.one_size else inputs._replace(crop=0.0)


def pixels(images: np.ndarray | LazyArray, extract: Callable[..., np.ndarray]) -> np.ndarray:
    """Return pixels in [0, 1] as features [n, f], from images resized to at most 32 x 32."""
    if max(images.shape[1:3]) > RAW_SIZE:
        return extract(images, partial(shrink, Inputs(RAW_SIZE, images.shape[3])))
    if math.prod(images.shape) > MAX_RAW:
        return extract(images, _flatten)
    return np.reshape(images[:], (len(images), -1)) / np.float32(255)


@jax.jit
def _flatten(block: Array) -> Array:
    return block.reshape(len(block), -1).astype(jnp.float32) / 255


@partial(jax.jit, static_argnums=0)
def shrink(inputs: Inputs, block: Array) -> Array:
    """Return resized images, or the resized frames of clips, as features [n, f] in [0, 1]."""
    return resize_images(block.reshape(-1, *block.shape[-3:]), inputs).reshape(len(block), -1)


def draw(images: np.ndarray) -> np.ndarray:
    """Show images [..., h, w, c] as RGB if they have three channels or more, else as grey.

    Of more channels the first three are shown, of two the first.
    """
    return images[..., : 3 if images.shape[-1] >= 3 else 1]


kind = Kind(
    units="images",
    data="image",
    open=open_images,
    describe=describe,
    plan=plan,
    make_reader=make_reader,
    array=lambda source, inputs: source.images(*inputs.resizing),
    views=make_views,
    find_crops=find_crops,
    view_shapes=view_shapes,
    inputs=make_inputs,
    infer_inputs=infer_inputs,
    fit_inputs=fit_inputs,
    raw_features=pixels,
    show=lambda source, indices, size: draw(source.lazy_images(size)[indices]),
    draw=draw,
    statistics=statistics,
    batch_of=lambda images: images,
    left_out=lambda settings, channels: [] if channels == RGB else needs_rgb(settings),
    small_crops=True,
    pictures=True,
)
