"""Export a backbone with its model card as files for other projects."""

import io
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax import export as jax_export
from jax import numpy as jnp
from safetensors.numpy import save

from jaxssl import components
from jaxssl.buckets import as_path, is_bucket
from jaxssl.data import kind
from jaxssl.errors import UserError, explain_damage, explain_write_errors, one_line, suggest
from jaxssl.pretrained import hub, model_card, timm_format, weights
from jaxssl.pretrained.encoder import PretrainedEncoder, make_encode, weights_digest
from jaxssl.pretrained.load import is_run, load_pretrained, results_folder
from jaxssl.report.results import read_results
from jaxssl.training.output.file_io import write_bytes, write_text

TIMM_WEIGHTS = "model.safetensors"  # as timm and the Hub name it, beside config.json


def export(
    path: Path,
    formats: list[str],
    *,
    step: int | str | None = None,
    out: Path | None = None,
    trust: bool = False,
    push: str | None = None,
    weights_options: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Export the backbone of a run or a weights file, with its model card.

    Args:
        path: workdir of a run, or a weights file.
        formats: some of `FORMATS`.
        step: step of a run's checkpoint, "last" (the default) or "best".
        out: output folder, by default "export" in the workdir, or next to the file.
        trust: as for `jaxssl.load_encoder`.
        push: "hf://owner/name", a model repository to which the files are uploaded too.
        weights_options: details that a weights file does not record, see
            `jaxssl.pretrained.weights.load`.

    Returns:
        The paths of the files, the card last.

    Raises:
        UserError: if a checkpoint or file does not exist, a format is unknown or needs a package
            that is not installed, the folder cannot be written, or the upload fails. If a format
            is refused, the other formats are written first, but not uploaded.
    """
    if not formats:
        raise UserError(f"name a format: --to {'|'.join(FORMATS)}")
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"--to {name!r} is unknown{suggest(name, FORMATS)}")
    if push is not None:
        hub.repository_name(push)  # raises an error for a wrong name before any work
    given, results = path, results_folder(path)
    path = hub.local(given)  # a copy on this machine, of weights on the Hub or in a bucket
    # Keep the name of a file, because its target in a cache may have no suffix.
    path = path.parent.resolve() / path.name if path.is_file() else path.resolve()
    pretrained = load_pretrained(path, step, trust=trust, **(weights_options or {}))
    if not kind.get(pretrained.inputs.kind).pictures:
        raise UserError(f"{path}: only encoders of images can be exported")
    if is_run(path):
        stem, default = f"{path.name}-{pretrained.metadata['step']}", path / "export"
    else:
        # Weights on the Hub or in a bucket are read from a copy in a cache.
        folder = as_path(given).parent if is_bucket(given) else path.parent
        stem, default = results.stem, (Path.cwd() if hub.is_hub(given) else folder) / "export"
    if out is None and not default.resolve().is_relative_to(default.parent):
        raise UserError(
            f"the output folder {default} is a symbolic link to another folder; see --out"
        )
    out, contents, faults = out or default, {}, []
    digest = "" if is_run(path) else weights_digest(pretrained)
    try:
        pretrained = timm_format.prepare(pretrained)
        header = weights.header(pretrained)
    except ValueError as error:
        raise UserError(f"{path} cannot be exported: {error}") from error
    for name in formats:
        try:
            contents |= FORMATS[name](pretrained, header, stem)
        except UserError as error:
            faults.append(error)
        except ValueError as error:
            faults.append(UserError(f"{path} cannot be exported: {error}"))
    reasons = "; ".join(map(str, faults))
    if not contents:
        raise UserError(reasons) from faults[0]
    _refuse_overwriting(path, out, [*contents, "README.md"])
    if TIMM_WEIGHTS not in contents and (out / "README.md").exists():
        _require_same_weights(out / TIMM_WEIGHTS, header)
    step, num_features = pretrained.metadata["step"], json.loads(header)["features"]
    rows = [x for x in read_results(results) if x["step"] == step and x["features"] == "pretrained"]
    if not is_run(path):
        # Weights files share results, as m.pth and m.safetensors, or had other content before.
        rows = [row for row in rows if row.get("weights") == digest]
    files = [name for name in contents if name != "config.json"]
    if is_run(path):  # Earlier exports of this step have the step in their names.
        earlier = [f"{stem}.{suffix}" for suffix in ("safetensors", "pth", "stablehlo")]
        files += [name for name in earlier if name not in files and (out / name).exists()]
    timm = "config.json" in contents
    card = model_card.render(pretrained, num_features, files, rows, timm=timm)
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    # The card comes first. If a later file cannot be written, the command can be repeated.
    write_text(out / "README.md", card)
    for name, content in contents.items():
        write_bytes(out / name, content)
    names = [*contents, "README.md"]
    if faults:
        end = ", and nothing was uploaded" if push is not None else ""
        raise UserError(f"{reasons} (the other formats were written to {out}{end})") from faults[0]
    if push is not None:
        hub.push(out, sorted({*names, *files}), push)
    return [out / name for name in names]


def _refuse_overwriting(source: Path, out: Path, names: Sequence[str]) -> None:
    """Raise UserError if an exported file would replace the source, or a file of somebody else.

    An export replaces the files of an earlier export, which has a model card.
    """
    for target in (out / name for name in names):
        is_source = target.parent.resolve() == source.resolve()
        if not is_bucket(target) and target.exists() and source.exists():
            is_source |= target.samefile(source)
        if is_source:
            raise UserError(
                f"{target} would be written into the source {source}; choose another --out"
            )
    card = out / "README.md"
    if (out / "checkpoints").is_dir():
        raise UserError(f"{out} is the workdir of a run; choose another --out")
    if card.exists() and "with jaxssl" not in card.read_text(errors="replace"):
        raise UserError(f"{card} is not a model card of jaxssl; choose another --out")
    if not card.exists() and (taken := [name for name in names if (out / name).exists()]):
        raise UserError(
            f"{out / taken[0]} would be replaced, and no model card beside it shows that jaxssl "
            "wrote it; remove it or choose another --out"
        )


def _require_same_weights(path: Path, header: str) -> None:
    """Raise UserError if the file of an earlier export for timm, which stays, has other weights."""
    if not path.exists():
        return
    with path.open("rb") as file, explain_damage(path, "remove it"):
        found = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        digest = json.loads(found["__metadata__"][weights.HEADER])["digest"]
    if digest != json.loads(header)["digest"]:
        raise UserError(
            f"{path} has other weights, and timm would load them beside the new model card; "
            "add --to timm to replace them, or choose another --out"
        )


def _safetensors(pretrained: PretrainedEncoder, header: str, stem: str) -> dict[str, bytes]:
    # Without the entry "format", transformers does not read the file.
    metadata = {"format": "pt", weights.HEADER: header}
    return {f"{stem}.safetensors": save(weights.public_arrays(pretrained), metadata)}


def _timm(pretrained: PretrainedEncoder, header: str, stem: str) -> dict[str, bytes]:
    num_features, arrays = json.loads(header)["features"], weights.public_arrays(pretrained)
    try:
        settings = timm_format.config_json(pretrained, num_features, arrays)
    except ValueError as error:
        raise ValueError(f"{error}; choose --to safetensors") from error
    stem = TIMM_WEIGHTS.removesuffix(".safetensors")
    return {**_safetensors(pretrained, header, stem), "config.json": settings.encode()}


def _torch(pretrained: PretrainedEncoder, header: str, stem: str) -> dict[str, bytes]:
    try:
        import torch
    except ImportError as error:
        raise UserError("--to torch needs PyTorch: pip install 'jaxssl[torch]'") from error
    arrays = weights.public_arrays(pretrained)
    state: Any = OrderedDict((name, torch.tensor(array)) for name, array in arrays.items())
    # PyTorch keeps the versions of modules in this attribute, and ignores names of other things.
    state._metadata = OrderedDict({weights.HEADER: header})
    file = io.BytesIO()
    torch.save(state, file)
    return {f"{stem}.pth": file.getvalue()}


MAX_PROGRAM = 2**31  # limit of the format in bytes


def _stablehlo(pretrained: PretrainedEncoder, header: str, stem: str) -> dict[str, bytes]:
    inputs = pretrained.inputs._replace(crop=0.0)  # The program takes images that are resized.
    encode = make_encode(pretrained, inputs)
    variables = {"net": pretrained.variables["net"]}
    if sum(x.nbytes for x in jax.tree.leaves(variables)) >= MAX_PROGRAM:
        raise ValueError("stablehlo holds at most 2 GiB of weights; choose --to safetensors")
    (batch,) = jax_export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, inputs.size, inputs.size, inputs.channels), jnp.uint8)
    program = jax.jit(lambda images: encode(variables, images))
    try:
        exported = jax_export.export(program, platforms=("cpu", "cuda", "tpu"))(images)
    except Exception as error:  # A user's network may raise anything for a symbolic shape.
        if not components.is_custom(pretrained.metadata["net"]["name"]):
            raise
        raise ValueError(
            "stablehlo needs a network that takes any number of images, such as x.shape[0] in "
            "place of len(x); change the network or leave stablehlo out "
            f"({type(error).__name__}: {one_line(error, 200)})"
        ) from error
    return {f"{stem}.stablehlo": bytes(exported.serialize())}


# Signature: (encoder, header of `weights.header`, stem of the files' names) -> contents by name.
FORMATS = {"safetensors": _safetensors, "torch": _torch, "stablehlo": _stablehlo, "timm": _timm}
