"""docs/losses.md against the code: examples run, tables are the signatures' and the presets'."""

import inspect
import math
import re
from importlib import import_module
from pathlib import Path

import jax
import pytest
from jax import numpy as jnp
from loss_cases import EXPORTED, loss_of
from tables import tables

TEXT = (Path(__file__).parents[1] / "docs" / "losses.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = {TEXT.count("\n", 0, block.start(1)): block[1] for block in BLOCK.finditer(TEXT)}
ELSEWHERE = {"block_size", "ring", "learn"}  # the page explains them once, for all losses
VALUES = {"log": math.log, "inf": math.inf, "required": inspect.Parameter.empty}

each_name = pytest.mark.parametrize("name", EXPORTED)


def entry(name: str) -> dict[str, list[list[str]]]:
    """The tables of a loss's entry."""
    (text,) = re.findall(rf"^### {name}\n(.*?)(?=^#|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    return tables(text)


def code(cell: str) -> str:
    """What stands between backticks; nothing in a cell without."""
    return "".join(re.findall("`(.*?)`", cell))


def value(text: str) -> str:
    return repr(eval(text, dict(VALUES)))


def defaults(function) -> list[tuple[str, str]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, repr(p.default)) for p in parameters if p.name not in {"pairs", *ELSEWHERE}]


@pytest.mark.parametrize("line", EXAMPLES)
def test_code_example_of_the_losses_page_computes_numbers(line):
    example, names = EXAMPLES[line], {}
    # Strict as all tests; optax itself is not.
    with jax.numpy_dtype_promotion("standard" if "import optax" in example else "strict"):
        exec(compile("\n" * line + example, "docs/losses.md", "exec"), names)
    arrays = [x for x in jax.tree.leaves(list(names.values())) if isinstance(x, jax.Array)]
    numbers = [x for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact)]
    assert numbers and not any(jnp.isnan(x).any() for x in numbers)  # memory begins at -inf


@each_name
def test_losses_page_lists_the_hyper_parameters_and_defaults_of_the_signature(name):
    found = [(code(row[0]), value(code(row[1]))) for row in entry(name).get("name", [])]
    expected = defaults(loss_of(name))
    objective = import_module(f"jaxssl.losses.{name}").objective
    # Its further arguments, and those that mean or default to something else.
    further = [pair for pair in defaults(objective) if pair not in expected]
    assert found == expected + further
    marked = [row[3].startswith("objective:") for row in entry(name).get("name", [])]
    assert marked == [False] * len(expected) + [True] * len(further)


@each_name
def test_losses_page_lists_the_presets_of_the_code(name):
    rows = entry(name).get("preset", [])
    found = {code(row[0]): value(f"dict({code(row[1])})") for row in rows}
    presets = getattr(import_module(f"jaxssl.losses.{name}"), "PRESETS", {})
    assert found == {preset: repr(settings) for preset, settings in presets.items()}
    assert len(rows) == len(found)


def test_losses_page_lists_every_loss_once_and_in_order():
    chooser = tables(TEXT[: TEXT.index("\n## ")])["loss"]
    names = [re.fullmatch(r"\[`(\w+)`\]\(#(\w+)\)", row[0]).groups() for row in chooser]
    assert sorted(name for name, _ in names) == EXPORTED
    assert names == [(name, name) for name in re.findall(r"^### ([a-z_]+)$", TEXT, re.MULTILINE)]
