"""Objectives: losses bundled with trained parameters and the memory between steps."""

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.core import Tracer

from jaxssl import collectives
from jaxssl.losses.pairs import Pairs, count_positives

Scalar = float | Array
Schedule = Callable[[Array], Array]  # maps the step number to a value
Number = Scalar | Schedule
Metrics = dict[str, Array]
Init = Callable[[Array, int, int], tuple[dict[str, Array], object]]  # see `Objective`
Hyper = dict[str, Any]  # hyper-parameters of a loss: numbers, schedules, words and switches
CONSTANTS = {int, bool, str, Array, NoneType}  # types of hyper-parameters that take no schedule
TRACEABLE = ("num_steps",)  # counts that may be traced: MMCL's loop has a variable length
# Names of the types of hyper-parameters in messages, the first that an annotation contains.
WORDS: dict[object, str] = {float: "a number", int: "an integer", bool: "True or False"}
WORDS |= {str: "a word", Array: "an array", tuple[str, ...]: "a tuple of names"}
# Maps the name of a hyper-parameter to its valid values, see `check`.
Ranges = Mapping[str, str | tuple[str, ...]]

PREDICATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "finite": np.isfinite,
    "> 0": lambda x: x > 0,
    "> 0 or inf": lambda x: x > 0,
    "> 1": lambda x: x > 1,
    ">= 0": lambda x: x >= 0,
    ">= 1": lambda x: x >= 1,
    ">= 2": lambda x: x >= 2,
    "in [0, 1]": lambda x: (x >= 0) & (x <= 1),
    "in [0, 1)": lambda x: (x >= 0) & (x < 1),
}


def mean_memory(memories: Sequence[object]) -> object:
    """Average the loss memories of several view pairings, leaf by leaf."""
    if len(memories) == 1:  # The division would turn integers into floats.
        return memories[0]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *memories)


class Terms(NamedTuple):
    """The result of a loss in one step.

    Attributes:
        loss: [n], the losses of the anchors.
        memory: the new memory, () without one.
        metrics: numbers [] to log, by name.
    """

    loss: Array
    memory: object = ()
    metrics: Metrics = {}


class Objective(NamedTuple):
    """A loss as pure functions, with its requirements on the training scheme.

    Attributes:
        init: ``(key, num_examples, dim) -> (params, memory)`` for embeddings of ``dim`` features.
            The optimiser trains ``params`` together with the network. ``memory`` is carried from
            step to step and is equal on all devices.
        loss: ``(pairs, params, memory, *, step, key) -> (scalar, memory, metrics)``. The scalar is
            this device's contribution to the loss: its mean over devices is the loss.
        merge: ``[memory] -> memory``. A step with several pairings of its batch (two directions,
            small crops) starts each from the same memory, then merges the new memories.
        constrain: ``(params, step) -> params`` within their bounds at the next step. It follows
            each update.
        per_example: True if memory holds per-example buffers, which may be sharded over devices
            along axis 0; see `jaxssl.losses.memory`.
        needs_other_keys: True if positives must come from another network, or anchors from a
            predictor.
        needs_predictor: True if the loss collapses to constant embeddings without a predictor.
        needs_two_towers: True if the pairs must come from `pair_towers`.
        needs_two_views: True if every anchor needs a second view or a key, even with labels.
        needs_labels: True if the pairs must be labelled.
        takes_labels: False if the loss ignores or rejects labels.
        takes_queue: False if the loss ignores or rejects a queue.
        takes_queue_alone: False if the negatives must include the batch in addition to a queue.
        one_tower_only: True if the pairs must come from `pair_views`.
        both_directions: True if the loss also compares the keys of two towers with the anchors, and
            has a memory for each direction.
    """

    init: Init
    loss: Callable[..., tuple[Array, object, Metrics]]
    merge: Callable[[Sequence[object]], object] = mean_memory
    constrain: Callable[..., Any] = lambda params, step: params
    per_example: bool = False
    needs_other_keys: bool = False
    needs_predictor: bool = False
    needs_two_towers: bool = False
    needs_two_views: bool = False
    needs_labels: bool = False
    takes_labels: bool = True
    takes_queue: bool = True
    takes_queue_alone: bool = True
    one_tower_only: bool = False
    both_directions: bool = False


def make_objective(
    compute: Callable[..., Terms],
    hyper: Hyper,
    init: Init = lambda key, num_examples, dim: ({}, ()),
    **flags: Any,
) -> Objective:
    """Return the objective of a loss with trained parameters or memory.

    Args:
        compute: ``(pairs, params, memory, hyper, key) -> Terms``, with the schedules among the
            hyper-parameters replaced by their values at the step.
        hyper: hyper-parameters, numbers or schedules.
        init: see `Objective`. By default the loss has neither parameters nor memory.
        **flags: further fields of `Objective`.
    """

    def loss(pairs, params, memory, *, step, key):
        if not isinstance(pairs, Pairs):
            expected = "Pairs, from pair_views([z1, z2]) or pair_towers(z1, z2)"
            raise TypeError(f"an objective's loss takes {expected}, got {type(pairs).__name__}")
        terms = compute(pairs, params, memory, at_step(hyper, step), key)
        value, share_alone = mean_over_anchors(terms.loss, pairs)
        return value, terms.memory, {"anchors_without_positive": share_alone, **terms.metrics}

    return Objective(init, loss, **flags)


def stateless(
    loss_fn: Callable,
    learn: tuple[str, ...] = (),
    *,
    ranges: Ranges | None = None,
    has_aux: bool = False,
    extra: Hyper | None = None,
    **needs: object | Callable[[Hyper], object],
) -> Callable[..., Objective]:
    """Turn a loss function into a factory ``(**hyper) -> Objective`` without memory between steps.

    Args:
        loss_fn: ``(pairs, **hyper) -> [n]``.
        learn: names of the hyper-parameters that are trained, starting from their given values.
            One that must be positive is trained as its log. ``objective(learn=...)`` overrides it.
        ranges: valid values of hyper-parameters, which the factory checks. See `check`.
        has_aux: True if ``loss_fn`` returns ``([n], metrics)``.
        extra: hyper-parameters of the factory, by default value, that are not in the signature of
            ``loss_fn``, but are passed to it.
        **needs: fields of `Objective` such as ``needs_predictor``: a value, or a function of the
            hyper-parameters.
    """
    parameters = inspect.signature(loss_fn).parameters.values()
    constants = {p.name for p in parameters if _is_constant(p.annotation)}

    def build(fixed: Hyper) -> Objective:
        flags = {name: flag(fixed) if callable(flag) else flag for name, flag in needs.items()}
        learned = _pop_learned(fixed.pop("learn"), fixed, constants)
        logs = {name: f"log_{name}" for name in learned if (ranges or {}).get(name) == "> 0"}

        def init(key, num_examples, dim):
            params = {
                logs.get(name, name): jnp.float32(math.log(value) if name in logs else value)
                for name, value in learned.items()
            }
            return params, ()

        def compute(pairs, params, memory, hyper, key):
            values = {
                name: jnp.exp(params[logs[name]]) if name in logs else params[name]
                for name in learned
            }
            out = loss_fn(pairs, **hyper, **values)
            per_anchor, metrics = out if has_aux else (out, {})
            return Terms(per_anchor, memory, {**metrics, **values})

        return make_objective(compute, fixed, init, **flags)

    return factory(loss_fn, ranges or {}, build, **(extra or {}), learn=learn)


def factory(
    loss_fn: Callable[..., object],
    ranges: Ranges,
    build: Callable[[Hyper], Objective],
    **defaults: object,
) -> Callable[..., Objective]:
    """Return ``(**hyper) -> build(hyper)``, which checks the hyper-parameters of a loss first.

    Every hyper-parameter that may be a float may also be a schedule. Counts and switches may not.

    Args:
        loss_fn: ``(pairs, **hyper) -> [n]``. Its arguments that are annotated as arrays are not
            hyper-parameters: the objective provides them.
        ranges: valid values of hyper-parameters. See `check`.
        build: maps all hyper-parameters to the objective.
        **defaults: further hyper-parameters with their default values.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        p.replace(kind=keyword, annotation=_or_schedule(p.annotation))
        for p in list(inspect.signature(loss_fn).parameters.values())[1:]
        if not is_array(p.annotation)
    ]
    for name, value in defaults.items():
        annotation = {float: Number, tuple: tuple[str, ...]}.get(type(value), type(value))
        parameters.append(inspect.Parameter(name, keyword, default=value, annotation=annotation))
    signature = inspect.Signature(parameters)
    constants = [p.name for p in parameters if _is_constant(p.annotation)]

    def objective(**hyper: object) -> Objective:
        bound = signature.bind(**hyper)
        bound.apply_defaults()
        check(ranges, **bound.arguments)
        require_constant(**{name: bound.arguments[name] for name in constants})
        return build(dict(bound.arguments))

    # The config loader reads names, defaults and types of hyper-parameters from this signature.
    objective.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return objective


def at_step(hyper: Hyper, step: Array) -> Hyper:
    """Replace every schedule in ``hyper`` by the schedule's value at ``step``."""
    return {k: v(step) if callable(v) else v for k, v in hyper.items()}


def clip_scale(logit_scale: Scalar, max_scale: Scalar) -> Array:
    """Bound the log of a scale from above. At the bound, the derivative is still 1."""
    bound = jnp.log(max_scale)
    return jnp.where(logit_scale > bound, bound, logit_scale)  # `jnp.minimum` would halve it


def constrain_scale(max_scale: Number) -> Callable[[dict[str, Array], Array], dict[str, Array]]:
    """Return the field ``constrain`` of an objective with the trained parameter "logit_scale"."""

    def constrain(params: dict[str, Array], step: Array) -> dict[str, Array]:
        highest = at_step({"scale": max_scale}, step)["scale"]
        scales = {k: clip_scale(v, highest) for k, v in params.items() if k == "logit_scale"}
        return {**params, **scales}

    return constrain


def mean_over_anchors(per_anchor: Array, pairs: Pairs) -> tuple[Array, Array]:
    """Average per-anchor losses [n] over the anchors of all devices that have a positive.

    Args:
        per_anchor: [n] losses.
        pairs: the pairs from which they were computed.

    Returns:
        This device's contribution to the loss (its mean over devices is the loss), and the
        fraction of this device's anchors without a positive, in [0, 1].

    Raises:
        ValueError: unless ``per_anchor`` has one loss for each anchor, or is a scalar.
    """
    n, per_anchor = pairs.anchor.shape[0], jnp.asarray(per_anchor)
    if per_anchor.shape not in ((n,), ()):  # A number stands for n equal losses.
        raise ValueError(
            f"a loss must have the shape [{n}], one number for each anchor, got "
            f"{list(per_anchor.shape)}"
        )
    has_positive = (count_positives(pairs) > 0).astype(per_anchor.dtype)
    count = collectives.mean(jnp.sum(has_positive), pairs.axis_name)
    value = jnp.sum(per_anchor * has_positive) / jnp.maximum(count, 1e-9)
    return value, 1 - jnp.mean(has_positive)


def check(ranges: Ranges, noun: str = "hyper-parameter", /, **hyper: object) -> None:
    """Raise ValueError for a value out of its range. Traced values are not checked.

    Args:
        ranges: for each name a key of `PREDICATES` such as "> 0", or a tuple of valid words. A
            tuple may contain a key of `PREDICATES` too. Without one, numbers are not valid.
        noun: what the values are called in messages.
        **hyper: values.

    Raises:
        ValueError: if a value is not valid.
    """
    for name, value in hyper.items():
        if name not in ranges or value is None or callable(value) or isinstance(value, Tracer):
            continue
        valid = ranges[name]
        valid = (valid,) if isinstance(valid, str) else valid
        predicates = [option for option in valid if option in PREDICATES]
        words = [option for option in valid if option not in PREDICATES]
        # Arrays are not words, but the start of a solver may be either.
        is_word = isinstance(value, str) or (isinstance(value, int | float) and not predicates)
        if is_word and value not in words:
            listed = ", ".join(f'"{word}"' for word in words)
            expected = f"one of {listed}" if words else predicates[0]
            raise ValueError(f"{noun} {name} must be {expected}, got {value!r}")
        if is_word:
            continue
        is_finite = np.isfinite(np.asarray(value, float)).all()
        if predicates and not (is_finite or "> 0 or inf" in predicates):
            raise ValueError(f"{noun} {name} must be finite, got {value}")
        for predicate in predicates:
            if not np.all(PREDICATES[predicate](np.asarray(value))):
                raise ValueError(f"{noun} {name} must be {predicate}, got {value}")


def check_kinds(
    signature: inspect.Signature, hyper: Mapping[str, Any], per_anchor: Sequence[str] = ()
) -> None:
    """Raise ValueError for a value of another type than the annotation.

    Args:
        signature: of the loss or of its objective. The annotation `Scalar` stands for one real
            number, ``int`` for a count, and ``bool`` for a switch. Counts, switches and words must
            not be traced, except for those in `TRACEABLE`.
        hyper: values by name.
        per_anchor: names of numbers that may be arrays [n], with one number for each anchor.
    """
    for name, value in hyper.items():
        annotation = signature.parameters[name].annotation
        kinds = _alternatives(annotation)
        if value is None and NoneType not in kinds:
            expected = next(word for kind, word in WORDS.items() if kind in kinds)
            raise ValueError(f"argument {name} must be {expected}, got None")
        if value is None or callable(value) or name in per_anchor:
            continue
        fixed = _is_constant(annotation) and Array not in kinds and name not in TRACEABLE
        if fixed and isinstance(value, Tracer):
            raise ValueError(
                f"hyper-parameter {name} must be constant, got a traced value; pass "
                f"static_argnames=({name!r},) to jax.jit"
            )
        if bool in kinds and (np.asarray(value).dtype != bool or np.ndim(value)):
            raise ValueError(f"hyper-parameter {name} must be True or False, got {value!r}")
        if isinstance(value, str):
            continue
        if float in kinds and np.iscomplexobj(value):
            raise ValueError(f"hyper-parameter {name} must be real, got {value}")
        if (float in kinds or int in kinds) and np.ndim(value):
            raise ValueError(
                f"hyper-parameter {name} must be one number, got the shape {list(np.shape(value))}"
            )
        is_count = int in kinds and float not in kinds
        if is_count and not jnp.issubdtype(jnp.result_type(value), jnp.integer):
            raise ValueError(f"hyper-parameter {name} must be an integer, got {value!r}")


def require_constant(**hyper: object) -> None:
    """Raise ValueError for a hyper-parameter that is a schedule."""
    for name, value in hyper.items():
        if callable(value):
            raise ValueError(
                f"hyper-parameter {name} must be constant, got a schedule; set one value"
            )


def _or_schedule(annotation: Any) -> Any:
    """Allow a `Schedule` wherever a type annotation allows a float."""
    return annotation | Schedule if float in _alternatives(annotation) else annotation


def _alternatives(annotation: object) -> tuple[object, ...]:
    """Return the types that a type annotation joins by ``|``, or the annotation alone."""
    return get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)


def is_array(annotation: object) -> bool:
    """Return True for the annotation of an array, which is no hyper-parameter."""
    return annotation in (Array, Array | None)


def _is_constant(annotation: Any) -> bool:
    """Return True for the annotation of a count or a switch, which is fixed when traced."""
    return set(_alternatives(annotation)) <= CONSTANTS


def _pop_learned(
    names: Sequence[str], hyper: Hyper, constants: Collection[str]
) -> dict[str, float]:
    """Remove the learned hyper-parameters from ``hyper``, and return their initial values."""
    if isinstance(names, str):
        raise ValueError(f"learn must be a tuple of names such as ({names!r},), got {names!r}")
    valid, learned = sorted(hyper.keys() - constants), {}
    for name in names:
        if name not in valid:
            raise ValueError(f"learn must name hyper-parameters of {valid}, got {name!r}")
        value = hyper.pop(name, learned.get(name))
        if value is None or callable(value) or isinstance(value, str | bool):
            raise ValueError(
                f"hyper-parameter {name} is learned and must start from a number, got {value!r}"
            )
        learned[name] = float(value)
    return learned
