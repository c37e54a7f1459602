"""Interfaces of components that users add; docs/extending.md explains them.

Each class is the type of a function, or of an object, that a config can name. Settings, which are
further keyword arguments with defaults, are allowed wherever a function is called. A type checker
accepts, for example, ``loss: interfaces.Loss = my_loss``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from flax.typing import Collection
from jax import Array

from jaxssl.evaluation.protocol import EvalContext, Result
from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import Pairs
from jaxssl.methods.base import Method as TrainingMethod
from jaxssl.models.adapters import Network as Network
from jaxssl.models.encoder import Encoder
from jaxssl.training.output.loggers import Logger as Logger


class InitNetwork(Protocol):
    """Type of the function of a network that draws its initial parameters."""

    def __call__(self, key: Array, x: Any, /) -> dict[str, Any]:
        """Return the parameters, nested dicts of arrays, for examples ``x`` [n, ...]."""
        ...


class ApplyNetwork(Protocol):
    """Type of the function of a network that computes features."""

    def __call__(self, params: Collection, x: Any, /) -> Array:
        """Map examples ``x`` [n, ...] to features [n, f]."""
        ...


class Loss(Protocol):
    """Type of a loss function, which takes pairs of embeddings."""

    def __call__(self, pairs: Pairs) -> Array:
        """Return the loss [n] of each anchor. Training averages over anchors with a positive."""
        ...


class View(Protocol):
    """A random augmentation, whose argument ``size`` needs a default."""

    def __call__(self, key: Array, image: Array, /, *, size: int) -> Array:
        """Map an image [h, w, c] in [0, 1] to a view [size, size, c] in [0, 1]."""
        ...


class Method(Protocol):
    """Type of a function that builds a training scheme."""

    def __call__(self, encoder: Encoder, objective: Objective, /) -> TrainingMethod:
        """Return the pure functions that initialise and train the networks."""
        ...


class Images(Protocol):
    """Type of a sequence of examples, which a data set may return instead of an array."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return an image, or a pair (image, label)."""
        ...


class Data(Protocol):
    """Type of a function that returns a data set. It may take ``path``, which is ``data.path``."""

    def __call__(self) -> Any:
        """Return images, (images, labels), or (train, test)."""
        ...


class Probe(Protocol):
    """Type of a function that is an evaluation protocol without presets."""

    def __call__(self, context: EvalContext, /, *, seed: int) -> list[Result]:
        """Return the numbers that the protocol measures."""
        ...


class MakeLogger(Protocol):
    """Type of a function that makes a logger of training metrics, in the first process only."""

    def __call__(self, workdir: Path, step: int, config: Mapping[str, object], /) -> Logger:
        """Open the log of a run that starts or resumes at a step."""
        ...
