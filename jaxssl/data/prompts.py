"""Prompts for zero-shot classification: sentences that contain a class name.

The features of a class are the mean over its sentences (Radford et al., Learning Transferable
Visual Models From Natural Language Supervision, 2021, section 3.1.4).
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path

from jaxssl.errors import UserError, suggest

# Templates by prompt ensemble. {} stands for the class name.
PROMPTS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("prompts.toml").read_text("utf-8")
)
# The digit data sets name their classes "0" to "9", and a prompt needs the word.
SPOKEN = dict(
    zip("0123456789", "zero one two three four five six seven eight nine".split(), strict=True)
)


def fill(ensemble: str, class_names: Iterable[str]) -> list[list[str]]:
    """Fill each template of a prompt ensemble with every class name.

    Args:
        ensemble: a name in `PROMPTS`.
        class_names: the name of each class. Underscores, as in "aquarium_fish", become spaces. The
            ensemble "digits" replaces "0" to "9" by `SPOKEN`.

    Returns:
        For each class one sentence a template, in the order of the templates.

    Raises:
        UserError: if the ensemble is unknown.
    """
    if ensemble not in PROMPTS:
        raise UserError(f"ensemble {ensemble!r} is unknown{suggest(ensemble, PROMPTS)}")
    spoken = SPOKEN if ensemble == "digits" else {}
    names = [spoken.get(name, name).replace("_", " ") for name in class_names]
    return [[template.format(name) for template in PROMPTS[ensemble]] for name in names]
