"""Pages: the self-contained HTML that a report is made of."""

import io
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

CSS = """
:root { color-scheme: light; font: 1rem/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; background: #fff; color: #1b1b1b; }
body { overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid #bbb; }
figure { margin: 1rem 0; }
figcaption, small { color: #444; font-size: .875rem; line-height: 1.4; font-weight: normal; }
small { display: block; }
img { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .4rem clamp(.25rem, 1vw, .7rem); text-align: left; vertical-align: top; }
.results :is(th, td), .config :is(th, td) { border-bottom: 1px solid #ccc; }
.results :is(td, thead th + th) { text-align: right; }
.results td { white-space: nowrap; }
.results thead small { max-width: 9rem; margin-left: auto; }
.results tbody th { min-width: 7rem; }
.results, .results small { font-size: clamp(.75rem, 2.5vw, .95rem); }
.config tbody th { font: .9rem ui-monospace, monospace; }
.config tbody th { min-width: 9rem; overflow-wrap: anywhere; }
.curves { display: grid; gap: 1rem 1.5rem; }
.curves { grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); }
.curves figure { margin: 0; min-width: 0; }
.map img { width: 36rem; }
.thumb { width: clamp(2.2rem, 8vw, 4rem); border: 3px solid transparent; vertical-align: bottom; }
.pixels { image-rendering: pixelated; }
.first { border-color: #1a73c7; }
.other { border: 3px dashed #b00020; }
.pairs { display: flex; flex-wrap: wrap; gap: .75rem; padding: 0; list-style: none; }
.pairs li { background: #f1f1f1; padding: .3rem; }
.confusion :is(th, td) { padding: 0; text-align: center; font-weight: normal; }
.confusion thead th { overflow-wrap: anywhere; max-width: 5rem; vertical-align: bottom; }
.confusion tbody th { text-align: right; padding-right: .4rem; }
.confusion tbody th { overflow-wrap: anywhere; max-width: 8rem; min-width: 2.9rem; }
.confusion td div { padding: .3rem .1rem; min-width: 1.4rem; border: 2px solid transparent; }
.confusion td .own { border-color: #1b1b1b; }
.confusion { font-size: clamp(.75rem, 2.5vw, .95rem); }
.neighbours :is(th, td) { padding: .1rem; text-align: center; font-weight: normal; }
.neighbours img { max-width: none; }
.neighbours small { font-size: clamp(.7rem, 2.5vw, .875rem); }
.neighbours small { max-width: 4.4rem; overflow-wrap: anywhere; color: inherit; }
"""


def page(title: str, sections: Iterable[str]) -> str:
    """A whole page; the title and the sections are HTML."""
    body = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – jaxssl report</title>
<style>{CSS}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def section(title: str, content: str) -> str:
    """A part of a page under its heading; both are HTML."""
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>\n"


def figure(content: str, caption: str, css: str = "") -> str:
    """HTML content above a caption, which is text."""
    caption = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure class="{css}">\n{content}\n{caption}\n</figure>\n'


def table(css: str, head: Iterable[Any], body: Iterable[Sequence[str]], title: str = "") -> str:
    """A table that scrolls sideways on a narrow screen; cells are HTML, a row's first its head.

    Readers aloud call it by its title, which is text, or by its class.
    """
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    rows = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
        for first, *rest in body
    )
    label = escape(f"table of {title or css}")
    return f"""<div class="scroll" role="region" aria-label="{label}" tabindex="0">
<table class="{css}">
<thead><tr>{top}</tr></thead>
<tbody>
{rows}</tbody>
</table>
</div>"""


def name(word: str) -> str:
    """A long name as HTML that may break after its underscores."""
    return escape(word).replace("_", "_<wbr>")


def img(png: io.BytesIO, alt: str, css: str = "") -> str:
    """A PNG inside the page, with a text in its place for those who cannot see it."""
    data = b64encode(png.getvalue()).decode()
    return f'<img class="{css}" alt="{escape(alt)}" src="data:image/png;base64,{data}">'
