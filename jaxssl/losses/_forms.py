"""Make the public forms of a loss: a function of two arrays, one of `Pairs`, and an objective."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxssl.errors import suggest
from jaxssl.losses.objective import (
    Ranges,
    check,
    check_kinds,
    is_array,
    mean_over_anchors,
    require_constant,
)
from jaxssl.losses.pairs import Pairs, explicit_axes, pair_views

HALF = (jnp.bfloat16, jnp.float16)
MODULE = "jaxssl.losses"  # module under which `pickle` finds the public functions


def bind(
    name: str,
    signature: inspect.Signature,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    per_anchor: Sequence[str] = (),
) -> inspect.BoundArguments:
    """Bind arguments to the parameters of a function.

    Args:
        name: the function that the user called, for the error message.
        signature: signature of the function.
        args: positional arguments.
        kwargs: keyword arguments.
        per_anchor: see `check_kinds`.

    Raises:
        TypeError: if the arguments do not fit. For a misspelt one the message suggests the closest
            parameter.
        ValueError: if a value is of another kind than the annotation, see `check_kinds`.
    """
    for key in kwargs:
        if key not in signature.parameters:
            hint = suggest(key, signature.parameters)
            raise TypeError(f"{name} got an unexpected keyword argument {key!r}{hint}")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    check_kinds(signature, bound.arguments, per_anchor)
    return bound


def _bind_checked(
    name: str,
    signature: inspect.Signature,
    ranges: Ranges,
    per_anchor: Sequence[str],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> inspect.BoundArguments:
    """Bind and check the arguments of a loss, and widen numbers in half precision to float32."""
    bound = bind(name, signature, args, kwargs, per_anchor)
    require_constant(**bound.arguments)
    # Embeddings and labels are checked and converted with the pairs.
    parameters = [p for p in signature.parameters.values() if p.name not in ("z1", "z2", "labels")]
    arrays = {p.name for p in parameters if is_array(p.annotation)}
    given = bound.arguments.items()
    check(ranges, **{key: x for key, x in given if key not in arrays or isinstance(x, str)})
    for key, value in bound.arguments.items():
        if key in arrays and isinstance(value, list | tuple):
            bound.arguments[key] = jnp.asarray(value, jnp.float32)
        if np.ndim(value) == 0 and getattr(value, "dtype", None) in HALF:
            bound.arguments[key] = jnp.asarray(value, jnp.float32)
    return bound


def on_pairs(
    loss_fn: Callable[..., Array], ranges: Ranges, per_anchor: Sequence[str]
) -> Callable[..., Array]:
    """Return ``loss_fn`` with a check of its arguments.

    Args:
        loss_fn: ``(pairs, **hyper) -> [n]``.
        ranges: valid values of hyper-parameters, see `check`.
        per_anchor: hyper-parameters that may be arrays [n].

    Returns:
        The function. It raises TypeError for arrays in place of pairs and for arguments that do not
        fit, and ValueError for a hyper-parameter out of range.
    """
    signature, name = inspect.signature(loss_fn), loss_fn.__name__

    @functools.wraps(loss_fn)
    def checked(*args: object, **kwargs: object) -> Array:
        # Arrays in place of pairs are reported first. The error of `bind` would not mention them.
        pairs = args[0] if args else kwargs.get("pairs")
        if (args or "pairs" in kwargs) and not isinstance(pairs, Pairs):
            raise TypeError(
                f"{name}() takes Pairs, got {type(pairs).__name__}; take pair_views([z1, z2]) or "
                f"pair_towers(z1, z2), or call {name.removesuffix('_loss')}(z1, z2)"
            )
        bound = _bind_checked(f"{name}()", signature, ranges, per_anchor, args, kwargs)
        return loss_fn(*bound.args, **bound.kwargs)

    checked.__module__ = MODULE
    return checked


def on_arrays(
    loss_fn: Callable[..., Array],
    ranges: Ranges,
    per_anchor: Sequence[str],
    pair: Callable[..., Pairs],
    takes_labels: bool,
) -> Callable[..., Array]:
    """Return the two-array form of a loss: ``(z1, z2, **hyper) -> scalar``.

    Args:
        loss_fn: ``(pairs, **hyper) -> [n]``.
        ranges: valid values of hyper-parameters, see `check`.
        per_anchor: hyper-parameters that may be arrays [n].
        pair: `pair_views` if the rows of both arrays are anchors, `pair_towers` if the rows of the
            first array are anchors and the rows of the second are their keys.
        takes_labels: whether the function has the argument ``labels``.
    """
    both_are_anchors = pair is pair_views
    name = loss_fn.__name__.removesuffix("_loss")
    signature = _two_array_signature(loss_fn, takes_labels)

    def compute(arguments: Mapping[str, object]) -> Array:
        hyper = dict(arguments)
        z1, z2 = hyper.pop("z1"), hyper.pop("z2")
        options = {key: hyper.pop(key, None) for key in ("labels", "axis_name")}
        pairs = pair([z1, z2], **options) if both_are_anchors else pair(z1, z2, **options)
        return mean_over_anchors(loss_fn(pairs, **hyper), pairs)[0]

    def on_two_arrays(*args: object, **kwargs: object) -> Array:
        bound = _bind_checked(f"{name}()", signature, ranges, per_anchor, args, kwargs)
        return _in_auto_mode(compute, bound.arguments)

    one_side = "rows of z1, compared with the rows of z2,"
    anchors = "rows of both arrays" if both_are_anchors else one_side
    with_labels = "\n``labels`` [b] makes all rows of a class positives." if takes_labels else ""
    loss_doc = inspect.cleandoc(loss_fn.__doc__ or "")
    on_two_arrays.__name__ = on_two_arrays.__qualname__ = name
    on_two_arrays.__module__ = MODULE
    on_two_arrays.__doc__ = f"""Mean of `{name}_loss` over two [b, d] arrays with matching rows.

The mean is over the {anchors} that have a positive.{with_labels}
Under a mapped ``axis_name`` the batch spans all devices, and the result is this device's
contribution to the loss. `jax.lax.pmean` of the contributions is the loss, and
`global_value_and_grad` returns the loss and its gradient. The other arguments are those of
`{name}_loss`:

{loss_doc}
"""
    on_two_arrays.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    annotations = {p.name: p.annotation for p in signature.parameters.values()}
    on_two_arrays.__annotations__ = annotations | {"return": Array}
    return on_two_arrays


def _two_array_signature(loss_fn: Callable[..., Array], takes_labels: bool) -> inspect.Signature:
    """Replace a loss's parameter ``pairs`` by two arrays, and add the other options."""
    position, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    _, *hyper = inspect.signature(loss_fn).parameters.values()
    arrays = [inspect.Parameter(z, position, annotation=Array) for z in ("z1", "z2")]
    labels = inspect.Parameter("labels", keyword, default=None, annotation=Array | None)
    axis_name = inspect.Parameter("axis_name", keyword, default=None, annotation=str | None)
    options = [labels, axis_name] if takes_labels else [axis_name]
    return inspect.Signature([*arrays, *hyper, *options], return_annotation=Array)


def _in_auto_mode(
    fn: Callable[[Mapping[str, object]], Array], arguments: Mapping[str, object]
) -> Array:
    """Call ``fn``, and let XLA choose the sharding of the intermediate arrays in ``fn``.

    Arrays of a mesh with explicit axes have their sharding in their type. A loss mixes all rows of
    a batch, which has no sharding that follows from the types.
    """
    arrays = {k: v for k, v in arguments.items() if isinstance(v, jax.Array)}
    axes = tuple(sorted({axis for x in arrays.values() for axis in explicit_axes(x)}))
    if not axes:
        return fn(arguments)
    run = jax.sharding.auto_axes(lambda arrays: fn(arguments | arrays), axes=axes, out_sharding=P())
    return cast(Array, run(arrays))
