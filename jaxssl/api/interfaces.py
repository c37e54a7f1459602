"""Interfaces of components that users add; docs/extending.md explains them.

Each name is the type of a function, or of an object, that a config can name. Settings, which are
further keyword arguments with defaults, are allowed wherever a function is called. A type checker
accepts, for example, ``loss: interfaces.Loss = my_loss``.
"""

from collections.abc import Callable, Mapping
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

#: ``(key, x)`` draws the parameters of a network, nested dicts of arrays, for examples ``x``
#: [n, ...].
InitNetwork = Callable[[Array, Any], dict[str, Any]]

#: ``(params, x)`` maps examples ``x`` [n, ...] to features [n, f].
ApplyNetwork = Callable[[Collection, Any], Array]

#: ``(pairs)`` returns the loss [n] of each anchor, from pairs of embeddings. Training averages over
#: anchors with a positive.
Loss = Callable[[Pairs], Array]

#: ``(encoder, objective)`` builds a training scheme, the pure functions that initialise and train
#: the networks.
Method = Callable[[Encoder, Objective], TrainingMethod]

#: ``()`` returns a data set, which is images, (images, labels), or (train, test). The function may
#: take ``path``, which is ``data.path``.
Data = Callable[[], Any]

#: ``(workdir, step, config)`` opens the logger of training metrics of a run that starts or resumes
#: at a step, in the first process only.
MakeLogger = Callable[[Path, int, Mapping[str, object]], Logger]


class View(Protocol):
    """A random augmentation, whose argument ``size`` needs a default."""

    def __call__(self, key: Array, image: Array, /, *, size: int) -> Array:
        """Map an image [h, w, c] in [0, 1] to a view [size, size, c] in [0, 1]."""
        ...


class Images(Protocol):
    """Type of a sequence of examples, which a data set may return instead of an array."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return an image, or a pair (image, label)."""
        ...


class Probe(Protocol):
    """Type of a function that is an evaluation protocol without presets."""

    def __call__(self, context: EvalContext, /, *, seed: int) -> list[Result]:
        """Return the numbers that the protocol measures."""
        ...
