"""Encoders from checkpoints, and the features they give."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl import checkpoint, parallel
from jaxssl import encoder as networks
from jaxssl.augment.views import preprocess
from jaxssl.build import make_networks

Apply = Callable[[Any, Array], Array]
BLOCK = 256  # images at a time


def load_encoder(
    workdir: str | Path, step: int | None = None
) -> tuple[Apply, Any, Callable[[Array], Array]]:
    """The backbone of a checkpoint, for use in any JAX project.

        apply, variables, preprocess = jaxssl.load_encoder("runs/digits")
        features = apply(variables, preprocess(images))

    Args:
        workdir: of a run.
        step: of the checkpoint; by default the latest.

    Returns:
        ``apply(variables, x) -> [n, f]``, pure and in evaluation mode; its variables, as NumPy
        arrays; and ``preprocess``, from uint8 images [n, h, w, c] to x.

    Raises:
        UserError: if there is no such checkpoint or it cannot be read.
    """
    found = checkpoint.restore_arrays(Path(workdir), step)
    config = ConfigDict(found.config)
    params, stats = found.state["params"], found.state["carried"]["batch_stats"]
    if config.method.get("evaluate") == "target":
        target = found.state["carried"]["target"]
        params, stats = target["params"], target["batch_stats"]
    variables = {"params": params["net"], "batch_stats": stats["net"]}
    encoder = make_networks(config)

    def apply(variables: Any, x: Array) -> Array:
        return networks.features(encoder, variables["params"], variables["batch_stats"], x)

    return apply, variables, partial(preprocess, size=config.augment.size)


def extract(
    images: np.ndarray,
    apply: Callable[[Any, Array], Array],
    variables: Any,
    mesh: jax.sharding.Mesh,
) -> np.ndarray:
    """`apply(variables, block)` over blocks of ``images``, split over the mesh.

    Args:
        images: [n, h, w, c] uint8.
        apply: a jitted function of variables and a block, which resizes and scales it too.
        variables: replicated over the mesh.
        mesh: the devices.

    Returns:
        [n, f] float32.
    """
    block = -(-BLOCK // mesh.size) * mesh.size
    rows = []
    for start in range(0, len(images), block):
        part = images[start : start + block]
        # The last block is filled up, so that there is one compilation and an even split.
        filled = np.concatenate([part, np.zeros((block - len(part), *part.shape[1:]), part.dtype)])
        out = apply(variables, parallel.shard(filled, mesh))
        rows.append(np.asarray(jnp.asarray(out, jnp.float32))[: len(part)])
    return np.concatenate(rows)
