"""Sentences around class names: what a zero-shot classifier compares images with.

The features of a class are the mean over its sentences (Radford et al., Learning Transferable
Visual Models From Natural Language Supervision, 2021, section 3.1.4).
"""

from collections.abc import Iterable

from jaxssl.errors import UserError, suggest

# ensemble: templates, each with one place for the class name
PROMPTS: dict[str, tuple[str, ...]] = {
    "plain": ("{}",),
    "photo": ("a photo of a {}.",),
    # What CLIP's authors found best for ImageNet, one after the other, of their eighty (notebook
    # "Prompt Engineering for ImageNet" of the released code); "itap" is "I took a picture".
    "simple7": (
        "itap of a {}.",
        "a bad photo of the {}.",
        "a origami {}.",
        "a photo of the large {}.",
        "a {} in a video game.",
        "art of the {}.",
        "a photo of the small {}.",
    ),
    # Ours, for handwritten digits.
    "digits": (
        "a handwritten {}",
        "the digit {} written by hand",
        "the number {} in handwriting",
        "someone wrote the digit {} with a pen",
        "a scan of a handwritten number {}",
    ),
}
# How digits are said; sets of them name their classes by the figure.
SPOKEN = {
    "0": "zero",
    "1": "one",
    "2": "two",
    "3": "three",
    "4": "four",
    "5": "five",
    "6": "six",
    "7": "seven",
    "8": "eight",
    "9": "nine",
}


def fill(ensemble: str, class_names: Iterable[str]) -> list[list[str]]:
    """The sentences of every class.

    Args:
        ensemble: a name in `PROMPTS`.
        class_names: of all classes, in their order. The ensemble "digits" speaks "0" to "9" as
            `SPOKEN`; all other names are taken as they are, underscores too.

    Returns:
        For each class one sentence a template, in the templates' order.

    Raises:
        UserError: if there is no such ensemble.
    """
    if ensemble not in PROMPTS:
        raise UserError(f"ensemble {ensemble!r} is unknown{suggest(ensemble, PROMPTS)}")
    spoken = SPOKEN if ensemble == "digits" else {}
    names = [spoken.get(name, name) for name in class_names]
    return [[template.format(name) for template in PROMPTS[ensemble]] for name in names]
