"""Settings of Sphinx for the site of the documentation: `make site` writes site/index.html."""

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

myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
nb_execution_mode = "auto"  # Notebooks are run when the site is built.
nb_execution_timeout = 600  # seconds a cell

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["wandb", "mlflow", "trackio", "av", "instant_clip_tokenizer", "torch"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # The attributes of a NamedTuple are described once.

html_theme = "sphinx_book_theme"
html_title = f"jaxssl {release}"
html_theme_options = {"show_toc_level": 2}
