"""Describe an encoder for timm. The transformers package loads timm's models too."""

import json
import math
import re
from collections.abc import Iterable, Mapping

import flax.linen as nn
import numpy as np

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.models import convnext, resnet, vit
from jaxssl.pretrained.encoder import PretrainedEncoder

GLOBAL_POOL = {"token": "token", "mean": "avg", "attention": "map"}  # timm's, by our net.pool
# timm's names of the classifier. Without one, timm loads the weights for num_classes=0 only.
CLASSIFIERS = {vit.ViT: "head", resnet.ResNet: "fc", convnext.ConvNeXt: "head.fc"}


def config_json(pretrained: PretrainedEncoder, num_features: int, arrays: Iterable[str]) -> str:
    """Return the config.json with which timm and transformers build the network.

    Args:
        pretrained: the encoder.
        num_features: features of an image.
        arrays: names of the arrays in the file.

    Raises:
        ValueError: if timm has no such network.
    """
    if components.is_custom(pretrained.metadata["net"]["name"]):
        raise ValueError("timm cannot build a custom network")
    inputs, net = pretrained.inputs, pretrained.encoder.net
    name, arguments = timm_model(net, inputs.size, arrays)
    entries = {
        "architecture": name,
        "num_classes": 0,
        "num_features": num_features,
        "model_args": {"in_chans": inputs.channels, **arguments},
        "pretrained_cfg": {
            "input_size": [inputs.channels, inputs.size, inputs.size],
            "fixed_input_size": "img_size" in arguments,
            "interpolation": inputs.interpolation,
            "crop_pct": inputs.crop or 1.0,
            "crop_mode": "center" if inputs.crop else "squash",
            "mean": [*inputs.mean] * (inputs.channels // len(inputs.mean)),
            "std": [*inputs.std] * (inputs.channels // len(inputs.std)),
            "num_classes": 0,
            "classifier": CLASSIFIERS[type(net)],
        },
    }
    return json.dumps(entries, indent=2)


def timm_model(net: nn.Module, size: int, arrays: Iterable[str] = ()) -> tuple[str, Settings]:
    """Return timm's name of a network, and the arguments that differ from timm's defaults.

    Raises:
        ValueError: if timm has no such network, or its network lacks one of the ``arrays``.
    """
    if isinstance(net, vit.ViT):
        absent = "patch_embed.proj.bias" if net.pre_norm else "attn.qkv.bias"
        left = [x for x in arrays if x.endswith(absent)]
        if left and (net.pre_norm or net.positions == "rotary"):
            raise ValueError(f"timm's network has no parameter {left[0]}")
        return _vit(net, size)
    if isinstance(net, resnet.ResNet):
        depth = next(d for d, form in resnet.DEPTHS.items() if form == (net.stages, net.bottleneck))
        _require(net, stem=net.stem in ("imagenet", "deep"), width=net.width == 64)
        arguments = {"cardinality": net.groups, "base_width": net.base_width}
        arguments |= {"avg_down": net.pooled_shortcut}
        deep = {"stem_type": "deep", "stem_width": 32} if net.stem == "deep" else {}
        return f"resnet{depth}", arguments | deep
    if isinstance(net, convnext.ConvNeXt):
        _require(net, depths=len(net.depths) == 4)
        version = "v2" if net.response_norm else ""
        arguments = {"depths": [*net.depths], "dims": [*net.widths], "norm_eps": net.epsilon}
        return f"convnext{version}_tiny", arguments
    raise ValueError(f"timm has no such {type(net).__name__}")


def _vit(net: vit.ViT, size: int) -> tuple[str, Settings]:
    gated, rotary = net.activation == "swiglu", net.positions == "rotary"
    hidden = (net.mlp_dim or 4 * net.dim) * (2 if gated and not rotary else 1)
    ratio = hidden / net.dim
    if int(net.dim * ratio) < hidden:  # timm computes the width like this.
        ratio = math.nextafter(ratio, math.inf)
    arguments = {
        "img_size": size,
        "patch_size": net.patch_size,
        "embed_dim": net.dim,
        "depth": net.layers,
        "num_heads": net.num_heads,
        "mlp_ratio": ratio,
        "init_values": 1e-5 if net.layer_scale else 0.0,  # `create_model` drops None.
        "class_token": net.class_token,
        "global_pool": GLOBAL_POOL[net.pool],
    }
    _require(net, projection=not net.projection)
    if rotary:
        plain = net.activation in ("gelu", "swiglu")
        _require(net, epsilon=net.epsilon == 1e-5, activation=plain, pool=net.pool != "attention")
        _require(net, pre_norm=not net.pre_norm, distilled=not net.distilled)
        _require(net, layer_scale=net.layer_scale)  # timm's has one unless an argument is None.
        arguments |= {"num_reg_tokens": net.registers, "swiglu_mlp": gated, "qkv_bias": True}
        return "vit_small_patch16_dinov3", arguments
    arguments |= {"reg_tokens": net.registers, "no_embed_class": net.registers > 0}
    arguments |= {"pre_norm": net.pre_norm, "fc_norm": False}
    if not gated:
        arguments["act_layer"] = net.activation
    # Only the name of an architecture selects timm's classes of layers (gated MLP, epsilon of the
    # norms). JSON arguments cannot.
    name, epsilon = "vit_base_patch16_224", 1e-6
    if net.distilled:
        name = "deit_base_distilled_patch16_224"
    elif gated:
        name = "vit_giant_patch14_dinov2"
    elif net.epsilon == 1e-5:
        name, epsilon = "vit_base_patch16_clip_224", 1e-5
    _require(
        net,
        epsilon=net.epsilon == epsilon,
        # timm's attention pool leaves out the tokens before the patches, and has no gated MLP.
        pool=net.pool != "attention" or not (gated or net.num_class_tokens or net.registers),
        distilled=not net.distilled or (net.pool == "token" and not gated and not net.registers),
    )
    return name, arguments


def _require(net: object, **fits: bool) -> None:
    """Raise ValueError for the first setting with a value that no network of timm has.

    ``fits`` maps a setting of the network to True if timm has a network with its value.
    """
    for name, fit in fits.items():
        if not fit:
            setting = f"net.{name}={getattr(net, name)!r}"
            raise ValueError(f"timm has no {type(net).__name__} with {setting} like this")


def prepare(pretrained: PretrainedEncoder) -> PretrainedEncoder:
    """Return an encoder with the same features, and with arrays that timm can hold.

    In timm, class tokens of a ViT with registers have no position. Add their positions to them.
    """
    net, variables = pretrained.encoder.net, pretrained.variables
    if not isinstance(net, vit.ViT) or net.positions != "learned" or not net.registers:
        return pretrained
    params = dict(variables["net"]["params"])
    first, rest = np.split(np.asarray(params["positions"]), [net.num_class_tokens])
    for name, position in zip(("token", "distillation"), first, strict=False):
        params[name] = params[name] + position
    params["positions"] = np.concatenate([np.zeros_like(first), rest])
    net_variables = {**variables["net"], "params": params}
    return pretrained._replace(variables={**variables, "net": net_variables})


def rename(net: nn.Module, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename arrays from the common names of all formats to the names of timm's network.

    timm's network lacks some biases. They are left out if they are 0. Otherwise they keep the
    common name, by which `config_json` refuses the export.
    """
    if isinstance(net, convnext.ConvNeXt):
        return {re.sub(r"^norm\.", "head.norm.", name): array for name, array in arrays.items()}
    if not isinstance(net, vit.ViT):
        return dict(arrays)
    result, rotary = {}, net.positions == "rotary"
    for name, array in arrays.items():
        if "attn_pool.qkv." in name:
            q, kv = np.split(array, [len(array) // 3])
            result |= {name.replace("qkv", "q"): q, name.replace("qkv", "kv"): kv}
        elif name == "patch_embed.proj.bias" and net.pre_norm and not array.any():
            continue
        elif name == "pos_embed" and net.registers:
            result[name] = array[:, net.num_class_tokens :]
        elif rotary and name.endswith("attn.qkv.bias") and not np.split(array, 3)[1].any():
            q, _, v = np.split(array, 3)
            result |= {name.replace("qkv.", "q_"): q, name.replace("qkv.", "v_"): v}
        else:
            result[re.sub(r"\.ls(\d)\.gamma$", r".gamma_\1", name) if rotary else name] = array
    return result
