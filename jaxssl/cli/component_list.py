"""List the configs and components of the package with a line each.

usage: jaxssl list [KIND]

KIND is configs, suites, losses, networks, heads, methods, augmentations, protocols, loggers or
studies.
"""

import ast
from pathlib import Path

from absl import flags

FLAGS = flags.FlagValues()
POSITIONAL = "kind"
KIND = flags.DEFINE_string("kind", None, "Same as the argument; default: all kinds.", FLAGS)
FILES = {"configs": "config", "suites": "suite"}  # kinds of packaged files
# Kinds of components by the names of their groups in `jaxssl.components`.
KINDS = {
    "losses": "loss",
    "networks": "net",
    "heads": "head",
    "methods": "method",
    "augmentations": "augment",
    "protocols": "protocol",
    "loggers": "log",
    "studies": "study",
}


def main(overrides: list[tuple[str, str]]) -> None:
    """Print the names and the first lines of the docstrings."""
    from jaxssl.errors import UserError, suggest

    kinds = (*FILES, *KINDS)
    if overrides:
        raise UserError("a list has no settings; leave the --config flags out")
    if KIND.value not in (None, *kinds):
        raise UserError(f"{KIND.value!r} is unknown{suggest(KIND.value, kinds)}")
    for kind in [KIND.value] if KIND.value else kinds:
        entries = _entries(kind)
        width = max(map(len, entries))
        heading = kind if KIND.value is None else ""
        for line in filter(None, (heading, *(f"  {k:{width}}  {v}" for k, v in entries.items()))):
            print(line)


def _entries(kind: str) -> dict[str, str]:
    """Return the first line of the docstring for each name of a kind."""
    if kind in FILES:
        from jaxssl.training import config

        return {name: _first_line(path) for name, path in config.packaged(FILES[kind]).items()}
    from jaxssl import components

    group = KINDS[kind]
    return {name: components.summary(group, name) for name in components.names(group)}


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]
