"""Train parts of a network: frozen modules, learning rates by layer, and low-rank adapters."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
from flax.linen.module import InterceptorContext
from flax.typing import Collection, MutableCollection, VariableDict
from jax import Array, lax
from jax import numpy as jnp
from jax.tree_util import KeyPath

from jaxssl.models._layers import MaskedBatchNorm
from jaxssl.models.adapters import FunctionNetwork, Network, NnxNetwork
from jaxssl.models.encoder import Encoder

T = TypeVar("T")

FROZEN = "frozen_"  # Parameters of modules whose names begin with this are not trained.
# Modules that follow the blocks of a backbone, without the numbers at the end of their names.
LAST = ("LayerNorm", "RMSNorm", "AttentionPool", "norm", "pool", "projection")
BLOCKS = ("Block", "Inception")  # modules that are the blocks of a backbone, without numbers
ADAPTER = "lora_"  # Names of adapters are this and the name of the layer that they belong to.
ADAPTED = ("qkv", "attention_out")  # linear layers of attention


class Transfer(NamedTuple):
    """Which modules of the networks are trained, and at which learning rates.

    The layers of a backbone are its stem (0), its modules "Block_0", "Block_1", ... (1, 2, ...),
    named "Inception_0", ... in S3D, and the modules after the blocks, which are named "LayerNorm",
    "RMSNorm", "AttentionPool", "norm", "pool" or "projection". All others belong to the stem, but a
    downsampling between two blocks to the layer of the second one. Without blocks, the number at
    the end of a module's name counts, so that "Conv_1" and "BatchNorm_1" are layer 1, and a module
    without a number is layer 0. A layer of a GIN has two "Dense" modules.

    Attributes:
        freeze: names of networks or modules that are not trained, such as "net", "net/Conv_0".
        freeze_blocks: number of blocks of the backbone that are not trained, from the first, with
            the stem. 0 freezes none.
        freeze_stats: whether frozen BatchNorms of the backbone keep their statistics and normalise
            with them. False updates them, and normalises with the statistics of the batch.
        backbone_lr: learning rate of the backbone, relative to the other networks.
        layer_decay: factor on the rate from each layer of the backbone to the one before it (Bao et
            al., BEiT, 2021). Modules after the blocks have the factor 1.
        lora: rank of adapters of the backbone's attention, see `Adapted`. The rest of the backbone
            is then not trained. 0 for none.
    """

    freeze: Sequence[str] = ()
    freeze_blocks: int = 0
    freeze_stats: bool = True
    backbone_lr: float = 1.0
    layer_decay: float = 1.0
    lora: int = 0

    def frozen(self, params: Collection) -> Collection:
        """Mark the parameters that are not trained, in a tree of bools by network.

        Raises:
            ValueError: if a name of ``freeze`` is not among the parameters, or the backbone has no
                layer of the number ``freeze_blocks``.
        """
        paths = [_keys(path) for path, _ in jax.tree.leaves_with_path(params)]
        for name in sorted(self.freeze):
            if not any(_is_inside(keys, name) for keys in paths):
                valid = sorted({"/".join(keys[:2]) for keys in paths})
                raise ValueError(
                    f"optim.freeze: {name!r} is no network or module; valid: net, "
                    f"{', '.join(valid)}"
                )
        layers = _layers(params.get("net", {})) if self.freeze_blocks else {}
        if self.freeze_blocks > (last := max(layers.values(), default=0)):
            raise ValueError(
                f"optim.freeze_blocks must be <= {last}, the number of the backbone's last layer, "
                f"got {self.freeze_blocks}; name the modules in optim.freeze instead"
            )

        def is_frozen(path: KeyPath, _: object) -> bool:
            keys = _keys(path)
            if any(_is_inside(keys, name) for name in self.freeze):
                return True
            if any(key.startswith(FROZEN) for key in keys):
                return True
            if keys[0] != "net":
                return False
            if self.lora and not any(map(_is_adapter, keys)):
                return True
            return self.freeze_blocks > 0 and layers[keys[1]] <= self.freeze_blocks

        return jax.tree_util.tree_map_with_path(is_frozen, params)

    def rates(self, params: Collection) -> Collection:
        """Return the factor on the learning rate of each parameter, in a tree by network.

        Raises:
            ValueError: if ``layer_decay`` is not 1 and the backbone has a single layer.
        """
        layers = _layers(params.get("net", {})) if self.layer_decay != 1 else {}
        last = max(layers.values(), default=0)
        if layers and last == 0:
            raise ValueError(
                "optim.layer_decay needs a backbone of several layers, with modules named Block_0, "
                f"Block_1, ...; got {', '.join(sorted(layers)):.80}; set optim.backbone_lr instead"
            )

        def rate(path: KeyPath, _: object) -> float:
            keys = _keys(path)
            if keys[0] != "net":
                return 1.0
            return self.backbone_lr * self.layer_decay ** (last - layers.get(keys[1], last))

        return jax.tree_util.tree_map_with_path(rate, params)

    def without_gradient(self, loss: Callable[..., T]) -> Callable[..., T]:
        """Return a loss ``(params, ...) -> ...`` without the gradient of frozen parameters."""
        if not (self.freeze or self.freeze_blocks or self.lora):
            return loss

        def stop(frozen: bool, x: Array) -> Array:
            return lax.stop_gradient(x) if frozen else x

        def stopped_loss(params: Collection, *args: object, **kwargs: object) -> T:
            return loss(jax.tree.map(stop, self.frozen(params), params), *args, **kwargs)

        return stopped_loss

    def wrap(self, encoder: Encoder) -> Encoder:
        """Return an encoder with LoRA adapters, and with frozen BatchNorms in evaluation mode.

        Raises:
            ValueError: if adapters are requested for a backbone that is not a Linen module.
        """
        net: Network = encoder.net
        if self.lora and isinstance(net, NnxNetwork | FunctionNetwork):
            got = "an NNX module" if isinstance(net, NnxNetwork) else "a pair of functions"
            raise ValueError(f"optim.lora needs a Linen module, got {got}")
        if self.freeze_stats and (self.freeze or self.freeze_blocks or self.lora):
            net = FixedNorms(net, self)
        return encoder._replace(net=Adapted(net, self.lora) if self.lora else net)


ALL_TRAINED = Transfer()


class FixedNorms(NamedTuple):
    """A backbone whose frozen BatchNorms always use their running statistics.

    Attributes:
        net: the backbone.
        transfer: tells which modules are frozen.
    """

    net: Network
    transfer: Transfer

    def init(self, key: Array, x: object, *, train: bool = False) -> VariableDict:
        """Initialise the variables of the backbone."""
        return self.net.init(key, x, train=train)

    def apply(self, variables: VariableDict, x: object, **options: Any) -> Any:
        """Apply the backbone, with frozen BatchNorms in evaluation mode."""
        names = [name for name in self.transfer.freeze if name.split("/")[0] == "net"]
        transfer = self.transfer._replace(freeze=names)
        frozen = transfer.frozen({"net": variables["params"]})["net"]
        norms = (nn.BatchNorm, MaskedBatchNorm)

        def is_fixed(path: Sequence[object]) -> bool:
            marks = frozen
            for name in map(str, path):
                if name not in marks:  # A norm without parameters is frozen with its parent module.
                    break
                marks = marks[name]
            paths = jax.tree.leaves_with_path(marks)
            # Adapters are trained, but the modules that contain them are frozen.
            leaves = [leaf for path, leaf in paths if not any(map(_is_adapter, _keys(path)))]
            return bool(leaves) and all(leaves)

        if isinstance(self.net, NnxNetwork):
            return self.net.apply(variables, x, is_fixed=is_fixed, **options)

        def fix(call: Callable, args: tuple, kwargs: dict, context: InterceptorContext) -> object:
            module = context.module
            is_call = context.method_name == "__call__"
            if is_call and isinstance(module, norms) and is_fixed(module.path):
                if module.use_running_average is None:  # It is an argument of the call.
                    args, kwargs = args[:1], {**kwargs, "use_running_average": True}
                else:
                    # Flax has made this module for a single call, so it may be changed.
                    object.__setattr__(module, "use_running_average", True)
            return call(*args, **kwargs)

        with nn.intercept_methods(fix):
            return self.net.apply(variables, x, **options)


class Adapted(NamedTuple):
    """A backbone whose linear layers of attention have low-rank adapters (LoRA).

    A layer x W + b becomes x W + b + x A B, where A [in, rank] is drawn at random and B [rank, out]
    starts at 0, so that the features at first equal the features of the backbone.

    Attributes:
        net: the backbone.
        rank: rank of the adapters, >= 1.

    References:
        Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022, eq. 3, alpha = rank.
    """

    net: Network
    rank: int

    def init(self, key: Array, x: object, *, train: bool = False) -> VariableDict:
        """Initialise the backbone's variables, with LoRA adapters next to the adapted layers.

        Raises:
            ValueError: if the backbone has no attention.
        """
        variables = self.net.init(key, x, train=train)
        params = _add_adapters(variables["params"], self.rank, key)
        if jax.tree.structure(params) == jax.tree.structure(variables["params"]):
            raise ValueError("optim.lora needs a backbone with attention, such as vit")
        return {**variables, "params": params}

    def apply(self, variables: VariableDict, x: object, **options: Any) -> Any:
        """Apply the backbone with the LoRA adapters."""

        def adapt(call: Callable, args: tuple, kwargs: dict, context: InterceptorContext) -> object:
            y, module = call(*args, **kwargs), context.module
            if module.name not in ADAPTED or context.method_name != "__call__":
                return y
            block = variables["params"]
            for name in module.path[:-1]:
                block = block[name]
            adapter = block[ADAPTER + module.name]
            return y + args[0] @ adapter["down"] @ adapter["up"]

        with nn.intercept_methods(adapt):
            return self.net.apply(variables, x, **options)


def merge_adapters(params: Collection) -> MutableCollection:
    """Add the product A B of each adapter to its layer's kernel, and remove the adapters."""
    merged = {}
    for name, value in params.items():
        if name.startswith(ADAPTER):
            continue
        adapter = params.get(ADAPTER + name)
        if adapter is not None:
            value = {**value, "kernel": value["kernel"] + adapter["down"] @ adapter["up"]}
        merged[name] = merge_adapters(value) if isinstance(value, Mapping) else value
    return merged


def _add_adapters(params: Collection, rank: int, key: Array) -> MutableCollection:
    """Return a backbone's parameters with random adapters next to all layers named in `ADAPTED`."""
    result = dict(params)
    for number, (name, value) in enumerate(sorted(params.items())):
        module_key = jax.random.fold_in(key, number)
        if name in ADAPTED:
            shape = jnp.shape(value.get("kernel", 0.0))
            if len(shape) != 2:
                raise ValueError(f"optim.lora needs {name!r} to be nn.Dense, a kernel [in, out]")
            inner, out = shape
            down = jax.random.normal(module_key, (inner, rank)) * inner**-0.5
            result[ADAPTER + name] = {"down": down, "up": jnp.zeros((rank, out))}
        elif isinstance(value, Mapping):
            result[name] = _add_adapters(value, rank, module_key)
    return result


def _layers(net: Mapping[str, Any]) -> dict[str, int]:
    """Map each module of a backbone to the number of its layer, as defined in `Transfer`."""
    num_blocks = sum(name.rpartition("_")[0] in BLOCKS for name in net)
    layers = {}
    for name in net:
        kind, _, number = name.rpartition("_")
        if not number.isdecimal():
            kind, number = name, 0
        if kind in BLOCKS:
            layers[name] = int(number) + 1
        elif num_blocks == 0:
            per_layer = 2 if kind == "Dense" and "MaskedBatchNorm_0" in net else 1  # of a GIN
            layers[name] = int(number) // per_layer
        else:
            layers[name] = num_blocks + 1 if kind in LAST else 0
    if {"Conv_0", "mlp_in"} <= net.get("Block_0", {}).keys():  # a ConvNeXt
        layers |= _convnext_stages(net, num_blocks)
    return layers


def _convnext_stages(net: Mapping[str, Any], num_blocks: int) -> dict[str, int]:
    """Map the first layers of a ConvNeXt's stages to the numbers of the blocks that follow them.

    The parameters do not hold the number of blocks of a stage, but all its kernels have one width.

    Raises:
        ValueError: if two stages that follow each other have the same width.
    """
    convs = sorted((x for x in net if x.startswith("Conv_")), key=lambda x: int(x[5:]))
    widths = [net[name]["bias"].shape for name in convs]
    if any(first == second for first, second in itertools.pairwise(widths)):
        raise ValueError(
            "optim.layer_decay and optim.freeze_blocks need a ConvNeXt whose stages differ in "
            "width; name the modules in optim.freeze instead"
        )
    layers, stage = {"Conv_0": 0, "LayerNorm_0": 0}, 0
    for block in range(num_blocks):
        width = net[f"Block_{block}"]["Conv_0"]["bias"].shape
        while net[f"Conv_{stage}"]["bias"].shape != width:
            stage += 1
            layers[f"Conv_{stage}"] = layers[f"LayerNorm_{stage}"] = block + 1
    return layers


def _keys(path: KeyPath) -> list[str]:
    # A key may contain "/", as the names of Haiku's modules do.
    return [jax.tree_util.keystr((key,), simple=True) for key in path]


def _is_adapter(key: str) -> bool:
    return key.startswith(ADAPTER)


def _is_inside(keys: list[str], name: str) -> bool:
    """Return True if a parameter belongs to the network, module or parameter "net/Conv_0"."""
    return f"{'/'.join(keys)}/".startswith(f"{name}/")
