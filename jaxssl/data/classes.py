"""The classes of a set that are used, from a text file."""

from collections import Counter
from pathlib import Path

from jaxssl.errors import UserError


def read_classes(path: Path) -> list[str]:
    """The classes of a text file: one a line, up to a tab; lines that begin with # are comments.

    Raises:
        UserError: if it cannot be read, or holds no class or one twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.classes={path} cannot be read: {error}") from error
    names = [line.split("\t")[0].strip() for line in lines]
    names = [name for name in names if name and not name.startswith("#")]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if not names or repeated:
        what = f"names {repeated[0]!r} twice" if repeated else "names no class"
        raise UserError(f"data.classes={path} {what}; expected one class a line, each once")
    return names
