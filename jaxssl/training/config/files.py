"""Find config files and suites by path or by packaged name, and read configs from them."""

import inspect
from pathlib import Path

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.buckets import fetch, is_bucket
from jaxssl.errors import UserError, one_line, suggest


def split_variant(config: str | Path) -> tuple[str, str]:
    """Split "FILE:VARIANT" into file and variant. The variant is "" if there is none."""
    file, _, variant = str(config).rpartition(":")
    is_whole = file in ("", "gs") or Path(config).is_file()
    return (str(config), "") if is_whole else (file, variant)


def run_name(config: str | Path) -> str:
    """Return the name of a config for a folder: "auc_cl_cifar10" for "auc_cl:cifar10"."""
    file, variant = split_variant(config)
    return "_".join(filter(None, (Path(file).stem, variant)))


def find(path: str | Path, noun: str = "config") -> Path:
    """Return the file of a config or of a suite of data sets.

    Args:
        path: a Python file, or the name of a packaged file. Outside a checkout, "configs/NAME.py"
            and "configs/suites/NAME.py" are packaged files too.
        noun: "config" or "suite".

    Raises:
        UserError: if there is no such file and no such name.
    """
    if is_bucket(path) or Path(path).is_file():
        return fetch(path)
    files = components.packaged(noun)
    for name, file in files.items():
        if str(path) in (name, f"configs/{file.relative_to(components.CONFIGS).as_posix()}"):
            return file
    raise UserError(
        f"{noun} {str(path)!r} does not exist; expected a Python file or the name of a "
        f"packaged {noun}{suggest(str(path), files)}"
    )


def read(path: Path, variant: str = "") -> ConfigDict:
    """Execute a config file, and return what its get_config() or get_config(variant) returns.

    Args:
        path: a Python file. If it has `VARIANTS`, these are the names of its variants.
        variant: name of a variant, or "" if the file has none.

    Raises:
        UserError: if the file fails, returns no config, or has no such variant.
    """
    loaded, source = components.load_file(path, "config file"), f"config file {str(path)!r}"
    get_config = getattr(loaded, "get_config", None)
    if variant and get_config and not inspect.signature(get_config).parameters:
        raise UserError(f"{source} has no variants; leave ':{variant}' out")
    names = getattr(loaded, "VARIANTS", {})
    if names and variant not in names:
        fault = f"has no variant {variant!r}" if variant else "needs a variant, as in NAME:VARIANT"
        raise UserError(f"{source} {fault}{suggest(variant, names)}")
    try:
        config = get_config(*filter(None, [variant])) if get_config else None
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"{source} failed: {reason}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"{source} has no get_config() that returns a ConfigDict")
    return config
