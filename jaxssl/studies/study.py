"""Data classes of studies. A study is an experiment that tests claims of a paper.

A study is a file of `jaxssl/studies/` with ``CLAIMS``, its claims from claims.toml by short names,
and ``run(setting) -> Findings``. It may have ``FLAGS``, the accepted flags among "methods",
"batch_sizes", "equal_steps", "workdir", "finished" and "earlier". ``UNUSED`` names the flags among
"scale", "dataset", "seeds" and "config" without effect (with --workdir: ``UNUSED_WITH_WORKDIR``).
``PAPER`` selects the config of the scale "paper", as in "paper_tcl". `jaxssl study` finds a study
by its file name.
"""

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from matplotlib.figure import Figure

from jaxssl.components import Settings
from jaxssl.configs import studies as scales
from jaxssl.errors import UserError, suggest

T = TypeVar("T")


class Setting(NamedTuple):
    """Scale, seeds, output folder and overrides of a study.

    Attributes:
        scale: name of a variant of `configs/studies.py`.
        config: name of the config from which every run differs in some values.
        dataset: `data.name` of all runs, "" for the config's.
        seeds: number of seeds 0, 1, ...
        out: folder of the runs and of the files that the study writes.
        overrides: (dotted key, text) from the command line, for all runs.
        methods: names of `jaxssl.studies.compared_methods.METHODS`, () for the study's default.
        batch_sizes: () for the study's default.
        workdir: a finished run to analyse, or None.
        equal_steps: train all batch sizes for the same number of steps instead of epochs.
        finished: report the finished runs of a grid and train nothing.
        earlier: JSON document of an earlier command whose runs count as finished, or None.
    """

    scale: str
    config: str
    dataset: str
    seeds: int
    out: Path
    overrides: tuple[tuple[str, str], ...] = ()
    methods: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    workdir: Path | None = None
    equal_steps: bool = False
    finished: bool = False
    earlier: Path | None = None


class Claim(NamedTuple):
    """A claim of a paper that a study tests, with the place in the paper.

    Attributes:
        text: the tested claim in our words. A threshold that we chose is marked "ours".
        source: paper and place, as in "DeCL, Table 1", or "ours, no paper" if no paper claims it.
        quote: the paper's own words, "" if it only has numbers.
        published: the paper's numbers, in words.
        difference: the difference that the paper reports, in the unit of our measurement (the
            smallest of several), or None.
    """

    text: str
    source: str
    quote: str = ""
    published: str = ""
    difference: float | None = None


HOLDS, SMALLER, OPPOSITE = "holds", "smaller than claimed", "opposite"
REFUTED, UNDECIDED = "does not hold", "cannot be told"
VERDICTS = (HOLDS, SMALLER, OPPOSITE, REFUTED, UNDECIDED)


class Verdict(NamedTuple):
    """Measurement of a claim in words, and whether the claim holds (None: undecided).

    Attributes:
        measured: in words.
        holds: whether the claim holds.
        failure: how a claim about a difference does not hold: `SMALLER` or `OPPOSITE`.
    """

    measured: str
    holds: bool | None
    failure: str = REFUTED

    @property
    def word(self) -> str:
        """Return the verdict in words, such as "holds"."""
        if self.holds is None:
            return UNDECIDED
        return HOLDS if self.holds else self.failure

    def after(self, text: str) -> "Verdict":
        """Return the verdict with ``text`` and a colon before the measurement."""
        return self._replace(measured=f"{text}: {self.measured}")


class Table(NamedTuple):
    """Table of texts in a study. The first cell of a row is the head of the row."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Picture(NamedTuple):
    """Figure of a study with file name (without suffix), description and caption."""

    name: str
    figure: Figure
    alt: str
    caption: str


class Findings(NamedTuple):
    """Tables, figures and verdicts of a study.

    Attributes:
        tables: in the order of the page.
        pictures: in the order of the page.
        verdicts: by the names of ``CLAIMS``, without claims that were not measured.
        data: all numbers, for the JSON document.
        where: data set, number of seeds and epochs, in words.
    """

    tables: Sequence[Table]
    pictures: Sequence[Picture]
    verdicts: Mapping[str, Verdict]
    data: Settings
    where: str


@functools.cache
def claims_file() -> Settings:
    """Read claims.toml, the list of all claims of the papers."""
    path = Path(__file__).with_name("claims.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read_claims(study: str) -> dict[str, Claim]:
    """Read the claims of a study from claims.toml."""
    return {name: Claim(**fields) for name, fields in claims_file().get(study, {}).items()}


def at_one_size(findings: Findings, claims: Mapping[str, Claim]) -> Findings:
    """Return the findings at a single batch size without its confirmations of claims about all.

    A claim is about all batch sizes if its text says "at every batch size" or "at any batch size".
    """
    verdicts = dict(findings.verdicts)
    for key, verdict in verdicts.items():
        if verdict.holds and re.search("at (every|any) batch size", claims[key].text):
            verdicts[key] = verdict._replace(holds=None)
    return findings._replace(verdicts=verdicts)


def published_tables(study: str) -> list[Table]:
    """Read the paper's table that belongs to a study from claims.toml, or return []."""
    published = claims_file()["published"]
    return [Table(**published[study])] if study in published else []


def scale_value(setting: Setting, values: Mapping[str, T]) -> T:
    """Return the value that belongs to the scale of a study.

    A scale without a value takes the value of "paper", but "medium" takes the value of "small".
    """
    other = values["small" if setting.scale == "medium" else "paper"]
    return values.get(setting.scale, other)


def scale_config(scale: str, paper: str = "") -> str:
    """Return the name of a scale's config: "studies:paper", or "studies:paper_tcl" if it exists.

    Raises:
        UserError: if the scale is of another paper than the study.
    """
    if scale == "paper_simclr" and paper not in ("", "simclr"):
        raise UserError(f"--scale paper_simclr is not for this study of {paper}; take paper")
    of_paper = f"{scale}_{paper}"
    return f"studies:{of_paper if of_paper in scales.VARIANTS else scale}"


def select_methods(
    requested: Sequence[str], default: Sequence[str], others: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the distinct methods of --methods, or the default ones if the flag is empty.

    Args:
        requested: the value of --methods.
        default: methods that a study compares by default.
        others: methods that it accepts on request.

    Raises:
        UserError: for any other method.
    """
    valid = (*default, *others)
    for name in requested:
        if name not in valid:
            raise UserError(f"--methods: {name!r} is not in this study{suggest(name, valid)}")
    return tuple(dict.fromkeys(requested or default))
