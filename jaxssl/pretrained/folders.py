"""Read folders of weights of transformers, timm and open_clip."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl.components import Settings
from jaxssl.errors import one_line
from jaxssl.training.output import file_io

# Files of weights in a folder, the preferred first. An index lists the files of a sharded model.
FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
CONFIGS = ("config.json", "preprocessor_config.json", "open_clip_config.json")
# Parts of the names of timm's networks that have no trace in their arrays: rotary positions without
# parameters, and blurred downsampling.
UNSUPPORTED = re.compile("_rope_|vit_pe_|resnetaa|resnetblur")
# timm's ViTs of SigLIP 2 whose activation is the approximate GELU
TANH = re.compile(
    "vit_(so400m_patch16|base_patch32|giantopt_patch16)_siglip|vit_large_patch16_siglip.*_512"
)
# Maps transformers' name of an activation to ours, where they differ.
ACTIVATIONS: Mapping[str | None, str] = {"gelu_pytorch_tanh": "gelu_tanh"}
# Maps Pillow's number of an interpolation to its name.
RESAMPLE = {2: "bilinear", 3: "bicubic"}


class EncoderSettings(NamedTuple):
    """Settings of a pretrained encoder. Those that are not known are left out.

    Attributes:
        net: settings as in the config group `net`.
        inputs: fields of `jaxssl.augment.views.Inputs`.
    """

    net: Settings = {}
    inputs: Settings = {}


def is_weights_folder(path: Path) -> bool:
    """Return True if a path is a folder with weights in one of `FILES`."""
    return path.is_dir() and any((path / name).exists() for name in FILES)


def weights_files(folder: Path) -> list[Path]:
    """Return the preferred file of weights in a folder, or all shards that its index lists.

    Raises:
        ValueError: if the index is damaged, or names a file that is missing.
    """
    first = next(folder / name for name in FILES if (folder / name).exists())
    if first.suffix != ".json":
        return [first]
    files = _read(first).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{first.name} must have a weight_map, the file of each array")
    names = sorted(set(map(str, files.values())))
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{first.name} names the file {name!r:.80} outside the folder")
        if not (folder / name).exists():
            raise ValueError(f"the file {name!r:.80}, which {first.name} names, is missing")
    return [folder / name for name in names]


def read_settings(folder: Path) -> EncoderSettings:
    """Read what the JSON files of a folder say about the network and its inputs.

    Raises:
        ValueError: if a file is no JSON object, or holds settings that are not supported.
    """
    config, processor, open_clip = (
        _read(folder / name) if (folder / name).exists() else {} for name in CONFIGS
    )
    vision = config.get("vision_config", config)
    inputs = _merge(
        {"size": vision.get("image_size")},
        _timm_inputs(config.get("pretrained_cfg", config)),
        _open_clip_inputs(open_clip),
        _processor_inputs(processor),
    )
    return EncoderSettings(_merge(_net_settings(config, vision, open_clip)), inputs)


def _net_settings(config: Settings, vision: Settings, open_clip: Settings) -> Settings:
    """Translate settings of the network, of which ``vision`` are those of an image network."""
    if vision.get("rope_theta", 100.0) != 100:
        raise ValueError(f"the network's rope_theta must be 100, got {vision['rope_theta']!r:.40}")
    net = {
        "num_heads": vision.get("num_attention_heads"),
        "epsilon": vision.get("layer_norm_eps"),
        "layers": vision.get("num_hidden_layers"),
    }
    if not vision.get("use_swiglu_ffn") and not vision.get("use_gated_mlp"):
        activation = vision.get("hidden_act")
        # A ViT refuses an activation that it lacks. ResNets do not have this setting.
        net["activation"] = ACTIVATIONS.get(activation, activation)
    model = open_clip.get("model_cfg", {})
    of_timm = config.get("architecture") or model.get("vision_cfg", {}).get("timm_model_name") or ""
    if match := UNSUPPORTED.search(str(of_timm)):
        raise ValueError(f"timm's {of_timm:.80} is not supported, because of {match.group()!r}")
    if model.get("quick_gelu") or "quickgelu" in str(of_timm):
        net["activation"] = "quick_gelu"
    elif TANH.match(str(of_timm)):
        net["activation"] = "gelu_tanh"
    arguments = config.get("model_args", {})  # of timm's constructor
    names = {"num_heads": "num_heads", "activation": "act_layer"}
    return _merge(net, {ours: arguments.get(theirs) for ours, theirs in names.items()})


def _merge(*groups: Mapping[str, object]) -> Settings:
    """Merge settings that are not None. The last group that sets a key decides its value."""
    return {key: value for group in groups for key, value in group.items() if value is not None}


def _statistics(settings: Settings) -> dict[str, Any]:
    return {name: settings.get(name) for name in ("mean", "std", "interpolation")}


def _timm_inputs(settings: Settings) -> Settings:
    """Translate the pretrained_cfg of timm to our input settings."""
    inputs = _statistics(settings)
    if "input_size" in settings:  # [channels, height, width]
        inputs["size"] = settings["input_size"][-1]
    inputs["crop"] = 0.0 if settings.get("crop_mode") == "squash" else settings.get("crop_pct")
    return inputs


def _open_clip_inputs(settings: Settings) -> Settings:
    """Translate the open_clip_config.json of open_clip to our input settings."""
    preprocessing = settings.get("preprocess_cfg", {})
    inputs = _statistics(preprocessing)
    inputs["size"] = settings.get("model_cfg", {}).get("vision_cfg", {}).get("image_size")
    if "resize_mode" in preprocessing:
        inputs["crop"] = 0.0 if preprocessing["resize_mode"] == "squash" else 1.0
    return inputs


def _processor_inputs(settings: Settings) -> Settings:
    """Translate the preprocessor_config.json of transformers to our input settings."""
    inputs: dict[str, Any] = {name: settings.get(f"image_{name}") for name in ("mean", "std")}
    if not settings.get("do_normalize", True):
        inputs = {"mean": [0.0] * 3, "std": [1.0] * 3}
    if "resample" in settings:
        if settings["resample"] not in RESAMPLE:
            raise ValueError(
                "the image processor's resample must be one of "
                f"{RESAMPLE}, got {settings['resample']!r:.40}"
            )
        inputs["interpolation"] = RESAMPLE[settings["resample"]]
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
    # In old files, size is one number: the short side if the image is cropped afterwards.
    if settings.get("do_center_crop") and window is not None:
        window = window["height"] if isinstance(window, Mapping) else window
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
