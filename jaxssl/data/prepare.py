"""Data sets by name, prepared as ArrayRecord files where that was not done yet."""

import importlib.util
import logging
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
from tensorflow_datasets.core.download.util import DownloadError

from jaxssl.data import dataset_info
from jaxssl.data.formats import captions, folder, raw, tu, video
from jaxssl.data.toy import digit_captions, digits, moving_digits, necklaces
from jaxssl.errors import UserError, suggest

log = logging.getLogger("jaxssl")
OF_PATHS = {
    "folder": folder.builder,
    "captions": captions.builder,
    "tu": tu.builder,
    "video": video.builder,
}  # whose path is all that names them
MADE = (digits.Builder, digit_captions.Builder, moving_digits.Builder, necklaces.Builder)
OWN = {**{b.name: b for b in MADE}, **raw.BUILDERS}
# Names of recipes that stand for a part of a set of TFDS.
PARTS = {"imagenet100": "imagenet2012"}
CLASSES = {"imagenet100": Path(__file__).with_name("imagenet100.txt")}
FORMAT = "array_record"


def prepared(data: Mapping[str, Any]) -> tfds.core.DatasetBuilder:
    """The TFDS builder of a prepared data set; prepares it if need be.

    Args:
        data: "name": folder, digits, or a name of TFDS; "dir": where prepared sets lie, "" is TFDS'
            own place, `~/tensorflow_datasets`; "path" and the other keys of a folder.

    Raises:
        UserError: on an unknown name, a set that cannot be prepared or read here, or a data
            directory that cannot be written.
    """
    name = PARTS.get(data["name"], data["name"])
    directory = str(Path(data["dir"]).expanduser()) if data["dir"] else None
    try:
        builder = _builder(name, data, directory)
        if not Path(builder.data_dir).exists():
            _prepare(builder)
            builder = _builder(name, data, directory)
    except (requests.RequestException, DownloadError, NonMatchingChecksumError) as error:
        reason = str(error).partition("\n")[0].rstrip(".:")
        raise UserError(
            f"cannot download {name!r}: {reason}; where there is no network, bring the files and "
            "name them with data.path, or the prepared set with data.dir"
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot prepare {name!r} under {directory or 'the TFDS data directory'}: {error}; "
            "name a directory that can be written and has room with --config.data.dir"
        ) from error
    with dataset_info.reading(Path(builder.data_dir)):
        formats = {f.value for f in builder.info.available_file_formats()}
        also = set(builder.info.as_proto.alternative_file_formats)
        skipped = list((builder.info.metadata or {}).get("skipped") or ())
    if FORMAT in also - formats:
        builder.info.add_alternative_file_format(FORMAT)  # TFDS' code for a set forgets it
    elif FORMAT not in formats:
        raise UserError(
            f"{name!r} is prepared as {builder.info.file_format.value}, which is no random access; "
            f"convert it once: jaxssl data convert {shlex.quote(builder.data_dir)}"
        )
    if skipped:
        if data["on_error"] == "stop":
            message = (video if name == "video" else folder).unreadable
            raise UserError(message(data["path"], skipped))
        found = folder.some(skipped)
        what = "clips" if name == "video" else "pictures"
        log.warning("data       %d unreadable %s are left out: %s", len(skipped), what, found)
    return builder


def _builder(name: str, data: Mapping[str, Any], directory: str | None) -> tfds.core.DatasetBuilder:
    """The builder of a set, prepared or not; what is prepared is checked first."""
    root = Path(directory or tfds.core.constants.DATA_DIR).expanduser() / name
    for found in sorted(root.glob(f"**/{dataset_info.INFO}")) if name not in OF_PATHS else ():
        dataset_info.check(found.parent)
    with dataset_info.reading(root):
        return _unchecked(name, data, directory)


def _unchecked(
    name: str, data: Mapping[str, Any], directory: str | None
) -> tfds.core.DatasetBuilder:
    if data["path"] and name not in (*OF_PATHS, *raw.BUILDERS):
        raise UserError(
            f"data.name={name!r} takes no data.path; it is for {', '.join(OF_PATHS)}, and for the "
            f"raw files of {', '.join(raw.BUILDERS)}"
        )
    if data["labels"] and name not in ("folder", "captions"):
        raise UserError("data.labels is for data.name='folder' or 'captions', leave it empty")
    if name in OF_PATHS:
        return OF_PATHS[name](data, directory)
    if name in OWN:
        builder = OWN[name](data_dir=directory)
        builder.path = data["path"]
        return builder
    try:
        return tfds.builder(name, data_dir=directory)
    except tfds.core.DatasetNotFoundError as error:
        known = {*OF_PATHS, *OWN, *PARTS, *tfds.list_builders(with_community_datasets=False)}
        raise UserError(f"data.name={name!r} is unknown{suggest(name, sorted(known))}") from error
    except ImportError as error:
        try:  # a prepared set is read without its code
            return tfds.core.read_only_builder.builder_from_files(name, data_dir=directory)
        except tfds.core.DatasetNotFoundError:
            raise UserError(_needs_tensorflow(name)) from error
    except (ValueError, RuntimeError, AssertionError) as error:
        first = str(error).partition("\n")[0]  # of many lines
        raise UserError(f"data.name={name!r}: {first}") from error


def _prepare(builder: tfds.core.DatasetBuilder) -> None:
    """Write the set; TFDS does so into another folder that it renames at the end."""
    if builder.name not in (*OF_PATHS, *OWN) and importlib.util.find_spec("tensorflow") is None:
        raise UserError(_needs_tensorflow(builder.name))
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    log.info("data       preparing %s in %s", builder.name, builder.data_dir)
    try:
        builder.download_and_prepare(file_format=FORMAT)
    except OSError:
        if not Path(builder.data_dir).exists():
            raise
        log.info("data       another process has prepared it meanwhile")
    except RuntimeError as error:
        if "write() failed" not in str(error):
            raise
        raise OSError(str(error)) from error  # ArrayRecord says so of a full disk


def _needs_tensorflow(name: str) -> str:
    return (
        f"{name!r} is not prepared yet, and preparing it needs TensorFlow, reading it does not: "
        'pip install -e ".[tf]", or bring the prepared set with data.dir'
    )
