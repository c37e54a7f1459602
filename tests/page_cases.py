"""Parse HTML pages in tests."""

from html.parser import HTMLParser

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
