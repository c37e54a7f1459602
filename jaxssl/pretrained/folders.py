"""Read folders of weights of transformers, timm and open_clip."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl.components import Settings
from jaxssl.errors import one_line
from jaxssl.training.output import file_io

# Files of weights in a folder, the preferred first. An index lists the files of a sharded model.
WEIGHTS_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
CONFIG_FILES = ("config.json", "preprocessor_config.json", "open_clip_config.json")
# timm networks that are not supported although their arrays look like a supported one: rotary
# positions without parameters, and blurred downsampling.
UNSUPPORTED = re.compile("_rope_|vit_pe_|resnetaa|resnetblur")
# timm's ViTs of SigLIP 2 with the approximate GELU
TANH_GELU = re.compile(
    "vit_(so400m_patch16|base_patch32|giantopt_patch16)_siglip|vit_large_patch16_siglip.*_512"
)
# Maps transformers' name of an activation to ours, where they differ.
ACTIVATIONS: Mapping[str | None, str] = {
    "gelu_python": "gelu",
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
}
# Maps timm's global_pool to our net.pool.
POOLS: Mapping[str | None, str] = {"token": "token", "avg": "mean", "map": "attention"}
# Maps Pillow's number of an interpolation to its name.
RESAMPLE = {2: "bilinear", 3: "bicubic"}


class EncoderSettings(NamedTuple):
    """Settings of a pretrained encoder. Settings that the files do not state are absent.

    Attributes:
        net: settings as in the config group `net`.
        inputs: fields of `jaxssl.augment.views.Inputs`.
    """

    net: Settings = {}
    inputs: Settings = {}


def is_weights_folder(path: Path) -> bool:
    """Return True if a path is a folder with weights in one of `WEIGHTS_FILES`."""
    return path.is_dir() and any((path / name).is_file() for name in WEIGHTS_FILES)


def weights_files(folder: Path) -> list[Path]:
    """Return the preferred file of weights in a folder, or all shards that its index lists.

    Raises:
        ValueError: if the index is damaged, or names a file that is missing.
    """
    preferred = next(folder / name for name in WEIGHTS_FILES if (folder / name).is_file())
    if preferred.suffix != ".json":
        return [preferred]
    files = _read(preferred).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{preferred.name} must have a weight_map, the file of each array")
    names = sorted(set(map(str, files.values())))
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{preferred.name} names the file {name!r:.80} outside the folder")
        if not (folder / name).is_file():
            raise ValueError(f"the file {name!r:.80}, which {preferred.name} names, is missing")
    return [folder / name for name in names]


def read_settings(folder: Path) -> EncoderSettings:
    """Read settings of the network and of its inputs from the JSON files of a folder.

    Raises:
        ValueError: if a file is no JSON object, or holds settings that are not supported.
    """
    config, processor, open_clip = (
        _read(folder / name) if (folder / name).exists() else {} for name in CONFIG_FILES
    )
    vision = _group(config, "vision_config") or config
    inputs = _merge(
        {"size": vision.get("image_size")},
        _timm_inputs(_group(config, "pretrained_cfg") or config),
        _open_clip_inputs(open_clip),
        _processor_inputs(processor),
    )
    return EncoderSettings(_net_settings(config, vision, open_clip), inputs)


def _net_settings(config: Settings, vision: Settings, open_clip: Settings) -> Settings:
    """Translate settings of the network. ``vision`` is the image network's part of ``config``."""
    if vision.get("rope_theta", 100.0) != 100:
        raise ValueError(f"the network's rope_theta must be 100, got {vision['rope_theta']!r:.40}")
    for flag in ("downsample_in_first_stage", "downsample_in_bottleneck"):
        if vision.get(flag):  # The arrays are the same, but the strides of a ResNet lie elsewhere.
            raise ValueError(f"the network's {flag} must be false, got {vision[flag]!r:.40}")
    # In transformers' ConvNeXts, layer_norm_eps belongs to the last norm only.
    is_convnext = str(vision.get("model_type")).startswith("convnext")
    net = {
        "num_heads": vision.get("num_attention_heads"),
        "epsilon": None if is_convnext else vision.get("layer_norm_eps"),
        "layers": vision.get("num_hidden_layers"),
    }
    if not vision.get("use_swiglu_ffn") and not vision.get("use_gated_mlp"):
        activation = vision.get("hidden_act")
        # `vit.net` refuses an activation that it lacks. `architecture.infer` drops settings that a
        # network does not have.
        net["activation"] = ACTIVATIONS.get(activation, activation)
    model = _group(open_clip, "model_cfg")
    clip = _group(model, "vision_cfg")
    timm_name = str(config.get("architecture") or clip.get("timm_model_name") or "")
    if match := UNSUPPORTED.search(timm_name):
        raise ValueError(f"timm's {timm_name:.80} is not supported, because of {match.group()!r}")
    if model.get("quick_gelu") or "quickgelu" in timm_name:
        net["activation"] = "quick_gelu"
    elif TANH_GELU.match(timm_name):
        net["activation"] = "gelu_tanh"
    if clip.get("width") and clip.get("head_width"):
        net["num_heads"] = clip["width"] // clip["head_width"]
    arguments = _group(config, "model_args")  # of timm's constructor
    net["pool"] = POOLS.get(arguments.get("global_pool"))
    names = {"num_heads": "num_heads", "activation": "act_layer"}
    return _merge(net, {ours: arguments.get(theirs) for ours, theirs in names.items()})


def _group(settings: Settings, key: str) -> Settings:
    """Return the settings under a key, {} if it is missing or null."""
    group = settings.get(key) or {}
    if not isinstance(group, Mapping):
        raise ValueError(f"{key} must be a JSON object, got {group!r:.40}")
    return group


def _merge(*groups: Mapping[str, object]) -> Settings:
    """Merge settings that are not None. The last group that sets a key decides its value."""
    return {key: value for group in groups for key, value in group.items() if value is not None}


def _statistics(settings: Settings) -> dict[str, Any]:
    return {name: settings.get(name) for name in ("mean", "std", "interpolation")}


def _timm_inputs(settings: Settings) -> Settings:
    """Translate the pretrained_cfg of timm to our input settings."""
    inputs = _statistics(settings)
    if "input_size" in settings:
        shape = settings["input_size"]
        if not isinstance(shape, list) or len(shape) != 3 or shape[1] != shape[2]:
            raise ValueError(
                "timm's input_size must be [channels, height, width] of a square, got "
                f"{shape!r:.40}; change it in config.json"
            )
        inputs["size"] = shape[2]
    inputs["crop"] = 0.0 if settings.get("crop_mode") == "squash" else settings.get("crop_pct")
    return inputs


def _open_clip_inputs(settings: Settings) -> Settings:
    """Translate the open_clip_config.json of open_clip to our input settings."""
    preprocessing = _group(settings, "preprocess_cfg")
    inputs = _statistics(preprocessing)
    inputs["size"] = _group(_group(settings, "model_cfg"), "vision_cfg").get("image_size")
    if "resize_mode" in preprocessing:
        inputs["crop"] = 0.0 if preprocessing["resize_mode"] == "squash" else 1.0
    return inputs


def _processor_inputs(settings: Settings) -> Settings:
    """Translate the preprocessor_config.json of transformers to our input settings."""
    inputs: dict[str, Any] = {name: settings.get(f"image_{name}") for name in ("mean", "std")}
    if not settings.get("do_normalize", True):
        inputs = {"mean": [0.0] * 3, "std": [1.0] * 3}
    factor = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
    if not isinstance(factor, int | float) or abs(255 * factor - 1) > 1e-3:
        raise ValueError(
            f"the image processor's rescale_factor must be 1 / 255, got {factor!r:.40}"
        )
    if (resample := settings.get("resample")) is not None:
        if resample not in tuple(RESAMPLE):
            valid = " or ".join(f"{number} ({name})" for number, name in RESAMPLE.items())
            raise ValueError(
                f"the image processor's resample must be {valid}, got {resample!r:.40}"
            )
        inputs["interpolation"] = RESAMPLE[resample]
    return inputs | _processor_size(settings)


def _processor_size(settings: Settings) -> dict[str, Any]:
    """Translate size and crop of an image processor of transformers."""
    size, window = settings.get("size"), settings.get("crop_size")
    crop = 0.0
    if isinstance(size, Mapping):
        crop = 1.0 if "shortest_edge" in size else 0.0
        size = size.get("shortest_edge", size.get("height"))
    if size is None:
        return {}
    if not isinstance(size, int | float) or size <= 0:
        raise ValueError(f"the image processor's size must be a positive number, got {size!r:.40}")
    # In old files, size is one number: the short side if the image is cropped afterwards.
    if settings.get("do_center_crop") and window is not None:
        if isinstance(window, Mapping):
            window = window.get("shortest_edge", window.get("height"))
        return {"size": window, "crop": min(1.0, window / size)}
    if settings.get("crop_pct"):
        # transformers' ConvNeXt crops only if the size is below 384 pixels.
        crop = settings["crop_pct"] if size < 384 else 0.0
    return {"size": size, "crop": crop}


def _read(path: Path) -> Settings:
    try:
        content = file_io.read_json(path)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is no JSON file ({one_line(error, 200)})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} must hold a JSON object, got {type(content).__name__}")
    return content
