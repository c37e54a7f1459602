"""Adapt networks of users to the interface of this package: Linen, NNX, or two pure functions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
from flax import errors, nnx, traverse_util
from flax import linen as nn
from flax.typing import Collection, MutableCollection, VariableDict
from jax import Array, lax

COLLECTIONS = ("params", "batch_stats")
OPTIONS = ("train", "axis_name", "keys")


class Network(Protocol):
    """Interface of a network, which every module of this package has."""

    def init(self, key: Array, x: object, /, *, train: bool = False) -> VariableDict:
        """Return the variables {"params", "batch_stats"} for inputs of this shape."""
        ...

    def apply(self, variables: VariableDict, x: object, /, *, train: bool, **options: Any) -> Any:
        """Return features [n, f], or (features, updated variables) with ``mutable``.

        The options are ``axis_name``, ``keys`` and ``mutable``, see `jaxssl.models`.
        """
        ...


def adapt(value: object) -> Network:
    """Return a user's network with the interface of this package.

    Args:
        value: a Linen module, or a pair of pure functions ``init(key, x) -> params`` and
            ``apply(params, x) -> features``. The module and ``apply`` receive the arguments
            ``train``, ``axis_name`` and ``keys`` as far as they take them.

    Raises:
        ValueError: if the value is not a network.
    """
    if isinstance(value, nn.Module):
        is_ours = any(base.__module__.startswith("jaxssl.") for base in type(value).__mro__)
        takes_all = set(OPTIONS) <= _options(value.__call__)
        return value if is_ours and takes_all else LinenNetwork(value)
    if isinstance(value, tuple) and len(value) == 2 and all(map(callable, value)):
        init, apply = value
        _require_arguments(init, "init(key, x),", set())
        haiku = "apply(params, x) (Haiku: hk.without_apply_rng),"
        _require_arguments(apply, haiku, _options(apply))
        return FunctionNetwork(init, apply)
    if inspect.isclass(value) and not issubclass(value, nnx.Module):
        raise ValueError(f"expected a network, got the class {value.__name__}; call the class")
    if isinstance(value, nnx.Module):
        raise ValueError(
            f"an initialised {type(value).__name__} cannot be initialised again from another seed; "
            "pass its class, or a function that returns it, either with the argument rngs"
        )
    raise ValueError(
        "expected a Linen module, the class of an NNX module, or a pair of functions (init, "
        f"apply), got {type(value).__name__}"
    )


class LinenNetwork(NamedTuple):
    """A user's Linen module. It may take the arguments ``train``, ``axis_name`` and ``keys``.

    Attributes:
        module: the module. Its variables may be parameters and BatchNorm statistics.
    """

    module: nn.Module

    def init(self, key: Array, x: object, *, train: bool = False) -> Any:
        """Initialise the module's parameters and BatchNorm statistics."""
        accepted = _accepted(self.module.__call__, train=train)
        # The sharding that `nn.with_partitioning` asks for names axes which the mesh does not have.
        variables = nn.meta.unbox(self.module.init(key, x, **accepted))
        name = type(self.module).__name__
        others = set(variables) - {*COLLECTIONS, "intermediates"}
        if others:
            raise ValueError(
                f"{name} has variables in the collection {sorted(others)[0]!r}; expected only "
                "params and batch_stats"
            )
        return {kind: variables.get(kind, {}) for kind in COLLECTIONS}

    def apply(self, variables: VariableDict, x: object, **options: Any) -> object:
        """Apply the Linen module with the arguments that it takes."""
        name, mutable = type(self.module).__name__, options.get("mutable", False)
        accepted = _accepted(self.module.__call__, **options)
        several = options.get("axis_name") and lax.axis_size(options["axis_name"]) > 1
        if variables.get("batch_stats") and several and "axis_name" not in accepted:
            raise ValueError(
                f"{name} has BatchNorm, which would average over the examples of one device "
                "only; give __call__ the argument axis_name, and pass it to BatchNorm"
            )
        try:
            out = self.module.apply(variables, x, mutable=mutable, **accepted)
        except errors.ModifyScopeVariableError as error:
            raise ValueError(
                f"{name} changes its statistics in evaluation; give __call__ the argument train, "
                "and BatchNorm use_running_average=not train"
            ) from error
        except errors.InvalidRngError as error:
            raise _random_layers_error(name) from error
        _require_features(name, out[0] if mutable else out, x)
        if mutable and options.get("train") and "train" not in accepted:
            stats = (jax.tree.leaves(x.get("batch_stats", {})) for x in (variables, out[1]))
            pairs = list(zip(*stats, strict=False))
            if pairs and all(before is after for before, after in pairs):
                raise ValueError(
                    f"{name} does not change its statistics in training; give __call__ the "
                    "argument train, and BatchNorm use_running_average=not train"
                )
        return out


class FunctionNetwork(NamedTuple):
    """A network of two pure functions, such as from Haiku's ``without_apply_rng(transform(f))``.

    Attributes:
        init_params: ``(key, x) -> params``, nested dicts of arrays.
        apply_params: ``(params, x) -> features [n, f]``.
    """

    init_params: Callable[..., Any]
    apply_params: Callable[..., object]

    def init(self, key: Array, x: object, *, train: bool = False) -> VariableDict:
        """Initialise the parameters with the user's function ``init_params``."""
        params = self.init_params(key, x)
        for path, leaf in jax.tree.leaves_with_path(params, lambda x: not isinstance(x, dict)):
            if not all(isinstance(entry.key, str) for entry in path) or not hasattr(leaf, "ndim"):
                raise ValueError(
                    "the parameters must be nested dicts of arrays with text keys, got "
                    f"{type(leaf).__name__} at params{jax.tree_util.keystr(path)}"
                )
        return {"params": params, "batch_stats": {}}

    def apply(self, variables: VariableDict, x: object, **options: Any) -> object:
        """Call ``apply_params`` with the arguments that it takes."""
        accepted = _accepted(self.apply_params, **options)
        out = self.apply_params(variables["params"], x, **accepted)
        _require_features(getattr(self.apply_params, "__name__", "apply"), out, x)
        return (out, {}) if options.get("mutable") else out


class NnxNetwork:
    """An NNX module as a network with explicit variables.

    Args:
        make: ``(*, rngs) -> module``. Its variables may be `nnx.Param` and `nnx.BatchStat`. In
            training, ``module.train()`` is called, and BatchNorm spans all devices.
    """

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    @cached_property
    def _structure(self) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
        """Return the graph definition, and the shapes of parameters and BatchNorm statistics.

        Raises:
            ValueError: if the module has other variables, such as the states of random layers.
        """
        with jax.ensure_compile_time_eval():  # The split does not list arrays that are traced.
            module = nnx.eval_shape(lambda: self._make(rngs=nnx.Rngs(0)))
        name = type(module).__name__
        definition, params, stats, draws, others = nnx.split(
            module, nnx.Param, nnx.BatchStat, nnx.RngState, ...
        )
        if jax.tree.leaves(draws):
            raise _random_layers_error(name)
        for path, _ in nnx.to_flat_state(others):
            raise ValueError(
                f"{name} stores {'.'.join(map(str, path))}, which is neither nnx.Param nor "
                "nnx.BatchStat; make it one of these, or compute it in __call__"
            )
        return definition, params, stats

    def init(self, key: Array, x: object, *, train: bool = False) -> VariableDict:
        """Build the NNX module from a random key, and return the module's variables."""
        _ = self._structure  # raises an error for unsupported variables
        _, params, stats = nnx.split(self._make(rngs=nnx.Rngs(key)), nnx.Param, nnx.BatchStat)
        return {"params": _to_dict(params), "batch_stats": _to_dict(stats)}

    def apply(
        self,
        variables: VariableDict,
        x: object,
        *,
        train: bool,
        is_fixed: Callable[[Sequence[object]], bool] = lambda path: False,
        **options: Any,
    ) -> object:
        """Call the NNX module with the arguments that it takes.

        Args:
            variables: of the module.
            x: inputs.
            train: as for other networks.
            is_fixed: tells of the path of a BatchNorm whether it uses its running statistics.
            options: as for other networks.
        """
        definition, params, stats = self._structure
        params = _from_dict(params, variables["params"])
        module = nnx.merge(definition, params, _from_dict(stats, variables["batch_stats"]))
        if train:
            module.train()
        else:
            module.eval()
        axis_name = options.get("axis_name") if train else None
        for path, node in nnx.iter_modules(module):
            if isinstance(node, nnx.BatchNorm):
                node.axis_name = axis_name
                node.use_running_average = node.use_running_average or is_fixed(path)
        out = module(x, **_accepted(module.__call__, train=train, **options))
        _require_features(type(module).__name__, out, x)
        if not options.get("mutable"):
            return out
        return out, {"batch_stats": _to_dict(nnx.state(module, nnx.BatchStat))}


def _options(function: Callable[..., object]) -> set[str]:
    """Return the keyword arguments in `OPTIONS` that a function takes."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return {name for name in OPTIONS if takes_all or name in parameters}


def _accepted(function: Callable, **options: object) -> dict[str, Any]:
    """Select the keyword arguments in `OPTIONS` that a function takes."""
    names = _options(function)
    return {name: value for name, value in options.items() if name in names}


def _require_arguments(function: Callable, expected: str, options: set[str]) -> None:
    """Raise ValueError unless a function takes two arguments and these keyword arguments."""
    signature = inspect.signature(function)
    try:
        signature.bind(None, None, **dict.fromkeys(options))
    except TypeError as error:
        raise ValueError(
            f"expected a function {expected} got the arguments {', '.join(signature.parameters)}"
        ) from error


def _require_features(name: str, features: object, x: Any) -> None:
    """Raise ValueError unless a network has mapped n examples to features [n, f].

    The number of examples is not checked for packed graphs, which are dicts of arrays.
    """
    shape = getattr(features, "shape", None)
    n = None if isinstance(x, Mapping) else x.shape[0]
    if shape is None or len(shape) != 2 or n not in (None, shape[0]):
        got = type(features).__name__ if shape is None else list(shape)
        number = "n" if n is None else n
        raise ValueError(f"{name} must map {number} examples to features [{number}, f], got {got}")


def _random_layers_error(name: str) -> ValueError:
    return ValueError(
        f"{name} draws random numbers in its layers (dropout), which would depend on the number of "
        "devices; draw them from the argument keys [n], which has a key for each example"
    )


def _to_dict(state: nnx.State) -> MutableCollection:
    """Return an NNX state as nested dicts with text keys, which checkpoints can store."""
    flat = {tuple(map(str, path)): value[...] for path, value in nnx.to_flat_state(state)}
    return traverse_util.unflatten_dict(flat)


def _from_dict(state: nnx.State, values: Collection) -> nnx.State:
    """Return an NNX state with the arrays of nested dicts from `_to_dict`."""
    arrays = traverse_util.flatten_dict(values)
    return nnx.from_flat_state(
        (path, variable.replace(arrays[tuple(map(str, path))]))
        for path, variable in nnx.to_flat_state(state)
    )
