"""Markdown tables as tests read them."""

import re


def tables(text: str) -> dict[str, list[list[str]]]:
    """The first cell of a table's head -> its rows."""
    actual = {}
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *rows = ([c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines())
        assert {len(row) for row in rows} == {len(head)} and head[0] not in actual
        actual[head[0]] = rows
    return actual


def printed(text: str) -> list[list[str]]:
    """Return the cells of all tables that rich has printed, heading first."""
    lines = [line for line in text.splitlines() if line[:1] in ("│", "┃")]
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]
