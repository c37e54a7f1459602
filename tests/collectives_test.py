"""Communication of eight devices, counted in compiled programs, equals docs/scaling.md."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled
from loss_cases import CASES, DEFAULTS, NAMES, Case, kinds, labelled, pairs_of
from marks import long_except
from tables import tables

from jaxssl import distributed
from jaxssl.losses.decl import objective as decl
from jaxssl.losses.dino import objective as dino
from jaxssl.losses.info_nce import objective as info_nce
from jaxssl.losses.nnclr import objective as nnclr
from jaxssl.losses.nt_xent import objective as nt_xent
from jaxssl.losses.objective import mean_over_anchors
from jaxssl.losses.sogclr import objective as sogclr
from jaxssl.methods import momentum, siamese
from jaxssl.models import convnet, heads
from jaxssl.models.encoder import Encoder
from jaxssl.training.hlo import collectives
from jaxssl.training.state import make_init, make_train_step

# Devices, batch of all devices, embeddings' width, prototypes of tests/loss_cases.py, examples of
# the data set. All sizes differ, so that every array can be told from the others.
N, B, D, K, EXAMPLES = 8, 40, 7, 6, 1009


def send(operation: str, *shape: int, times: int = 1) -> Counter:
    """Return the bytes of a whole array of 4-byte numbers, by operation."""
    return Counter({(operation, 4 * int(np.prod(shape))): times})


def gathered(views: int) -> Counter:
    """Return the communication of gathered embeddings and of their gradient."""
    return send("all-gather", views, B, D) + send("reduce-scatter", views, B, D)


def summed(*shapes: tuple[int, ...], times: int = 2) -> Counter:
    """Return the communication of sums over devices, by default of values and gradients."""
    return sum((send("all-reduce", *shape, times=times) for shape in shapes), Counter())


# Every loss sends the ids of the batch and the number of anchors with a positive.
ALWAYS = send("all-gather", B) + summed((), times=1)
DOCS = tables((Path(__file__).parents[1] / "docs" / "scaling.md").read_text())
SENDS, REMEMBERS = "loss with its gradient", "memory of an objective"
OPERATIONS = ("all-gather", "reduce-scatter", "all-reduce", "collective-permute")


def model(table: str, views: int) -> dict[str, Counter]:
    """Return the documented communication of a table by the first cell of its rows."""
    names = {"n": N, "B": B, "V": views, "d": D, "K": K}
    number = lambda text: int(eval(text.replace("·", "*"), names))  # noqa: E731
    operations = ("all-gather", "all-reduce") if table == REMEMBERS else OPERATIONS
    actual = {}
    for name, *cells in DOCS[table]:
        actual[name] = Counter()
        for operation, cell in zip(operations, cells, strict=True):
            for entry in filter(None, cell.split("; ")):
                times, _, size = entry.rpartition(" × ")
                actual[name] += send(operation, number(size), times=number(times or "1"))
    return actual


def row_of(case: Case, kind: str, ring: bool) -> str:
    """Return the row of the documented table that a loss belongs to."""
    rows = model(SENDS, 1)
    by_matrix = case.name == "auc_cl" and ("labels" in kind or dict(case.hyper).get("form"))
    own = [row for row in rows if f"`{case.name}`" in row and ("`ring`" in row) == ring]
    general = "in general, with `ring`" if ring else "in general"
    return own[0] if own and not by_matrix else general


def lanes(runs: list) -> list:
    """Mark all losses of a row and kind of pairs but the first as long; each is a compilation."""
    seen, marked = set(), []
    for run in runs:
        place = row_of(*run), run[1]
        marked.append(pytest.param(*run, marks=pytest.mark.long if place in seen else ()))
        seen.add(place)
    return marked


def arrays(program: Compiled) -> Counter:
    """Return the arrays that a program sends, whichever of them the compiler sends together."""
    actual = Counter()
    for (operation, sizes), times in collectives(program, N).items():
        for size in sizes:
            actual[operation, size] += times
    return actual


def compiled(fn, in_specs, out_specs, *shapes) -> Counter:
    mapped = distributed.spmd(fn, distributed.make_mesh(), in_specs, out_specs)
    return arrays(jax.jit(mapped).lower(*shapes).compile())


Z = jax.ShapeDtypeStruct((2, B, D), jnp.float32)
INDEX = jax.ShapeDtypeStruct((B,), jnp.int32)
SPLIT = (P(None, "data"), P("data"))
# Enough of the cases with changed settings, because blocks and solvers do not communicate.
FURTHER = {"auc_cl-form=matrix", "clip-block_size=3", "dcl-block_size=3"}
RUNS = [
    *(
        (case, kinds(case)[0], False)
        for case in CASES
        # The table has LeJEPA's default number of directions.
        if (not case.hyper and "directions" not in case.extra) or str(case) in FURTHER
    ),
    *((case, labelled(case)[0], False) for case in DEFAULTS if labelled(case)),
    *((case, kinds(case)[0], True) for case in DEFAULTS if "ring" in case.parameters()),
]


@pytest.mark.parametrize(
    ("case", "kind", "ring"), lanes(RUNS), ids=lambda x: {True: "ring", False: ""}.get(x, str(x))
)
def test_communication_of_a_loss_equals_the_table_in_docs(case, kind, ring):
    def local(z, index):
        def value(z):
            pairs = pairs_of(kind, z, index, "data")
            chosen = case.with_(ring=True) if ring else case
            return mean_over_anchors(chosen.loss(pairs), pairs)[0]

        return jax.value_and_grad(value)(z)

    actual = compiled(local, SPLIT, (P(), P(None, "data")), Z, INDEX)
    assert actual == ALWAYS + model(SENDS, 1 if "tower" in kind else 2)[row_of(case, kind, ring)]


# Table row of the docs page -> objective, its pairs and the communication of its loss.
REMEMBERING = {
    "`decl`, a rate for every example": (decl(), "views", gathered(2)),
    "`sogclr`, an average for every example": (sogclr(), "views", gathered(2)),
    "`sogclr`, and a temperature": (sogclr(individual_temperature=True), "views", gathered(2)),
    "`nnclr`, a queue": (nnclr(support_size=50), "towers", gathered(1)),
    "`dino`, a centre": (dino(), "towers", Counter()),
}


@pytest.mark.parametrize("name", REMEMBERING)
def test_communication_of_loss_memory_depends_only_on_the_batch_size(name):
    objective, kind, of_the_loss = REMEMBERING[name]
    params, memory = objective.init(jax.random.key(0), EXAMPLES, D)

    def local(z, index, params, memory):
        def value(z, params):
            pairs = pairs_of(kind, z, index, "data")
            how = {"step": jnp.int32(3), "key": jax.random.key(1)}
            value, new, _ = objective.loss(pairs, params, memory, **how)
            return value, new

        return jax.value_and_grad(value, argnums=(0, 1), has_aux=True)(z, params)

    out = ((P(), P()), (P(None, "data"), P("data")))  # each device has a gradient of params
    actual = compiled(local, (*SPLIT, P(), P()), out, Z, INDEX, params, memory)
    assert actual == ALWAYS + of_the_loss + model(REMEMBERS, 2)[name]


def test_every_row_of_the_communication_tables_in_docs_is_tested():
    rows = model(SENDS, 2)
    assert rows.pop("every loss: ids, mean over anchors") == ALWAYS
    assert {re.sub("`(\\w+)`.*", r"\1", row) for row in rows if row[0] == "`"} <= set(NAMES)
    assert set(model(REMEMBERS, 2)) == set(REMEMBERING)


WIDTHS, HIDDEN, PREDICTED = (5, 6), 10, 9
ENCODER = Encoder(
    convnet.net(widths=WIDTHS, strides=(1, 2)), heads.mlp(proj_hidden_dim=HIDDEN, proj_output_dim=D)
)
PREDICTING = ENCODER._replace(predictor=heads.predictor(pred_hidden_dim=PREDICTED))


def normalised(*widths: int, times: int) -> Counter:
    """Return the communication of BatchNorm, ``times`` forward and backward passes.

    A backbone sums mean and mean square together, a head the mean and then the variance.
    """
    net = [(2 * width,) for width in widths if width in WIDTHS]
    heads = [(width,) for width in widths if width not in WIDTHS for _ in range(2)]
    return summed(*net, *heads, times=times)


def step(name: str, sharding: str = "none", encoder: Encoder = ENCODER):
    """Return the communication of a training step without scalars, and the parameters."""
    crops = 3 if "multi-crop" in name else 0
    method = {
        "siamese": lambda: siamese.method(encoder, nt_xent()),
        "accumulated": lambda: siamese.method(ENCODER._replace(num_chunks=5), nt_xent()),
        "memory": lambda: siamese.method(ENCODER, sogclr()),
        "momentum": lambda: momentum.method(PREDICTING, info_nce()),
        "queue": lambda: momentum.method(ENCODER, info_nce(), symmetric=False, queue_size=70),
    }[name.removesuffix(", multi-crop").replace("multi-crop", "siamese")]()

    def augment(key, images, index):
        x = images.astype(jnp.float32)
        small = {"crops": jnp.stack([x[:, :2, :2] * k for k in range(crops)])} if crops else {}
        return {"views": jnp.stack([x, x[:, ::-1]]), **small}

    batch = {"input": np.zeros((B, 4, 4, 3), np.uint8), "label": np.zeros(B, np.int32)}
    batch["index"] = np.arange(B, dtype=np.int32)
    mesh, optimiser = distributed.make_mesh(), optax.sgd(0.1, momentum=0.9)
    two = jax.tree.map(lambda x: x[:2], batch)
    state = make_init(method, optimiser, augment, two, EXAMPLES, mesh, sharding=sharding)(0)
    step: Any = make_train_step(method, optimiser, augment, mesh, sharding=sharding)
    actual = arrays(step.lower(state, distributed.shard(batch, mesh)).compile())
    # Scalars: loss, metrics, counts, flags. Small crops beside views have a count of their own.
    assert actual.pop(("all-reduce", 4)) == (5 if name == "multi-crop" else 4)
    return actual, jax.tree.leaves(state.params)


NET, HEAD = WIDTHS, (HIDDEN,)
KEYS = send("all-gather", B, D, times=2)
# Communication of networks and loss, without the gradient of the parameters. Views and small crops
# go through the backbone one after the other, and through the heads together.
STEPS = {
    "siamese": normalised(*NET, *HEAD, times=2) + gathered(2),
    "multi-crop": normalised(*NET, times=4) + normalised(*HEAD, times=2) + gathered(2),
    # Each of five chunks has a forward pass, then another with a backward pass.
    "accumulated": normalised(*NET, *HEAD, times=15) + gathered(2),
    "memory": normalised(*NET, *HEAD, times=2)
    + gathered(2)
    + send("all-gather", B)
    + summed((B,), times=1),
    # The momentum network has no backward pass and no predictor. Keys have no gradient.
    "momentum": normalised(*NET, *HEAD, times=3) + normalised(PREDICTED, times=2) + KEYS,
    "momentum, multi-crop": normalised(*NET, times=5)
    + normalised(*HEAD, times=3)
    + normalised(PREDICTED, times=2)
    + KEYS,
    # Keys are gathered for the pairs, and again at unit length for the queue.
    "queue": normalised(*NET, *HEAD, times=3) + KEYS,
}


# Slow cases, whose communication the faster cases also test, part by part.
LONG = {"multi-crop", "memory", "momentum", "queue", "accumulated"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in STEPS]
)
def test_training_step_communicates_gradients_batch_norm_statistics_and_the_loss(name):
    actual, params = step(name)
    gradient = summed(*[x.shape for x in params], times=1)
    assert actual == gradient + STEPS[name] + send("all-gather", B)


@pytest.mark.parametrize("group", [1, 4])
def test_batch_norm_groups_communicate_within_groups_and_average_running_statistics(group):
    actual, params = step("siamese", encoder=ENCODER._replace(norm_group=group))
    running = summed(*[(width,) for width in (*NET, *HEAD)], times=2)
    expected = summed(*[x.shape for x in params], times=1) + running + gathered(2)
    expected += send("all-gather", B)
    # A batch norm group of one device needs no communication.
    expected += normalised(*NET, *HEAD, times=2) if group > 1 else Counter()
    assert actual == expected


@pytest.mark.parametrize("sharding", long_except(["all"], ["optimizer", "all"]))
def test_sharded_parameters_are_gathered_and_their_gradients_reduced(sharding):
    hidden = 2 * N
    head = heads.mlp(proj_hidden_dim=hidden, proj_output_dim=D)
    actual, params = step("siamese", sharding, ENCODER._replace(projector=head))
    split = [x.shape for x in params if x.ndim == 2 and hidden in x.shape]
    rest = [x.shape for x in params if x.shape not in split]
    assert len(split) == 2
    operation = "reduce-scatter" if sharding == "all" else "all-reduce"
    expected = summed(*rest, times=1) + normalised(*NET, hidden, times=2) + gathered(2)
    expected += send("all-gather", B)
    for shape in split:
        expected += send(operation, *shape) + send("all-gather", *shape)
    assert actual.pop(("all-reduce", 1)) == 2
    assert actual == expected


def test_hlo_communication_counter_handles_loops_tuples_and_replicated_arrays():
    def local(x):
        x = lax.fori_loop(0, 3, lambda _, x: lax.ppermute(x, "data", [(0, 1)]), x)
        x, y = lax.psum((x, x[0]), "data")
        everyone = lax.all_gather(x * y, "data", tiled=True)
        return lax.psum_scatter(jnp.sin(everyone), "data", tiled=True)

    actual = compiled(local, P("data"), P("data"), jax.ShapeDtypeStruct((5 * N,), jnp.float32))
    assert actual == send("collective-permute", 5, times=3) + summed((5,), (), times=1) + send(
        "all-gather", 5 * N
    ) + send("reduce-scatter", 5 * N)


def test_hlo_communication_counter_rejects_loops_of_unknown_length():
    def local(x):
        return lax.while_loop(lambda x: x < 3, lambda x: lax.psum(x, "data"), x)

    with pytest.raises(ValueError, match="loop of unknown length"):
        compiled(local, P(), P(), jax.ShapeDtypeStruct((), jnp.float32))
