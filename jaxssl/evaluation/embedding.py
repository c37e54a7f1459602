"""Embed images with a pretrained encoder, and write the embeddings to a file."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxssl import distributed
from jaxssl.data import kind
from jaxssl.data.decoders import decoding, files
from jaxssl.data.formats.user_files import ON_ERROR
from jaxssl.data.opening import in_memory, tables
from jaxssl.data.opening.tables import PictureFile
from jaxssl.errors import UserError, explain_write_errors, one_line, suggest
from jaxssl.evaluation.context import resolve_inputs
from jaxssl.evaluation.features import extract
from jaxssl.pretrained.encoder import PretrainedEncoder, make_encode
from jaxssl.training.output import atomic_files

SUFFIXES = (".npy", ".parquet")


def embed(
    encoder: PretrainedEncoder,
    images: Any,
    *,
    layer: str = "backbone",
    out: Path | None = None,
    on_error: str = "stop",
) -> np.ndarray:
    """Return the embeddings of images in evaluation mode, [n, f] float32.

    Args:
        encoder: an encoder of images.
        images: path of a picture or of a folder or an archive of pictures, or images as in
            `jaxssl.data.opening.in_memory.load_splits`, with labels ignored, or one image.
            Pictures of different sizes are cut to their central square.
        layer: "backbone" for the features that protocols use, or "projector".
        out: file to write. ".npy" holds the array, and the file beside it that ends in ".files.csv"
            the names of the pictures, in the column "file". ".parquet" has the columns "file" (the
            index for images without names) and "embedding".
        on_error: "stop", or "skip" to leave out pictures that cannot be read.

    Raises:
        UserError: if the images are in another form or cannot be read, the encoder cannot take
            them, or the file cannot be written.
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise UserError(f"the output {out} must end with one of {', '.join(SUFFIXES)}")
    if on_error not in ON_ERROR:
        raise UserError(f"on_error={on_error!r} is unknown{suggest(on_error, ON_ERROR)}")
    ours = kind.get(encoder.inputs.kind)
    if not ours.pictures:
        raise UserError(f"embed takes encoders of images, this one takes {ours.units}")
    if isinstance(images, str | Path):
        path = Path(images).expanduser()
        data = path.is_file() and path.suffix.lower() in (*decoding.SUFFIXES, *tables.SUFFIXES)
        images = path if data else _list_pictures(path)
    channels = encoder.inputs.channels
    source, names = in_memory.load_images(images, channels=channels, on_error=on_error)
    inputs = resolve_inputs(encoder.inputs, source)
    encode, mesh = make_encode(encoder, inputs, layer), distributed.local_mesh()
    variables = distributed.replicate(encoder.variables, mesh)
    images = source.images(*encoder.inputs.resizing)
    features = np.asarray(extract(images, encode, variables, mesh))
    if out is not None:
        _write(out, features, names)
    return features


def _list_pictures(path: Path) -> list[PictureFile]:
    """List the pictures of a folder or an archive. Those of an archive are kept in memory."""
    root, inside = files.locate(str(path), "images")
    pictures = []
    for name, read in files.read_files(root, inside):
        if not name.lower().endswith(decoding.SUFFIXES):
            continue
        try:
            content = root / name if root.is_dir() else read()
        except OSError as error:
            raise UserError(f"{path}: {name} cannot be read ({one_line(error)})") from error
        pictures.append(PictureFile(name, content))
    if not pictures:
        raise UserError(f"{path} holds no pictures, files ending in {', '.join(decoding.SUFFIXES)}")
    return pictures


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
