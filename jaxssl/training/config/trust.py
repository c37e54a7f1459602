"""Decide which files of this machine that a run names may be used when the run is read.

The config of a run names the files of the components that its user has added. Training executes
them, because the user has named them. Who reads a run may have got it from somebody else. Reading
executes only files with which this user has trained, unless the user trusts the run. The same holds
for the folders and files of the data set, which evaluation reads and prepares sets in.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.data import IN_MEMORY
from jaxssl.errors import UserError, escape, require_utf8
from jaxssl.training.output.file_io import user_folder
from jaxssl.training.output.logs import log

DATA = "data"  # stands for the digest of a data path, because its content may change
DATA_KEYS = ("dir", "path", "classes", "labels")  # keys of the group `data` that name files


def require(names: Iterable[str], source: object, trust: bool) -> None:
    """Check that the files of a run's components may be executed.

    Args:
        names: names of components. Names of the form "path/to/file.py:NAME" refer to files.
        source: the run, for the message.
        trust: True accepts all files.

    Raises:
        UserError: if this user has not trained with one of the files as it is now. The message
            names the files and their digests.
    """
    if trust:
        return
    files = [file for file in _files(names).items() if not _marker(*file).exists()]
    if files:
        texts = ", ".join(f"{escape(str(path))} (SHA-256 {digest})" for path, digest in files)
        raise UserError(
            f"{source} names Python files that are new, or have changed since you trained with "
            f"them: {texts}; read them, and allow them with --trust, or trust=True in Python"
        )


def require_data(data: Mapping[str, object], source: object, trust: bool) -> None:
    """Check that evaluation may read the data that a run's config names.

    Args:
        data: values of the group `config.data` that come from the run.
        source: the run, for the message.
        trust: True accepts all.

    Raises:
        UserError: if this user has not trained with one of the paths.
    """
    if trust:
        return
    keys = [key for key, path in data_paths(data).items() if not _marker(Path(path), DATA).exists()]
    if keys:
        texts = ", ".join(f"data.{key}={escape(str(data[key]))}" for key in keys)
        raise UserError(
            f"{source} names data that you have not trained with: {texts}; name them yourself with "
            "--config.data.KEY, or data=... in Python, or allow them with --trust, or trust=True"
        )


def remember(names: Iterable[str], data: Mapping[str, object] | None = None) -> None:
    """Record in the user's state folder that this user trains with these components and data.

    The folder is XDG_STATE_HOME, or ~/.local/state. It gets a small file for each path and content.

    Args:
        names: names of components.
        data: the group `config.data`.
    """
    of_data = {Path(path): DATA for path in data_paths(data or {}).values()}
    for path, digest in (_files(names) | of_data).items():
        marker = _marker(path, digest)
        try:
            # Other users must not be able to add markers, so the folder has mode 0700.
            marker.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            marker.write_bytes(f"{digest}  ".encode() + os.fsencode(path) + b"\n")
        except OSError as error:
            with suppress(OSError):
                marker.unlink()  # An empty file counts too.
            text = "cannot record that you train with %s (%s); evaluate this run with --trust"
            log.warning(text, path, error.strerror)


def _files(names: Iterable[str]) -> dict[Path, str]:
    """Return the SHA-256 of each Python file that component names refer to, by absolute path."""
    files = [components.read_file(name) for name in names if ".py:" in name]
    digests = {path.resolve(): hashlib.sha256(content).hexdigest() for path, content in files}
    return dict(sorted(digests.items()))


def data_paths(data: Settings) -> dict[str, str]:
    """Return the absolute paths that the data settings name, by key.

    The path of a user's function may also be another text, which is returned as it is.
    """
    name, paths = data.get("name"), {}
    for key in DATA_KEYS:
        text = data.get(key)
        if not isinstance(text, str) or not text or name == IN_MEMORY:
            continue
        is_text = key == "path" and components.is_custom(str(name))
        path = require_utf8(absolute(text), f"data.{key}")
        paths[key] = text if is_text and not os.path.exists(path) else path
    return paths


def absolute(path: str) -> str:
    """Return an absolute path for a local one, and an address as it is."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def _marker(path: Path, digest: str) -> Path:
    """Return the file that exists if the user has trained with a file of this content."""
    # /dev/null can hold no markers.
    home = user_folder("XDG_STATE_HOME", "~/.local/state") or Path(os.devnull)
    key = hashlib.sha256(digest.encode() + os.fsencode(path)).hexdigest()
    return home / "jaxssl" / "trained_with" / key
