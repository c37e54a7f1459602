"""Low-rank adapters of attention (LoRA): train small matrices beside frozen ones.

References:
    Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022, eq. 3, with alpha = rank.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax import Array
from jax import numpy as jnp

PREFIX = "lora_"  # of the name of an adapter, beside the layer that it belongs to
LAYERS = ("qkv", "attention_out")  # linear layers of attention


class Adapted(NamedTuple):
    """A backbone whose linear layers of attention have adapters.

    A layer x W + b becomes x W + b + x A B, where A [in, rank] is drawn at random and B [rank, out]
    starts at 0, so that the features are at first those of the backbone.

    Attributes:
        net: the backbone.
        rank: rank of the adapters, >= 1.
    """

    net: Any
    rank: int

    def init(self, key: Array, x: Any, *, train: bool = False) -> dict[str, Any]:
        """Initialise the variables of the backbone, and its adapters beside their layers.

        Raises:
            ValueError: if the backbone has no attention.
        """
        variables = self.net.init(key, x, train=train)
        params = _add_adapters(variables["params"], self.rank, key)
        if jax.tree.structure(params) == jax.tree.structure(variables["params"]):
            raise ValueError("optim.lora needs a backbone with attention, such as vit")
        return {**variables, "params": params}

    def apply(self, variables: Mapping[str, Any], x: Any, **options: Any) -> Any:
        """Apply the backbone with its adapters."""

        def adapt(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            y, module = call(*args, **kwargs), context.module
            if module.name not in LAYERS or context.method_name != "__call__":
                return y
            block: Any = variables["params"]
            for name in module.path[:-1]:
                block = block[name]
            adapter = block[PREFIX + module.name]
            return y + args[0] @ adapter["down"] @ adapter["up"]

        with nn.intercept_methods(adapt):
            return self.net.apply(variables, x, **options)


def merge(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a backbone's parameters without adapters, with their products A B in the kernels."""
    merged = {}
    for name, value in params.items():
        if name.startswith(PREFIX):
            continue
        adapter = params.get(PREFIX + name)
        if adapter is not None:
            value = {**value, "kernel": value["kernel"] + adapter["down"] @ adapter["up"]}
        merged[name] = merge(value) if isinstance(value, Mapping) else value
    return merged


def _add_adapters(params: Mapping[str, Any], rank: int, key: Array) -> dict[str, Any]:
    result = dict(params)
    for number, (name, value) in enumerate(sorted(params.items())):
        part = jax.random.fold_in(key, number)
        if name in LAYERS:
            inner, out = value["kernel"].shape
            down = jax.random.normal(part, (inner, rank)) * inner**-0.5
            result[PREFIX + name] = {"down": down, "up": jnp.zeros((rank, out))}
        elif isinstance(value, Mapping):
            result[name] = _add_adapters(value, rank, part)
    return result
