"""Write jaxssl/losses/__init__.pyi, from which type checkers and editors read the signatures.

python tests/losses/stub.py
"""

import inspect
import subprocess
import sys
import typing
from pathlib import Path

import jax

from jaxssl import losses

PATH = Path(losses.__file__).with_suffix(".pyi")
HEADER = '''"""Signatures of `jaxssl.losses`, written by tests/losses/stub.py from the losses."""

from jax import Array

'''


def text() -> str:
    """Return the text of the stub: imports of all public names, then the two-array forms."""
    imports, functions = [], []
    for name, value in sorted(vars(losses).items()):
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if name in (*losses.VIEWS, *losses.TOWERS):
            functions.append(definition(name, inspect.signature(value)))
        elif getattr(value, "__module__", "").startswith("jaxssl.losses"):
            source = inspect.unwrap(value).__module__
            if source == losses.__name__:
                functions.append(definition(name, inspect.signature(value)))
            elif name not in ("bind", "on_arrays", "on_pairs"):
                imports.append(f"from {source} import {name} as {name}\n")
    constants = "VIEWS: tuple[str, ...]\nTOWERS: tuple[str, ...]\n\n"
    source = HEADER + "".join(sorted(imports)) + "\n" + constants + "".join(functions)
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(PATH), "-"]
    return subprocess.run(ruff, input=source, text=True, capture_output=True, check=True).stdout


class Source(str):
    """An annotation that a signature prints as it is."""

    __repr__ = str.__str__


def definition(name: str, signature: inspect.Signature) -> str:
    """Return the definition of a function without its body."""
    parameters = [
        p.replace(annotation=Source(annotation(p.annotation)))
        for p in signature.parameters.values()
    ]
    returned = Source(annotation(signature.return_annotation))
    return f"def {name}{inspect.Signature(parameters, return_annotation=returned)}: ...\n"


def annotation(value: object) -> str:
    """Return the source of a type."""
    parts = typing.get_args(value)
    if parts:
        return " | ".join(annotation(part) for part in parts)
    if value is jax.Array:
        return "Array"
    return "None" if value is type(None) else getattr(value, "__name__", str(value))


if __name__ == "__main__":
    PATH.write_text(text())
