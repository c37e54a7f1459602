"""The configs of the runs of a grid, and their folder names."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.components import Settings
from jaxssl.configs import studies
from jaxssl.data import kind, source
from jaxssl.data.batches import check_batch
from jaxssl.errors import UserError
from jaxssl.studies.study import Setting, scale_value
from jaxssl.training import config
from jaxssl.training.config.values import flat_keys, is_schedule

MAX_NAME = 120  # longest folder name of a run, in characters
Cell = Settings  # values of the config keys that one run changes


def combinations(values: Mapping[str, Sequence[object]]) -> list[Cell]:
    """Return a cell for every combination of values of config keys. The last key varies fastest."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def cell_config(setting: Setting, cell: Cell) -> ConfigDict:
    """Return the complete config of one cell of a grid."""
    values: dict[str, str] = {}
    if setting.dataset:
        values["data.name"] = setting.dataset
        if config.load(setting.config).data.train_split in ("train", "train+unlabelled"):
            whole = {"data.train_split": "train", "data.bank_split": ""}
            values |= studies.SPLITS.get(setting.dataset, whole)
    values |= dict(setting.overrides)
    values |= {key: _text(value) for key, value in cell.items()}
    # Runs are evaluated by the study, without a report page for each.
    values |= {"eval.protocols": "()"}
    return config.load(setting.config, list(values.items()))


def run_name(setting: Setting, cell: Cell) -> str:
    """Return a readable folder name: the values that differ from the scale's config.

    Studies that need the same run share it, as redundant values are left out of the name.
    """
    values = {**dict(setting.overrides), **{key: _text(value) for key, value in cell.items()}}
    values = dict(sorted(values.items()))
    bare = setting._replace(overrides=())  # `values` already holds the overrides.
    complete = cell_config(bare, values).to_dict()
    for key in list(values):
        # Names and presets are kept, because the defaults of other keys depend on them.
        if key != "seed" and not key.endswith((".name", ".preset")):
            others = {other: text for other, text in values.items() if other != key}
            if cell_config(bare, others).to_dict() == complete:
                values = others
    return safe_name(file_settings(values))


def file_settings(values: Mapping[str, str]) -> str:
    """Format settings for a file name, without paths and settings that do not change a result."""
    hidden = (*config.CHANGEABLE_KEYS, "data.path")
    return ",".join(f"{key}={text}" for key, text in values.items() if key not in hidden)


def safe_name(name: str) -> str:
    """Return a file name without special characters, which is shortened and distinct if long."""
    safe = "".join(c if c.isalnum() or c in ",=._-+" else "_" for c in name)
    if len(safe) <= MAX_NAME and safe == name:
        return safe
    return f"{safe[:MAX_NAME]}-{hashlib.sha1(name.encode()).hexdigest()[:8]}"


def batch_size_cells(setting: Setting, batch_sizes: Mapping[str, Sequence[int]]) -> dict[int, Cell]:
    """Return a grid cell for each requested batch size.

    Args:
        setting: with the batch sizes that the user names, if any.
        batch_sizes: the default by scale, see `scale_value`.
    """
    sizes = setting.batch_sizes or scale_value(setting, batch_sizes)
    return {size: batch_size_values(setting, size) for size in sizes}


def check_batch_sizes(configs: Iterable[ConfigDict]) -> None:
    """Raise UserError if a batch size does not fit the training split or the number of devices."""
    sizes: dict[str, int] = {}  # of training splits, by their settings
    for settings in configs:
        key = settings.data.to_json()
        if key not in sizes:
            sizes[key] = len(source.load_splits(settings.data, kind.of(settings).data).train)
        check_batch(settings.batch_size, sizes[key], distributed.make_mesh().size)


def batch_size_values(setting: Setting, size: int) -> Cell:
    """Return the config values of another batch size, with equal epochs or equal steps.

    With equal steps, the warm-up and the milestones have equal steps too.

    Raises:
        UserError: if steps are equal, and another value is a schedule with times in epochs.
    """
    if not setting.equal_steps:
        return {"batch_size": size}
    base = cell_config(setting, {})
    for key, value in flat_keys(base).items():
        if is_schedule(value) and value.get("unit") == "epochs":
            raise UserError(
                f"--equal_steps takes schedules in steps, but config key {key!r} has times in "
                'epochs; give them in steps, with unit="steps"'
            )
    images = len(source.load(base.data, base.data.train_split))
    steps = images // base.batch_size  # of an epoch
    if not steps:
        raise UserError(
            f"--equal_steps takes the steps of batch_size={base.batch_size}, and the training set "
            f"has {images} examples; set a smaller --config.batch_size"
        )
    longer = steps / max(1, images // size)
    milestones = tuple(epoch * longer for epoch in base.schedule.milestones)
    return {
        "batch_size": size,
        "total_steps": base.total_steps or round(base.epochs * steps),
        "schedule.warmup_epochs": base.schedule.warmup_epochs * longer,
        **({"schedule.milestones": milestones} if milestones else {}),
    }


def fixed_steps(setting: Setting) -> int:
    """Return the number of steps that all batch sizes train for, or 0 if they have equal epochs."""
    base = cell_config(setting, {})
    return batch_size_values(setting, base.batch_size).get("total_steps", base.total_steps)


def portable_config(settings: ConfigDict) -> dict[str, object]:
    """Return a config as JSON, with file names in place of absolute paths and of data.path."""

    def shorten(value: object) -> object:
        return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value

    document = jax.tree.map(shorten, json.loads(settings.to_json()))
    document["data"]["path"] = Path(document["data"]["path"]).name
    return document


def _text(value: object) -> str:
    """Format a config value as it would be written on the command line."""
    return value if isinstance(value, str) else repr(value)
