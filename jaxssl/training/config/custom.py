"""Turn a user's component into a factory like the factories of this package.

A factory takes hyper-parameters by keyword. Their names, defaults and types are read from its
signature. A user may also give a finished component, a loss function or a network class.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from flax import linen as nn
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.errors import UserError
from jaxssl.losses.objective import Objective, stateless
from jaxssl.losses.pairs import Pairs
from jaxssl.models import adapters
from jaxssl.training.config import trust
from jaxssl.training.config.values import NETWORKS, is_schedule
from jaxssl.training.output.logs import log

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
RESERVED = ("rngs", "parent", "name")  # arguments of network classes that Flax passes


def make_factory(group: str, name: str, value: object) -> Callable[..., object]:
    """Return the factory ``(**hyper) -> component`` of a user's component.

    Args:
        group: "net", "loss" or another key of `jaxssl.components.GROUPS`.
        name: the component in the config, for messages.
        value: a factory. A network may also be a Linen module, a pair of functions (init, apply),
            or an NNX class. A loss may also be an `Objective`, or a function ``(pairs, **hyper) ->
            [n]`` as `jaxssl.losses` has them. An augmentation may also be a function
            ``(key, image) -> view``.

    Raises:
        UserError: if the value is none of these.
    """
    if group in NETWORKS:
        return _network(name, value)
    if group == "loss" and isinstance(value, Objective):
        return lambda: value
    if not callable(value):
        of_type = f"is of type {type(value).__name__}"
        raise UserError(f"{group}.name={name!r} {of_type}; expected a name or a function")
    signature = _signature(name, value)
    # The package passes parameters without a default by position. Most factories have none.
    required = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in POSITIONAL and parameter.default is inspect.Parameter.empty
    ]
    if group == "loss":
        given = signature.parameters.get("pairs")
        if given and given.kind is inspect.Parameter.KEYWORD_ONLY:
            raise UserError(f"loss.name={name!r} must take pairs by position, not only by keyword")
        if required == ["pairs"]:
            if "learn" in signature.parameters:
                raise UserError(f"loss.name={name!r}: jaxssl adds the setting learn; rename yours")
            [pairs, *_] = signature.parameters.values()
            settings = _hyper_parameters(signature, 1).parameters.values()
            signature = signature.replace(parameters=[pairs, *settings])
            return stateless(_with_signature(_require_array(name, value), signature))
        if required:
            raise UserError(
                f"loss.name={name!r} takes ({', '.join(required)}); expected one argument, pairs, "
                "and settings with defaults; give a loss of jaxssl by its name, such as 'nt_xent', "
                "and see docs/extending.md for a loss of two batches z1, z2"
            )
    if group == "augment":
        if len(required) not in (0, 2):
            raise UserError(
                f"augment.name={name!r} takes ({', '.join(required)}); expected (key, image) and "
                "settings with defaults, or settings only"
            )
        if required:  # (**hyper) -> view function
            value = functools.partial(functools.partial, value)
        value = _require_size(name, value)
        if "size" not in signature.parameters:
            raise UserError(
                f"augment.name={name!r} must have the argument size, the side of a view in pixels, "
                "with a default"
            )
    return _with_signature(value, _hyper_parameters(signature, len(required)))


def _require_array(name: str, loss: Callable[..., object]) -> Callable[..., object]:
    """Wrap a user's loss, so that a result that has not one number per anchor raises UserError."""

    @functools.wraps(loss)
    def checked(pairs: Pairs, **kwargs: object) -> object:
        value = loss(pairs, **kwargs)
        shape, n = getattr(value, "shape", None), len(pairs.anchor)
        if shape not in ((n,), ()):  # A number stands for n equal losses.
            got = type(value).__name__ if shape is None else f"the shape {list(shape)}"
            raise UserError(
                f"loss.name={name!r} must return an array [n], here [{n}], with a number for each "
                f"anchor, got {got}"
            )
        return value

    return checked


def _require_size(name: str, recipe: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a user's augmentation, so that views of another size raise UserError."""

    def build(**hyper: Any) -> Callable[..., object]:
        view, size = recipe(**hyper), hyper.get("size")

        def checked(key: Array, example: object) -> object:
            result = view(key, example)
            shape = getattr(result, "shape", ())
            if len(shape) > 2 and size and shape[-3:-1] != (size, size):
                raise UserError(
                    f"augment.name={name!r} must return views [{size}, {size}, c], as its argument "
                    f"size says, got the shape {list(shape)}"
                )
            return result

        return checked

    return build


def record(config: ConfigDict) -> None:
    """Make the paths of data and of the user's components absolute, and store the digests of these.

    A run can then be evaluated from another working directory.

    Args:
        config: changed in place. It gets the key `plugins` only if it names components of a user.
    """
    config.data.update(trust.data_paths(config.data))
    config.init = config.init and trust.absolute(config.init)
    config.data.name = components.absolute(config.data.name)
    config.eval.protocols = tuple(map(components.absolute, config.eval.protocols))
    config.log = tuple(map(components.absolute, config.log))
    if "plugins" in config:
        del config["plugins"]
    if entries := digests(config.to_dict()):
        config.plugins = entries


def digests(config: Settings) -> tuple[str, ...]:
    """Return "group NAME SHA-256" for each component of a user's file that the training needs.

    The name of a Python object has a digest already.
    """
    return tuple(
        f"{group} {components.short_name(name)} {components.digest(name)}"
        for group, name in names(config).items()
        if components.IN_FILE.fullmatch(name)
    )


def names(config: Mapping[str, object]) -> dict[str, str]:
    """Return the component's name of each config group that names a component, by group."""
    return {
        group: node["name"]
        for group, node in sorted(config.items())
        if isinstance(node, Mapping) and isinstance(node.get("name"), str)
    }


def without_folders(config: Settings) -> dict[str, object]:
    """Return a config in which users' components have names without folders, and digests by name.

    A run can resume after its files have moved, because digests tell whether they are the same.
    """
    config = dict(config)
    for group, name in names(config).items():
        config[group] = {**config[group], "name": components.short_name(name)}
    if isinstance(evaluation := config.get("eval"), Mapping):
        protocols = [components.short_name(name) for name in texts(evaluation.get("protocols"))]
        config["eval"] = {**evaluation, "protocols": protocols}
    entries = [text.rpartition(" ") for text in texts(config.pop("plugins", ()))]
    return {**config, "plugins": {name: digest for name, _, digest in entries}}


def texts(value: object) -> list[str]:
    """Return the strings in a list, or [] for other values, which an untrusted file may hold."""
    return [x for x in value if isinstance(x, str)] if isinstance(value, list | tuple) else []


def warn_of_changes(config: Mapping[str, object], source: object) -> None:
    """Warn if a file of a user's component has changed since a run recorded the file's digest.

    Args:
        config: the config of the run.
        source: the run, for the message.
    """
    if changed := _changed(config):
        log.warning("%s was trained with another content of %s", source, changed)


@contextmanager
def unchanged(config: Mapping[str, object]) -> Iterator[None]:
    """Pin the contents of users' files that a config names, in case they are edited during the run.

    Raises:
        UserError: if a file has changed since the config was read.
    """
    with components.pinned() as contents:
        if changed := _changed(config):
            raise UserError(f"{changed} changed while the run was being prepared; start it again")
        yield
    for path, content in contents.items():
        if not path.is_file() or path.read_bytes() != content:
            log.warning("%s has changed during the run, which used its earlier content", path)


def _changed(config: Mapping[str, object]) -> str:
    """Return the components with files that differ from the digests in a config."""
    changed = set(texts(config.get("plugins"))) - set(digests(config))
    return ", ".join(sorted(text.rpartition(" ")[0] for text in changed))


def _network(name: str, value: object) -> Callable[..., object]:
    bases = (value if inspect.isclass(value) else type(value)).__mro__
    if any(base.__module__.partition(".")[0] == "equinox" for base in bases):
        raise UserError(
            f"{name!r} is an Equinox module; pass a pair of functions (init, apply) as "
            "docs/extending.md shows"
        )
    if not callable(value) or isinstance(value, nn.Module | nnx.Module):
        try:
            network = adapters.adapt(value)
        except ValueError as error:
            raise UserError(f"{name!r}: {error}") from error
        return lambda: network
    signature = _signature(name, value)

    def make(**hyper: object) -> adapters.Network:
        if "rngs" in signature.parameters:
            return adapters.NnxNetwork(functools.partial(value, **hyper))
        return adapters.adapt(value(**hyper))

    return _with_signature(make, _hyper_parameters(signature))


def _signature(name: str, function: Callable[..., object]) -> inspect.Signature:
    """Return a signature in which every hyper-parameter with a plain default has a type."""
    if inspect.isclass(function) and issubclass(function, nnx.Module):
        # The class has the signature of its metaclass. A bound __init__ has no argument self.
        function = function.__init__.__get__(function)
    try:
        signature = inspect.signature(function)
    except ValueError as error:  # Some functions of C have none.
        raise UserError(f"{name!r} has no signature; call it in a function of Python") from error
    # Annotations may be texts that are not Python, such as "float > 0", or name unknown types.
    with suppress(Exception):
        signature = inspect.signature(function, eval_str=True)
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.annotation is inspect.Parameter.empty or isinstance(parameter.annotation, str):
            plain = isinstance(parameter.default, bool | int | float | str)
            parameter = parameter.replace(annotation=type(parameter.default) if plain else Any)
        elif parameter.default is None and isinstance(parameter.annotation, type):
            parameter = parameter.replace(annotation=parameter.annotation | None)
        parameters.append(parameter)
    return signature.replace(parameters=parameters)


def _hyper_parameters(signature: inspect.Signature, num_required: int = 0) -> inspect.Signature:
    """Return the signature of the parameters that a config can set, as keywords.

    The first ``num_required`` parameters are left out, because the package passes them. A parameter
    that is positional-only, or has a default that no config can hold, such as a function, is left
    out and keeps its default.
    """
    keywords = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(signature.parameters.values())[num_required:]
        if parameter.kind in KEYWORDS
        and parameter.name not in RESERVED
        and (parameter.default is inspect.Parameter.empty or _is_plain(parameter.default))
    ]
    return signature.replace(parameters=keywords)


def _is_plain(value: object) -> bool:
    """Return True for values that a config can hold and JSON can store."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return is_schedule(value)
    return value is None or isinstance(value, bool | int | float | str)


def _with_signature(
    function: Callable[..., object], signature: inspect.Signature
) -> Callable[..., object]:
    """Return a function that calls another one, and shows a signature to the config loader."""
    call: Any = functools.partial(function)
    call.__signature__ = signature
    call.__name__ = getattr(function, "__name__", type(function).__name__)
    return call
