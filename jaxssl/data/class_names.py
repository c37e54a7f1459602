"""Lists of classes to keep: of subsets of published sets, and in files of the user."""

from collections import Counter
from pathlib import Path

from jaxssl.errors import UserError

# name of a subset to the whole set, and the file of its classes
SUBSETS = {"imagenet100": ("imagenet2012", Path(__file__).with_name("imagenet100.txt"))}


def read_classes(path: Path) -> list[str]:
    """Read class names from a text file with one class a line.

    Text after a tab, and lines that start with #, are ignored.

    Raises:
        UserError: if the file cannot be read, is empty, or names a class twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.classes={path} cannot be read: {error}") from error
    names = [line.split("\t")[0].strip() for line in lines]
    names = [name for name in names if name and not name.startswith("#")]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if not names or repeated:
        problem = f"names {repeated[0]!r} twice" if repeated else "names no class"
        raise UserError(f"data.classes={path} {problem}; expected one class a line, each once")
    return names
