"""Decide which Python files that a run names may be executed when the run is read.

The config of a run names the files of the components that its user has added. Training executes
them, because the user has named them. Who reads a run may have got it from somebody else. Reading
executes only files with which this user has trained, unless the user trusts the run.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxssl import components
from jaxssl.errors import UserError, escape
from jaxssl.training.output.logs import log


def require(names: Iterable[str], source: Any, trust: bool) -> None:
    """Check that the files of a run's components may be executed.

    Args:
        names: names of components. Those of the form "path/to/file.py:NAME" name files.
        source: the run, for the message.
        trust: True accepts all files.

    Raises:
        UserError: if this user has not trained with one of the files as it is now. The message
            names the files and their digests.
    """
    files = [] if trust else [one for one in _files(names) if not _marker(*one).exists()]
    if files:
        texts = ", ".join(f"{escape(str(path))} (SHA-256 {digest})" for path, digest in files)
        raise UserError(
            f"{source} names Python files that you have not trained with: {texts}; read them, and "
            "allow them with --trust, or trust=True in Python"
        )


def remember(names: Iterable[str]) -> None:
    """Record in the user's state folder that this user trains with the files of components.

    The folder is XDG_STATE_HOME, or ~/.local/state. It gets a small file for each path and content.
    """
    for path, digest in _files(names):
        try:
            marker = _marker(path, digest)
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_bytes(f"{digest}  ".encode() + os.fsencode(path) + b"\n")
        except OSError as error:
            log.warning(
                "cannot record that you train with %s (%s); evaluate this run with --trust",
                path,
                error.strerror,
            )


def _files(names: Iterable[str]) -> list[tuple[Path, str]]:
    """Return the absolute path and the SHA-256 of each file that names of components have."""
    read = [components.read_file(name) for name in names if ".py:" in name]
    return sorted({(p.resolve(), hashlib.sha256(content).hexdigest()) for p, content in read})


def _marker(path: Path, digest: str) -> Path:
    """Return the file that exists if the user has trained with a file of this content."""
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not home.is_absolute():
        try:
            home = Path("~/.local/state").expanduser()
        except RuntimeError:  # The user has no home folder.
            home = Path(os.devnull)  # It holds no files and takes none.
    key = hashlib.sha256(digest.encode() + os.fsencode(path)).hexdigest()
    return home / "jaxssl" / "trained_with" / key
