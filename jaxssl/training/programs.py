"""The compiled programs of a run, shared by runs of one process that differ only in numbers."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.typing import Collection
from jax import Array
from jax.sharding import Mesh
from ml_collections import ConfigDict, FrozenConfigDict

from jaxssl import components, distributed
from jaxssl.data.batches import Batches
from jaxssl.methods.base import Batch, Carried, Method, init_variables
from jaxssl.models.encoder import Images
from jaxssl.training import online_metrics
from jaxssl.training.build import Setup, build, make_init, shared_numbers
from jaxssl.training.config import custom
from jaxssl.training.state import Step, Steps, TrainState, make_train_step, make_train_steps

Variables = tuple[Collection, Carried]
MOST_STEPS = 100  # largest number of training steps in one call


class Programs(NamedTuple):
    """The compiled functions of a run: initialiser, training steps and features.

    Attributes:
        init: ``seed -> state``, untrained.
        next_batches: ``n -> (data, indices)``, the input of the next n steps.
        steps: ``(state, data, indices, n) -> (state, metrics, embeddings, losses)``, see
            `make_train_steps`, where n <= ``most_steps``.
        encode: ``((params, carried), uint8 images) -> backbone features``, jitted.
        most_steps: the largest number of steps in one call.
    """

    init: Callable[[int], TrainState]
    next_batches: Callable[[int], tuple[Batch, Array]]
    steps: Steps
    encode: Callable[[Variables, Images], Array]
    most_steps: int


class _Shared(NamedTuple):
    """The functions of `Programs` that runs share if they differ only in seed and numbers."""

    init: Callable[[int], TrainState]
    steps: Steps  # with the further argument ``numbers``, see `shared_numbers`
    encode: Callable[[Variables, Images], Array]
    loops: bool  # whether one call of ``steps`` may take several steps
    probe: online_metrics.OnlineProbe | None


_cache: dict[object, _Shared] = {}  # holds only the functions of the latest run


def make_programs(
    config: ConfigDict,
    setup: Setup,
    batches: Batches,
    inputs: object,
    mesh: Mesh,
    *,
    probed_classes: int = 0,
) -> Programs:
    """Return the compiled programs of a run, from the cache if possible.

    The learning rate and the numbers of the loss are arguments of the compiled training step. The
    next run of this process compiles none of the programs again if it differs from this one only
    in them or in the seed.

    Args:
        config: complete.
        setup: built from the config.
        batches: batches of the training set.
        inputs: prepares the images that are encoded, see `jaxssl.data.kind.Kind.inputs`.
        mesh: the devices.
        probed_classes: number of classes of the online linear probe, which follows each step. 0
            trains no probe.

    Raises:
        UserError: if the networks or the views reject the examples.
    """
    values = shared_numbers(config.loss, config.optim.lr)
    resident = batches.plan.cached
    leaves, tree = jax.tree.flatten(batches.example)
    shapes = tuple((x.shape, x.dtype) for x in leaves)
    data = batches.num_examples, tree, shapes, batches.plan.crops, resident
    named = custom.names(config.to_dict()).items()
    objects = tuple(components.number(group, name) for group, name in named)
    key = _structure(config, values), tuple(values), objects, data, inputs, mesh, probed_classes
    if key not in _cache:
        _cache.clear()
        _cache[key] = _make_shared(config, setup, batches, inputs, mesh, probed_classes)
    shared = _cache[key]

    capacity = min(config.log_every, MOST_STEPS) if shared.loops else 1
    rows = distributed.local_rows(setup.batch_size, mesh) % (setup.batch_size // mesh.size)
    every_row = np.tile(rows.astype(np.int32), (capacity, 1))
    every_row = distributed.shard_rows(every_row, mesh, axis=1)

    def next_batches(n: int) -> tuple[Batch, Array]:
        return batches.take(n, capacity) if batches.plan.cached else (batches.next(), every_row)

    numbers = distributed.replicate({k: np.float32(v) for k, v in values.items()}, mesh)
    steps = partial(shared.steps, numbers=numbers)
    most_steps = capacity if resident else 1
    programs = Programs(shared.init, next_batches, steps, shared.encode, most_steps)
    return _add_probe(programs, shared.probe) if shared.probe else programs


def _add_probe(programs: Programs, probe: online_metrics.OnlineProbe) -> Programs:
    """Return programs whose steps also train an online probe.

    The probe takes one step after each call, so a call takes only one training step.
    """

    def init(seed: int) -> TrainState:
        return probe.init(programs.init(seed))

    def steps(state: online_metrics.ProbedState, data: Batch, indices: Array, n: int) -> Any:
        plain = online_metrics.without_probe(state)
        new, metrics, embeddings, losses = programs.steps(plain, data, indices, n)
        trained = probe.update(state.probe, new, data, indices)
        if jax.default_backend() == "cpu":
            # The devices of a CPU share their threads. Two programs at once could wait for each
            # other without end.
            jax.block_until_ready(trained)
        return online_metrics.with_probe(new, trained), metrics, embeddings, losses

    return programs._replace(init=init, steps=steps, most_steps=1)


def _structure(config: ConfigDict, numbers: Iterable[str]) -> FrozenConfigDict:
    """Return the settings that compiled programs depend on.

    Seed and numbers have fixed values, and the groups for evaluation and checkpoints are left out.
    """
    config = ConfigDict(config.to_dict())
    config.seed = 0
    for key in numbers:
        group, name = key.split(".")
        config[group][name] = 1.0
    del config["eval"], config["checkpoint"]
    return FrozenConfigDict(config)


def _make_shared(
    config: ConfigDict,
    setup: Setup,
    batches: Batches,
    inputs: object,
    mesh: Mesh,
    probed_classes: int,
) -> _Shared:
    """Make the functions that the next runs of this process may share.

    The numbers of `shared_numbers` are an argument of the training steps. The initialiser and the
    encoder do not depend on them.
    """
    # The programs must not keep ``batches`` alive, because that object holds the data set.
    num_examples, crops = batches.num_examples, batches.plan.crops
    resident = batches.plan.cached

    def make_step(numbers: dict[str, Array]) -> Step:
        traced = build(config, num_examples, mesh.size, crops=crops, numbers=numbers)
        return make_train_step(
            traced.method,
            traced.optimiser,
            traced.augment,
            mesh,
            max_skipped=setup.max_skipped,
            sharding=setup.sharding,
        )

    init = make_init(setup, batches.example, num_examples, mesh)
    # On a CPU, XLA compiles a convolution inside a loop to code that takes 50 times as long.
    loops = jax.default_backend() != "cpu" or not _has_convolution(setup, batches.example)
    # A streamed run loops over one step, as a run with cached data over several, so that both give
    # the same bits.
    steps = make_train_steps(make_step, mesh, resident=resident, loop=loops)
    if jax.default_backend() == "cpu" and mesh.size > 1:
        steps = _wait_for_results(steps)
    probe = None
    if probed_classes:
        arguments = setup.method, setup.augment, batches.example, probed_classes, setup.batch_size
        probe = online_metrics.make_online_probe(*arguments, mesh, resident=resident)
    return _Shared(init, steps, make_encoder(setup.method, inputs), loops, probe)


def _wait_for_results(steps: Steps) -> Steps:
    """Return training steps that wait for their results.

    The devices of a CPU share a few threads. If fifty calls with collective operations have begun,
    devices that wait in one call may occupy the threads that others need to get there.
    """

    def wait(*arguments: Any, **options: Any) -> Any:
        return jax.block_until_ready(steps(*arguments, **options))

    return wait


def _has_convolution(setup: Setup, example: Batch) -> bool:
    """Return True if the views or the backbone use a convolution on this platform."""

    def forward(key: Array, images: object, index: Array) -> Array:
        views = setup.augment(key, images, index)
        params, carried = init_variables(setup.method, views, len(index), key)
        first = jax.tree.map(lambda x: x[0], views["views"])
        return setup.method.features(params, carried, first)

    key = jax.eval_shape(lambda: jax.random.key(0))
    lowered = jax.jit(forward).lower(key, example["input"], example["index"])
    return "stablehlo.convolution" in lowered.as_text()


def make_encoder(method: Method, inputs: Any) -> Callable[[Variables, Images], Array]:
    """Return a run's jitted function from parameters, carried arrays and images to features."""

    def encode(variables: Variables, images: Images) -> Array:
        return method.features(*variables, inputs.prepare(images))

    return jax.jit(encode)
