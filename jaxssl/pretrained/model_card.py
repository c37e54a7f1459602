"""Write the model card of an export: network, image settings, training, results and usage."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from jaxssl import components
from jaxssl.augment.views import Inputs
from jaxssl.models import convnet, resnet
from jaxssl.pretrained import timm_format
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.report.markdown import markdown_table
from jaxssl.report.results import format_value

CHANNELS = {1: "1, grey", 3: "3, in the order red, green, blue"}
RESULTS_HEADING = (
    *("metric", "value", "protocol", "data set", "fitted on", "tested on", "features"),
    *("checkpoint", "step", "seed"),
)
TRAINING_GROUPS = ("method", "loss", "head", "predictor", "augment", "optim", "schedule")


def write(
    pretrained: PretrainedEncoder,
    num_features: int,
    files: Sequence[str],
    results: Sequence[Mapping[str, Any]],
) -> str:
    """Return the model card of an exported encoder as Markdown.

    Args:
        pretrained: the exported encoder.
        num_features: features of an image.
        files: names of the exported files.
        results: rows of results.json for this checkpoint.
    """
    metadata, config = pretrained.metadata, pretrained.metadata.get("config")
    sections = [
        f"# {metadata['source']}",
        "An image encoder trained by contrastive self-supervision with jaxssl, without its heads.",
        _table(_network(pretrained, num_features)),
        "## Images",
        _table(_images(pretrained.inputs)),
        *(("## Training", _table(_training(config))) if config else ()),
        "## Results",
        _results(results) if results else "There are no results for this checkpoint.",
        "## Use",
        *(_usage(pretrained, name) for name in files),
    ]
    return "\n\n".join(sections) + "\n"


def _network(pretrained: PretrainedEncoder, num_features: int) -> dict[str, Any]:
    params = jax.tree.leaves(pretrained.variables["net"]["params"])
    return {
        "network": _settings(pretrained.metadata["net"]),
        "parameters": f"{sum(math.prod(x.shape) for x in params):,}",
        "features of an image": num_features,
        "computed in": pretrained.encoder.precision,
        **{name: pretrained.metadata[name] for name in ("source", "checkpoint", "step", "loss")},
    }


def _images(inputs: Inputs) -> dict[str, Any]:
    size = f"{inputs.size} x {inputs.size}"
    rule = f"the whole image to {size}"
    if inputs.crop:
        rule = f"the central square of {inputs.crop:g} of the short side, to {size}"
    return {
        "size": f"{size} pixels",
        "resized": rule,
        "interpolation": f"{inputs.interpolation}, antialiased (Pillow's "
        f"{inputs.interpolation.upper()})",
        "channels": CHANNELS.get(inputs.channels, str(inputs.channels)),
        "range": "[0, 1] (uint8 / 255), then minus the mean, divided by the standard deviation",
        "mean": ", ".join(f"{value:g}" for value in inputs.mean),
        "standard deviation": ", ".join(f"{value:g}" for value in inputs.std),
    }


def _training(config: Mapping[str, Any]) -> dict[str, Any]:
    data, steps = config["data"], config["total_steps"]
    return {
        "data set": f"{components.short_name(data['name'])}, split {data['train_split']}",
        **{name: _settings(config[name]) for name in TRAINING_GROUPS},
        "views": config["views"],
        "batch size": config["batch_size"],
        "length": f"{steps} steps" if steps else f"{config['epochs']} epochs",
        "seed": config["seed"],
    }


def _results(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for row in results:
        unit = row.get("unit", "%")
        cells = [
            row["metric"] + (f" ({unit})" if unit else ""),
            format_value(row),
            f"{row['protocol']}:{row['details'].get('preset', 'default')}",
            *(row.get(name) for name in ("dataset", "bank", "split")),
            f"{row['features']}, {row.get('layer')}",
            *(row.get(name) for name in ("checkpoint", "step", "seed")),
        ]
        rows.append([_cell(cell) for cell in cells])
    return markdown_table(RESULTS_HEADING, rows).rstrip()


def _usage(pretrained: PretrainedEncoder, name: str) -> str:
    side, channels = pretrained.inputs.size, pretrained.inputs.channels
    if name.endswith(".stablehlo"):
        return f"""### {name}

The program takes raw images and preprocesses them itself. It runs on CPU, CUDA and TPU, for any
number of images, and needs only jax and flatbuffers.

```python
from pathlib import Path
from jax import export
encode = export.deserialize(Path("{name}").read_bytes())
features = encode.call(images)  # uint8 [n, {side}, {side}, {channels}] -> float32 [n, features]
```"""
    if components.is_custom(pretrained.metadata["net"]["name"]):
        return f"""### {name}

The arrays are the variables of the network {_settings(pretrained.metadata["net"])}, named by their
paths, such as `params.Dense_0.kernel`. Build the network to use them."""
    return f"""### {name}

```python
import jaxssl
apply, variables, preprocess = jaxssl.load_encoder("{name}")
features = apply(variables, preprocess(images))  # uint8 [n, h, w, {channels}]
```

{_pytorch_usage(pretrained.encoder.net, pretrained.inputs, name)}"""


def _pytorch_usage(net: nn.Module, inputs: Inputs, name: str) -> str:
    if name == "model.safetensors":
        return """With timm or transformers, from the folder of this file and config.json:

```python
import timm, transformers
model = timm.create_model("local-dir:FOLDER", pretrained=True)  # model(x) -> [n, features]
model = transformers.AutoModel.from_pretrained("FOLDER")  # needs timm; model(x).pooler_output
```"""
    try:
        lines = _model_lines(net, inputs)
    except ValueError as error:
        return f"In PyTorch: {error}."
    imports, read = ["import torch"], f'torch.load("{name}")'
    if name.endswith(".safetensors"):
        imports += ["import safetensors.torch"]
        read = f'safetensors.torch.load_file("{name}")'
    code = "\n".join([*imports, *lines, f"model.load_state_dict({read})", "model.eval()"])
    return f"""In PyTorch; `model(x)` takes x [n, {inputs.channels}, {inputs.size}, {inputs.size}],
preprocessed as above:

```python
{code}
```"""


def _model_lines(net: Any, inputs: Inputs) -> list[str]:
    """Return the Python lines that build the network in PyTorch.

    Raises:
        ValueError: if timm has no such network.
    """
    if isinstance(net, convnet.ConvNet):
        return _torch_convnet(net, inputs.channels)
    stem: list[str] = []
    if isinstance(net, resnet.ResNet) and net.stem.startswith("cifar"):
        padding = 2 if net.stem == "cifar_wide" else 1
        kernel = f"{inputs.channels}, {net.width}, 3, padding={padding}, bias=False"
        stem = [f"model.conv1 = torch.nn.Conv2d({kernel})", "model.maxpool = torch.nn.Identity()"]
        net = net.clone(stem="imagenet")
    name, arguments = timm_format.network(net, inputs.size)
    lines = [f"    {key}={value!r}," for key, value in arguments.items()]
    first = f'    "{name}", num_classes=0, in_chans={inputs.channels},'
    return ["import timm", "model = timm.create_model(", first, *lines, ")", *stem]


def _torch_convnet(net: convnet.ConvNet, channels: int) -> list[str]:
    stages = list(zip((channels, *net.widths), net.widths, net.strides, strict=False))
    return [
        "from torch import nn",
        "class ConvNet(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        def stage(into, out, stride):",
        "            conv = nn.Conv2d(into, out, 3, stride, 1, bias=False)",
        '            return nn.ModuleDict({"conv": conv, "norm": nn.BatchNorm2d(out)})',
        f"        self.stages = nn.ModuleList([stage(*s) for s in {stages}])",
        "    def forward(self, x):",
        "        for stage in self.stages:",
        '            x = stage["norm"](stage["conv"](x)).relu()',
        "        return x.mean((2, 3))",
        "model = ConvNet()",
    ]


def _settings(group: Mapping[str, Any]) -> str:
    """Format a config group as its component's name and settings, for the model card."""
    name = components.short_name(str(group.get("name", "")))
    settings = ", ".join(f"{key}={value}" for key, value in group.items() if key != "name")
    return f"{name} ({settings})" if settings else name


def _table(rows: Mapping[str, Any]) -> str:
    cells = ([key, "none" if value is None else _cell(value)] for key, value in rows.items())
    return markdown_table(("", ""), cells).rstrip()


def _cell(value: Any) -> str:
    return str(value).replace("\n", " ")
