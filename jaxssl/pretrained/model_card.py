"""Write the model card of an export: network, image settings, training, results and usage."""

import math
from collections.abc import Mapping, Sequence

import jax
from jinja2 import Environment, PackageLoader

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.models import convnet, resnet, vit
from jaxssl.pretrained import timm_format, weights
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.report.results import format_value


def render(
    pretrained: PretrainedEncoder,
    num_features: int,
    files: Sequence[str],
    results: Sequence[Mapping[str, object]],
    *,
    timm: bool = False,
) -> str:
    """Return the model card of an exported encoder as Markdown.

    Args:
        pretrained: the exported encoder.
        num_features: features of an image.
        files: names of the exported files.
        results: rows of results.json for this checkpoint.
        timm: whether model.safetensors is timm's, next to a config.json.
    """
    metadata = pretrained.metadata
    params = jax.tree.leaves(pretrained.variables["net"]["params"])
    custom = components.is_custom(metadata["net"]["name"])
    return _TEMPLATES.get_template("model_card.jinja").render(
        metadata=metadata,
        net=_settings(metadata["net"]),
        custom=custom,
        parameters=sum(math.prod(x.shape) for x in params),
        num_features=num_features,
        precision=pretrained.encoder.precision,
        inputs=pretrained.inputs,
        results=results,
        files=files,
        timm=timm,
        **({} if custom else _in_pytorch(pretrained)),
    )


def _in_pytorch(pretrained: PretrainedEncoder) -> Settings:
    """Return the template's values for the network in PyTorch, or why timm has no such network."""
    net, inputs = pretrained.encoder.net, pretrained.inputs
    if isinstance(net, convnet.ConvNet):
        widths = (inputs.channels, *net.widths)
        return {"stages": list(zip(widths, net.widths, net.strides, strict=False))}
    padding = width = 0
    if isinstance(net, resnet.ResNet) and net.stem.startswith("cifar"):
        padding, width = 2 if net.stem == "cifar_wide" else 1, net.width
        net = net.clone(stem="imagenet")
    try:
        arrays = weights.public_arrays(pretrained) if isinstance(net, vit.ViT) else ()
        name, arguments = timm_format.timm_model(net, inputs.size, arrays)
    except ValueError as error:
        return {"fault": error}
    names = {"architecture": name, "arguments": arguments}
    return names | {"padding": padding, "width": width}


def _settings(group: Mapping[str, object]) -> str:
    """Format a config group as a component's name and settings, for the model card."""
    name = components.short_name(str(group.get("name", "")))
    settings = ", ".join(f"{key}={value}" for key, value in group.items() if key != "name")
    return f"{name} ({settings})" if settings else name


def _cell(value: object) -> str:
    """Return a value as a cell of a table in Markdown."""
    return "none" if value is None else str(value).replace("\n", " ").replace("|", "\\|")


_TEMPLATES = Environment(
    loader=PackageLoader("jaxssl.pretrained"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters.update(
    cell=_cell, settings=_settings, short_name=components.short_name, value=format_value
)
