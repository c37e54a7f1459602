"""Read weights of public implementations, and write ours under the same names.

`load` reads ResNets, ViTs and ConvNeXts with the names of `names.DIALECTS`, and files of `jaxssl
export`. See docs/weights.md.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, SupportsIndex

import flax.linen as nn
import jax
import numpy as np
import safetensors
from flax import traverse_util
from flax.typing import VariableDict
from jax import numpy as jnp

from jaxssl import components
from jaxssl.augment.views import Inputs
from jaxssl.buckets import fetch
from jaxssl.components import Settings
from jaxssl.errors import UserError, abbreviate, one_line, suggest
from jaxssl.models import heads
from jaxssl.models.encoder import PRECISIONS, Encoder
from jaxssl.pretrained import (
    architecture,
    folders,
    hub,
    input_settings,
    names,
    parameter_names,
    position_tables,
    timm_format,
    torch_file,
)
from jaxssl.pretrained.architecture import EncoderArrays, as_float32
from jaxssl.pretrained.encoder import PretrainedEncoder, Variables, require_valid
from jaxssl.pretrained.folders import EncoderSettings
from jaxssl.pretrained.pickle_reader import Inert

SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".tar")
# Options of `load`: settings of the network, and fields of `jaxssl.augment.views.Inputs`.
NET_OPTIONS = ("num_heads", "layers", "stem", "pool", "activation")
INPUT_OPTIONS = ("mean", "std", "crop", "size", "interpolation")
HEADER = "jaxssl"  # name of the metadata entry in exported files
# first bytes of the small file that Git LFS leaves in place of a large one
LFS_POINTER = b"version https://git-lfs"
MAX_LFS_POINTER = 1024  # largest pointer file in bytes
VERSION = 2  # version of the file format; version 1 has no digest of the arrays
# header entries that are from the metadata
ORIGIN = ("step", "checkpoint", "loss", "source", "positions", "resized_from")
CHECKED = ("net", "inputs", "precision")  # header entries that the digest of the arrays also covers

log = logging.getLogger("jaxssl")


class Content(NamedTuple):
    """The content of a weights file. Its arrays are read on demand.

    Attributes:
        arrays: by their dotted names.
        header: our metadata as JSON, None in files of other projects.
    """

    arrays: dict[str, names.Stored]
    header: str | None


def load(
    path: str | Path, *, fallback: Settings | None = None, **options: object
) -> PretrainedEncoder:
    """Load the backbone of a weights file, without running code that the file may contain.

    The encoder is recognised by its parameter names, at any depth of the checkpoint. Heads are
    ignored. The options override the header of files written by `jaxssl export`.

    Args:
        path: a file with one of `SUFFIXES`, or a folder that `folders` reads. Its JSON files give
            settings of the network and its inputs.
        fallback: settings of the network that apply unless the files state or imply others.
        **options: None keeps the setting in the file, or the default.

            - num_heads: attention heads of a ViT, by default as in public ViTs of its width.
            - stem: stem of a ResNet whose first kernel is 3 x 3: "cifar", or "cifar_wide" (padding
              of 2, as in solo-learn). By default "cifar_wide" for files of solo-learn.
            - pool: features of a ViT: "token" (class token), "mean" (over patches) or "attention".
            - activation: activation of a ViT's MLPs, such as "quick_gelu".
            - layers: blocks of a ViT, by default as many as in the file. A file with fewer blocks
              than public ViTs of its width may be incomplete, and needs this number to be loaded.
            - mean: mean of images in [0, 1], a number or one per channel, in [0, 1]. The default
              depends on the project of the file, see docs/weights.md.
            - std: standard deviation of images, in (0, 1], with the same defaults.
            - crop: as in `jaxssl.augment.views.Inputs`, in [0, 1]. timm calls it ``crop_pct``.
            - size: side length of the network's images in pixels, 1 to 32768. The learned positions
              of a ViT are interpolated to a new size.
            - interpolation: "bilinear" or "bicubic", for the resizing of images.

    Raises:
        UserError: if the file does not exist, is damaged or contains no supported network, if its
            names or shapes do not match the network, or if an option is unknown or out of range.
    """
    path = fetch(path)
    is_folder = folders.is_weights_folder(path)
    if not is_folder and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: a weights file must end with one of {', '.join(SUFFIXES)}")
    shard = re.search(r"-(\d+)-of-(\d+)\.", path.name)
    if not is_folder and shard and int(shard[2]) > 1:
        raise UserError(
            f"{path} is part {int(shard[1])} of {int(shard[2])} of a checkpoint; give the folder"
        )
    valid = (*NET_OPTIONS, *INPUT_OPTIONS)
    for name in options:
        if name not in valid:
            raise UserError(f"{name!r} is no option of a weights file{suggest(name, valid)}")
    given = EncoderSettings(
        {name: options[name] for name in NET_OPTIONS if options.get(name) is not None},
        {name: options[name] for name in INPUT_OPTIONS if options.get(name) is not None},
    )
    for name in ("num_heads", "layers"):
        number = given.net.get(name, 0)
        if isinstance(number, bool) or not isinstance(number, SupportsIndex):
            raise UserError(f"{name} must be a whole number, got {number!r:.80}")
    try:
        files = folders.weights_files(path) if is_folder else [path]
        for file in files:
            _require_content(file)
        beside = EncoderSettings()
        # A file with such a name is from a folder of transformers, timm or open_clip.
        if is_folder or path.name in folders.WEIGHTS_FILES:
            beside = folders.read_settings(path if is_folder else path.parent)
        with ExitStack() as stack:
            contents = [stack.enter_context(_open(file)) for file in files]
            arrays = {name: array for one in contents for name, array in one.arrays.items()}
            content = Content(arrays, contents[0].header)
            return _load(path, content, given, beside, fallback or {})
    except UserError:
        raise
    except (ValueError, OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or one_line(error, 600)
        raise UserError(f"{path} cannot be read: {reason}") from error
    except Exception as error:  # A damaged file may raise anything.
        reason = f"{type(error).__name__}: {one_line(error, 600)}"
        raise UserError(f"{path} is damaged, cut off or no weights file ({reason})") from error


def _require_content(file: Path) -> None:
    """Raise UserError for an empty file, and for a pointer that Git LFS has not replaced."""
    size = file.stat().st_size
    if size == 0:
        raise UserError(f"the weights file {file} is empty")
    if size < MAX_LFS_POINTER and file.read_bytes().startswith(LFS_POINTER):
        raise UserError(f"{file} is a pointer of Git LFS; fetch the file: git lfs pull")


def public_arrays(pretrained: PretrainedEncoder) -> dict[str, np.ndarray]:
    """Return the backbone's arrays by public name, as float32 in PyTorch's layout.

    The arrays of a user's network keep their layout. Their names are their paths, such as
    "params.Dense_0.kernel".

    Raises:
        ValueError: if the network has no public names.
    """
    net = pretrained.encoder.net
    if components.is_custom(pretrained.metadata["net"]["name"]):
        leaves = traverse_util.flatten_dict(pretrained.variables["net"], sep=".")
        return {name: np.asarray(leaf, np.float32) for name, leaf in leaves.items()}
    arrays = parameter_names.fixed_positions(net, pretrained.inputs.size)
    ours = traverse_util.flatten_dict(pretrained.variables["net"])
    for entry in parameter_names.entries(net, pretrained.variables["net"]):
        arrays[entry.name] = entry.to_public(np.asarray(ours[entry.path]))
    renamed = timm_format.rename(net, arrays)
    return {name: np.ascontiguousarray(array) for name, array in renamed.items()}


def header(pretrained: PretrainedEncoder) -> str:
    """Return the metadata of an exported weights file as JSON."""
    net, metadata = pretrained.variables["net"], pretrained.metadata
    apply = partial(pretrained.encoder.net.apply, train=False)
    features = jax.eval_shape(apply, net, _image(pretrained.inputs))
    entries = {
        "version": VERSION,
        "net": {**metadata["net"], "name": components.short_name(metadata["net"]["name"])},
        "inputs": pretrained.inputs._asdict(),
        "precision": pretrained.encoder.precision,
        "features": features.shape[1],
        **{name: metadata.get(name) for name in ORIGIN},
    }
    return json.dumps(entries | {"digest": _digest(entries, net)})


def _digest(entries: Mapping[str, object], variables: Mapping[str, object]) -> str:
    """Return the SHA-256 of the arrays and of `CHECKED`. Safetensors files have no checksum."""
    text = json.dumps([entries[name] for name in CHECKED], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for path, leaf in jax.tree.leaves_with_path(variables):
        array = np.ascontiguousarray(leaf, "<f4")
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@contextmanager
def _open(path: Path) -> Iterator[Content]:
    if path.suffix.lower() == ".safetensors":
        with safetensors.safe_open(path, framework="numpy") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
            metadata = file.metadata() or {}
        load = partial(_load_safetensors, path)
        arrays = {name: names.Stored(shape, partial(load, name)) for name, shape in shapes.items()}
        yield Content(arrays, metadata.get(HEADER))
        return
    with torch_file.opened(path) as (tree, read):
        if not isinstance(tree, dict):
            kind = "a module" if isinstance(tree, Inert) else type(tree).__name__
            raise ValueError(f"expected a state dict (torch.save(model.state_dict())), got {kind}")
        state = getattr(tree, "state", None)
        metadata = state.get("_metadata") if isinstance(state, dict) else None
        header = metadata.get(HEADER) if isinstance(metadata, dict) else None
        yield Content(architecture.flatten(tree, read), header)


def _load_safetensors(path: Path, name: str) -> np.ndarray:
    # The file is opened for each array, because an open file keeps the arrays it read in memory.
    with safetensors.safe_open(path, framework="numpy") as file:
        dtype = file.get_slice(name).get_dtype()
        if dtype.startswith(("F8_", "F6_", "F4")):  # NumPy has no such types.
            raise ValueError(
                f"the array {name} must have 16 bits a number or more, got {dtype}; "
                "convert it to bfloat16"
            )
        return file.get_tensor(name)


def _load(
    path: Path,
    content: Content,
    given: EncoderSettings,
    beside: EncoderSettings,
    fallback: Settings,
) -> PretrainedEncoder:
    """Build the network that a file describes, and read its variables.

    Args:
        path: the file or folder, for messages.
        content: the content of all files.
        given: settings of the user, which replace all others.
        beside: settings in JSON files, which replace settings inferred from the arrays.
        fallback: settings of the network where neither JSON files nor a header state them.
    """
    if content.header is None:
        arrays, entries = architecture.find_encoder(content.arrays), {}
        if given.net.get("pool") in ("token", "mean"):  # SigLIP's attention is not used then.
            kept = {k: v for k, v in arrays.arrays.items() if not k.startswith("attn_pool.")}
            arrays = arrays._replace(arrays=kept)
        config, inputs = architecture.infer(arrays, {**beside.net, **given.net}, fallback)
        inputs = inputs._replace(**beside.inputs)
    else:
        arrays, config, inputs, entries = _parse_header(content.header, content.arrays, given)
    for name in given.net:
        if not parameter_names.accepts(config.get("name"), name):
            raise UserError(f"{path} holds a {config['name']}, which has no {name}; leave it out")
    net, stated = parameter_names.make_net(config), inputs
    inputs = input_settings.override(inputs, net, **given.inputs)
    input_settings.check_limits(net, inputs.size)
    fitted, positions = position_tables.fit(arrays, net, inputs.size, entries)
    variables = _read_variables(net, inputs, fitted, path)
    if not entries:
        _log_choice(path, arrays, config, inputs)
    elif entries["version"] > 1:
        # The digest covers the positions before interpolation.
        original = variables
        if stated.size != inputs.size:
            whole = position_tables.fit(arrays, net, stated.size, entries).encoder
            original = _read_variables(net, stated, whole, path)
        if entries["digest"] != _digest(entries, original):
            raise ValueError(
                "the parameters do not match the digest in the file, which was changed"
            )

    metadata = {"source": hub.source_name(path), "checkpoint": "file", "net": config}
    metadata |= {**positions, **{name: entries.get(name) for name in ("step", "loss")}}
    precision = entries.get("precision", "float32")
    encoder = Encoder(net, heads.mlp(proj_layers=0), precision=precision)

    @jax.jit
    def init(key: jax.Array) -> Variables:
        image = _image(inputs)
        variables = net.init(key, jnp.zeros(image.shape, image.dtype), train=False)
        return {"net": {"batch_stats": {}, **variables}}

    return PretrainedEncoder(
        encoder, {"net": variables}, inputs, lambda seed: init(jax.random.key(seed)), metadata
    )


def _parse_header(
    text: str, stored: Mapping[str, names.Stored], given: EncoderSettings
) -> tuple[EncoderArrays, dict[str, object], Inputs, Settings]:
    """Return the arrays of an exported file, its network, inputs, and all entries of its header.

    The arrays get their common names.

    Raises:
        ValueError: if the header is not valid.
    """
    entries = json.loads(text)
    if entries["version"] not in (1, VERSION):
        raise ValueError(
            f"the file format's version must be 1 or {VERSION}, got {entries['version']!r:.20}"
        )
    inputs, net = input_settings.validate(entries["inputs"]), dict(entries["net"])
    if entries["precision"] not in PRECISIONS:
        raise ValueError(f"the precision in the header must be one of {', '.join(PRECISIONS)}")
    net |= given.net
    common = {names.translate(str(net.get("name")), name): x for name, x in stored.items()}
    arrays = EncoderArrays(names.combine(common), "", [], names.DIALECTS["timm's ViT"])
    return arrays, net, inputs, entries


def _read_variables(
    net: nn.Module, inputs: Inputs, arrays: EncoderArrays, path: Path
) -> VariableDict:
    """Read the network's variables from a weights file and check their names, shapes and numbers.

    Raises:
        ValueError: if the arrays do not match the network.
    """
    shapes = jax.eval_shape(partial(net.init, train=False), jax.random.key(0), _image(inputs))
    table = {entry.name: entry for entry in parameter_names.entries(net, shapes)}
    fixed = parameter_names.fixed_positions(net, inputs.size)
    stored = {name: array for name, array in arrays.arrays.items() if name not in fixed}
    in_some_block = {re.sub(r"\d+", "", name) for name in stored}
    for name, entry in table.items():
        is_optional = parameter_names.OPTIONAL.fullmatch(name)
        if is_optional and re.sub(r"\d+", "", name) not in in_some_block:
            zeros = partial(np.zeros, entry.shape, np.float32)
            stored[name] = names.Stored(entry.shape, zeros)
    mismatches = {
        "missing": [name for name in table if name not in stored],
        "unknown": [name for name in stored if name not in table],
        "of another shape": [
            f"{name} {list(stored[name].shape)}, expected {list(table[name].public_shape)}"
            for name in sorted(table.keys() & stored.keys())
            # Some projects store arrays with more or fewer axes of length 1.
            if _without_ones(stored[name].shape) != _without_ones(table[name].public_shape)
        ],
    }
    texts = [
        f"{len(items)} {fault}: {abbreviate(list(map(repr, items)))}"
        for fault, items in mismatches.items()
        if items
    ]
    if texts:
        raise ValueError(f"the arrays do not match the network: {'; '.join(texts)}")
    flat = {
        entry.path: entry.to_ours(as_float32(stored[name].load())) for name, entry in table.items()
    }
    variables = {"params": {}, "batch_stats": {}} | traverse_util.unflatten_dict(flat)
    require_valid(variables, path)
    return variables


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]


def _image(inputs: Inputs) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, inputs.size, inputs.size, inputs.channels), jnp.float32)


def _log_choice(
    path: Path, arrays: EncoderArrays, config: Mapping[str, object], inputs: Inputs
) -> None:
    """Log the loaded network, the prefix of its array names, the ignored names and the inputs."""
    settings = ", ".join(f"{key}={value}" for key, value in config.items() if key != "name")
    prefix = f", at {arrays.prefix!r}" if arrays.prefix else ""
    modules = sorted({_distinct_start(name, arrays.prefix) for name in arrays.other_names})
    ignored = f"; ignored: {abbreviate(modules, 6)}" if modules else ""
    mean, std = (", ".join(f"{x:g}" for x in numbers) for numbers in (inputs.mean, inputs.std))
    log.info("%s: %s (%s)%s%s", path.name, config["name"], settings, prefix, ignored)
    crop = inputs.crop if inputs.crop is None else f"{inputs.crop:g}"
    log.info(
        "%s: images of %d pixels, crop %s, %s, mean %s, std %s",
        *(path.name, inputs.size, crop, inputs.interpolation, mean, std),
    )


def _distinct_start(name: str, prefix: str) -> str:
    """Return an array's name up to and including the first dotted part that the prefix lacks."""
    parts = name.split(".")
    return ".".join(parts[: len(os.path.commonprefix([parts, prefix.split(".")])) + 1])
