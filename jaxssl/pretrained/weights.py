"""Weights of public codes in, ours out.

`load` reads ResNets and ViTs of torchvision, timm, MoCo-v3, solo-learn and DINO, and what
`jaxssl export` wrote. See docs/weights.md.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import safetensors
from jax import numpy as jnp

from jaxssl.augment.views import Inputs
from jaxssl.errors import UserError, one_line
from jaxssl.models import heads
from jaxssl.models.encoder import PRECISIONS, Encoder
from jaxssl.pretrained import architecture, input_settings, parameter_names, torch_file
from jaxssl.pretrained.architecture import Found, Read, as_float32, listed
from jaxssl.pretrained.encoder import PretrainedEncoder, require_finite

SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".tar")
HEADER = "jaxssl"  # the name of what files of ours know of themselves
VERSION = 2  # from 2 on with a digest
CHECKED = ("net", "inputs", "precision")  # of the header, what the digest holds beside the arrays

log = logging.getLogger("jaxssl")


class Named(NamedTuple):
    """An array of a .safetensors file."""

    name: str
    shape: tuple[int, ...]


def load(
    path: str | Path,
    *,
    num_heads: int | None = None,
    stem: str | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    crop: float | None = None,
    size: int | None = None,
) -> PretrainedEncoder:
    """The backbone in a weights file. No code that the file may hold is run.

    The encoder is found by its names, wherever it lies in the checkpoint; heads are left out.

    Args:
        path: a file of one of `SUFFIXES`.
        num_heads: of a ViT; by default one for each 64 of its width, MoCo-v3's 12 for its small
            one, and what a file of ours says.
        stem: of a ResNet whose first kernel is 3 x 3: "cifar", or "cifar_wide" (solo-learn's,
            with a padding of 2); by default the latter for files of solo-learn.
        mean: of images from 0 to 1, in [0, 1], of each channel or of all; by default what a file
            of ours says, else ImageNet's, with a 3 x 3 stem CIFAR-10's. So are the next three.
        std: likewise, in (0, 1].
        crop: share of the short side that a central square keeps, in [0, 1]; 0 takes all of the
            image. timm says it as ``crop_pct``.
        size: pixels a side, 1 to 8192. Learned positions of a ViT are for one size only.

    Raises:
        UserError: if there is no such file, it is damaged, holds no network that is known here, or
            its names or shapes are not those of the network; or a value is out of its range.
    """
    path = Path(path)
    given = {"mean": mean, "std": std, "crop": crop, "size": size}
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: weights files end with one of {', '.join(SUFFIXES)}")
    try:
        if not path.stat().st_size:
            raise UserError(f"{path} is empty")
        with _opened(path) as (tree, read, text):
            return _backbone(path, tree, read, text, num_heads, stem, given)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {one_line(error, 600)}") from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or one_line(error, 600)}"
        ) from error
    except Exception as error:  # a damaged file may raise anything
        what = f"{type(error).__name__}: {one_line(error, 600)}"
        raise UserError(f"{path} is damaged, cut off or no weights file ({what})") from error


def public(pretrained: PretrainedEncoder) -> dict[str, np.ndarray]:
    """A backbone's arrays by their public names, float32, as PyTorch lays them out.

    Raises:
        ValueError: if its network has no public names.
    """
    module, tree = pretrained.encoder.net, pretrained.variables["net"]
    found = parameter_names.derived(module, pretrained.inputs.size)
    for entry in parameter_names.entries(module):
        array = np.asarray(_leaf(tree, entry.path))
        found[entry.name] = np.ascontiguousarray(entry.layout.public(array))
    return found


def header(found: PretrainedEncoder) -> str:
    """What a file of ours says of itself, as JSON."""
    features = jax.eval_shape(
        partial(found.encoder.net.apply, train=False),
        found.variables["net"],
        _image(found.inputs),
    ).shape[1]
    metadata = {name: found.metadata.get(name) for name in ("step", "checkpoint", "loss", "source")}
    known = {
        "version": VERSION,
        "net": found.metadata["net"],
        "inputs": found.inputs._asdict(),
        "precision": found.encoder.precision,
        "features": features,
        **metadata,
    }
    return json.dumps(known | {"digest": _digest(known, found.variables["net"])})


def _digest(known: Mapping[str, Any], variables: Mapping[str, Any]) -> str:
    """Of all numbers and what tells their meaning: the formats have no checksum that is read."""
    whole = hashlib.sha256(json.dumps([known[name] for name in CHECKED], sort_keys=True).encode())
    for path, leaf in jax.tree.leaves_with_path(variables):
        array = np.ascontiguousarray(leaf, "<f4")
        whole.update(f"{jax.tree_util.keystr(path)} {array.shape}\n".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Mapping[str, Any], Read, str | None]]:
    """The arrays of a file, how to read one, and our header if it has one."""
    if path.suffix.lower() == ".safetensors":
        with safetensors.safe_open(path, framework="numpy") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
            arrays = {key: Named(key, shape) for key, shape in shapes.items()}
            yield arrays, lambda a: file.get_tensor(a.name), (file.metadata() or {}).get(HEADER)
        return
    with torch_file.opened(path) as (tree, read):
        if not isinstance(tree, dict):
            kind = "a whole module" if not isinstance(tree, list | tuple | str) else "no dict"
            raise ValueError(f"it holds {kind}; expected a state dict: torch.save(m.state_dict())")
        state = getattr(tree, "state", None)
        metadata = state.get("_metadata") if isinstance(state, dict) else None
        yield tree, read, metadata.get(HEADER) if isinstance(metadata, dict) else None


def _backbone(
    path: Path,
    tree: Mapping[str, Any],
    read: Read,
    text: str | None,
    num_heads: int | None,
    stem: str | None,
    assumed: Mapping[str, Any],
) -> PretrainedEncoder:
    known: dict[str, Any] = {}
    if text is None:
        found = architecture.encoder(tree)
        net, inputs = architecture.describe(found, read, num_heads=num_heads, stem=stem)
    else:
        found = Found(dict(tree), "", [])
        known, net, inputs = _own(text, len(found.arrays))
        given = {"num_heads": num_heads, "stem": stem}
        net |= {name: value for name, value in given.items() if value is not None}
    module = parameter_names.make(net)
    inputs = input_settings.given(inputs, module, **assumed)
    input_settings.check_extent(module, inputs.size)
    variables = _variables(module, inputs, found, read)
    if text is None:
        _say(path, found, net)
    elif known["version"] > 1 and known["digest"] != _digest(known, variables):
        raise ValueError("its numbers are not those that were written")

    @jax.jit
    def init(key: jax.Array) -> Any:
        x = _image(inputs)
        tree = module.init(key, jnp.zeros(x.shape, x.dtype), train=False)
        return {"net": {"params": tree["params"], "batch_stats": tree.get("batch_stats", {})}}

    encoder = Encoder(module, heads.mlp(proj_layers=0), precision=known.get("precision", "float32"))
    metadata = {
        "source": path.name,
        "step": known.get("step"),
        "checkpoint": "file",
        "loss": known.get("loss"),
        "net": net,
    }
    untrained = lambda seed: init(jax.random.key(seed))  # noqa: E731
    return PretrainedEncoder(encoder, {"net": variables}, inputs, untrained, metadata)


def _own(text: str, count: int) -> tuple[dict[str, Any], dict[str, Any], Inputs]:
    """What a file of ours says of itself: all of it, its network, its images.

    Raises:
        ValueError: if it is not what we write.
    """
    known = json.loads(text)
    if known["version"] not in (1, VERSION):
        raise ValueError(f"a file of version {known['version']!r:.20}; expected {VERSION}")
    inputs, net = input_settings.checked(known["inputs"]), dict(known["net"])
    if known["precision"] not in PRECISIONS or (net.get("layers") or 0) > count:
        raise ValueError("what it says of its network does not hold")
    return known, net, inputs


def _variables(module: nn.Module, inputs: Inputs, found: Found, read: Read) -> dict[str, Any]:
    """The arrays in our tree.

    Raises:
        ValueError: if names or shapes are not the network's; they are listed.
    """
    shapes = jax.eval_shape(partial(module.init, train=False), jax.random.key(0), _image(inputs))
    given = {
        k: v
        for k, v in found.arrays.items()
        if k not in parameter_names.derived(module, inputs.size)
    }
    table = {entry.name: entry for entry in parameter_names.entries(module)}
    missing, extra = [k for k in table if k not in given], [k for k in given if k not in table]
    wrong = []
    for name in table.keys() & given.keys():
        ours = _leaf(shapes, table[name].path).shape
        if _shape(table[name].layout.ours, given[name].shape) != ours:
            expected = _shape(table[name].layout.public, ours)
            wrong.append(f"{name} {list(given[name].shape)} in place of {list(expected)}")
    faults = {"missing": missing, "not known": extra, "of another shape": sorted(wrong)}
    said = [f"{len(v)} {k}: {listed([repr(x) for x in v])}" for k, v in faults.items() if v]
    if said:
        raise ValueError(f"names and shapes are not those of the network: {'; '.join(said)}")

    tree: dict[str, Any] = {"params": {}, "batch_stats": {}}
    for name, entry in table.items():
        node = tree
        for key in entry.path[:-1]:
            node = node.setdefault(key, {})
        array = entry.layout.ours(as_float32(read(given[name])))
        node[entry.path[-1]] = np.ascontiguousarray(array)
    require_finite(tree, "it")
    return tree


def _top(name: str, place: str) -> str:
    """The start of a name, as far as it tells it from those at ``place``."""
    parts, own = name.split("."), place.split(".")
    shared = 0
    while shared < min(len(parts), len(own)) and parts[shared] == own[shared]:
        shared += 1
    return ".".join(parts[: shared + 1])


def _leaf(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _shape(layout: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """That of the array in the other layout; None if it has none there."""
    try:
        return layout(np.broadcast_to(np.float32(0), shape)).shape
    except (ValueError, IndexError):
        return None


def _image(inputs: Inputs) -> jax.ShapeDtypeStruct:
    size = inputs.size
    return jax.ShapeDtypeStruct((1, size, size, inputs.channels), jnp.float32)


def _say(path: Path, found: Found, net: Mapping[str, Any]) -> None:
    """One line on what was taken and what was not."""
    taken = ", ".join(f"{k}={v}" for k, v in net.items() if k != "name")
    place = f", at {found.place!r}" if found.place else ""
    tops = sorted({_top(name, found.place) for name in found.others})
    left = f"; left out: {listed(tops, 6)}" if tops else ""
    log.info("%s: %s (%s)%s%s", path.name, net["name"], taken, place, left)
