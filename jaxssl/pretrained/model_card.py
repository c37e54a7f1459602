"""Write the model card of an export: network, image settings, training, results and usage."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from jinja2 import Environment, PackageLoader

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
    metadata, inputs = pretrained.metadata, pretrained.inputs
    config, net = metadata.get("config"), metadata["net"]
    custom = components.is_custom(net["name"])
    return _TEMPLATES.get_template("model_card.md").render(
        source=metadata["source"],
        network=_table(_network(pretrained, num_features)),
        images=_table(_images(inputs)),
        training=_table(_training(config)) if config else "",
        results=_results(results) if results else "",
        files=files,
        size=inputs.size,
        channels=inputs.channels,
        custom=custom,
        net=_settings(net),
        **({} if custom else _in_pytorch(pretrained.encoder.net, inputs)),
    )


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


def _in_pytorch(net: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Return what the template needs to build the network in PyTorch: "fault" if timm cannot."""
    if isinstance(net, convnet.ConvNet):
        widths = (inputs.channels, *net.widths)
        return {"stages": list(zip(widths, net.widths, net.strides, strict=False))}
    padding = width = 0
    if isinstance(net, resnet.ResNet) and net.stem.startswith("cifar"):
        padding, width = 2 if net.stem == "cifar_wide" else 1, net.width
        net = net.clone(stem="imagenet")
    try:
        name, arguments = timm_format.network(net, inputs.size)
    except ValueError as error:
        return {"fault": error}
    names = {"architecture": name, "arguments": arguments}
    return names | {"padding": padding, "width": width}


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


_TEMPLATES = Environment(
    loader=PackageLoader("jaxssl.pretrained"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
