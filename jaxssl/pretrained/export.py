"""Write a backbone and its model card as files for other projects."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxssl.errors import UserError, suggest


def export(
    path: Path, formats: list[str], *, step: int | str | None = None, out: Path | None = None
) -> list[Path]:
    """Write a backbone and its model card.

    Args:
        path: workdir of a run, or a weights file.
        formats: some of `FORMATS`.
        step: of a run's checkpoint, "last" (the default) or "best".
        out: folder to write into; by default "export" in the workdir, or beside the file.

    Returns:
        The files, the card last.

    Raises:
        UserError: if there is no such checkpoint or file, a format is unknown or needs a package
            that is not there, or the folder cannot be written.
    """
    if not formats:
        raise UserError(f"name a format: --to {'|'.join(FORMATS)}")
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"--to {name!r} is unknown{suggest(name, FORMATS)}")
    # Late, so that a mistake is answered at once.
    from jaxssl.pretrained import model_card, weights
    from jaxssl.pretrained.load import is_run, load_pretrained
    from jaxssl.report import results
    from jaxssl.training import atomic_files

    path, is_file = path.resolve(), not is_run(path)
    if is_file and step is not None:
        raise UserError(f"--step {step}: {path} is a weights file, which has no checkpoints")
    found = load_pretrained(path, step)
    if found.inputs.kind != "image":
        raise UserError(f"{path} has no encoder of images; only those can be exported")
    stem = path.stem if is_file else f"{path.name}-{found.metadata['step']}"
    out = out or (path.parent if is_file else path) / "export"
    try:
        header = weights.header(found)
        made = {stem + FORMATS[name][0]: FORMATS[name][1](found, header) for name in formats}
        out.mkdir(parents=True, exist_ok=True)
        for name, content in made.items():
            atomic_files.write_bytes(out / name, content)
        # The card is of all files of this checkpoint that lie there.
        files = [stem + suffix for suffix, _ in FORMATS.values()]
        files = [name for name in files if (out / name).exists()]
        of = (found.metadata["step"], "pretrained")
        rows = results.read_results(path.with_suffix(".eval") if is_file else path)
        rows = [row for row in rows if (row["step"], row["features"]) == of]
        text = model_card.write(found, json.loads(header)["features"], files, rows)
        atomic_files.write_text(out / "README.md", text)
    except ValueError as error:
        raise UserError(f"{path} cannot be exported: {error}") from error
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror}; see --out") from error
    return [out / name for name in (*made, "README.md")]


def _safetensors(found: Any, header: str) -> bytes:
    from safetensors.numpy import save

    from jaxssl.pretrained import weights

    arrays = weights.public(found)
    return save(arrays, {weights.HEADER: header})


def _torch(found: Any, header: str) -> bytes:
    try:
        import torch
    except ImportError as error:
        raise UserError("--to torch needs PyTorch: pip install 'jaxssl[torch]'") from error
    import io
    from collections import OrderedDict

    from jaxssl.pretrained import weights

    state = OrderedDict((k, torch.tensor(v)) for k, v in weights.public(found).items())
    # Where state dicts keep their versions: PyTorch passes over what is of no module.
    state._metadata = OrderedDict({weights.HEADER: header})
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _stablehlo(found: Any, header: str) -> bytes:
    import jax
    from jax import export as programs
    from jax import numpy as jnp

    from jaxssl.pretrained.encoder import make_encode

    encode, inputs = make_encode(found, found.inputs), found.inputs
    (number,) = programs.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((number, inputs.size, inputs.size, inputs.channels), jnp.uint8)
    program = jax.jit(lambda images: encode(found.variables, images))
    platforms = ("cpu", "cuda", "tpu")
    return bytes(programs.export(program, platforms=platforms)(images).serialize())


# name: suffix, what makes the file
FORMATS: dict[str, tuple[str, Callable[[Any, str], bytes]]] = {
    "safetensors": (".safetensors", _safetensors),
    "torch": (".pth", _torch),
    "stablehlo": (".stablehlo", _stablehlo),
}
