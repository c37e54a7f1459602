"""The compiled programs of a run. Runs of one process that differ only in numbers share them."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from ml_collections import ConfigDict, FrozenConfigDict

from jaxssl import distributed
from jaxssl.data.batches import Batches
from jaxssl.data.decoding import Crops
from jaxssl.training import modality
from jaxssl.training.build import Setup, build, make_init, shared_numbers
from jaxssl.training.state import TrainState, make_train_steps

MOST_STEPS = 100  # in one call


class Programs(NamedTuple):
    """What a run computes on its devices.

    Attributes:
        init: ``seed -> state``, untrained.
        advance: ``(state, n) -> (state, metrics, embeddings, losses)`` takes the next n batches and
            as many steps, n <= ``most_steps``. Metrics and embeddings are those of the last step,
            the first n of ``losses`` those of all of them.
        encode: ``((params, carried), uint8 images) -> backbone features``, jitted.
        most_steps: the largest n.
    """

    init: Callable[[int], TrainState]
    advance: Callable[[TrainState, int], tuple[TrainState, dict[str, Array], Array, Any]]
    encode: Callable[[Any, Any], Array]
    most_steps: int


class _Shared(NamedTuple):
    """The programs of all runs that differ only in their seed and numbers."""

    init: Callable[[int], TrainState]
    steps: Callable[..., Any]
    encode: Callable[[Any, Any], Array]


def make_programs(
    config: ConfigDict, batches: Batches, shape: tuple[int | None, ...], mesh: Mesh
) -> Programs:
    """The programs of a run.

    The learning rate and the loss' numbers are arguments of the compiled training step. The next
    run of this process compiles nothing if it differs from this one only in them or in the seed.

    Args:
        config: complete.
        batches: of the training set.
        shape: of an example of the training set.
        mesh: the devices.

    Raises:
        UserError: if networks or views refuse the examples.
    """
    values = shared_numbers(config)
    resident = batches.take is not None
    leaves, tree = jax.tree.flatten(batches.example)
    example = tree, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
    data = batches.num_examples, example, shape, batches.crops
    shared = _shared(_structure(config, values), tuple(values), *data, mesh, resident)
    numbers = distributed.replicate({k: np.float32(v) for k, v in values.items()}, mesh)
    most_steps = min(config.log_every, MOST_STEPS)

    if resident:

        def advance(state: TrainState, n: int) -> Any:
            return shared.steps(state, numbers, *batches.take(n, most_steps), n)

    else:
        rows = distributed.local_rows(config.batch_size, mesh) % (config.batch_size // mesh.size)
        tiled = np.tile(rows.astype(np.int32), (most_steps, 1))
        places = distributed.shard_rows(tiled, mesh, axis=1)

        def advance(state: TrainState, n: int) -> Any:
            losses = []
            for _ in range(n):
                state, *found, loss = shared.steps(state, numbers, batches.next(), places, 1)
                losses.append(loss[0])
            return state, *found, losses

    return Programs(shared.init, advance, shared.encode, most_steps)


def _structure(config: ConfigDict, numbers: Iterable[str]) -> FrozenConfigDict:
    """The config of all runs that share their programs: without seed, numbers and evaluation."""
    config = ConfigDict(config.to_dict())
    config.seed = 0
    for key in numbers:
        group, name = key.split(".")
        config[group][name] = 1.0
    del config["eval"], config["checkpoint"]
    return FrozenConfigDict(config)


@functools.lru_cache(maxsize=1)
def _shared(
    structure: FrozenConfigDict,
    numbers: tuple[str, ...],
    num_examples: int,
    example: tuple[Any, tuple[jax.ShapeDtypeStruct, ...]],
    shape: tuple[int | None, ...],
    crops: Crops | None,
    mesh: Mesh,
    resident: bool,
) -> _Shared:
    config = ConfigDict(structure.to_dict())

    def parts(values: dict[str, Any]) -> Setup:
        return build(config, num_examples, mesh.size, crops=crops, numbers=values)

    options = {"max_skipped": config.max_skipped, "sharded": config.optim.sharded}

    # A streamed run has the same program, which gathers and loops, so that it gives the same bits.
    def steps(loop: bool, state: TrainState, values: dict[str, Array], *args: Any) -> Any:
        of_run = parts(values)
        stages = of_run.method, of_run.optimiser, of_run.augment, mesh
        return make_train_steps(*stages, resident=resident, loop=loop, **options)(state, *args)

    # Neither the weights nor the features depend on the numbers.
    some = parts(dict.fromkeys(numbers, 1.0))
    blank = jax.tree.unflatten(*example)
    inputs = modality.get(config).inputs(config, shape)
    return _Shared(
        make_init(config, some, blank, num_examples, mesh),
        _in_one_call(functools.partial(steps, True), functools.partial(steps, False)),
        make_encoder(some.method, inputs),
    )


def _in_one_call(steps: Callable[..., Any], one_step: Callable[..., Any]) -> Callable[..., Any]:
    """`steps`, jitted; on CPUs n calls of ``one_step`` if the step has convolutions.

    XLA compiles a convolution inside a loop for CPUs to a form that takes 50 times as long.
    """
    steps = jax.jit(steps, donate_argnums=0)
    one_step = jax.jit(one_step, donate_argnums=0)
    in_loop: bool | None = None  # known at the first call

    def call(state: TrainState, *args: Any) -> Any:
        nonlocal in_loop
        *args, n = args
        if in_loop is None:
            convolves = jax.default_backend() == "cpu" and (
                "stablehlo.convolution" in steps.lower(state, *args, n).as_text()
            )
            in_loop = not convolves
        if in_loop:
            return steps(state, *args, n)
        losses = []
        for i in range(n):
            state, metrics, embeddings, loss = one_step(state, *args, i)
            losses.append(loss[0])
        return state, metrics, embeddings, losses

    return call


def make_encoder(method: Any, inputs: Any) -> Any:
    """The jitted `((params, carried), uint8 images) -> backbone features` of a run in progress."""

    def encode(variables: tuple[Any, Any], images: Any) -> Array:
        return method.features(*variables, inputs.prepare(images))

    return jax.jit(encode)
