"""A run as `jaxssl.train` returns it."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ml_collections import ConfigDict

from jaxssl.buckets import as_path
from jaxssl.components import Settings
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.pretrained.load import load_pretrained
from jaxssl.report.results import Row, read_results
from jaxssl.training import config as configs
from jaxssl.training.output import metrics_writer
from jaxssl.training.workdir import run_record


@dataclass(frozen=True)
class Report:
    """A report page, which notebooks show inline.

    Attributes:
        path: the HTML file.
    """

    path: Path

    def _repr_html_(self) -> str:
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run, read from its workdir.

    Functions that take the path of a run take a `Run` too.

    Attributes:
        workdir: folder of the run.
        splits: the data that were given to `train` as Python objects, which `evaluate` uses. None
            for a data set with a name, and for a run that is opened by its folder.
    """

    workdir: Path
    splits: Splits | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:  # noqa: D105
        object.__setattr__(self, "workdir", as_path(self.workdir))
        configs.read_config(self.workdir)  # raises an error if the folder holds no run

    def __fspath__(self) -> str:  # noqa: D105
        return str(self.workdir)

    @cached_property
    def config(self) -> ConfigDict:
        """All settings of the run."""
        return configs.read_config(self.workdir)

    @property
    def metrics(self) -> list[metrics_writer.Row]:
        """The metrics of the logged steps, a dict with "step" for each."""
        return metrics_writer.read_metrics(self.workdir / "metrics.jsonl")

    @property
    def init(self) -> Settings | None:
        """The report of the weights that the run started from, or None for random weights.

        Its entries are described by `jaxssl.pretrained.start.start`.
        """
        return run_record.read_init(self.workdir)

    @property
    def results(self) -> list[Row]:
        """The rows of results.json: protocol, metric, value, features and their settings."""
        return read_results(self.workdir)

    @cached_property
    def encoder(self) -> PretrainedEncoder:
        """The encoder of the last checkpoint."""
        return load_pretrained(self.workdir)

    @property
    def report(self) -> Report:
        """The report page of the run."""
        path = self.workdir / "report.html"
        if not path.exists():
            raise UserError(
                f"{self.workdir} has no report yet; write it: jaxssl report {self.workdir}"
            )
        return Report(path)
