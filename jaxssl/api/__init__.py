"""Train and evaluate encoders and embed images with them, from Python.

These functions are available as `jaxssl.train`, `jaxssl.evaluate` and `jaxssl.embed`:

    run = jaxssl.train("digits", data=(images, labels), workdir="runs/mine")
    rows = jaxssl.evaluate(run, ["knn", "linear"])
    features = jaxssl.embed(run, images)
"""

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxssl.api import data_argument, python_objects
from jaxssl.buckets import as_path
from jaxssl.components import Settings
from jaxssl.data.splits import Splits
from jaxssl.errors import Stopped, UserError, suggest
from jaxssl.evaluation import embedding, pretrain
from jaxssl.evaluation import run as evaluation
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.pretrained.load import load_pretrained
from jaxssl.report.results import Row, read_results
from jaxssl.report.run_report import write_report
from jaxssl.training import config as configs
from jaxssl.training.config import values
from jaxssl.training.config.overrides import apply_overrides
from jaxssl.training.output import compile_cache, logs, metrics_writer
from jaxssl.training.workdir import checkpoint, run_record
from jaxssl.training.workdir.opening import resume_config

# A name, {"name": ..., arguments}, or a Python object in place of the name.
Component = str | Settings | Any
EVALUATE_OPTIONS = frozenset(inspect.signature(evaluation.evaluate).parameters) - {
    *("encoder_or_path", "protocols", "data", "splits"),
}


@dataclass(frozen=True)
class Report:
    """The HTML report of a run, which notebooks show inline.

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
        # The run is found again after a change of the working directory.
        object.__setattr__(self, "workdir", as_path(self.workdir).absolute())
        configs.read_config(self.workdir)  # raises an error if the folder holds no run

    def __fspath__(self) -> str:  # noqa: D105
        return str(self.workdir)

    @property
    def config(self) -> ConfigDict:
        """The config of the run."""
        return configs.read_config(self.workdir)

    @property
    def metrics(self) -> list[metrics_writer.Row]:
        """The metrics of the logged steps, a dict with "step" for each."""
        return metrics_writer.read_metrics(self.workdir / "metrics.jsonl")

    def __getstate__(self) -> dict[str, object]:
        """Leave out the encoder, which has functions that cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name != "_encoder"}

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

    @property
    def encoder(self) -> PretrainedEncoder:
        """The encoder of the last checkpoint, which is read again after more training."""
        encoder = vars(self).get("_encoder")
        if not encoder or checkpoint.steps(self.workdir)[-1:] != [encoder.metadata["step"]]:
            encoder = load_pretrained(self.workdir)
            object.__setattr__(self, "_encoder", encoder)
        return encoder

    @property
    def report(self) -> Report:
        """The HTML report of the run, which is written if it is older than metrics or results."""
        path = self.workdir / "report.html"
        sources = [self.workdir / name for name in ("metrics.jsonl", "results.json")]
        newest = max((source.stat().st_mtime for source in sources if source.exists()), default=0)
        is_current = path.exists() and path.stat().st_mtime >= newest
        return Report(path if is_current else write_report(self.workdir))


def get_config(name: str | Path, *, trust: bool = False) -> ConfigDict:
    """Return a config with all values, to be changed and passed to `train`.

        config = jaxssl.get_config("cifar10_baselines:simclr")
        config.batch_size = 64
        config.loss = {"name": "auc_cl"}  # with the defaults of this loss

    Args:
        name: a packaged config, possibly with a variant, a Python file with get_config(), or the
            config.json of a run.
        trust: as for `jaxssl.load_encoder`, for the config.json of a run.

    Raises:
        UserError: if the config does not exist.
    """
    config = ConfigDict(configs.load(name, trust=trust).to_dict())
    for group in filter(config.get, configs.GROUPS):
        # A group that is replaced as a whole loses this mark.
        object.__setattr__(config[group], "_chosen", _choice(config[group]))
    return config


def _choice(group: ConfigDict) -> tuple[object, object]:
    return group.get("name"), group.get("preset")


def train(
    config: str | Path | ConfigDict,
    *,
    data: object = None,
    net: Component | None = None,
    loss: Component | None = None,
    method: Component | None = None,
    augment: Component | None = None,
    init: Run | str | Path | None = None,
    workdir: str | Path | None = None,
    trust: bool = False,
    **settings: object,
) -> Run:
    """Pretrain and evaluate an encoder. The same call again resumes an interrupted run.

        run = jaxssl.train("digits", epochs=3, loss="nt_xent", **{"loss.temperature": 0.2})

    Args:
        config: a packaged config's name, such as "auc_cl:cifar10", a Python file with
            get_config(), or a `ConfigDict`, such as from `get_config`.
        data: data set that replaces the config's. One of: the name of a data set; the path of a
            folder or an archive of pictures, or of an .npy, .npz, .csv or .parquet file; images; a
            pair (images, labels); or (train, test), of any of these but names, folders and
            archives. See `jaxssl.data.opening.in_memory.load_splits`.
        net: network in place of the config's: a name, {"name": ..., arguments}, or a Python object
            such as a Linen module, an NNX class or a pair of functions (init, apply). See
            `jaxssl.training.config.custom.make_factory` for the objects of each kind.
        loss: loss in place of the config's, in the same forms.
        method: training scheme in place of the config's, in the same forms.
        augment: augmentation in place of the config's, in the same forms.
        init: run or weights file that the backbone starts from, in place of `config.init`.
        workdir: folder for everything that the run writes. Default: runs/ and the config's name.
        trust: whether to execute Python files that are named by a run in ``config`` or ``init``,
            even if this user has not trained with them.
        **settings: values of config keys, as ``--config.KEY=VALUE`` on the command line. The group
            may be left out of a key that only one group has, so that ``lr`` is "optim.lr".

    Returns:
        The run, with its metrics, results, encoder and report.

    Raises:
        UserError: if an argument is invalid, in which case nothing has been written.
        KeyboardInterrupt: if the run is stopped. A checkpoint is written first.
    """
    if not isinstance(config, ConfigDict | str | os.PathLike):
        kind = type(config).__name__
        raise UserError(f"the config must be a name, a file or a ConfigDict, got {kind}")
    if isinstance(config, ConfigDict):
        if workdir is None:
            raise UserError("a config from Python has no name; choose a folder with workdir=...")
        for group in filter(config.get, configs.GROUPS):
            if getattr(config[group], "_chosen", None) not in (None, _choice(config[group])):
                raise UserError(
                    f"{group}.name or {group}.preset has changed in the config, but the other "
                    f"values of {group!r} are those of the old choice; replace the whole group: "
                    f'config.{group} = {{"name": ...}}'
                )
        run_config = ConfigDict(config.to_dict())
    else:
        run_config = get_config(config, trust=trust)
        workdir = workdir or Path("runs") / configs.run_name(config)
    for group, value in (("net", net), ("loss", loss), ("method", method), ("augment", augment)):
        if value is not None:
            run_config[group] = ConfigDict(_component(group, value))
    if init is not None:
        if not isinstance(init, str | os.PathLike):
            kind = type(init).__name__
            raise UserError(f"init must be a run, a workdir or a weights file, got {kind}")
        run_config.init = os.fspath(init)
    overrides, splits = list(settings.items()), None
    if data is not None:
        with logs.quiet():  # The config is completed, and logged, again below.
            # The split of `data` depends on the overrides.
            run_config.data = configs.complete(run_config, overrides).data
        splits = data_argument.use(run_config, data)
    named = run_config.data.to_dict()
    run_config = configs.complete(run_config, overrides)
    if splits:
        data_argument.require_unset(key for key in named if run_config.data[key] != named[key])
    return _train(run_config, as_path(workdir), splits, trust)


def resume(
    run: Run | str | Path,
    extend_to: float | None = None,
    *,
    data: object = None,
    trust: bool = False,
    **settings: object,
) -> Run:
    """Resume a run with the config in its workdir, or extend it to more epochs.

        run = jaxssl.resume("runs/digits", extend_to=200)

    Args:
        run: a run or its workdir.
        extend_to: epochs of the longer run, which has the schedules of a run of that length from
            the last checkpoint on. Default: the epochs of the run.
        data: the data of the run, if they were given to `train` as Python objects. A `Run` that
            `train` has returned keeps them.
        trust: as for `jaxssl.load_encoder`, for the config of this run and the run that its `init`
            names.
        **settings: config keys that do not change the result, such as ``data.workers``.

    Raises:
        UserError: if the run does not exist, or an argument is invalid.
        KeyboardInterrupt: as `train`.
    """
    folder = as_path(run)
    config = resume_config(folder, extend_to, list(settings.items()), trust=trust)
    splits = run.splits if isinstance(run, Run) else None
    splits = splits if data is None else data_argument.use(config, data)
    return _train(config, folder, splits, trust)


def _train(config: ConfigDict, folder: Path, splits: Splits | None, trust: bool) -> Run:
    compile_cache.enable()
    try:
        pretrain.train(config, folder, splits, trust=trust)
    except SystemExit:
        raise Stopped(f"training in {folder} was interrupted; repeat the call to resume") from None
    return Run(folder, splits)


def evaluate(
    encoder: Run | PretrainedEncoder | str | Path,
    protocols: Sequence[str] | str,
    *,
    data: Any = None,
    **options: Any,
) -> list[Row]:
    """Evaluate an encoder with protocols, without training it.

    Args:
        encoder: a run, a workdir, a weights file, or an encoder.
        protocols: names such as "knn" or "linear:fast", in a list or joined by commas, see
            `jaxssl list protocols`.
        data: data set with labels, as for `train`. Without a test split, the examples are split as
            the run split them. Default: the run's data set. Required if the run was trained on
            Python objects and is opened by its path, because they are not stored.
        **options: ``step``, ``kinds``, ``layer``, ``seed``, ``out`` and ``trust`` of
            `jaxssl.evaluation.run.evaluate`, ``weights_options`` of a weights file, such as
            ``{"num_heads": 6}`` (see `load_encoder`), and settings of ``data``, such as
            ``**{"data.test_split": "val"}``.

    Returns:
        A dict for each result with "protocol", "metric", "value", "std", "features" and more. For a
        run they are in its results.json too.

    Raises:
        UserError: if an argument is invalid, or a protocol does not fit the data.
    """
    compile_cache.enable()
    given: Any = protocols
    if isinstance(given, str):  # "knn,linear", as on the command line
        given = [given] if ".py:" in given else [name.strip() for name in given.split(",")]
    names: list[Any] = [given] if callable(given) or not isinstance(given, Iterable) else [*given]
    for name in names:
        if not isinstance(name, str):
            advice = "; put it into a file and name it: file.py:NAME" if callable(name) else ""
            raise UserError(f"protocols are names, got {type(name).__name__}{advice}")
    of_data = {key: options.pop(key) for key in list(options) if key.startswith("data.")}
    for key in options.keys() - EVALUATE_OPTIONS:
        raise UserError(f"evaluate() has no option {key!r}{suggest(key, EVALUATE_OPTIONS)}")
    if of_data and data is None:
        raise UserError(f"{next(iter(of_data))} needs data=, the data set that it belongs to")
    target = _encoder_or_path(encoder, options.get("step"))
    if data is not None:
        settings = configs.load("base")
        loading = {key: options[key] for key in ("step", "trust") if key in options}
        loading |= options.get("weights_options") or {}
        settings.data.update(data_argument.settings(target, data, loading))
        apply_overrides(settings, list(of_data.items()))
        values.check_ranges({key: values.flat_keys(settings)[key] for key in of_data})
        options["splits"] = data_argument.use(settings, data)
        if options["splits"]:
            data_argument.require_unset(key.removeprefix("data.") for key in of_data)
        options["data"] = settings.data
    elif isinstance(encoder, Run):
        options["splits"] = encoder.splits
    if options.get("out") is not None:
        options["out"] = as_path(options["out"])
    return evaluation.evaluate(target, names, **options)


def embed(
    encoder: Run | PretrainedEncoder | str | Path,
    images: object,
    out: str | Path | None = None,
    *,
    layer: str = "backbone",
    step: int | str | None = None,
    trust: bool = False,
    on_error: str = "stop",
) -> np.ndarray:
    """Return the embeddings of images, [n, f] float32, and write them to a file if asked.

    Args:
        encoder: a run, a workdir, a weights file, or an encoder.
        images: uint8 [n, h, w, c], a list of images, one image, or the path of a picture, a folder
            or an archive of pictures. See `jaxssl.evaluation.embedding.embed`.
        out: file to write, .npy or .parquet, with the names of the pictures.
        layer: "backbone" or "projector".
        step: step of a run's checkpoint, "last" (the default) or "best".
        trust: whether to execute the Python files that the config of a run names, even if this user
            has not trained with them.
        on_error: "stop", or "skip" to leave out pictures that cannot be read.

    Raises:
        UserError: if an argument is invalid.
    """
    compile_cache.enable()
    target = _encoder_or_path(encoder, step)
    if not isinstance(target, PretrainedEncoder):
        target = load_pretrained(target, step, trust=trust)
    options = {"layer": layer, "out": as_path(out) if out else None, "on_error": on_error}
    return embedding.embed(target, images, **options)


def _encoder_or_path(encoder: object, step: int | str | None) -> PretrainedEncoder | Path:
    """Return a `PretrainedEncoder` unchanged, and a run, workdir or weights file as its path.

    Raises:
        UserError: if it is none of these, or if a step is given for a `PretrainedEncoder`.
    """
    if isinstance(encoder, PretrainedEncoder):
        if step is not None:
            raise UserError(f"an encoder has no checkpoints; pass the run, or remove step {step!r}")
        return encoder
    if not isinstance(encoder, str | os.PathLike):
        kind = type(encoder).__name__
        raise UserError(f"the encoder must be a run, a workdir or a weights file, got {kind}")
    return as_path(encoder)


def _component(group: str, value: object) -> dict[str, object]:
    """Return the config group of a component. A Python object gets a name."""
    settings = dict(value) if isinstance(value, Mapping | ConfigDict) else {"name": value}
    if not isinstance(settings.get("name", ""), str):
        settings["name"] = python_objects.register(group, settings["name"])
    return settings
