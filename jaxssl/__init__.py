"""Contrastive self-supervised learning at small batch sizes, in JAX and Flax."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxssl.pretrained.load import load_encoder

__version__ = "0.1.0"
__all__ = ["__version__", "load_encoder"]


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `import jaxssl.losses` needs only jax.
    if name == "load_encoder":
        from jaxssl.pretrained.load import load_encoder

        return load_encoder
    raise AttributeError(f"module 'jaxssl' has no attribute {name!r}")
