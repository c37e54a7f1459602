"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as lines of Markdown, each ending in a newline; pipes in cells are escaped."""
    lines = [_line(heading), "|" + "---|" * len(heading), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
