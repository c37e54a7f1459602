"""Damaged configs, workdirs, weights files and checkpoints, under the law of `fuzz_test.py`.

JAXSSL_FUZZ=10000 takes that many inputs in all, and prints how they went.
"""

import io
import json
import pickletools
import time
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from file_cases import zipped
from fuzz_cases import (
    REFUSED,
    VALUES,
    WORDS,
    changed,
    damaged,
    fuzzed,
    outcome,
    refilled,
    texts,
    values,
)
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save
from tiny import DIGITS
from weights_cases import GOLDEN, draw_weights
from workdir_cases import ROW

from jaxssl.pretrained import weights
from jaxssl.report import results, run_report
from jaxssl.training import config
from jaxssl.training.build import build
from jaxssl.training.workdir import checkpoint

pytestmark = pytest.mark.usefixtures("users_promotion")

# ---- Random overrides and damaged config files.


def _keys(tree, prefix=""):
    for key, value in tree.items():
        yield prefix + key
        if hasattr(value, "items"):
            yield from _keys(value, f"{prefix}{key}.")


WHOLE = config.load(DIGITS)
KEYS = tuple(_keys(WHOLE))
NAMES = "nt_xent auc_cl decl sogclr byol mmcl momentum siamese resnet vit mlp none digits simclr"
NAMES = (*NAMES.split(), *"released_cifar moco_v3 paper cosine lars sgd bf16 true false".split())
DEEP = ("(" * 9000, "[" * 5000, "-" * 9000, "{[]: 1}", "{{}}", "9" * 5000, "'\\d'", "b''", "...")
SCHEDULE = {"schedule": "cosine", "start": 0.1, "end": 0.2, "unit": "epochs", "until": 3}
schedules = st.dictionaries(st.sampled_from([*SCHEDULE, "values"]), values).map(
    lambda changes: repr(SCHEDULE | changes)
)
usual = st.sampled_from(NAMES) | st.integers(0, 300).map(str) | st.floats(0, 2).map(str)
odd = st.sampled_from((*map(repr, VALUES), *WORDS, *DEEP)) | values.map(repr) | st.text(max_size=12)
names = st.sampled_from((*KEYS * 20, *(f"{key}.x" for key in KEYS))) | st.text(max_size=9)
overrides = st.lists(st.tuples(names, usual | odd | schedules), min_size=1, max_size=2)


@fuzzed(1700)
@given(items=overrides)
def test_random_overrides_build_a_run_or_raise_a_one_line_error(below, items):
    actual = outcome("overrides", lambda: config.load(DIGITS, items), below)
    if actual is not REFUSED:
        assert set(_keys(actual)) >= {"loss.name", "data.path"}
        outcome("runs of overrides", lambda: build(actual, 1297), below)


@fuzzed(500)
@given(tree=changed(WHOLE.to_dict()))
def test_damaged_config_files_run_or_raise_a_one_line_error(below, tree):
    path = below / "mine.py"
    path.write_text(
        "from math import inf, nan\nfrom ml_collections import ConfigDict\n\n"
        f"def get_config():\n    return ConfigDict({tree!r})\n"
    )
    outcome("config files", lambda: config.load(path), below)


@fuzzed(200)
@given(data=damaged(DIGITS.read_bytes()) | st.binary(max_size=50))
def test_config_files_of_random_text_load_or_raise_a_one_line_error(below, data):
    path = below / "mine.py"
    path.write_bytes(data)
    outcome("texts of config files", lambda: config.load(path), below)


# ---- Damaged files in workdirs.

ROWS = {"results": [ROW, ROW | {"features": "raw", "step": None, "std": 0.5}]}
METRICS = [{"step": 3, "loss": 1.5, "knn_top1": 9.0}, {"step": 6, "loss": None}]
LINES = "".join(json.dumps(row) + "\n" for row in METRICS).encode()


@pytest.mark.long
@fuzzed(200)
@given(
    config_=texts(WHOLE.to_dict()),
    rows=texts(ROWS),
    lines=changed(METRICS).map(lambda rows: "".join(json.dumps(r) + "\n" for r in rows).encode())
    | damaged(LINES),
    which=st.sampled_from(("config.json", "results.json", "metrics.jsonl")),
)
def test_damaged_workdirs_resume_or_raise_a_one_line_error(below, config_, rows, lines, which):
    workdir = below / "run"
    workdir.mkdir(exist_ok=True)
    good = {"config.json": json.dumps(WHOLE.to_dict()).encode()}
    good |= {"results.json": json.dumps(ROWS).encode(), "metrics.jsonl": LINES}
    bad = {"config.json": config_, "results.json": rows, "metrics.jsonl": lines}[which]
    refilled(workdir, good, **{which: bad})
    outcome("results.json", lambda: results.read_results(workdir), workdir)
    outcome(f"report: {which}", lambda: run_report.write_report(workdir), workdir)


# ---- Damaged weights files.

TINY = draw_weights("tiny", 4)


@pytest.fixture(scope="module")
def weights_files(tmp_path_factory):
    """Weights files of one network in several formats, each with the network that it gives."""
    folder = tmp_path_factory.mktemp("weights")
    path = folder / "x.safetensors"
    path.write_bytes(save({k: np.asarray(v) for k, v in TINY.items()}))
    actual = weights.load(path, num_heads=2)
    ours = save(weights.public_arrays(actual), {weights.HEADER: weights.header(actual)})
    made = {"theirs.safetensors": path.read_bytes(), "ours.safetensors": ours}
    made |= {f"{kind}.pth": GOLDEN[f"file/{kind}"].tobytes() for kind in ("zip", "legacy")}
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return {name: (content, _net(folder / name)) for name, content in made.items()}


def _same(one, two):
    same = jax.tree.map(np.array_equal, one, two)
    return jax.tree.structure(one) == jax.tree.structure(two) and jax.tree.all(same)


def _net(path):
    actual = weights.load(path, num_heads=None if "ours" in path.name else 2)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(actual.variables))
    return jax.tree.map(np.asarray, actual.variables)


@fuzzed(1200)
@given(
    data=st.data(),
    name=st.sampled_from(("theirs.safetensors", "ours.safetensors", "zip.pth", "legacy.pth")),
)
def test_damaged_weights_files_load_or_raise_a_one_line_error(below, weights_files, data, name):
    path, (content, good) = below / name, weights_files[name]
    path.write_bytes(data.draw(damaged(content)))
    actual = outcome(f"weights: {name}", lambda: _net(path), below)
    if actual is not REFUSED:
        assert jax.tree.map(np.shape, actual) == jax.tree.map(np.shape, good)
        if name in ("zip.pth", "ours.safetensors"):
            assert _same(actual, good)


def _parts_of_zip():
    """The pickle and the storages of a PyTorch file."""
    with zipfile.ZipFile(io.BytesIO(GOLDEN["file/zip"].tobytes())) as archive:
        inside = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    numbers = sum(name.startswith("data/") for name in inside)
    return inside["data.pkl"], [inside[f"data/{i}"] for i in range(numbers)]


PICKLED, STORAGES = _parts_of_zip()
BOUNDARIES = [place for _, _, place in pickletools.genops(PICKLED)]
CALLS = "os system;posix system;builtins eval;builtins exec;builtins getattr;subprocess Popen"
CALLS += ";importlib import_module;torch._utils _rebuild_tensor_v2;torch._utils _rebuild_parameter"
CALLS += ";torch._utils _rebuild_from_type_v2;collections OrderedDict;torch FloatStorage;io open"
CALLS = tuple(call.split() for call in CALLS.split(";"))


@st.composite
def operations(draw):
    """Fragments of pickle programs."""
    module, name = draw(st.sampled_from(CALLS))
    argument = draw(st.sampled_from(("touch fuzzed", "open('fuzzed', 'w')", "os", "fuzzed")))
    text = b"X" + len(argument).to_bytes(4, "little") + argument.encode()
    call, inst = (f"{code}{module}\n{name}\n".encode() for code in "ci")
    return draw(
        st.sampled_from(
            (call, call + b"(" + text + b"tR", b"(" + text + inst, b"(" + call + text + b"o")
            + (call + b")\x81", call + b")}\x92", call + b"}b", text + text + b"\x93", call + b"Q")
        )
        | st.binary(min_size=1, max_size=4)
    )


@fuzzed(900)
@given(data=st.data(), at=st.sampled_from(BOUNDARIES), pieces=st.lists(operations(), max_size=3))
def test_damaged_pickles_load_or_raise_a_one_line_error(below, data, at, pieces):
    program = b"".join(pieces)
    whole = st.sampled_from(
        (PICKLED[:at] + program + PICKLED[at:], b"\x80\x02}(" + program + b"u.", program + b".")
        + (PICKLED[:at] + program + b"0" + PICKLED[at:],)
    )
    path = below / "x.pth"
    path.write_bytes(zipped(data.draw(whole), STORAGES))
    outcome("pickles", lambda: weights.load(path, num_heads=2), below / "nowhere")
    assert not Path("fuzzed").exists()


# ---- Damaged checkpoints.

STATE = {"params": {"net": {"a": np.arange(300, dtype=np.float32).reshape(3, 100)}}}
STATE |= {"step": np.int32(3), "key": np.arange(2, dtype=np.uint32)}
POSITION, SETTINGS = {"num_examples": 5, "position": 7}, {"a": {"b": 1.5}, "c": "x"}


@pytest.fixture(scope="module")
def run(below):
    workdir = below / "checkpoint"
    manager = checkpoint.Manager(workdir)
    manager.save(3, STATE, POSITION, SETTINGS, 0.5)
    manager.wait_until_finished()
    manager.close()
    content = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
    return workdir, content


@pytest.fixture(scope="module")
def no_wait():
    """Wait for the late errors of damaged checkpoints once, after all tests."""
    seconds = checkpoint.STRAGGLER_SECONDS
    with pytest.MonkeyPatch.context() as patch, checkpoint.ignore_late_orbax_errors():
        patch.setattr(checkpoint, "STRAGGLER_SECONDS", 0)
        yield
        time.sleep(seconds)


@pytest.mark.long
@fuzzed(1000)
@given(data=st.data())
def test_damaged_checkpoints_resume_or_raise_a_one_line_error(below, run, no_wait, data):
    workdir, content = run
    path = data.draw(st.sampled_from(sorted(content)))
    bad = data.draw(damaged(content[path]) | st.none())
    path.write_bytes(bad) if bad is not None else path.unlink()
    try:
        actual = outcome("checkpoints", lambda: checkpoint.restore_arrays(workdir), workdir)
    finally:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content[path])
    if actual is not REFUSED:
        assert (actual.step, actual.facts.data) == (3, POSITION)
        assert actual.facts.config == SETTINGS
        assert _same(actual.state, STATE)
