"""Read folders of weights of transformers, timm and open_clip."""

import json
from collections.abc import Mapping
from pathlib import Path

from jaxssl.components import Settings
from jaxssl.errors import one_line

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
ACTIVATIONS = {"gelu": "gelu", "quick_gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu_tanh"}
# Maps Pillow's number of an interpolation to its name.
RESAMPLE = {2: "bilinear", 3: "bicubic"}


def is_weights_folder(path: Path) -> bool:
    """Return True if a path is a folder with weights in one of `FILES`."""
    return path.is_dir() and any((path / name).exists() for name in FILES)


def weights_files(folder: Path) -> list[Path]:
    """Return the files with the weights of a folder, all shards if there are several.

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


def read_settings(folder: Path) -> tuple[Settings, Settings]:
    """Read settings of the network and of its inputs from the JSON files of a folder.

    Returns:
        Settings as in the config group `net`, and fields of `jaxssl.augment.views.Inputs`. What
        the files do not say is left out.

    Raises:
        ValueError: if a file holds settings that are not supported.
    """
    config, processor, clip = (
        _read(folder / name) if (folder / name).exists() else {} for name in CONFIGS
    )
    vision = config.get("vision_config", config)
    net = {
        "num_heads": vision.get("num_attention_heads"),
        "epsilon": vision.get("layer_norm_eps"),
        "layers": vision.get("num_hidden_layers"),
    }
    if not vision.get("use_swiglu_ffn") and not vision.get("use_gated_mlp"):
        net["activation"] = ACTIVATIONS.get(vision.get("hidden_act"))
    if vision.get("rope_theta", 100.0) != 100:
        raise ValueError(f"the network's rope_theta must be 100, got {vision['rope_theta']!r:.40}")
    if clip.get("model_cfg", {}).get("quick_gelu") or "quickgelu" in str(
        config.get("architecture")
    ):
        net["activation"] = "quick_gelu"
    timm, open_clip = config.get("pretrained_cfg", {}), clip.get("preprocess_cfg", {})
    by_timm, by_open_clip = _statistics(timm), _statistics(open_clip)
    if "input_size" in timm:
        by_timm["size"] = timm["input_size"][-1]
    by_timm["crop"] = 0.0 if timm.get("crop_mode") == "squash" else timm.get("crop_pct")
    by_open_clip["size"] = clip.get("model_cfg", {}).get("vision_cfg", {}).get("image_size")
    if "resize_mode" in open_clip:
        by_open_clip["crop"] = 0.0 if open_clip["resize_mode"] == "squash" else 1.0
    size = {"size": vision.get("image_size")}
    return _merge(net), _merge(size, by_timm, by_open_clip, _processor_inputs(processor))


def _merge(*groups: Mapping[str, object]) -> Settings:
    """Merge settings that are not None. The last group that sets a key decides its value."""
    return {key: value for group in groups for key, value in group.items() if value is not None}


def _statistics(settings: Settings) -> dict[str, object]:
    return {name: settings.get(name) for name in ("mean", "std", "interpolation")}


def _processor_inputs(settings: Settings) -> Settings:
    """Translate the preprocessor_config.json of transformers to our input settings."""
    inputs: dict[str, object] = {name: settings.get(f"image_{name}") for name in ("mean", "std")}
    if not settings.get("do_normalize", True):
        inputs = {"mean": [0.0] * 3, "std": [1.0] * 3}
    if "resample" in settings:
        if settings["resample"] not in RESAMPLE:
            raise ValueError(
                "the image processor's resample must be one of "
                f"{RESAMPLE}, got {settings['resample']!r:.40}"
            )
        inputs["interpolation"] = RESAMPLE[settings["resample"]]
    size, window = settings.get("size"), settings.get("crop_size")
    # In old files, size is one number: the short side if the image is cropped afterwards.
    short = isinstance(size, Mapping) and "shortest_edge" in size
    if isinstance(size, Mapping):
        size = size.get("shortest_edge", size.get("height"))
    if size is None:
        return inputs
    if settings.get("do_center_crop") and window is not None:
        window = window["height"] if isinstance(window, Mapping) else window
        return inputs | {"size": window, "crop": min(1.0, window / size)}
    if settings.get("crop_pct"):
        # transformers' ConvNeXt crops only if the size is below 384 pixels.
        return inputs | {"size": size, "crop": settings["crop_pct"] if size < 384 else 0.0}
    return inputs | {"size": size, "crop": 1.0 if short else 0.0}


def _read(path: Path) -> Settings:
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is no JSON file ({one_line(error, 200)})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} must hold a JSON object, got {type(content).__name__}")
    return content
