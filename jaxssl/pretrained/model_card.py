"""The model card: what an exported file is, how its images are prepared, how to load it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxssl.augment.views import Inputs
from jaxssl.models import resnet, vit
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.report import results

RANGES = "in [0, 1] (uint8 / 255), then minus the mean, divided by the standard deviation"


def write(
    found: PretrainedEncoder, features: int, files: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> str:
    """The card, as Markdown.

    Args:
        found: what was exported.
        features: how many a picture has.
        files: names of the exported files.
        rows: of results.json that are of this checkpoint.
    """
    metadata, config = found.metadata, found.metadata.get("config") or {}
    parts = [
        f"# {metadata['source']}",
        "An image encoder trained by contrastive self-supervision with jaxssl, without its heads.",
        _table(_what(found, features)),
        "## Images",
        _table(_images(found.inputs)),
        "## Training" if config else "",
        _table(_training(config)) if config else "",
        "## Figures",
        _figures(rows) if rows else "None are known for this checkpoint.",
        "## Use",
        *(_use(found, name) for name in files),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _what(found: PretrainedEncoder, features: int) -> dict[str, Any]:
    metadata, leaves = found.metadata, jax.tree.leaves(found.variables["net"]["params"])
    return {
        "network": _said(metadata["net"]),
        "parameters": f"{sum(math.prod(x.shape) for x in leaves):,}",
        "features of an image": features,
        "computed in": found.encoder.precision,
        "source": metadata["source"],
        "checkpoint": metadata["checkpoint"],
        "step": metadata["step"],
        "loss": metadata["loss"],
    }


def _images(inputs: Inputs) -> dict[str, Any]:
    size = inputs.size
    rule = f"all of the image to {size} x {size}, if it has other sides"
    if inputs.crop:
        rule = f"the central square of {inputs.crop:g} of the short side, to {size} x {size}"
    return {
        "size": f"{size} x {size} pixels",
        "resized": rule,
        "interpolation": "bilinear, antialiased (Pillow's BILINEAR)",
        "channels": {1: "1, grey", 3: "3, in the order red, green, blue"}[inputs.channels],
        "range": RANGES,
        "mean": _numbers(inputs.mean),
        "standard deviation": _numbers(inputs.std),
    }


def _training(config: Mapping[str, Any]) -> dict[str, Any]:
    groups = ("method", "loss", "head", "predictor", "augment", "optim", "schedule")
    data = config["data"]
    return {
        "data set": f"{data['name']}, split {data['train_split']}",
        **{name: _said(config[name]) for name in groups},
        "views": config["views"],
        "batch size": config["batch_size"],
        "length": f"{config['total_steps']} steps"
        if config["total_steps"]
        else f"{config['epochs']} epochs",
        "seed": config["seed"],
    }


def _figures(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("figure", "value", "protocol", "data set", "fitted on", "tested on", "features")
    lines = [[*head, "checkpoint", "step", "seed"]]
    for row in rows:
        unit = row.get("unit", "%")
        figure = row["metric"] + (f" ({unit})" if unit else "")
        layer = f"{row['features']}, {row.get('layer')}"
        protocol = f"{row['protocol']}:{row['details']['preset']}"
        of = [row.get(name) for name in ("dataset", "bank", "split")]
        which = [row.get(name) for name in ("checkpoint", "step", "seed")]
        lines.append([figure, results.format_value(row), protocol, *of, layer, *which])
    return _grid(lines)


def _use(found: PretrainedEncoder, name: str) -> str:
    if name.endswith(".stablehlo"):
        text = _STABLEHLO
    else:
        text = _JAX + _pytorch(found, name)
    side, channels = found.inputs.size, found.inputs.channels
    return text.format(name=name, size=side, channels=channels)


_STABLEHLO = """### {name}

Takes raw images and prepares them itself; runs on CPU, CUDA and TPU, for any number of images.
Needs jax and flatbuffers only.

```python
from pathlib import Path
from jax import export
encode = export.deserialize(Path("{name}").read_bytes())
features = encode.call(images)  # uint8 [n, {size}, {size}, {channels}] -> float32 [n, features]
```"""
_JAX = """### {name}

```python
import jaxssl
apply, variables, preprocess = jaxssl.load_encoder("{name}")
features = apply(variables, preprocess(images))  # uint8 [n, h, w, {channels}]
```

"""


def _pytorch(found: PretrainedEncoder, name: str) -> str:
    """PyTorch's lines; braces are doubled, as they go through `format`."""
    module, channels = found.encoder.net, found.inputs.channels
    if isinstance(module, vit.ViT):
        names, lines = "timm's", _vit(module, found.inputs)
    elif isinstance(module, resnet.ResNet):
        names, lines = "torchvision's", _resnet(module, channels)
    else:
        names, lines = "plain", _convnet(module, channels)
    if not lines:
        return f"In PyTorch: torchvision has no ResNet of width {module.width}; the names are its."
    read = f'torch.load("{name}")'
    if name.endswith(".safetensors"):
        read = f'safetensors.torch.load_file("{name}")'
    top = ["import torch", *(["import safetensors.torch"] if "safetensors" in read else [])]
    lines = [*top, *lines, f"model.load_state_dict({read})", "model.eval()"]
    code = "\n".join(lines).replace("{", "{{").replace("}", "}}")
    return (
        f"In PyTorch, by {names} names; `model(x)` takes x [n, {channels}, {found.inputs.size}, "
        f"{found.inputs.size}], prepared as above:\n\n```python\n{code}\n```"
    )


def _vit(module: vit.ViT, inputs: Inputs) -> list[str]:
    pool = '"token"' if module.pool == "token" else '"avg", fc_norm=False'
    return [
        "from timm.models.vision_transformer import VisionTransformer",
        "model = VisionTransformer(",
        f"    img_size={inputs.size}, patch_size={module.patch_size}, in_chans={inputs.channels},",
        f"    embed_dim={module.dim}, depth={module.layers}, num_heads={module.heads},",
        f"    num_classes=0, global_pool={pool},",
        ")",
    ]


def _resnet(module: resnet.ResNet, channels: int) -> list[str]:
    forms = {form: depth for depth, form in resnet.DEPTHS.items()}
    depth = forms.get((module.stages, module.bottleneck))
    if depth is None or module.width != 64:
        return []
    lines = ["import torchvision", f"model = torchvision.models.resnet{depth}()"]
    if module.stem != "imagenet":
        padding = 2 if module.stem == "cifar_wide" else 1
        convolution = f"{channels}, 64, 3, padding={padding}, bias=False"
        lines += [f"model.conv1 = torch.nn.Conv2d({convolution})"]
        lines += ["model.maxpool = torch.nn.Identity()"]
    elif channels != 3:
        convolution = f"{channels}, 64, 7, stride=2, padding=3, bias=False"
        lines += [f"model.conv1 = torch.nn.Conv2d({convolution})"]
    return [*lines, "model.fc = torch.nn.Identity()"]


def _convnet(module: Any, channels: int) -> list[str]:
    sizes = list(zip((channels, *module.widths), module.widths, module.strides, strict=False))
    return [
        "from torch import nn",
        "class ConvNet(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        def stage(into, out, stride):",
        "            conv = nn.Conv2d(into, out, 3, stride, 1, bias=False)",
        '            return nn.ModuleDict({"conv": conv, "norm": nn.BatchNorm2d(out)})',
        f"        self.stages = nn.ModuleList([stage(*s) for s in {sizes}])",
        "    def forward(self, x):",
        "        for stage in self.stages:",
        '            x = stage["norm"](stage["conv"](x)).relu()',
        "        return x.mean((2, 3))",
        "model = ConvNet()",
    ]


def _said(group: Mapping[str, Any]) -> str:
    """A group of the config: its name and settings."""
    settings = ", ".join(f"{k}={v}" for k, v in group.items() if k != "name")
    return f"{group.get('name', '')} ({settings})" if settings else str(group.get("name", ""))


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _table(rows: Mapping[str, Any]) -> str:
    return _grid([["", ""], *([k, "none" if v is None else v] for k, v in rows.items())])


def _grid(lines: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; the first line is its head."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
