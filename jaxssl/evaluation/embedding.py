"""Embed images with a pretrained encoder, and write the embeddings to a file."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxssl import distributed
from jaxssl.buckets import as_path, fetch, is_bucket
from jaxssl.data import kind
from jaxssl.data.decoders import decoding, files
from jaxssl.data.decoders.arrays import LazyArray
from jaxssl.data.formats.user_files import ON_ERROR, log_left_out
from jaxssl.data.opening import in_memory, items
from jaxssl.errors import UserError, explain_write_errors, one_line, require_utf8, suggest
from jaxssl.evaluation.features import encode_images
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.training.output import file_io
from jaxssl.training.output.logs import log
from jaxssl.training.workdir import run_record

SUFFIXES = (".npy", ".parquet")
GROUP = 2**26  # number of values of the embeddings in a row group of a .parquet file
MAX_HELD = 2**33  # largest size in bytes of the pictures of an archive, which memory holds
NAMES = ".files.csv"  # ends the name of the file with the names of the pictures
HEADER = ("file",)  # of that table


class Embedded(NamedTuple):
    """Embeddings of pictures, with the names of the pictures.

    Attributes:
        features: [n, f] float32.
        names: the names of the files, or None if not all pictures are files.
        pixels: the pictures as the network takes them, [n, h, w, c], decoded when they are indexed.
    """

    features: np.ndarray
    names: list[str] | None
    pixels: LazyArray


def embed(
    encoder: PretrainedEncoder,
    images: object,
    *,
    layer: str = "backbone",
    out: Path | None = None,
    on_error: str = "stop",
) -> np.ndarray:
    """Return the embeddings of images, [n, f] float32, and write them to a file if asked.

    Several processes share the images and get all embeddings. The first one writes the file.

    Args:
        encoder: an encoder of images.
        images: path of pictures, or images, see `embed_pictures`.
        layer: "backbone" or "projector".
        out: file to write. ".npy" holds the array, and the file next to it that ends in
            ".files.csv" the names of the pictures, in the column "file". ".parquet" has the columns
            "file" (the index for images without names) and "embedding".
        on_error: "stop", or "skip" to leave out pictures that cannot be read.

    Raises:
        UserError: as `embed_pictures`, or if the file cannot be written.
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise UserError(f"the output {out} must end with one of {', '.join(SUFFIXES)}")
    if out is not None:
        table = out.with_suffix(NAMES) if out.suffix == ".npy" else out
        refuse_overwriting(images, out, table, HEADER)
        _refuse_new_picture(encoder, images, out)
        make_folder(out)
    embedded = embed_pictures(encoder, images, layer=layer, on_error=on_error)
    with np.errstate(invalid="ignore"):  # of inf - inf
        sums = embedded.features.sum(axis=1, dtype=np.float64)
    if len(bad := np.flatnonzero(~np.isfinite(sums))):
        first = embedded.names[bad[0]] if embedded.names else f"image {bad[0]}"
        log.warning(
            "%d of %d embeddings are not finite, the first that of %s; check weights and images",
            *(len(bad), len(embedded.features), first),
        )
    if out is not None and distributed.is_first_process():
        _write(out, embedded.features, embedded.names)
    return embedded.features


def embed_pictures(
    encoder: PretrainedEncoder, images: object, *, layer: str = "backbone", on_error: str = "stop"
) -> Embedded:
    """Embed images in evaluation mode. They are decoded block by block.

    Args:
        encoder: an encoder of images.
        images: path of a picture or of a folder or an archive of pictures, or images as in
            `jaxssl.data.opening.in_memory.load_splits`, with labels ignored, or one image.
            Pictures of different sizes are cut to their central square, pictures of one size are
            resized whole, unless weights or checkpoint name a crop. The log says which.
        layer: "backbone" for the features that protocols use, or "projector".
        on_error: "stop", or "skip" to leave out pictures that cannot be read.

    Raises:
        UserError: if the images are in another form or cannot be read, or the encoder cannot take
            them.
    """
    if on_error not in ON_ERROR:
        raise UserError(f"on_error={on_error!r} is unknown{suggest(on_error, ON_ERROR)}")
    ours = kind.get(encoder.inputs.kind)
    if not ours.pictures:
        raise UserError(f"embed takes encoders of images, this one takes {ours.units}")
    if isinstance(images, str | PathLike):
        path = fetch(as_path(images))
        suffixes = decoding.suffixes(encoder.inputs.channels)
        is_file = path.is_file() and not path.name.lower().endswith(files.ARCHIVES)
        images = path if is_file else _list_pictures(path, suffixes, on_error)
    channels = encoder.inputs.channels
    source, names = in_memory.load_images(images, channels=channels, on_error=on_error)
    for name in names or ():
        require_utf8(name, "images")
    if distributed.process_count() > 1:
        run_record.require_equal({"pictures": len(source), "names": run_record.digest(names)})
    inputs = ours.fit_inputs(encoder.inputs, source)
    if encoder.inputs.crop is None:  # Others treat all pictures alike.
        way = (
            f"all of {ours.describe(source.shape)}, which are resized whole"
            if source.one_size
            else f"of many sizes, of which the central square of {decoding.CENTRE_SHARE} is taken"
        )
        log.info("pictures   %d, %s", len(source), way)
    pixels = source.lazy_images(*encoder.inputs.resizing)
    return Embedded(encode_images(encoder, pixels, inputs, layer), names, pixels)


def refuse_overwriting(images: object, out: Path, table: Path, header: Sequence[str]) -> None:
    """Raise UserError if an output is the file that holds the images, or the table is not ours.

    Args:
        images: path of the images, or images.
        out: file to write.
        table: CSV file beside it, which the command writes or removes, or ``out`` without one.
        header: its columns.
    """
    if isinstance(images, str | PathLike):
        source = as_path(os.path.expanduser(images))
        for path in (out, table):
            both = not is_bucket(path) and path.exists() and source.exists()
            if fspath(source) == fspath(path) or (both and path.samefile(source)):
                raise UserError(f"{path} holds the images; choose another --out")
    if table != out and table.is_file():
        with table.open("rb") as file:
            first = file.readline(200).decode(errors="replace").strip()
        if first != ",".join(header):
            raise UserError(f"{table} would be replaced, and is another file; choose another --out")


def make_folder(out: Path) -> None:
    """Create the folder of an output file, so that a wrong path is reported before the work."""
    if out.is_dir():
        raise UserError(f"{out} is a folder; name a file with --out")
    with explain_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    file_io.require_writable(out.parent)


def _refuse_new_picture(encoder: PretrainedEncoder, images: object, out: Path) -> None:
    """Raise UserError if the output would be a picture of the folder that holds the images."""
    if not isinstance(images, str | PathLike) or not kind.get(encoder.inputs.kind).pictures:
        return
    if out.suffix not in decoding.suffixes(encoder.inputs.channels):
        return
    folder = as_path(os.path.expanduser(images))
    if out.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{out} would be a picture of {images}; choose another --out")


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file. Quotes keep a name with a line break in one row."""

    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        text.detach()  # leaves the file open

    file_io.write_with(path, write)


def _list_pictures(path: Path, suffixes: tuple[str, ...], on_error: str) -> list[items.PictureFile]:
    """List the pictures of a folder or an archive. An archive's pictures are kept in memory."""
    root, inside = files.locate(str(path), "images")
    pictures, other, held = [], [], 0
    for name, read in files.read_files(root, inside):
        if not name.lower().endswith(suffixes):
            other.append(name)
            continue
        try:
            content = root / name if root.is_dir() else read()
        except OSError as error:
            if on_error != "skip":
                raise UserError(f"{path}: {name} cannot be read ({one_line(error)})") from error
            content = b""  # is no picture, and is skipped as such
        pictures.append(items.PictureFile(name, content))
        held += len(content) if isinstance(content, bytes) else 0
        if held > MAX_HELD:
            raise UserError(
                f"{path} has more than {MAX_HELD >> 30} GiB of pictures; unpack it and name the "
                "folder"
            )
    if not pictures:
        raise UserError(f"{path} holds no pictures, files ending in {', '.join(suffixes)}")
    log_left_out(other, "not pictures")
    return pictures


def _write(out: Path, features: np.ndarray, names: Sequence[str] | None) -> None:
    """Write embeddings and names in the format of the suffix, as `embed` describes."""
    if out.suffix == ".npy":
        # Names of an earlier command would belong to other pictures.
        with explain_write_errors(out):
            out.with_suffix(NAMES).unlink(missing_ok=True)
        # NumPy would write to the file by itself, and not notice that the disk is full.
        file_io.write_with(out, lambda file: np.save(_only_write(file), features))
        if names is not None:
            write_csv(out.with_suffix(NAMES), [HEADER, *zip(names)])
    else:
        import pyarrow
        from pyarrow import parquet

        flat = pyarrow.array(features.ravel())
        columns = {
            "file": list(names) if names is not None else np.arange(len(features)),
            "embedding": pyarrow.FixedSizeListArray.from_arrays(flat, features.shape[1]),
        }
        table = pyarrow.table(columns)
        # pyarrow counts the values of a row group in int32 when it reads them.
        rows = max(1, GROUP // features.shape[1])
        write = partial(parquet.write_table, table, row_group_size=rows)
        file_io.write_with(out, write)


def _only_write(file: BinaryIO) -> Any:
    return SimpleNamespace(write=file.write)
