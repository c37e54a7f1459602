"""Describe an encoder for timm and transformers, and upload an exported folder to a hub."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn

from jaxssl.errors import UserError, one_line
from jaxssl.models import resnet, vit
from jaxssl.pretrained.encoder import PretrainedEncoder

PREFIX = "hf://"
# Settings of a network that do not change its features, or that the config names.
TRAINING = ("parent", "name", "remat", "drop_path", "freeze_patches", "zero_init_residual")
VIT = ("dim", "layers", "heads", "patch_size", "pool", "positions", "mlp_dim")
RESNET = ("stages", "bottleneck", "stem", "width")
CARD_HEADER = """---
library_name: timm
pipeline_tag: image-feature-extraction
tags: [jaxssl, self-supervised]
---

"""


def timm_config(pretrained: PretrainedEncoder, num_features: int) -> str:
    """Return the config.json with which timm and transformers build the network.

    Raises:
        ValueError: if timm has no such network.
    """
    net, inputs = pretrained.encoder.net, pretrained.inputs
    name, arguments = _timm_network(net, inputs.size)
    statistics = {
        key: [float(x) for x in getattr(inputs, key)]
        * (inputs.channels // len(getattr(inputs, key)))
        for key in ("mean", "std")
    }
    config = {
        "architecture": name,
        "num_classes": 0,
        "num_features": num_features,
        "model_args": {"in_chans": inputs.channels, **arguments},
        "pretrained_cfg": {
            "input_size": [inputs.channels, inputs.size, inputs.size],
            "fixed_input_size": isinstance(net, vit.ViT),
            "interpolation": "bilinear",
            "crop_pct": inputs.crop or 1.0,
            "crop_mode": "center" if inputs.crop else "squash",
            **statistics,
            "num_classes": 0,
        },
    }
    return json.dumps(config, indent=2)


def _timm_network(net: Any, size: int) -> tuple[str, dict[str, Any]]:
    """Return the name of a network in timm, and the arguments that differ from its defaults."""
    if isinstance(net, vit.ViT):
        _refuse_other_settings(net, VIT)
        pooling = {"global_pool": "token"}
        if net.pool == "mean":
            pooling = {"global_pool": "avg", "fc_norm": False}
        shape = {"embed_dim": net.dim, "depth": net.layers, "num_heads": net.heads}
        shape |= {
            "img_size": size,
            "patch_size": net.patch_size,
            "mlp_ratio": (net.mlp_dim or 4 * net.dim) / net.dim,
        }
        return "vit_base_patch16_224", shape | pooling
    if isinstance(net, resnet.ResNet):
        _refuse_other_settings(net, RESNET)
        form = (net.stages, net.bottleneck)
        depths = [depth for depth, other in resnet.DEPTHS.items() if other == form]
        if depths and net.stem == "imagenet" and net.width == 64:
            return f"resnet{depths[0]}", {}
        raise ValueError(
            "timm has ResNets with a 7 x 7 stem and 64 channels only; choose --to safetensors"
        )
    raise ValueError(f"timm has no {type(net).__name__}; choose --to safetensors")


def _refuse_other_settings(net: nn.Module, described: Sequence[str]) -> None:
    for field in dataclasses.fields(net):
        if field.name not in (*TRAINING, *described):
            if (value := getattr(net, field.name)) != field.default:
                raise ValueError(
                    f"net.{field.name}={value!r} cannot be described to timm; choose --to "
                    "safetensors"
                )


def push(folder: Path, names: Sequence[str], target: str) -> str:
    """Upload exported files to a model repository, which is created if it does not exist.

    Args:
        folder: folder of the files.
        names: names of the files.
        target: "hf://owner/name".

    Returns:
        The address of the repository.

    Raises:
        UserError: if the target is no such name, the package is missing, or the upload fails.
    """
    repository = repository_name(target)
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError("--push needs huggingface_hub: pip install huggingface_hub") from error
    try:
        url = huggingface_hub.create_repo(repository, exist_ok=True)
        huggingface_hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(names),
            commit_message="Upload an encoder trained with jaxssl",
        )
    except Exception as error:  # The hub and its HTTP library raise many exception types.
        raise UserError(f"--push {target}: {one_line(error)}; the files are in {folder}") from error
    return str(url)


def repository_name(target: str) -> str:
    """Return "owner/name" of "hf://owner/name", and raise UserError for another form."""
    repository = target.removeprefix(PREFIX)
    if not target.startswith(PREFIX) or len([part for part in repository.split("/") if part]) != 2:
        raise UserError(f"--push must be hf://owner/name, got {target!r}")
    return repository
