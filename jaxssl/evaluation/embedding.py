"""Embed images with a pretrained encoder, and write the embeddings to a file."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxssl import distributed
from jaxssl.data import decoding, files, in_memory
from jaxssl.data.records import PreparedSplit
from jaxssl.data.source import Source
from jaxssl.errors import UserError, explain_write_errors, one_line
from jaxssl.evaluation.context import resolve_inputs
from jaxssl.evaluation.features import extract
from jaxssl.pretrained.encoder import PretrainedEncoder, make_encode
from jaxssl.training import atomic_files

SUFFIXES = (".npy", ".parquet")


def embed(
    encoder: PretrainedEncoder,
    images: Any,
    *,
    layer: str = "backbone",
    out: Path | None = None,
) -> np.ndarray:
    """Return the embeddings of images in evaluation mode, [n, f] float32.

    Args:
        encoder: an encoder of images.
        images: path of a folder or an archive of pictures, or images as in
            `jaxssl.data.in_memory.load_splits`, with labels ignored. Pictures of different sizes
            are cut to their central square.
        layer: "backbone" for the features that protocols use, or "projector".
        out: file to write. ".npy" holds the array, and the file beside it that ends in ".files.csv"
            the names of the pictures, in the column "file". ".parquet" has the columns "file" (the
            index for images without names) and "embedding".

    Raises:
        UserError: if the images are in another form or cannot be read, the encoder cannot take
            them, or the file cannot be written.
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise UserError(f"the output {out} must end with one of {', '.join(SUFFIXES)}")
    if encoder.inputs.kind != "image":
        raise UserError(f"embed takes encoders of images, this one takes {encoder.inputs.kind}s")
    names: Sequence[str] | None = None
    if isinstance(images, str | Path):
        source, names = _open_pictures(Path(images).expanduser(), encoder.inputs.channels)
    else:
        source = in_memory.load_images(images)
    inputs = resolve_inputs(encoder.inputs, source)
    encode, mesh = make_encode(encoder, inputs, layer), distributed.local_mesh()
    variables = distributed.replicate(encoder.variables, mesh)
    features = np.asarray(extract(source.images(inputs.size), encode, variables, mesh))
    if out is not None:
        _write(out, features, names)
    return features


@dataclass(frozen=True)
class _Pictures(Sequence):
    """Random access to the bytes of pictures. Files of a folder are read when they are needed."""

    contents: Sequence[bytes | Path]

    def __getitem__(self, index: Any) -> Mapping[str, Any]:
        content = self.contents[index]
        return {"image": content.read_bytes() if isinstance(content, Path) else content}

    def __len__(self) -> int:
        return len(self.contents)


def _open_pictures(path: Path, channels: int) -> tuple[Source, list[str]]:
    """Return the pictures below a path as a source, and their names.

    The bytes of the pictures of an archive are kept in memory.
    """
    root, inside = files.locate(str(path))
    names, contents, sizes = [], [], set()
    for name, read in files.read_files(root, inside):
        if not name.lower().endswith(decoding.SUFFIXES):
            continue
        try:
            data = read()
            sizes.add(decoding.upright_size(data))
        except OSError as error:
            raise UserError(f"{path}: {name} cannot be read ({one_line(error)})") from error
        names.append(name)
        contents.append(root / name if root.is_dir() else data)
    if not names:
        raise UserError(f"{path} holds no pictures, files ending in {', '.join(decoding.SUFFIXES)}")
    size = next(iter(sizes)) if len(sizes) == 1 else (None, None)
    part = PreparedSplit(_Pictures(contents), label=None, channels=channels, upright=True)
    indices = np.arange(len(names))
    shape = (size[1], size[0], channels)
    return Source(path.name, "all", ((part, indices),), (), shape), names


def _write(out: Path, features: np.ndarray, names: Sequence[str] | None) -> None:
    with explain_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    if out.suffix == ".npy":
        np.save(content, features)
        if names is not None:
            listing = io.StringIO(newline="")
            # Quotes keep a name with a line break in one row.
            csv.writer(listing, lineterminator="\n").writerows([["file"], *zip(names)])
            atomic_files.write_text(out.with_suffix(".files.csv"), listing.getvalue())
    else:
        import pyarrow
        from pyarrow import parquet

        flat = pyarrow.array(features.ravel())
        columns = {
            "file": list(names) if names is not None else np.arange(len(features)),
            "embedding": pyarrow.FixedSizeListArray.from_arrays(flat, features.shape[1]),
        }
        parquet.write_table(pyarrow.table(columns), content)
    atomic_files.write_bytes(out, content.getvalue())
