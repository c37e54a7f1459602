"""Export a backbone with its model card as files for other projects."""

import io
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax import export as jax_export
from jax import numpy as jnp
from safetensors.numpy import save

from jaxssl.buckets import as_path, is_bucket
from jaxssl.data import kind
from jaxssl.errors import UserError, explain_write_errors, suggest
from jaxssl.pretrained import hub, model_card, timm_format, weights
from jaxssl.pretrained.encoder import PretrainedEncoder, make_encode
from jaxssl.pretrained.load import is_run, load_pretrained
from jaxssl.report.results import read_results
from jaxssl.training.output.file_io import write_bytes, write_text


def export(
    path: Path,
    formats: list[str],
    *,
    step: int | str | None = None,
    out: Path | None = None,
    trust: bool = False,
    push: str | None = None,
) -> list[Path]:
    """Export the backbone of a run or a weights file, with its model card.

    Args:
        path: workdir of a run, or a weights file.
        formats: some of `FORMATS`.
        step: step of a run's checkpoint, "last" (the default) or "best".
        out: output folder, by default "export" in the workdir, or beside the file.
        trust: as for `jaxssl.load_encoder`.
        push: "hf://owner/name", a model repository to which the files are uploaded too.

    Returns:
        The paths of the files, the card last.

    Raises:
        UserError: if there is no such checkpoint or file, a format is unknown or needs a package
            that is not installed, the folder cannot be written, or the upload fails.
    """
    if not formats:
        raise UserError(f"name a format: --to {'|'.join(FORMATS)}")
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"--to {name!r} is unknown{suggest(name, FORMATS)}")
    if push is not None:
        hub.repository_name(push)
    beside = as_path(path)
    path = hub.local(path).resolve()
    beside = beside if is_bucket(beside) else path
    if not is_run(path) and step is not None:
        raise UserError(f"--step {step}: {path} is a weights file, which has no checkpoints")
    pretrained = load_pretrained(path, step, trust=trust)
    if not kind.get(pretrained.inputs.kind).pictures:
        raise UserError(f"{path}: only encoders of images can be exported")
    stem, default, results = path.stem, beside.parent / "export", beside.with_suffix(".eval")
    if is_run(path):
        stem = f"{path.name}-{pretrained.metadata['step']}"
        default, results = path / "export", path
    if out is None and not default.resolve().is_relative_to(default.parent):
        raise UserError(
            f"the output folder {default} is a symbolic link to another folder; see --out"
        )
    out = out or default
    try:
        pretrained = timm_format.prepare(pretrained)
        header = weights.header(pretrained)
        contents = {
            file.format(stem=stem): write(pretrained, header)
            for file, write in (FORMATS[name] for name in formats)
        }
        if "timm" in formats:
            num_features = json.loads(header)["features"]
            contents["config.json"] = timm_format.config(
                pretrained, num_features, weights.public_arrays(pretrained)
            ).encode()
        with explain_write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_bytes(out / name, content)
        write_text(out / "README.md", _card(pretrained, header, out, stem, results))
    except ValueError as error:
        raise UserError(f"{path} cannot be exported: {error}") from error
    names = [*contents, "README.md"]
    if push is not None:
        hub.push(out, names, push)
    return [out / name for name in names]


def _card(pretrained: PretrainedEncoder, header: str, out: Path, stem: str, results: Path) -> str:
    """Return the model card of all files exported from this checkpoint, earlier ones included."""
    names = [name.format(stem=stem) for name, _ in FORMATS.values()]
    files = [name for name in names if (out / name).exists()]
    label = pretrained.metadata["step"], "pretrained"
    rows = [row for row in read_results(results) if (row["step"], row["features"]) == label]
    return model_card.render(pretrained, json.loads(header)["features"], files, rows)


def _safetensors(pretrained: PretrainedEncoder, header: str) -> bytes:
    # Without the entry "format", transformers does not read the file.
    metadata = {"format": "pt", weights.HEADER: header}
    return save(weights.public_arrays(pretrained), metadata)


def _torch(pretrained: PretrainedEncoder, header: str) -> bytes:
    try:
        import torch
    except ImportError as error:
        raise UserError("--to torch needs PyTorch: pip install 'jaxssl[torch]'") from error
    arrays = weights.public_arrays(pretrained)
    state: Any = OrderedDict((name, torch.tensor(array)) for name, array in arrays.items())
    # PyTorch keeps the versions of modules in this attribute, and ignores names that are no
    # modules, so the header can be stored there too.
    state._metadata = OrderedDict({weights.HEADER: header})
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _stablehlo(pretrained: PretrainedEncoder, header: str) -> bytes:
    inputs = pretrained.inputs
    encode = make_encode(pretrained, inputs)
    variables = {"net": pretrained.variables["net"]}
    (batch,) = jax_export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, inputs.size, inputs.size, inputs.channels), jnp.uint8)
    program = jax.jit(lambda images: encode(variables, images))
    platforms = ("cpu", "cuda", "tpu")
    return bytes(jax_export.export(program, platforms=platforms)(images).serialize())


# Maps each export format to the name of its file and its writer.
FORMATS: dict[str, tuple[str, Callable[[PretrainedEncoder, str], bytes]]] = {
    "safetensors": ("{stem}.safetensors", _safetensors),
    "torch": ("{stem}.pth", _torch),
    "stablehlo": ("{stem}.stablehlo", _stablehlo),
    "timm": ("model.safetensors", _safetensors),
}
