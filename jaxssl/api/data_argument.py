"""The argument ``data`` of `jaxssl.train` and `jaxssl.evaluate`: names, folders, Python objects."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.buckets import is_bucket
from jaxssl.data import IN_MEMORY
from jaxssl.data.decoders.files import ARCHIVES
from jaxssl.data.opening import in_memory, items, tar_shards
from jaxssl.data.source import known_names
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.pretrained.load import is_run, load_pretrained
from jaxssl.training import config as configs
from jaxssl.training.config import trust, values

# Settings of `config.data` for Python objects. The key "path" is their digest.
OF_OBJECTS = {
    "name": IN_MEMORY,
    "train_split": "train",
    "bank_split": "",
    "test_split": "test",
    "classes": "",
    "labels": "",
}


def require_unset(keys: Iterable[str]) -> None:
    """Raise UserError if one of ``keys`` does not apply to data from Python objects."""
    for key in keys:
        if key in (*OF_OBJECTS, "path"):
            raise UserError(
                f"data.{key} does not apply to data from Python; pass data=(train, test)"
            )


def use(config: ConfigDict, data: object) -> Splits | None:
    """Set `config.data` for ``data``, and return the splits of a Python object, otherwise None."""
    with config.unlocked(), config.data.unlocked():
        if isinstance(data, str) and is_bucket(data):
            config.data.name, config.data.path = "folder", data
            return None
        if isinstance(data, str):
            if data in known_names() or not os.path.exists(os.path.expanduser(data)):
                # A name of TFDS may have a config and a version: imagenet_resized/32x32:0.1.0.
                known = re.split("[/:]", data)[0] in known_names()
                is_path = os.sep in data or data.lower().endswith((*ARCHIVES, *items.SUFFIXES))
                if is_path and not known and not components.is_custom(data):
                    raise UserError(f"data={data} does not exist")
                config.data.name = data
                if data not in ("folder", tar_shards.NAME) and not components.is_custom(data):
                    config.data.channels = 0  # the data set's
                return None
        if isinstance(data, str | Path):
            path = Path(os.path.expanduser(data))
            if not path.exists():
                raise UserError(f"data={data} does not exist")
            if path.is_dir() or path.name.lower().endswith(ARCHIVES):
                config.data.name, config.data.path = "folder", os.path.abspath(path)
                return None
        splits, digest = in_memory.load_splits(data, **in_memory.split_options(config.data))
        if config.data.name != IN_MEMORY:  # A resumed run has its own number of workers.
            config.data.workers = 0  # worker processes would copy the examples
        path = f"sha256:{digest[:16]}"  # A run resumes only with the same path.
        config.data.update({**OF_OBJECTS, "path": path})
    return splits


def settings(
    encoder: PretrainedEncoder | Path, data: object, loading: Mapping[str, Any]
) -> dict[str, object]:
    """Return how to read data from Python for an encoder, as far as encoder and run tell.

    These are the split into training and test examples, the number of tokens of a caption, and the
    channels of pictures, or the folder of prepared data sets.

    Args:
        encoder: an encoder, the workdir of a run, or a weights file.
        data: as for `evaluate`.
        loading: arguments of `load_pretrained`.
    """
    if isinstance(encoder, PretrainedEncoder):
        config = encoder.metadata.get("config") or {}
    else:
        config = configs.read_config(encoder) if is_run(encoder) else {}
    is_name = isinstance(data, str) and re.split("[/:]", data)[0] in known_names()
    names = ["test_fraction", "split_seed", "context", *(["dir"] if is_name else [])]
    settings = {name: config["data"][name] for name in names if name in config.get("data", {})}
    for name, value in settings.items():  # The config of a run may have been forged.
        values.require(f"data.{name}", value, values.TYPES[f"data.{name}"])
    if is_name:
        trust.require_data(settings, "the run", bool(loading.get("trust")))
        return settings
    if not isinstance(encoder, PretrainedEncoder):
        encoder = load_pretrained(encoder, **loading)
    return {**settings, "channels": getattr(encoder.inputs, "channels", 0)}  # 0: no images
