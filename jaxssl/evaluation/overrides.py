"""Command-line overrides of an evaluation: another data set, or details of a weights file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxssl.errors import UserError
from jaxssl.pretrained import weights
from jaxssl.pretrained.load import is_run
from jaxssl.training.config import read_config, values
from jaxssl.training.config.overrides import apply_overrides
from jaxssl.training.config.trust import data_paths, require_data


def _parse_numbers(text: str) -> tuple[float, ...]:
    """Parse numbers with commas between them, such as "0.5,0.5,0.5" or "(0.5,)"."""
    return tuple(float(number) for number in text.strip("()").split(",") if number.strip())


# Maps an option of a weights file to its parser. Options that are not listed are text.
PARSERS = {"num_heads": int, "layers": int, "size": int, "crop": float}
PARSERS |= {"mean": _parse_numbers, "std": _parse_numbers}
# Maps a config key to the option that states its value for a weights file, which has no config.
WEIGHTS_OPTIONS = {f"net.{name}": name for name in weights.NET_OPTIONS}
WEIGHTS_OPTIONS |= {f"inputs.{name}": name for name in weights.INPUT_OPTIONS}


def split_overrides(
    overrides: Sequence[tuple[str, str]], command: str = "eval"
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Separate command-line overrides of data settings from options of a weights file.

    Args:
        overrides: (key, text) from the command line.
        command: name of the command. Only "eval" takes data settings.

    Returns:
        The overrides of "data.KEY" as they are, and the parsed options of a weights file without
        the name of their group, as `jaxssl.pretrained.weights.load` takes them.

    Raises:
        UserError: if a key is neither, or a value cannot be parsed.
    """
    data, options = [], {}
    for key, text in overrides:
        if key.startswith("data.") and command == "eval":
            data.append((key, text))
        elif key in WEIGHTS_OPTIONS:
            name = WEIGHTS_OPTIONS[key]
            try:
                options[name] = PARSERS.get(name, str)(text)
            except ValueError as error:
                raise UserError(f"--config.{key} expects a number, got {text!r}") from error
        else:
            images = " With --config.data.KEY it evaluates on other images."
            raise UserError(
                f"jaxssl {command} has no --config.{key}: a run has its own config."
                f"{images if command == 'eval' else ''} For a weights file it takes "
                f"{', '.join(f'--config.{name}' for name in WEIGHTS_OPTIONS)}"
            )
    return data, options


def data_config(
    path: Path,
    defaults: ConfigDict,
    dataset: str | None,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    trust: bool = False,
) -> ConfigDict | None:
    """Return the config group `data` with overrides, or None to evaluate on the run's data set.

    Args:
        path: workdir of a run, or a weights file.
        defaults: defaults of the group, used for another data set.
        dataset: name of another data set; None for the run's.
        overrides: ("data.KEY", text) from the command line.
        trust: whether to use data that only the config of the run names.

    Raises:
        UserError: if a key is unknown or out of range, the config of the run cannot be read, the
            run names data that this user has not trained with, or no data set is named for a
            weights file.
    """
    if dataset is None and not overrides:
        return None
    data = defaults.copy_and_resolve_references()
    named = {key.removeprefix("data.") for key, _ in overrides}
    if is_run(path):
        config = read_config(path)
        values.add_later_keys(config)
        run = config.data
        inherited = run if dataset is None else ConfigDict({"dir": run.dir})
        require_data({k: v for k, v in inherited.items() if k not in named}, path, trust)
        data = run if dataset is None else data
        data.dir = run.dir
        data.context = run.get("context", data.context)  # number of tokens of the text network
    elif dataset is None and "name" not in named:
        raise UserError(f"name the data set to evaluate {path} on: --dataset NAME")
    if dataset is not None:
        data.name = dataset
    config = ConfigDict({"data": data})
    apply_overrides(config, overrides)
    values.check_ranges({key: values.flat_keys(config)[key] for key, _ in overrides})
    config.data.update(data_paths(config.data))
    return config.data
