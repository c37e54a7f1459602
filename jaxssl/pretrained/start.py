"""Start pretraining from the weights of a run or a file."""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping

import flax.linen as nn
import jax
import numpy as np
from flax.typing import Collection
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl.components import Settings
from jaxssl.errors import UserError, abbreviate
from jaxssl.methods.base import Carried
from jaxssl.models.transfer import ADAPTER
from jaxssl.models.vit import ViT
from jaxssl.pretrained import hub, position_tables, weights
from jaxssl.pretrained.encoder import PretrainedEncoder, Variables
from jaxssl.pretrained.load import is_run, load_pretrained
from jaxssl.training.config.method import make_networks
from jaxssl.training.output.logs import log
from jaxssl.training.workdir import digests

POSITIONS = "net/params/positions"
PATCHES, FROZEN_PATCHES = "/patches/", "/frozen_patches/"  # in names of a ViT's first layer


def start(
    config: ConfigDict, params: Collection, carried: Carried, inputs: object, *, trust: bool = False
) -> tuple[Collection, Carried, Settings]:
    """Replace the backbone of initial parameters by the weights that `config.init` names.

    A momentum network starts from the same weights. With `config.init_projector` the projector is
    replaced too. All other arrays keep their initial values. A first layer for images with another
    number of channels is adapted by `adapt_channels`, and learned positions of another number of
    patches by the rule of the project of the weights. Adapters (`jaxssl.models.transfer`) keep
    their values too.

    Args:
        config: of the run, complete. `init` is the workdir of a run (its last checkpoint is used)
            or a weights file.
        params: initial parameters of the run.
        carried: initial non-trainable state of the run.
        inputs: of the run's backbone.
        trust: as for `jaxssl.load_encoder`.

    Returns:
        The parameters, the other state, and a report with "from", "sha256" (of the arrays),
        "loaded" (number of arrays), "missing" (networks that keep their random values), "extra"
        (arrays and networks of the weights that are not used), "reshaped" (arrays for other
        channels or patches) and "differences" (settings of backbone and inputs that differ from the
        weights').

    Raises:
        UserError: if the weights cannot be read or do not fit the networks. Nothing is loaded then.
    """
    source = load_init(config, trust=trust)
    names = ("net", "projector") if config.get("init_projector", False) else ("net",)
    if absent := [name for name in names if not jax.tree.leaves(source.variables.get(name))]:
        raise UserError(f"the encoder {config.init} has no {absent[0]}; set init_projector=False")
    ours = {
        name: {"params": params[name], "batch_stats": carried.batch_stats[name]} for name in names
    }
    theirs = _by_name({name: source.variables[name] for name in names})
    net = make_networks(config).net
    old, new = getattr(source.inputs, "channels", 0), getattr(inputs, "channels", 0)
    rule = source.metadata.get("positions") or "timm"
    fitted, reshaped, faults = {}, [], []
    for name, leaf in _by_name(ours).items():
        if f"/{ADAPTER}" in name:  # No weights file has values for adapters.
            fitted[name] = leaf
        elif name not in theirs:
            faults.append(f"{name} {[*leaf.shape]} is missing")
        else:
            fitted[name] = _fit(name, theirs[name], leaf.shape, net, old, new, rule)
            change = f"{name} {[*theirs[name].shape]} -> {[*leaf.shape]}"
            if fitted[name].shape != leaf.shape:
                faults.append(change)
            elif theirs[name].shape != leaf.shape:
                reshaped.append(change)
    if faults:
        faults.sort(key=lambda fault: "/params/" not in fault)
        flags = shlex.join(f"--config.net.{k}={v}" for k, v in source.metadata["net"].items())
        raise UserError(
            f"init: the arrays of {config.init} do not fit the networks of this run: "
            f"{abbreviate(faults)}; the backbone of the weights is {flags}"
        )
    before, now = _settings(source.encoder.net, source.inputs), _settings(net, inputs)
    differences = [
        f"{name} {before[name]} -> {now[name]}"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name]
    ]
    if differences:
        log.warning("init: the settings differ from the weights': %s", "; ".join(differences))
    report = {
        "from": str(config.init),
        "sha256": _digest(theirs),
        "loaded": len(theirs.keys() & fitted.keys()),
        "missing": [name for name in params if name not in names and jax.tree.leaves(params[name])],
        "extra": sorted({*theirs} - {*fitted} | {*source.variables} - {*names}),
        "reshaped": reshaped,
        "differences": differences,
    }
    variables = jax.tree.unflatten(jax.tree.structure(ours), fitted.values())
    return *_replace(params, carried, variables), report


def load_init(config: ConfigDict, *, trust: bool = False) -> PretrainedEncoder:
    """Load the run or the weights file that `config.init` names.

    Args:
        config: of the run that starts from it, complete.
        trust: as for `jaxssl.load_encoder`.

    Raises:
        UserError: if the weights cannot be read.
    """
    path = hub.local(config.init)
    if is_run(path):
        return load_pretrained(path, trust=trust)
    # The arrays do not tell a ViT's number of heads, nor whether the last layers are missing.
    settings = {key: config.net[key] for key in ("num_heads", "layers") if config.net.get(key)}
    return weights.load(path, fallback=settings)


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Adapt the kernel of a first convolution to images with another number of channels, as timm.

    For one channel the kernel is summed over the old channels, so that a grey image gives the same
    output as in RGB. For another number the old channels are repeated in turn (RGBRG...) and
    multiplied by the old number over the new one, which keeps the scale of the output.

    Args:
        kernel: [height, width, old channels, out].
        channels: new number of channels.
    """
    old = kernel.shape[2]
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    return kernel[:, :, np.arange(channels) % old] * np.float32(old / channels)


def _fit(
    name: str,
    array: np.ndarray,
    shape: tuple[int, ...],
    net: object,
    old: int,
    new: int,
    rule: str,
) -> np.ndarray:
    """Adapt an array of the weights to other numbers of channels or patches of images.

    Args:
        name: of the array, as in `_by_name`.
        array: from the weights.
        shape: that the run expects.
        net: the backbone of the run.
        old: channels of the images of the weights, 0 for other examples.
        new: channels of the images of the run, 0 for other examples.
        rule: how positions are resized, one of `position_tables.RULES`.

    Returns:
        An array of another shape than the expected one if the weights are of another network.
    """
    if array.shape == shape:
        return array
    if old and new and array.ndim == 4 and array.shape[2] == old:
        array = adapt_channels(array, new)
    elif old and new and array.ndim == 2 and PATCHES in name and len(array) % old == 0:
        # [height * width * channels, out]
        kernel = array.reshape(1, -1, old, array.shape[1])
        array = adapt_channels(kernel, new).reshape(-1, array.shape[1])
    if name == POSITIONS and isinstance(net, ViT):
        antialias, offset = position_tables.RULES[rule]
        tokens = net.num_class_tokens
        patches = shape[0] - tokens
        array = position_tables.resize(array, tokens, patches, antialias=antialias, offset=offset)
    return array


def _replace(
    params: Collection, carried: Carried, variables: Variables
) -> tuple[Collection, Carried]:
    """Replace variables of networks, also in the momentum network, and keep the shardings."""

    def replace(collection: str, tree: Collection) -> Collection:
        new = {name: variables[name][collection] for name in variables if name in tree}
        old = {name: tree[name] for name in new}
        return {**tree, **jax.tree.map(_place, new, old)}

    carried = carried._replace(batch_stats=replace("batch_stats", carried.batch_stats))
    if carried.target:
        target = {name: replace(name, tree) for name, tree in carried.target.items()}
        carried = carried._replace(target=target)
    return replace("params", params), carried


def _place(array: np.ndarray | jax.Array, like: jax.Array) -> jax.Array:
    # Every array is a copy, because the training step donates its input.
    if isinstance(array, jax.Array):  # of the new run, and perhaps split over hosts
        return jnp.copy(array)
    return jnp.copy(jax.device_put(np.array(array, like.dtype), like.sharding))


def _settings(net: object, inputs: object) -> dict[str, object]:
    """Return the settings of a backbone and its inputs that change the features."""
    # One number for all channels equals the same number for each, of any number of channels.
    settings: dict[str, object] = {
        name: (*dict.fromkeys(getattr(inputs, name, ())),) for name in ("mean", "std")
    }
    if isinstance(net, nn.Module):
        fields = {field.name for field in dataclasses.fields(net)} - {"parent", "name"}
        settings |= {name: getattr(net, name) for name in fields}
    return settings


def _by_name(tree: Variables) -> dict[str, np.ndarray]:
    """Flatten a tree of variables to arrays by names such as "net/params/Conv_0/kernel"."""
    arrays = digests.by_name(tree)
    return {name.replace(FROZEN_PATCHES, PATCHES): array for name, array in arrays.items()}


def _digest(arrays: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(digests.compute(arrays), sort_keys=True).encode()).hexdigest()
