"""Translate the names that public projects give to an encoder's arrays to one set of names.

The common names are timm's for ViTs and ConvNeXts and torchvision's for ResNets. A `Dialect` per
project maps its names to these. `parameter_names` maps the common names to our parameters.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from jaxssl.components import Settings

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop": 0.875}
IMAGENET_BICUBIC = {**IMAGENET, "interpolation": "bicubic"}
HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
SIGLIP = {**HALF, "interpolation": "bicubic", "crop": 0.0}
CLIP = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "crop": 1.0,
    "interpolation": "bicubic",
}


class Stored(NamedTuple):
    """An array of a weights file that is not read before ``load`` is called.

    Attributes:
        shape: its shape.
        load: reads it.
    """

    shape: tuple[int, ...]
    load: Callable[[], np.ndarray]


class Dialect(NamedTuple):
    """Names that one public project gives to the arrays of a network.

    Attributes:
        network: name of our network. Its `RENAMES` translate the names.
        mark: name of an array that shows the dialect. Its prefix in a file is the prefix of the
            encoder.
        inputs: the usual input settings.
        settings: settings of the network that arrays do not show.
        outside: name of an array that belongs to the encoder but lies outside of the last module of
            its prefix, or "".
    """

    network: str
    mark: str
    inputs: Settings
    settings: Settings = {}
    outside: str = ""


# Regular expressions for the start of a name in a block of a ViT. Group 1 is the name of the block.
_VIT_BLOCK = {
    r"(layernorm_before|layer_norm1|ln_1)\.": "norm1.",
    r"(layernorm_after|layer_norm2|ln_2)\.": "norm2.",
    r"(self_attention|attn)\.in_proj_": "attn.qkv.",
    r"attention\.attention\.([qkv])[a-z]+\.": r"attn.\2.",
    r"(attention|self_attn)\.([qkv])_proj\.": r"attn.\3.",
    r"attn\.([qv])_bias$": r"attn.\2.bias",
    r"(self_attention|self_attn|attn)\.out_proj\.": "attn.proj.",
    r"attention\.(output\.dense|o_proj)\.": "attn.proj.",
    r"(mlp\.(0|linear_1|c_fc|w12|weights_in)|intermediate\.dense)\.": "mlp.fc1.",
    r"(mlp\.(3|linear_2|c_proj|w3|weights_out|down_proj)|output\.dense)\.": "mlp.fc2.",
    r"mlp\.(fc1_g|w1|gate_proj)\.": "mlp.gate.",
    r"mlp\.(fc1_x|w2|up_proj)\.": "mlp.up.",
    r"(gamma_|layer_scale)(\d)(\.lambda1)?$": r"ls\3.gamma",
}
# For each network, regular expressions for the start of an array's name and their replacements, in
# the order in which they apply. They translate names of torchvision, transformers, OpenAI,
# open_clip, timm's EVA and the code of the networks' papers.
RENAMES: Mapping[str, Mapping[str, str]] = {
    "vit": {
        r"(class_token|embeddings\.cls_token|(embeddings\.)?class_embedding)$": "cls_token",
        r"embeddings\.mask_token$": "mask_token",
        r"embeddings\.distillation_token$": "dist_token",
        r"(embeddings\.)?(register|storage)_tokens$": "reg_token",
        r"(conv_proj|conv1|embeddings\.patch_embedding)\.": "patch_embed.proj.",
        r"embeddings\.patch_embeddings\.(projection\.)?": "patch_embed.proj.",
        r"(encoder\.pos_embedding|positional_embedding)$": "pos_embed",
        r"embeddings\.position_embedding(s|\.weight)$": "pos_embed",
        r"(pre_layrnorm|ln_pre)\.": "norm_pre.",
        r"(encoder\.ln|layernorm|post_layernorm|ln_post)\.": "norm.",
        r"encoder\.layers\.encoder_layer_(\d+)\.": r"blocks.\1.",
        r"((encoder\.)?layer|encoder\.layers|transformer\.resblocks)\.": "blocks.",
        r"blocks\.\d+\.(\d+)\.": r"blocks.\1.",  # DINOv2 can store blocks in chunks.
        **{rf"(blocks\.\d+\.){theirs}": rf"\1{common}" for theirs, common in _VIT_BLOCK.items()},
        r"head\.probe$": "attn_pool.latent",
        r"head\.attention\.in_proj_": "attn_pool.qkv.",
        r"head\.attention\.out_proj\.": "attn_pool.proj.",
        r"head\.layernorm\.": "attn_pool.norm.",
        r"head\.mlp\.": "attn_pool.mlp.",
        r"visual_projection\.weight$": "proj_transposed",
    },
    "resnet": {
        r"embedder\.embedder\.convolution\b": "conv1",
        r"embedder\.embedder\.normalization\b": "bn1",
        **{rf"encoder\.stages\.{i}\.layers\.": f"layer{i + 1}." for i in range(4)},
        **{rf"(layer.*)layer\.{i}\.convolution\.": rf"\1conv{i + 1}." for i in range(3)},
        **{rf"(layer.*)layer\.{i}\.normalization\.": rf"\1bn{i + 1}." for i in range(3)},
        r"(layer.*)shortcut\.convolution\.": r"\1downsample.0.",
        r"(layer.*)shortcut\.normalization\.": r"\1downsample.1.",
    },
    "convnext": {
        r"(head\.norm|classifier\.0)\.": "norm.",
        r"(downsample_layers|features)\.0\.": "stem.",
        r"embeddings\.patch_embeddings\.": "stem.0.",
        r"embeddings\.layernorm\.": "stem.1.",
        r"downsample_layers\.(\d+)\.": r"stages.\1.downsample.",
        r"stages\.(\d+)\.(\d+)\.": r"stages.\1.blocks.\2.",
        r"encoder\.stages\.(\d+)\.downsampling_layer\.": r"stages.\1.downsample.",
        r"encoder\.stages\.(\d+)\.layers\.": r"stages.\1.blocks.",
        **{rf"features\.{2 * i}\.": f"stages.{i}.downsample." for i in range(1, 4)},
        **{rf"features\.{2 * i + 1}\.": f"stages.{i}.blocks." for i in range(4)},
        r"(.*)(layernorm|block\.2)\.": r"\1norm.",
        r"(.*)(dwconv|block\.0)\.": r"\1conv_dw.",
        r"(.*)(pwconv1|block\.3)\.": r"\1mlp.fc1.",
        r"(.*)(pwconv2|block\.5)\.": r"\1mlp.fc2.",
        r"(.*blocks\.\d+\.)grn\.": r"\1mlp.grn.",
        r"(.*)grn\.gamma$": r"\1grn.weight",
        r"(.*)grn\.beta$": r"\1grn.bias",
        r"(.*)layer_scale(_parameter)?$": r"\1gamma",
    },
}
OPEN_CLIP = "visual.trunk."  # end of the prefix of timm's networks in files of open_clip
QUICK_GELU = {"activation": "quick_gelu"}
# The dialects, by project. If a file has the ``mark`` array of several, the first one counts.
DIALECTS: Mapping[str, Dialect] = {
    # DeiT, MoCo-v3, DINO, iBOT, MAE, DINOv2, DINOv3 and open_clip's SigLIP use timm's names.
    "timm's ViT": Dialect("vit", "patch_embed.proj.weight", IMAGENET_BICUBIC),
    "torchvision's ViT": Dialect("vit", "conv_proj.weight", IMAGENET),
    "transformers' DINOv2": Dialect(
        "vit", "encoder.layer.0.layer_scale1.lambda1", IMAGENET_BICUBIC
    ),
    "transformers' ViT": Dialect(
        "vit", "embeddings.patch_embeddings.projection.weight", {**HALF, "crop": 0.0}
    ),
    "transformers' DINOv3": Dialect(
        "vit", "layer.0.attention.q_proj.weight", {**IMAGENET, "crop": 0.0}
    ),
    "transformers' CLIP": Dialect(
        "vit", "pre_layrnorm.weight", CLIP, QUICK_GELU, outside="visual_projection.weight"
    ),
    "transformers' SigLIP": Dialect("vit", "head.probe", SIGLIP, {"activation": "gelu_tanh"}),
    "OpenAI's and open_clip's CLIP": Dialect("vit", "ln_pre.weight", CLIP),
    "OpenAI's and open_clip's ResNet": Dialect("clip_resnet", "attnpool.q_proj.weight", CLIP),
    # MoCo, SimCLR, SwAV, VICReg, solo-learn and timm use torchvision's names.
    "torchvision's ResNet": Dialect("resnet", "layer1.0.conv1.weight", IMAGENET),
    "transformers' ResNet": Dialect(
        "resnet", "encoder.stages.0.layers.0.layer.0.convolution.weight", IMAGENET_BICUBIC
    ),
    "timm's ConvNeXt": Dialect("convnext", "stages.0.blocks.0.conv_dw.weight", IMAGENET_BICUBIC),
    "the authors' ConvNeXt": Dialect("convnext", "stages.0.0.dwconv.weight", IMAGENET_BICUBIC),
    "transformers' ConvNeXt": Dialect(
        "convnext", "encoder.stages.0.layers.0.dwconv.weight", IMAGENET_BICUBIC
    ),
    "torchvision's ConvNeXt": Dialect("convnext", "features.1.0.block.0.weight", IMAGENET),
}
# Names of arrays that do not affect the features of the backbone, such as arrays of heads.
IGNORED = re.compile(
    r"(fc|heads?|head_dist|mlp_head|pre_logits|linear|classifier|project(or|ion)\w*|prototypes|"
    r"predict(or|ion)\w*|online_\w+|momentum_\w+|queue\w*|dino_head|last_layer|pooler|"
    r"decoder\w*|mask_token|masked_embed|rope_embed|local_cls_norm)\b|.*(num_batches_tracked|position_ids)$"
)


class Combination(NamedTuple):
    """How one array is made of several arrays of a file.

    Attributes:
        sources: parts of the names of these arrays. The last one is in no other name.
        join: the function that combines them.
    """

    sources: tuple[str, ...]
    join: Callable[..., np.ndarray]


def _concatenate(*arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays)


# Combinations by the part of the name of the resulting array.
COMBINED: Mapping[str, Combination] = {
    "attn.qkv.": Combination(("attn.q.", "attn.k.", "attn.v."), _concatenate),
    "attn_pool.qkv.": Combination(("attn_pool.q.", "attn_pool.kv."), _concatenate),
    "mlp.fc1.": Combination(("mlp.gate.", "mlp.up."), _concatenate),
    # DINOv3 multiplies the bias by a mask, which is 0 for the bias of the attention keys.
    "attn.qkv.bias": Combination(("attn.qkv.bias", "attn.qkv.bias_mask"), np.multiply),
    "proj": Combination(("proj_transposed",), np.transpose),
}
# Networks that are not supported, by a pattern that occurs in the name of one of their arrays.
OTHER_NETWORKS = {
    r"relative_position_(bias|index)|attn\.rel_pos|rel_pos_bias": "Swin or BEiT",
    r"(^|\.)conv_stem\.|\.conv_pw\.|_blocks\.0\._depthwise_conv|\.fc1\.0\.": "EfficientNet",
    r"features\.1\.0\.block\.0\.0\.|features\.\d\.conv\.|\.se\.": (
        "EfficientNet, MobileNet or another network with squeeze-and-excitation"
    ),
    r"\.attn\.proj_l\.": "CaiT",
    r"\.attn\.sr\.": "PVT",
    r"^blocks\.\d+\.proj\.": "Hiera",
    r"denseblock\d": "DenseNet",
    r"features\.\d+\.weight$": "VGG or AlexNet",
    r"trunk_output\.|(^|\.)s\d\.b\d+\.": "RegNet",
    r"Mixed_\d|inception": "Inception",
    r"mlp_tokens|token_mixing": "MLP-Mixer",
    r"(^|\.)(down_blocks|up_blocks|mid_block)\.": "a diffusion network",
    r"token_embedding|word_embeddings|embed_tokens|wte\.": "a text network",
}


def translate(network: str, name: str) -> str:
    """Map a name of the file, without the encoder's prefix, to the name that all formats share."""
    for pattern, replacement in RENAMES.get(network, {}).items():
        name = re.sub(f"^{pattern}", replacement, name)
    return name


def combine(arrays: Mapping[str, Stored]) -> dict[str, Stored]:
    """Combine arrays that a project stores separately, such as queries, keys and values.

    Raises:
        ValueError: if the shapes of such arrays do not fit each other.
    """
    result = dict(arrays)
    for name in arrays:
        if name.endswith("attn.q.bias"):  # DINOv3's attention keys have no bias.
            shape = arrays[name].shape
            zeros = Stored(shape, partial(np.zeros, shape, np.float32))
            result.setdefault(name.replace("attn.q.", "attn.k."), zeros)
    for target, (sources, join) in COMBINED.items():
        for name in [name for name in result if sources[-1] in name]:
            names = [name.replace(sources[-1], source) for source in sources]
            pieces = [result.pop(piece) for piece in names if piece in result]
            # Arrays of zeros that take no memory show the shape of the result.
            blanks = [np.broadcast_to(np.int8(0), piece.shape) for piece in pieces]
            load = partial(_load_combined, join, pieces)
            result[name.replace(sources[-1], target)] = Stored(join(*blanks).shape, load)
    return result


def _load_combined(join: Callable[..., np.ndarray], pieces: list[Stored]) -> np.ndarray:
    return join(*(piece.load() for piece in pieces))
