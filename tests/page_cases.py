"""Parse HTML pages in tests."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
from PIL import Image

VOID = {"meta", "img", "br", "link", "input", "hr", "wbr"}


class Balanced(HTMLParser):
    """Assert that tags are closed in order; collect text, sources and descriptions of images."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.sources, self.alts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.sources += [values[k] for k in ("src", "href") if k in values]
        if tag == "img":
            self.alts.append(values.get("alt"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page(path):
    """Parse a page and assert that all tags are closed."""
    parser = Balanced()
    parser.feed(path.read_text(encoding="utf-8"))
    assert parser.open == []
    return parser


def tables(path, css):
    """Return the cells of all tables of a CSS class, without tags and notes."""
    pattern = rf'<table class="{css}">(.*?)</table>'
    return [
        [
            [re.sub("<small>.*|<.*?>", "", cell) for cell in cells_of(row)]
            for row in table.split("<tr>")[1:]
        ]
        for table in re.findall(pattern, path.read_text("utf-8"), re.DOTALL)
    ]


def cells_of(row):
    """Return the HTML of each cell of a row."""
    return re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)


def pictures(html):
    """Return the description and the pixels [h, w, 3] of each image of a page, in order."""
    matches = re.findall(r'<img [^>]*alt="(.*?)" src="data:image/(?:png|jpeg);base64,(.*?)"', html)
    return [
        (alt, np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")))
        for alt, png in matches
    ]
