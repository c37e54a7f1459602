"""Code that protocols share: types, checks of arguments, random draws and rows of results."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict
from numpy.typing import ArrayLike

from jaxssl import distributed
from jaxssl.components import Settings
from jaxssl.errors import suggest

if TYPE_CHECKING:  # A protocol can thus be imported without the data modules.
    from jaxssl.data.splits import Source
    from jaxssl.pretrained.encoder import PretrainedEncoder

Presets = Mapping[str, Settings]  # settings of a protocol by the name of a preset
CLASSES = 2**31  # Programs take class indices of int32, and a cast would wrap around.
RANKED = 2**26  # number of logits that are sorted at once
NETWORKS = ("untrained", "pretrained")  # kinds of features that a network computes


class Features(NamedTuple):
    """Features and labels of the training and the test split.

    Attributes:
        train: [n, f] float32.
        train_labels: [n] int, -1 without a label.
        test: [m, f] float32.
        test_labels: [m] int, -1 without a label.
    """

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    @property
    def is_finite(self) -> bool:
        """Return True if no feature is NaN or infinite."""
        return all(bool(np.isfinite(array).all()) for array in (self.train, self.test))

    def require_finite(self) -> None:
        """Raise ValueError if a feature is NaN or infinite."""
        for name, rows in (("training", self.train), ("test", self.test)):
            if not np.isfinite(rows).all():
                raise ValueError(
                    f"features must be finite, but features of {name} images have NaN or infinity"
                )


def check_features(
    train_features: ArrayLike,
    train_labels: ArrayLike,
    test_features: ArrayLike,
    test_labels: ArrayLike,
) -> Features:
    """Return the arrays of a protocol's ``evaluate`` as `Features`.

    `jaxssl.evaluation.protocols` describes the arrays.

    Raises:
        ValueError: if a shape or a dtype is wrong. The message names the argument.
    """
    train, train_classes = check_split("train_", train_features, train_labels)
    test, test_classes = check_split("test_", test_features, test_labels)
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            "train_features and test_features must have the same number of columns, got "
            f"{train.shape[1]} and {test.shape[1]}"
        )
    return Features(train, train_classes, test, test_classes)


def check_split(
    prefix: str, features: ArrayLike, labels: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 features [n, f] and class indices [n], whose names begin with a prefix."""
    rows = _unmasked(f"{prefix}features", features)
    # NumPy does not count JAX's bfloat16 among the numbers.
    is_real = jnp.issubdtype(rows.dtype, np.floating) or jnp.issubdtype(rows.dtype, np.integer)
    if rows.ndim != 2 or not rows.size or not is_real:
        raise ValueError(
            f"{prefix}features must be real numbers [n, f] of at least one row, got {rows.dtype} "
            f"{list(rows.shape)}"
        )
    labels = check_indices(f"{prefix}labels", labels, len(rows), CLASSES)
    return np.asarray(rows, np.float32), labels


def check_indices(name: str, indices: ArrayLike, length: int, end: int) -> np.ndarray:
    """Return an argument as integers [length] in [0, end), or raise ValueError that names it."""
    indices = _unmasked(name, indices)
    if indices.shape != (length,) or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(
            f"{name} must be integers [{length}], one for each row, got {indices.dtype} "
            f"{list(indices.shape)}"
        )
    if (outside := indices[(indices < 0) | (indices >= end)]).size:
        raise ValueError(f"{name} must be indices in [0, {end}), got {outside[0]}")
    return indices


def _unmasked(name: str, values: ArrayLike) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray):  # NumPy would ignore the mask.
        raise ValueError(f"{name} is a masked array; leave out the masked rows")
    return np.asarray(values)


def choose_settings(presets: Presets, preset: str, default: str, changes: Settings) -> Settings:
    """Return the settings of a preset, with ``changes`` to individual settings.

    Args:
        presets: settings by name.
        preset: name of a preset, or "default".
        default: the preset that "default" means.
        changes: settings that replace the preset's. A number may stand for a list of one number.

    Raises:
        ValueError: if the preset or a setting is unknown, or a setting has a wrong type.
    """
    preset = default if preset == "default" else preset
    if preset not in presets:
        raise ValueError(f"preset {preset!r} is unknown{suggest(preset, ['default', *presets])}")
    valid = sorted({name for settings in presets.values() for name in settings})
    for name in changes:
        if name not in valid:
            raise ValueError(f"the setting {name!r} is unknown{suggest(name, valid)}")
    chosen = {**presets[preset], **changes}
    for name in changes:
        usual = next(settings[name] for settings in presets.values() if name in settings)
        value, is_list = _plain(chosen[name]), isinstance(usual, tuple)
        expected = type(usual[0] if is_list else usual)
        if is_list:
            value = tuple(map(_plain, value)) if isinstance(value, Sequence) else (value,)
        if not all(_has_type(one, expected) for one in (value if is_list else (value,))):
            kind = expected.__name__ + (" or a list of them" if is_list else "")
            raise ValueError(f"{name} must be {kind}, got {changes[name]!r}")
        chosen[name] = value
    return chosen


def _plain(value: object) -> Any:
    """Return a number or array of NumPy or JAX as a number or list of Python."""
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def _has_type(value: object, expected: type) -> bool:
    """Return True if a value has a type. An int is also a float, and a bool is neither."""
    valid = (int, float) if expected is float else expected
    return isinstance(value, valid) and isinstance(value, bool) == (expected is bool)


def check_seed(seed: object) -> int:
    """Return the seed of a protocol's draws. Raise ValueError unless it is in [0, 2^31).

    `jax.random.key` has the low 32 bits of a seed alone.
    """
    number = _plain(seed)
    if not isinstance(number, int) or not 0 <= number < 2**31:
        raise ValueError(f"seed must be an integer >= 0 and below 2^31, got {seed!r}")
    return int(number)


def check_labels(source: "Source") -> None:
    """Raise ValueError unless all images have labels, of two classes or more."""
    labels = source.labels
    if unlabelled := int(np.sum(labels < 0)):
        raise ValueError(
            f"{unlabelled} of {len(labels)} training images have no label; "
            "choose a labelled train_split"
        )
    if len(np.unique(labels)) < 2:
        raise ValueError("the training images have one class, expected two or more")


def subset(n: int, limit: int | None, *, seed: int) -> np.ndarray:
    """Draw at most ``limit`` of n examples at random, and return the sorted indices."""
    if limit is None or n <= limit:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, limit, replace=False))


def indices_by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Return the ascending indices of the examples of each class in ``labels`` [n], by class."""
    _, counts = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts))[:-1]


def draw_shots(labels: np.ndarray, shots: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``shots`` examples of each class from ``labels`` [n].

    Returns:
        [classes, shots] indices.

    Raises:
        ValueError: if a class has too few examples, or if all labels are of one class.
    """
    members = indices_by_class(labels)
    if len(members) < 2:
        raise ValueError("the training images have one class, expected two or more")
    fewest = min(members, key=len)
    if len(fewest) < shots:
        raise ValueError(
            f"class {labels[fewest[0]]} has {len(fewest)} training examples, but {shots} shots are "
            "needed"
        )
    return np.stack([rng.choice(indices, shots, replace=False) for indices in members])


def stratified(labels: np.ndarray, share: float, *, seed: int, least: int = 0) -> np.ndarray:
    """Draw a share of the examples of each class.

    With the same seed, a larger share contains a smaller one. At least one example of each class is
    left out, unless ``least`` demands it.

    Args:
        labels: [n] int.
        share: in [0, 1); the number of examples of each class is rounded.
        seed: seed of the draw.
        least: minimum number of examples of each class, if the class has that many.

    Returns:
        Sorted indices of the drawn examples.
    """
    rng, drawn = np.random.default_rng(seed), []
    for members in map(rng.permutation, indices_by_class(labels)):
        number = max(least, min(round(share * len(members)), len(members) - 1))
        drawn.append(members[:number])
    return np.sort(np.concatenate(drawn))


def validation_part(labels: np.ndarray, share: float, *, seed: int) -> np.ndarray:
    """Draw a share of the training examples of each class for validation, as `stratified` does.

    Raises:
        ValueError: if the share is not in (0, 1), or every class has too few examples.
    """
    if not 0 < share < 1:
        raise ValueError(f"validation must be a share in (0, 1), got {share}")
    drawn = stratified(labels, share, seed=seed)
    if not len(drawn):
        raise ValueError(
            f"{share:.0%} of each class rounds to no image for validation; this needs a class with "
            f"{max(2, int(0.5 / share) + 1)} training images or more"
        )
    return drawn


def rank(logits: np.ndarray) -> np.ndarray:
    """Return the columns of the five largest logits [n, c] of each row, the largest first."""
    # The order of all columns of all rows could take many gigabytes.
    parts = np.array_split(logits, max(1, -(-logits.size // RANKED)))
    return np.concatenate([np.argsort(-x, axis=1, kind="stable")[:, :5] for x in parts])


def top1_top5(ranked: np.ndarray, labels: np.ndarray, prefix: str = "") -> dict[str, float]:
    """Compute top-1 and top-5 accuracy in percent.

    Args:
        ranked: [n, >= 1] classes of each example, the prediction first.
        labels: [n] classes.
        prefix: start of the names.

    Returns:
        "top1" and "top5" behind the prefix. Top 5 is 100 for five classes or fewer.
    """
    hit = ranked[:, :5] == labels[:, None]
    return {
        f"{prefix}top1": 100 * float(np.mean(hit[:, 0])),
        f"{prefix}top5": 100 * float(np.mean(hit.any(axis=1))),
    }


class EvalContext(NamedTuple):
    """Everything that an evaluation protocol may use: features, images and the encoder.

    Attributes:
        features: features of the labelled training images and the test images. They are empty if
            every requested protocol has ``needs_features=False``.
        train: the training images.
        test: the test images.
        encode: ``(uint8 images [n, h, w, c]) -> [n, f]``, computes the features of other images.
        views: ``(uint8 images, number, seed) -> [number, n, f]``, computes the features of random
            views, augmented as the first view in training.
        encoder: the encoder to fine-tune. None for raw pixels, projector features, and examples
            other than images.
        size: side length in pixels to which images of different sizes are cropped.
        resizing: further arguments of `Source.images`, by which they are resized and cropped.
        mesh: the devices.
        embed_images: ``() -> [m, d]``, embeds the test images in the space that they share with
            texts. None without a text network.
        embed_texts: ``(tokens [n, text_length] int32) -> [n, d]``. None without a text network.
        text_length: tokens of a text.
        data: the config group `data` of the data set.
    """

    features: Features
    train: "Source | None" = None
    test: "Source | None" = None
    encode: Callable[..., np.ndarray] | None = None
    views: Callable[[np.ndarray, int, int], np.ndarray] | None = None
    encoder: "PretrainedEncoder | None" = None
    size: int = 0
    resizing: tuple[float | str | None, ...] = ()
    mesh: Mesh | None = None
    embed_images: Callable[[], np.ndarray] | None = None
    embed_texts: Callable[[np.ndarray], np.ndarray] | None = None
    text_length: int = 0
    data: ConfigDict = ConfigDict()


class Images(NamedTuple):
    """The encoder, splits, devices and settings that fine-tuning takes from an `EvalContext`."""

    encoder: "PretrainedEncoder"
    train: "Source"
    test: "Source"
    mesh: Mesh
    data: ConfigDict = ConfigDict()


def images_of(context: EvalContext) -> Images:
    """Return the encoder, the images and the devices (by default all) of a context.

    Raises:
        ValueError: if the context has no encoder of images to fine-tune.
    """
    if context.encoder is None or context.train is None or context.test is None:
        raise ValueError("fine-tuning needs the backbone layer of an encoder of images")
    mesh = context.mesh or distributed.make_mesh()
    return Images(context.encoder, context.train, context.test, mesh, context.data)


class Result(NamedTuple):
    """One number that an evaluation protocol reports.

    Attributes:
        metric: name of the metric, such as "knn_top1".
        value: the number, in percent unless ``unit`` says otherwise.
        std: standard deviation over the protocol's repetitions, in the same unit. None without
            repetitions.
        details: the effective settings of the protocol. Two keys change how the result is shown:
            "ci95", half the width of a 95 % confidence interval, replaces ``std``, and "verdict" is
            printed as text.
        unit: unit of the value, or "" for a dimensionless number.
    """

    metric: str
    value: float
    std: float | None
    details: Settings
    unit: str = "%"


def make_results(scores: Mapping[str, float | np.ndarray], **details: object) -> list[Result]:
    """Return one `Result` for each metric.

    Args:
        scores: numbers in percent by metric. Of repetitions [r], the result has mean and std.
        **details: the effective settings of the protocol.
    """
    return [
        Result(name, float(np.mean(x)), float(np.std(x)) if np.ndim(x) else None, details)
        for name, x in scores.items()
    ]


class Protocol(NamedTuple):
    """An evaluation protocol, defined as ``protocol`` by a file of `evaluation/protocols`.

    Several processes all run it, on the features of all examples.

    Attributes:
        run: ``(context, *, seed, preset) -> list[Result]``, where context is an `EvalContext`. It
            raises ValueError if the data set does not fit.
        presets: settings by name.
        examples: the kinds of examples (names of `jaxssl.data.kind`) for which
            "all" includes the protocol. None for every kind, () if it is only run by name.
        kinds: the kinds of features (`jaxssl.report.results.KINDS`) that the protocol evaluates,
            or None for every kind.
        layer: the layer that the protocol always uses, whatever ``--layer`` says, or None for the
            requested layer.
        needs_labels: whether the examples must have labels.
        needs_features: whether the protocol reads ``context.features``. If no protocol does, the
            features are not extracted.
        novel_classes: whether test images may belong to classes without training images.
    """

    run: Callable[..., list[Result]]
    presets: Mapping[str, object]
    examples: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    layer: str | None = None
    needs_labels: bool = True
    needs_features: bool = True
    novel_classes: bool = False
