"""Contrastive self-supervised learning at small batch sizes, in JAX and Flax."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxssl import losses, solvers
    from jaxssl.api import Run, embed, evaluate, get_config, resume, train
    from jaxssl.pretrained.load import load_encoder

__version__ = "0.3.0.dev0"
__all__ = [
    "Run",
    "__version__",
    "embed",
    "evaluate",
    "get_config",
    "load_encoder",
    "losses",
    "resume",
    "solvers",
    "train",
]


def __getattr__(name: str) -> object:
    # Everything is imported on first use, so that `import jaxssl` is quick and the losses need only
    # jax.
    if name in ("losses", "solvers"):
        return importlib.import_module(f"jaxssl.{name}")
    if name in __all__:
        module = "jaxssl.pretrained.load" if name == "load_encoder" else "jaxssl.api"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'jaxssl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
