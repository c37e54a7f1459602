"""Runs on graphs: train, stop, resume, evaluate and load, on any number of devices."""

import jax
import numpy as np
import pytest
from file_cases import refused, unpack
from graph_cases import packed, random_graphs, text
from shared_folders import shared_folder
from workdir_cases import assert_resumes, trained

import jaxssl
from jaxssl import distributed
from jaxssl.data import source
from jaxssl.data.batches import make_batches
from jaxssl.data.decoders.decoding import Crops
from jaxssl.evaluation import features, pretrain, run
from jaxssl.evaluation.protocols import svm
from jaxssl.kinds import graph
from jaxssl.report import results
from jaxssl.training import config
from jaxssl.training.build import build, make_init
from jaxssl.training.output import metrics_writer
from jaxssl.training.state import make_train_step

CONFIG = "graphs/tu:graphcl"
STEPS, NUMBER = 6, 40
TINY = {"batch_size": "16", "total_steps": str(STEPS), "log_every": "2", "eval.every": "100"}
TINY |= {"net.width": "4", "net.layers": "2"}
TINY |= {"head.proj_hidden_dim": "8", "head.proj_output_dim": "8"}
QUICK = {"C": (1.0,), "machines": ("kernel",), "standardised": True}


@pytest.fixture(scope="module", autouse=True)
def settings():
    """Train few SVMs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(svm.PRESETS, "graphcl", QUICK)
        yield


def write_set(root, name, num_tags=3, seed=0):
    """Graphs of two classes."""
    graphs = random_graphs(NUMBER, least=5, most=12, seed=seed, num_tags=num_tags)
    return unpack(root / name, {f"{name}.txt": text(graphs, np.arange(NUMBER) % 2)})


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A data set, a similar one, and one with more tags."""

    def write(root):
        write_set(root, "SOME")
        write_set(root, "LIKE", seed=1)
        write_set(root, "MORE", 5)

    root = shared_folder(tmp_path_factory, "graph_sets", write)
    return [root / name for name in ("SOME", "LIKE", "MORE")]


@pytest.fixture(scope="module")
def tiny(sets, prepared):
    """A function that makes the config of a tiny run."""

    def make(**changes):
        indices = {"data.path": str(sets[0]), "data.dir": str(prepared)}
        return config.load(CONFIG, list({**TINY, **indices, **changes}.items()))

    return make


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The workdir of an uninterrupted run."""
    return trained(tmp_path_factory, "graphs", tiny())


@pytest.mark.long
def test_graph_run_ends_with_results_and_a_report(whole):
    rows = [row for row in results.read_results(whole) if row["protocol"] != "online"]
    actual = {row["features"]: row for row in rows}
    assert len(rows) == 3 and set(actual) == {"raw", "untrained", "pretrained"}
    for row in rows:
        assert (row["protocol"], row["metric"], row["unit"]) == ("svm", "svm_top1", "%")
        assert 0 <= row["value"] <= 100 and row["details"]["examples"] == NUMBER
        assert row["dataset"] == "SOME"
    lines = metrics_writer.read_metrics(whole / "metrics.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert all(np.isfinite(value) for line in lines for value in line.values())
    assert 0 <= lines[-1]["knn_top1"] <= 100
    page = (whole / "report.html").read_text()
    assert "svm" in page and "SOME" in page
    log = (whole / "train.log").read_text()
    assert "SOME, train: 40 graphs of nodes with 3 tags, 2 classes" in log
    assert "packed on the host by threads" in log


@pytest.mark.long
def test_stopped_graph_run_resumes_bit_for_bit(tiny, whole, tmp_path):
    assert_resumes(tiny(), whole, tmp_path, at=3, steps=STEPS)
    values = [[row["value"] for row in results.read_results(path)] for path in (tmp_path, whole)]
    assert values[0] == values[1]


def steps(made, devices, number=2):
    """Return losses, embeddings of each step, and parameters before and after."""
    train = source.load(made.data, "train", "graph")
    mesh = distributed.make_mesh(jax.devices()[:devices])
    parts = build(made, len(train), mesh.size)
    options = {"seed": made.seed, "crops": Crops((), (), 0), "parts": made.accumulate_steps}
    batches = make_batches(train, made.batch_size, mesh=mesh, **options)
    state = make_init(parts, batches.example, len(train), mesh)(made.seed)
    step = make_train_step(parts.method, parts.optimiser, parts.augment, mesh)
    variables = lambda: jax.device_get((state.params, state.carried.batch_stats))  # noqa: E731
    losses, embeddings, states = [], [], [variables()]
    for _ in range(number):
        state, metrics, z = step(state, batches.next())
        losses.append(float(metrics["loss"]))
        embeddings.append(np.asarray(z))
        states.append(variables())
    batches.close()
    return losses, embeddings, states


SGD = {"optim.name": "sgd", "optim.lr": "0.1", "optim.momentum": "0.0"}


def assert_close(found, expected):
    """A step of plain SGD is a tenth of the gradient."""
    (losses, z, states), (one_losses, one_z, one_states) = found, expected
    np.testing.assert_allclose(losses, one_losses, rtol=1e-5)
    np.testing.assert_allclose(z, one_z, rtol=1e-4, atol=1e-5)

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1, np.abs(b).max()))

    jax.tree.map(close, states, one_states)


def assert_all_moved(before, after):
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, after)
    assert all(jax.tree.leaves(moved))


@pytest.fixture(scope="module")
def one_device(tiny):
    return steps(tiny(**SGD), 1)


@pytest.mark.long  # gin_test.py tests the network on several devices.
def test_graph_training_steps_on_eight_devices_equal_those_on_one(tiny, one_device):
    actual = steps(tiny(**SGD), 8)
    assert_close(actual, one_device)
    assert_all_moved(actual[2][0], actual[2][-1])


@pytest.mark.long
def test_accumulation_on_graphs_normalises_each_chunk_separately(tiny, one_device):
    """BatchNorm normalises each chunk of accumulate_steps, so results differ."""
    losses, _, states = steps(tiny(**SGD, accumulate_steps="2"), 2)
    assert np.isfinite(losses).all() and losses[0] != one_device[0][0]
    np.testing.assert_allclose(losses, one_device[0], rtol=0.3)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states))


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "loss"),
    [("two_tower", loss) for loss in ("graphcl", "nt_xent", "decl")]
    + [("siamese", loss) for loss in ("mmcl", "auc_cl")],
)
def test_every_loss_changes_all_network_parameters_on_graphs(tiny, method, loss):
    changes = {"method.name": method, "loss.name": loss, "optim.lr": "0.001"}
    losses, z, states = steps(tiny(**changes), 1)
    assert np.isfinite(losses).all()
    assert z[0].shape == (2, 16, 8) and np.isfinite(z).all()
    assert_all_moved(*(state[0]["net"] for state in states[::2]))


def test_loaded_encoder_computes_features_of_new_graphs(tiny, whole):
    apply, variables, preprocess = jaxssl.load_encoder(whole)
    graphs = random_graphs(6, seed=9)
    encode = jax.jit(lambda tree, block: apply(tree, preprocess(block)))
    actual = encode(variables, packed(graphs))
    assert actual.shape == (6, 4 * 2)
    again = encode(variables, packed(graphs, 2))
    np.testing.assert_allclose(again, actual, rtol=1e-5, atol=1e-5)
    # Evaluation computes the same features in blocks, split over the devices.
    array = graph.array(source.load(tiny().data, "train", "graph"))
    mesh = distributed.make_mesh()
    extracted = features.extract(array, encode, distributed.replicate(variables, mesh), mesh)
    expected = encode(variables, packed(array.graphs))
    np.testing.assert_allclose(extracted, expected, rtol=1e-5, atol=1e-4)


def data_at(made, path):
    changed = made.data.copy_and_resolve_references()
    changed.path = str(path)
    return changed


def test_graph_encoder_is_evaluated_on_another_set_with_the_same_tags(tiny, sets, whole, tmp_path):
    data = data_at(tiny(), sets[1])
    rows = run.evaluate(whole, ("svm", "knn"), data=data, kinds=("pretrained",), out=tmp_path)
    assert {row["dataset"] for row in rows} == {"LIKE"}
    assert {row["protocol"] for row in rows} == {"svm", "knn"}


@pytest.mark.long
def test_image_protocols_are_skipped_by_protocols_all_and_rejected_by_name_for_graphs(
    whole, tmp_path, caplog
):
    rows = run.evaluate(whole, ("all",), kinds=("pretrained",), out=tmp_path / "all")
    assert {"svm", "knn", "linear"} <= {row["protocol"] for row in rows}
    assert "corruptions" not in caplog.text and "captions" not in caplog.text
    with refused("protocol 'corruptions': a data set of images is needed, but 'SOME' holds graphs"):
        run.evaluate(whole, ("corruptions",), out=tmp_path / "one")


def test_graphs_with_other_labels_and_images_are_rejected(tiny, sets, whole, tmp_path, data_dir):
    data = data_at(tiny(), sets[2])
    with refused("the encoder takes graphs with 3 node labels, but 'MORE' has 5"):
        run.evaluate(whole, ("svm",), data=data, out=tmp_path)
    digits = {"data.name": "digits", "data.path": "", "data.dir": str(data_dir)}
    with refused("data.name='digits' holds images, but augment.name or the encoder takes graphs"):
        pretrain.train(tiny(**digits), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"net.width": "0"}, "net.width must be >= 1"),
        ({"data.cache": "device"}, "data.cache='device' cannot hold graphs"),
        ({"data.workers": "2"}, "data.workers=2 is without use for graphs; set -1"),
        ({"batch_size": "64"}, "batch_size must be between 1 and the 40"),
    ],
)
def test_invalid_settings_are_refused_before_a_workdir_is_written(tiny, tmp_path, changes, message):
    with refused(message):
        pretrain.train(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
