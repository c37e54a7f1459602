"""Build the contexts that protocols evaluate: features, images and encoder on a data set."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.augment import recipes
from jaxssl.augment.views import Inputs, measured_scale, to_uint8
from jaxssl.data import kind
from jaxssl.data.splits import Splits
from jaxssl.evaluation.features import extract
from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.pretrained.encoder import PretrainedEncoder, make_encode, make_encode_text
from jaxssl.training.config.method import make_augment
from jaxssl.training.output.logs import log

BLOCK = 256  # number of images that are augmented together


def make_contexts(
    pretrained: PretrainedEncoder,
    config: ConfigDict | None,
    splits: Splits,
    kinds: Sequence[str],
    mesh: Mesh,
    *,
    layer: str = "backbone",
    features: bool = True,
    seed: int,
) -> Iterator[tuple[str, EvalContext]]:
    """Return an iterator over kinds of features ("raw", ...), each with the protocols' context.

    The call checks the input. Examples are read and features are extracted by the iterator.

    Args:
        pretrained: the encoder.
        config: the run's config. Its first view is drawn, or SimCLR's if this is None.
        splits: the data set.
        kinds: some of "raw", "untrained", "pretrained".
        mesh: the devices of all processes.
        layer: "backbone" or "projector".
        features: extract the features of all images. Otherwise they are empty.
        seed: of the untrained network.

    Raises:
        UserError: if the encoder cannot take the examples, or has no such layer.
    """
    ours, inputs, splits = kind.get(pretrained.inputs.kind), pretrained.inputs, _crop_alike(splits)
    for split in (splits.bank, splits.test):
        inputs = ours.fit_inputs(pretrained.inputs, split)
    # Each encoding program is compiled once and serves pretrained and untrained weights.
    encode_program = view_program = make_encode(pretrained, inputs, layer)
    if getattr(inputs, "crop", 0.0):
        # Random views are not cropped again, because they already have the network's size.
        view_program = make_encode(pretrained, inputs._replace(crop=0.0), layer)
    text_programs = ()
    if pretrained.encoder.text is not None:
        text_programs = make_encode(pretrained, inputs, "projector"), make_encode_text(pretrained)

    def contexts() -> Iterator[tuple[str, EvalContext]]:
        data = load_arrays(splits, pretrained.inputs)
        views = _make_views(config, inputs, ours.views, ours.batch_of) if ours.batch_of else None
        channels = {x.shape[-1] for x in (splits.bank, splits.test) if len(x.shape) == 3}
        differ = "raw" in kinds and len(channels) > 1
        if differ:
            log.warning("raw pixels are left out: bank and test images differ in channels")
        for name in [name for name in kinds if not (differ and name == "raw")]:
            fields: dict[str, Any] = {}
            if name == "raw":
                encode = encode_views = partial(_raw_features, ours, mesh)
            else:
                untrained = name == "untrained"
                variables = pretrained.untrained(seed) if untrained else pretrained.variables
                run = partial(extract, variables=distributed.replicate(variables, mesh), mesh=mesh)
                encode = partial(run, apply=encode_program)
                encode_views = partial(run, apply=view_program)
                if views is not None and layer == "backbone":
                    fields["encoder"] = pretrained._replace(variables=variables)
                if text_programs:
                    embed_images, embed_texts = text_programs
                    fields["embed_images"] = partial(run, data.test, embed_images)
                    fields["embed_texts"] = partial(run, apply=embed_texts)
                    fields["text_length"] = pretrained.metadata["config"]["data"]["context"]
            if views is not None:
                fields |= {"views": partial(views, encode_views), "size": inputs.size}
                fields["resizing"] = pretrained.inputs.resizing[1:]
            columns = extract_features(encode if features else None, data)
            yield name, EvalContext(columns, splits.bank, splits.test, encode, mesh=mesh, **fields)
            del columns  # The next features may need the memory.

    return contexts()


class Arrays(NamedTuple):
    """Examples and labels that an evaluation learns from (the bank) and is tested on.

    Attributes:
        train: examples that are read by slices and arrays of indices, as uint8 [k, h, w, c].
        train_labels: [n] int32.
        test: as ``train``.
        test_labels: [m] int32.
    """

    train: Any
    train_labels: np.ndarray
    test: Any
    test_labels: np.ndarray


def load_arrays(splits: Splits, inputs: Any) -> Arrays:
    """Load the examples and labels of the bank split and the test split.

    Images of different sizes are cropped to the network's size. A split that does not fit into
    memory is decoded when it is read.
    """
    array = kind.get(inputs.kind).array
    _, bank, test = _crop_alike(splits)
    return Arrays(array(bank, inputs), bank.labels, array(test, inputs), test.labels)


def _crop_alike(splits: Splits) -> Splits:
    """Mark bank and test split as images of different sizes if the two together have them.

    Images of different sizes are cropped when they are read, images of one size on the device.
    """
    first, second = splits.bank.shape, splits.test.shape
    if len(first) != 3 or first[:-1] == second[:-1]:
        return splits
    bank, test = (replace(x, shape=(None, None, x.shape[-1])) for x in (splits.bank, splits.test))
    return splits._replace(bank=bank, test=test)


def _raw_features(ours: kind.Kind, mesh: Mesh, examples: object) -> np.ndarray:
    """Return features [n, f] that need no network, such as the pixels of images."""

    def run(examples: object, apply: Callable[[Array], Array]) -> np.ndarray:
        return extract(examples, lambda _, block: apply(block), (), mesh)

    return ours.raw_features(examples, run)


def extract_features(encode: Callable[..., np.ndarray] | None, data: Arrays) -> Features:
    """Return features and labels of all examples of the bank and the test split.

    Args:
        encode: ``(inputs) -> [n, f]``. Without it, features are empty.
        data: from `load_arrays`.
    """
    read = encode or (lambda examples: np.zeros((0, 0), np.float32))
    return Features(read(data.train), data.train_labels, read(data.test), data.test_labels)


def _make_views(
    config: ConfigDict | None, inputs: Inputs, views: Callable, batch_of: Callable
) -> Callable[..., np.ndarray]:
    """Return ``(encode, images, number, seed) -> [number, n, f]``, features of random views.

    Args:
        config: the run's config, which defines the views, or None for SimCLR's views.
        inputs: the network's inputs.
        views: `Kind.views`.
        batch_of: `Kind.batch_of`.
    """
    if config is None:
        augment = views([recipes.simclr(size=inputs.size)])
    else:
        augment = make_augment(ConfigDict({**config.to_dict(), "views": 1, "crops": {"number": 0}}))
    scale = measured_scale(config.data) if config else None

    @jax.jit
    def draw(key: Array, images: Array, index: Array) -> Array:
        return to_uint8(augment(key, batch_of(images), index)["views"], scale)[0]

    def encode_views(encode: Callable, images: np.ndarray, number: int, seed: int) -> np.ndarray:
        keys = [jax.random.fold_in(jax.random.key(seed), view) for view in range(number)]
        size = min(BLOCK, len(images))
        features = []
        for first in range(0, len(images), size):
            block = images[first : first + size]
            padded = distributed.pad_rows(block, size)
            index = np.arange(first, first + size, dtype=np.int32)
            drawn = (np.asarray(draw(key, padded, index))[: len(block)] for key in keys)
            features.append(np.stack([encode(view) for view in drawn]))
        return np.concatenate(features, axis=1)

    return encode_views
