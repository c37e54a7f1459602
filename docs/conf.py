"""Settings of Sphinx for the site of the documentation: `make docs` writes site/index.html."""

import importlib
import re
from pathlib import Path

import jaxssl

project = "jaxssl"
author = "the authors of jaxssl"
release = version = jaxssl.__version__

extensions = [
    "myst_nb",  # pages in Markdown, and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_templates", "studies"]
templates_path = ["_templates"]
default_role = "py:obj"  # `name` in a docstring is a link where a public object has that name
suppress_warnings = ["ref.python"]  # an attribute of that name in several classes

myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
nb_execution_mode = "cache"  # Notebooks are run when the site is built, and again if they change.
nb_execution_cache_path = str(Path(__file__).parents[1] / ".cache" / "notebooks")
nb_execution_in_temp = True  # so that their runs do not stay in examples/
nb_execution_timeout = 600  # seconds a cell
nb_execution_raise_on_error = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["wandb", "mlflow", "trackio", "av", "instant_clip_tokenizer", "torch"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # The attributes of a NamedTuple are described once, without their types.
napoleon_attr_annotations = False
napoleon_custom_sections = [("Objective", "params_style")]

html_theme = "sphinx_book_theme"
html_title = f"jaxssl {release}"
html_theme_options = {"show_toc_level": 2, "navbar_persistent": []}

# `make docs` fetches MathJax, so that formulas need no network. Without it they need one.
_MATHJAX = Path(__file__).parents[1] / ".cache" / "mathjax" / "tex-svg-full.js"
if _MATHJAX.exists():
    html_static_path = [str(_MATHJAX.parent)]
    mathjax_path = _MATHJAX.name

# What docstrings have as plain text: equations, blocks of code, and names in backticks.
_NO_TEXT = re.compile(
    r"(\.\. math::.*?(?:\n\n|\Z)|::\n\n(?:    .*(?:\n|\Z)|\n)+|``.*?``|`[^`]*`)", re.DOTALL
)
_CODE_FOLLOWS = re.compile(r"^((?!\s|\.\.).*[^:\n]:?)\n\n(?=    \S)", re.MULTILINE)
_PUNCTUATION = re.compile(r"\||\*(?! )|(?<=\w)_(?!\w)")
_FILE_LINK = re.compile(r"(\]\(|\]: )\.\./jaxssl/([\w/]+?)(?:/__init__)?(?:\.py)?(?=[)\n])")
_OTHER_LINK = re.compile(r"\[([^]]+)\]\(\.\./(?:[\w/]+|[\w/]+\.md)\)")


def write_as_rst(app, what, name, obj, options, lines):
    """Escape the punctuation of a docstring, mark its code, and list the presets of a loss."""
    parts = _NO_TEXT.split(_CODE_FOLLOWS.sub(r"\1\n\n::\n\n", "\n".join(lines)))
    parts[::2] = [_PUNCTUATION.sub(r"\\\g<0>", part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")
    if loss := re.fullmatch(r"(jaxssl\.losses\.\w+)_loss", name):
        presets = getattr(importlib.import_module(loss[1]), "PRESETS", {})
        lines += ["", ".. rubric:: Presets", ""] if presets else []
        for preset, hyper in presets.items():
            settings = ", ".join(f"{key}={value!r}" for key, value in hyper.items())
            lines.append(f"- ``{preset}``: " + (f"``{settings}``" if settings else "the defaults"))
        lines.append("")


def link_to_the_reference(app, docname, source):
    """Let links to files of the package lead to the reference; leave out links to other folders."""

    def target(match: re.Match[str]) -> str:
        name = match[2].replace("/", ".")
        loss = re.fullmatch(r"losses\.(\w+)", name)
        name = f"losses.{loss[1]}_loss" if loss and loss[1] != "accumulate" else name
        return f"{match[1]}jaxssl.{name}"

    source[0] = _OTHER_LINK.sub(r"\1", _FILE_LINK.sub(target, source[0]))


def skip_fields(app, what, name, obj, skip, options):
    """Leave out the fields of a NamedTuple, which its docstring describes."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app):
    """Connect the functions above; docstrings are changed before Napoleon reads them."""
    app.connect("autodoc-process-docstring", write_as_rst, priority=400)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("source-read", link_to_the_reference)
