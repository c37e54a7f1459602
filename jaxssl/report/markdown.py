"""Write tables and wrapped text in Markdown."""

import re
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100  # maximum number of characters of a line in docs/


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table as lines of Markdown. Pipes in cells are escaped."""
    lines = [_line(heading), "|" + "---|" * len(heading), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def narrow_table(heading: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """Return a table with lines of at most 100 characters, if its first columns fit into a line.

    The last columns of a wider table become lists below the table, one item per row.

    Args:
        heading: names of the columns.
        rows: cells of each row.
        names: number of columns that name a row. They and the next one stay in the table.
    """
    heading, rows = list(heading), [list(row) for row in rows]
    lists = []
    while len(heading) > names + 1 and len(max(map(_line, [heading, *rows]), key=len)) > WIDTH:
        items = "".join(f"- {', '.join(row[:names])}: {row.pop()}\n" for row in rows)
        lists.insert(0, f"\n{heading.pop()}:\n\n{items}")
    return markdown_table(heading, rows) + "".join(lists)


def wrap_text(text: str, indent: str = "") -> str:
    """Wrap a paragraph into lines of at most 100 characters; `indent` precedes all but the first.

    No line begins with a character that Markdown would read as the start of a list or a heading.
    """
    text = re.sub(r" (?=([-+*#>]|\d+[.)])(\s|$))", "\0", text)
    lines = textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
