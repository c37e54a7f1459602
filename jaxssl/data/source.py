"""Find data sets by name, prepare them as ArrayRecord files if necessary, and open their splits."""

import contextlib
import errno
import importlib.util
import io
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import requests
import tensorflow_datasets as tfds
from filelock import FileLock, Timeout
from ml_collections import ConfigDict
from tensorflow_datasets.core import constants, read_only_builder, shuffle
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
from tensorflow_datasets.core.download.util import DownloadError

from jaxssl import buckets, components
from jaxssl.data import IN_MEMORY, integrity, kind
from jaxssl.data.formats import user_files
from jaxssl.data.formats.published import BUILDERS as PUBLISHED
from jaxssl.data.opening import in_memory, tar_shards
from jaxssl.data.records import PreparedSplit, find_feature
from jaxssl.data.splits import (
    SUBSETS,
    Source,
    Splits,
    find_records,
    finish,
    make_splits,
)
from jaxssl.errors import UserError, one_line, suggest

log = logging.getLogger("jaxssl")
FORMAT = "array_record"
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks
MAX_OPEN = 10_240  # files that may be open at once, if the system allows it (macOS allows no more)


def load_splits(data: ConfigDict, examples: str = "image") -> Splits:
    """Open the splits of a run. See `load` for arguments and errors.

    A warning is logged if test examples are also in the bank.
    """
    open_split = _make_opener(data, examples)
    train, test = open_split(data["train_split"]), open_split(data["test_split"])
    bank = open_split(data["bank_split"]) if data["bank_split"] else train
    return make_splits(train, bank, test)


def load(data: ConfigDict, split: str, examples: str = "image") -> Source:
    """Open a split of a data set, after preparing the data set if necessary.

    Args:
        data: the group `config.data`.
        split: such as "train", "train[:10%]" or "train+unlabelled".
        examples: expected kind of data set, a name of `jaxssl.data.kind`.

    Raises:
        UserError: if the data set or split is unknown, cannot be prepared or read or is of another
            kind, or if the list of classes does not match it.
    """
    return _make_opener(data, examples)(split)


def prepare(data: ConfigDict) -> tfds.core.DatasetBuilder:
    """Return the TFDS builder of a data set, after preparing the data set if necessary.

    Args:
        data: the group `config.data`. "name" is a file of `formats` or `toy`, or a TFDS name. "dir"
            is the folder of prepared sets ("" is `~/tensorflow_datasets`). Formats read more keys.

    Raises:
        UserError: if the name is unknown, the set cannot be prepared or read, or the folder of
            prepared sets cannot be written.
    """
    if data["name"] == IN_MEMORY:
        raise UserError(
            "the data of this run were given as Python objects, which are not stored; pass "
            "data=... in Python, or, to evaluate, name another set with --dataset"
        )
    _allow_open_files()
    name: str = data["name"]
    name = SUBSETS.get(name, name)
    data = _fetch_files(data)
    data_dir = _local_data_dir(data["dir"], name)
    try:
        builder = _find_builder(name, data, data_dir)
        if name in PUBLISHED and data["path"] and Path(builder.data_dir).exists():
            log.info("data       data.path is not read: %s holds the set already", builder.data_dir)
        if not Path(builder.data_dir).exists():
            if not (_is_local(name) or name in PUBLISHED or importlib.util.find_spec("tensorflow")):
                raise UserError(_needs_tensorflow(name))
            with _lock(Path(builder.data_dir)):
                if not Path(builder.data_dir).exists():
                    _download_and_prepare(name, builder)
            builder = _find_builder(name, data, data_dir)
    except (requests.RequestException, DownloadError, NonMatchingChecksumError) as error:
        reason = str(error).partition("\n")[0].rstrip(".:")
        files = "copy the files and name them with data.path, or " if name in PUBLISHED else ""
        raise UserError(
            f"cannot download {name!r}: {reason}; without a network, {files}copy the prepared set "
            "and name its folder with data.dir"
        ) from error
    except AssertionError as error:  # TFDS's error for files that must be downloaded by hand
        raise UserError(f"cannot prepare {name!r}: {one_line(error)}") from error
    except OSError as error:
        raise UserError(
            f"cannot prepare {name!r} under {data_dir or 'the TFDS data directory'}: {error}; name "
            "a writable folder with enough space with --config.data.dir"
        ) from error
    with integrity.guard(Path(builder.data_dir)):
        _check_format(name, builder)
        metadata = dict(builder.info.metadata or {})
        skipped = list(metadata.get("skipped") or ())
    noun = kind.units(metadata.get("kind", "image"))
    user_files.report_unreadable(noun, data["path"], skipped, data["on_error"])
    return builder


def _local_data_dir(data_dir: str, name: str) -> str | None:
    """Return a local folder of prepared sets for `config.data.dir`, None for the default of TFDS.

    A set in a bucket is copied to the disk.
    """
    if not data_dir:
        return None
    path = buckets.as_path(data_dir)
    if not buckets.is_bucket(path):
        return os.path.expanduser(data_dir)
    if needs_path(name):
        raise UserError(f"data.dir={data_dir}: files of data.path are prepared on disk only")
    # A name may have a configuration and a version, as in "coco/2017:1.1.0".
    return str(buckets.fetch(path / re.split("[/:]", name)[0]).parent)


def known_names() -> set[str]:
    """Return the names of all data sets, `jaxssl.data.formats` and TFDS included."""
    ours = {*components.names("data"), *components.names("toy"), *PUBLISHED, *SUBSETS}
    return {*ours, tar_shards.NAME, *tfds.list_builders(with_community_datasets=False)}


def needs_path(name: str) -> bool:
    """Return True if the data set of this name is read from the files at `data.path`."""
    return name in components.names("data")


def _fetch_files(data: ConfigDict) -> ConfigDict:
    """Return the group `config.data` with copies on the disk in place of files in a bucket."""
    keys = [key for key in ("path", "labels", "classes") if "://" in data[key]]
    copies = {key: str(buckets.fetch(buckets.as_path(data[key]))) for key in keys}
    return ConfigDict({**data, **copies}) if copies else data


def _make_opener(data: ConfigDict, examples: str) -> Callable[[str], Source]:
    """Return a function from a split's name to the opened split. Arguments and errors as in `load`.

    Files in a bucket are copied to the disk. `prepare` does that with "dir".
    """
    _allow_open_files()
    data = _fetch_files(data)
    if components.is_custom(data["name"]) or data["name"] == tar_shards.NAME:
        return in_memory.make_opener(data, examples)
    return partial(_open, prepare(data), data, examples)


def _open(builder: Any, data: ConfigDict, examples: str, split: str) -> Source:
    info, root = builder.info, Path(builder.data_dir)
    with integrity.guard(root):
        metadata = dict(info.metadata or {})
        stored = metadata.get("kind", "image")
        kind.require(data["name"], stored, examples)
        label = find_feature(info.features, tfds.features.ClassLabel, "label")
        class_names = tuple(info.features[label].names) if label else ()
        opened, parts = kind.get(examples).open(root, info.features, metadata, data), []
        for part, indices in find_records(data["name"], split, info.splits):
            open_with = partial(builder.as_data_source, part, file_format=FORMAT)
            records = open_with(decoders=opened.decoders)
            light = open_with(decoders=opened.for_labels) if opened.for_labels else None
            integrity.check_num_records(root, part, info.splits[part].num_examples)
            prepared = PreparedSplit(
                records,
                opened.decode,
                label,
                len(class_names),
                root / part,
                opened.captions,
                light=light,
            )
            parts.append((prepared, indices))
    name = data["name"]
    if needs_path(name):  # The path may be ".", or end in "..".
        name = Path(os.path.abspath(os.path.expanduser(data["path"]))).name
    source = Source(name, split, tuple(parts), class_names, opened.shape, kind=examples)
    return finish(source, data)


def _check_format(name: str, builder: tfds.core.DatasetBuilder) -> None:
    """Raise UserError if a prepared data set has no ArrayRecord files."""
    info: Any = builder.info
    if not (Path(builder.data_dir) / integrity.INFO).exists():
        raise UserError(
            f"{builder.data_dir} lacks {integrity.INFO}; copy all files of the prepared set, or "
            "remove the folder to prepare it again"
        )
    if FORMAT in {file_format.value for file_format in info.available_file_formats()}:
        return
    # If TFDS has code for a data set, it forgets the set's alternative file formats.
    if FORMAT in info.as_proto.alternative_file_formats:
        info.add_alternative_file_format(FORMAT)
        return
    raise UserError(
        f"{name!r} is prepared as {info.file_format.value}, which cannot be read by index; convert "
        f"it once: jaxssl data convert {shlex.quote(str(builder.data_dir))}"
    )


def _find_builder(name: str, data: ConfigDict, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return the TFDS builder of a data set. Prepared files are checked first."""
    root = Path(os.path.expanduser(data_dir or constants.DATA_DIR)) / name.partition(":")[0]
    # A path in place of a name is refused below, before anything in that folder is read.
    if not needs_path(name) and re.match(r"\w", name):
        for path in sorted(root.glob(f"**/{integrity.INFO}")):
            integrity.check_files(path.parent)
    with integrity.guard(root):
        return _make_builder(name, data, data_dir)


def _check_keys(name: str, data: ConfigDict) -> None:
    """Raise UserError if the config sets a key that the data set of this name does not read."""
    if name == tar_shards.NAME or components.is_custom(name):
        raise UserError(f"data.name={name!r} is read where it is; there is nothing to prepare")
    formats = components.names("data")
    if data["path"] and name not in (*formats, *PUBLISHED):
        raise UserError(
            f"data.name={name!r} does not read data.path, which is for {', '.join(formats)}, and "
            f"for the published files of {', '.join(PUBLISHED)}; change one of them"
        )
    if data["labels"] and name not in ("folder", "captions"):
        raise UserError("data.labels is only for data.name='folder' or 'captions'; leave it empty")
    if data.get("channels") and name != "folder":
        raise UserError(f"data.name={name!r} does not read data.channels; set it to 0")


def _make_builder(name: str, data: ConfigDict, data_dir: str | None) -> tfds.core.DatasetBuilder:
    _check_keys(name, data)
    if needs_path(name):
        return components.factory("data", name)(data, data_dir)
    if name in components.names("toy"):
        return components.factory("toy", name)(data_dir=data_dir)
    if name in PUBLISHED:
        builder = PUBLISHED[name](data_dir=data_dir)
        builder.path = data["path"]
        return builder
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        hint = suggest(name, sorted(known_names()))
        raise UserError(
            f"data.name={name!r} is no data set{hint}; for files, check the path"
        ) from error
    except ImportError as error:
        try:  # A prepared data set can be read without the code that prepared it.
            return read_only_builder.builder_from_files(name, data_dir=data_dir)
        except tfds.core.DatasetNotFoundError:
            raise UserError(_needs_tensorflow(name)) from error
    except (ValueError, RuntimeError, AssertionError) as error:
        first_line = str(error).partition("\n")[0]
        if first_line.startswith("Parsing builder name"):  # TFDS's error if the name is a path
            first_line = (
                "not the name of a data set; a path must exist, and on the command line it is "
                "written data.name=folder, data.path=PATH"
            )
        raise UserError(f"data.name={name!r}: {first_line}") from error


def _download_and_prepare(name: str, builder: tfds.core.DatasetBuilder) -> None:
    """Let TFDS write a data set, to a temporary folder that TFDS renames at the end."""
    is_local = _is_local(name)
    _sort_on_disk_without_tensorflow()
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    log.info("data       preparing %s in %s", builder.name, builder.data_dir)
    # TFDS prints the size of a download, which is unknown for sets that are not downloaded.
    try:
        with contextlib.redirect_stdout(io.StringIO()) if is_local else contextlib.nullcontext():
            builder.download_and_prepare(file_format=FORMAT)
        if needs_path(name):
            config: Any = builder.builder_config
            size = builder.info.dataset_size
            log.info("data       copied %s to %s (%s)", config.source.root, builder.data_dir, size)
    except OSError:
        # Locks do not reach all hosts on some file systems.
        if not Path(builder.data_dir).exists():
            raise
        log.info("data       another process has prepared it meanwhile")
    except RuntimeError as error:
        if "write() failed" not in str(error):
            raise
        raise OSError(str(error)) from error  # ArrayRecord raises RuntimeError on a full disk.


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time prepare a set. The other processes wait for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Other users of the folder may take a lock that is left.
    lock = FileLock(f"{path}.lock", mode=0o666, fallback_to_soft=False)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        log.info("data       waiting for another process that prepares %s", path)
        lock.acquire()
    except OSError as error:
        if error.errno not in NO_LOCKS:  # Without locks, each process prepares the set.
            raise
    try:
        yield
    finally:
        lock.release()


def _allow_open_files() -> None:
    """Raise the limit of open files, because the shards of a large set all stay open."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limit.
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MAX_OPEN if hard == resource.RLIM_INFINITY else min(MAX_OPEN, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _sort_on_disk_without_tensorflow() -> None:
    """Let TFDS prepare splits above 1 GB without TensorFlow.

    TFDS sorts their examples in up to 1000 files, which it opens with TensorFlow. If that is not
    installed, epath opens them.
    """
    if importlib.util.find_spec("tensorflow") is not None:
        return
    gfile = SimpleNamespace(
        GFile=lambda path, mode: path.open(mode),
        exists=methodcaller("exists"),
        remove=methodcaller("unlink"),
    )
    errors = SimpleNamespace(ResourceExhaustedError=())  # Python's files raise OSError instead.
    tensorflow: Any = SimpleNamespace(io=SimpleNamespace(gfile=gfile), errors=errors)
    shuffle.tf = tensorflow


def _is_local(name: str) -> bool:
    """Return whether a set is made from files of the user, or generated."""
    return name in (*components.names("data"), *components.names("toy"))


def _needs_tensorflow(name: str) -> str:
    return (
        f"{name!r} is not prepared yet. Preparing it needs TensorFlow, reading it does not: "
        "pip install 'jaxssl[tf]', or copy the prepared set and name its folder with data.dir"
    )
