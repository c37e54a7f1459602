"""UserError, the error for mistakes of the user, and helpers for one-line messages."""

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Reading a JSON document that somebody else has written may raise any of these.
JSON_ERRORS = (OSError, ValueError, OverflowError, RecursionError)
JSON_ERRORS += (KeyError, TypeError, AttributeError)  # for an unexpected structure
# Reasons why a file cannot be read that say nothing about its content.
OUTSIDE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.EMFILE, errno.ENOMEM)
MANY = 40  # number of valid words up to which a message lists all of them
MAX_NAMED = 3  # largest number of items that a message names
MAX_ITEM = 300  # characters of an item that a message shows
LONGEST = 2000  # largest number of characters of a message
# Config keys by the names that they have in other libraries.
OTHER_NAMES = {
    "learning_rate": "lr",
    "bs": "batch_size",
    "wd": "weight_decay",
    "tau": "temperature",
    "simclr": "nt_xent",
    "ntxent": "nt_xent",
    "infonce": "info_nce",
    "moco": "info_nce",
    "supcon": "sup_con",
    "bfloat16": "bf16",
}


class UserError(Exception):
    """Invalid input from the user. The one-line message says how to correct the input.

    The command line prints the message and exits with ``status``, and a notebook shows the message
    alone. Any other exception is a bug. Messages longer than `LONGEST` characters are shortened in
    the middle.
    """

    status = 2  # exit status of the command

    def __init__(self, message: str) -> None:
        super().__init__(shorten(message))

    def _render_traceback_(self) -> list[str]:  # called by IPython
        return [f"{type(self).__name__}: {self}"]


class Stopped(KeyboardInterrupt):
    """The user stopped a run, which has written a checkpoint. Notebooks show no traceback."""

    _render_traceback_ = UserError._render_traceback_


class TransientError(UserError):
    """A fault that may pass, such as a disk that cannot be read. `--retry` starts the run again."""

    status = 1


class LostProcess(TransientError):
    """Another process of the run is missing."""


class WriteError(UserError):
    """A file or a folder that cannot be written, as on a full disk."""


@contextmanager
def explain_write_errors(path: Path, kind: type[Exception] = OSError) -> Iterator[None]:
    """Turn an OSError inside a with block into a WriteError. The block does nothing but write.

    Args:
        path: file or folder that the code writes.
        kind: exceptions of the library that writes. JAX's errors stay, because they mean that
            another process of the run has ended.
    """
    try:
        yield
    except kind as error:
        if isinstance(error, WriteError) or type(error).__name__ == "JaxRuntimeError":
            raise
        raise write_error(path, error) from error


def write_error(path: Path, error: Exception) -> WriteError:
    """Return a WriteError for a path that a library could not write, with the library's reason."""
    code = error_code(error)
    reason = getattr(error, "strerror", None) or (os.strerror(code) if code else one_line(error))
    return WriteError(f"cannot write {path}: {reason}; fix this or choose another path")


def error_code(error: BaseException) -> int | None:
    """Return the code of the operating system in an error, or None for other errors."""
    # TensorStore gives it only in the text of its message.
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return int(code[1]) if code else getattr(error, "errno", None)


def is_transient(error: BaseException) -> bool:
    """Return True if a file could not be read for a reason outside of the file, which may pass."""
    return isinstance(error, MemoryError) or error_code(error) in OUTSIDE


@contextmanager
def explain_damage(path: Path, advice: str = "move it away") -> Iterator[None]:
    """Turn any error while a file is read or shown into a UserError that names the file.

    Args:
        path: the file.
        advice: how to mend it, the end of the message.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # Damaged files raise many exception types.
        raise UserError(f"{path} is damaged ({one_line(error)}); {advice}") from error


def shorten(text: str) -> str:
    """Return a text, shortened to beginning and end if it has more than `LONGEST` characters."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} [...] {text[-half:]}"


def one_line(error: BaseException, most: int = 300) -> str:
    """Return the message of another library's exception as one printable line.

    Args:
        error: any exception. Without a message, the name of its class is returned.
        most: largest number of characters.
    """
    message = " ".join(str(error).split())
    return printable(message[:most] or type(error).__name__)


def printable(text: str) -> str:
    """Return a text unchanged, or quoted if it has line breaks or terminal escape codes."""
    return text if text.isprintable() else repr(text)


def escape(text: str, keep: str = "") -> str:
    """Return a text with escapes, as in Python strings, for characters that are not printable.

    Args:
        text: any text.
        keep: characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def abbreviate(items: Sequence[str], most: int = MAX_NAMED) -> str:
    """List the first items of a collection and the number of the others, for messages."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(printable(item[:MAX_ITEM]) for item in items[:most]) + more or "nothing"


def train_first(workdir: Path) -> str:
    """Return advice for a folder that should hold a run."""
    with suppress(OSError):  # The folder may be unreadable.
        is_run = not workdir.exists() or (workdir / "config.json").exists()
        if not is_run and (not workdir.is_dir() or any(workdir.iterdir())):
            return "it holds other files; name the folder of a run"
    return f"train first: jaxssl train --workdir {workdir}"


def suggest(word: str, valid: Iterable[str]) -> str:
    """Return the end of an error message about an unknown word: closest match and valid words.

    Upper case counts as lower case, and a hyphen as an underscore. Of more than `MANY` valid words,
    only up to three close ones are listed.
    """
    valid = list(valid)
    if (known := OTHER_NAMES.get(word.lower())) in valid:
        word = known
    folded = {_fold(x): x for x in valid}
    close = [folded[x] for x in difflib.get_close_matches(_fold(word), folded, n=3)]
    if len(valid) > MANY:
        if not close:
            return f"; none of {len(valid)} valid ones is close"
        return f"; the closest of {len(valid)} valid ones are {', '.join(close)}"
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{hint} valid: {', '.join(valid)}"


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")


def closest_key(name: str, keys: Iterable[str]) -> str | None:
    """Return the dotted config key whose last word is most similar to the last word of a name.

    Names that other libraries use are known too. Return None if no key is close, or if several
    keys have the closest last part, such as "name".
    """
    by_leaf: dict[str, list[str]] = {}
    for key in keys:
        by_leaf.setdefault(_fold(key.rpartition(".")[2]), []).append(key)
    leaf = name.rpartition(".")[2]
    close = difflib.get_close_matches(_fold(OTHER_NAMES.get(leaf, leaf)), by_leaf, n=1)
    candidates = by_leaf[close[0]] if close else []
    return candidates[0] if len(candidates) == 1 else None


def require_utf8(name: str, root: Path | str) -> str:
    """Return a file name, or raise UserError if it is not valid UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{root} contains the name {name!r}, which is not UTF-8; rename it"
        ) from error
    return name
