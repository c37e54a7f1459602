"""Render the report templates to HTML pages that need no other file and no network."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from jaxssl.report.images import Image


class Cell(NamedTuple):
    """A table cell of a report page that holds more than text.

    Attributes:
        text: the text, possibly empty.
        note: small print below the text, one or more lines.
        bold: whether the text is bold.
        image: an image above the note.
        shade: opacity of a blue background, 0 to 1, or None for none.
    """

    text: str = ""
    note: str = ""
    bold: bool = False
    image: Image | None = None
    shade: float | None = None


class Table(NamedTuple):
    """A table of a report page, with heading and rows.

    Attributes:
        css: class in `templates/style.css`.
        head: the column heads.
        rows: the first cell of a row is its head.
        title: name for screen readers, by default the class.
    """

    css: str
    head: Sequence[str | Cell]
    rows: Sequence[Sequence[str | Cell]]
    title: str = ""


def render(template: str, **values: object) -> str:
    """Render a report template to a page. In HTML pages all values are escaped.

    Args:
        template: name of a file in `templates/`.
        **values: every name that the template uses, among them ``title``.
    """
    return _ENVIRONMENT.get_template(template).render(**values)


def breakable(text: str) -> Markup:
    """Escape a text for HTML and allow line breaks after underscores and in paths."""
    return Markup(re.sub(r"(_|/(?=\S{3}))", r"\1<wbr>", str(escape(text))))


def percent(share: float) -> str:
    """Format a share between 0 and 1 as a percentage."""
    return f"{100 * share:.1f} %"


_ENVIRONMENT = Environment(
    loader=PackageLoader("jaxssl.report"),
    autoescape=lambda name: str(name).endswith(".html"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(breakable=breakable, percent=percent)
