"""Runs that somebody else may have written: no code of theirs runs, and forged values are named."""

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from marks import long_except
from tiny import DIGITS, TINY

import jaxssl
from jaxssl import components
from jaxssl.configs import base
from jaxssl.errors import UserError
from jaxssl.evaluation import run as evaluation
from jaxssl.evaluation.overrides import data_config
from jaxssl.pretrained.export import export
from jaxssl.pretrained.load import load_pretrained
from jaxssl.report.comparison import write_page
from jaxssl.training import config
from jaxssl.training.config import trust

RUN = Path(__file__).parents[1] / "golden" / "run_decl.zip"
PLUGIN = """
from pathlib import Path
Path(__file__).with_name("executed").touch()
from jaxssl.losses.decl import objective as loss
"""


@pytest.fixture
def forge(tmp_path, monkeypatch):
    """Return a function that changes dotted keys of a run's checkpoint, and signs it again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(changes, config_json=True) -> Path:
        root = tmp_path / "run"
        with zipfile.ZipFile(RUN) as archive:
            archive.extractall(root)
        (path,) = root.glob("checkpoints/*/facts/metadata")
        facts = json.loads(json.loads(path.read_text())["facts"])
        for key, value in changes.items():
            *groups, leaf = key.split(".")
            node = facts
            for group in groups:
                node = node[group]
            node[leaf] = value
        text = json.dumps(facts)
        digest = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(json.dumps({"facts": text, "digest": digest}))
        if config_json:
            (root / "config.json").write_text(json.dumps(facts["config"]))
        return root

    return make


@pytest.fixture
def plugin(tmp_path):
    """Return a Python file that leaves a trace when it is executed."""
    path = tmp_path / "notes.py"
    path.write_text(PLUGIN)
    return path


def train_from(run, **options):
    """Train one step from the weights of a run."""
    one_step = {**TINY, "total_steps": 1, "schedule.warmup_epochs": 0}
    workdir = run.with_name("new")
    return jaxssl.train(DIGITS, init=run, workdir=workdir, **one_step, **options)


READERS = {
    "load_encoder": jaxssl.load_encoder,
    "evaluate": lambda run, **kw: jaxssl.evaluate(run, "knn", **kw),
    "embed": lambda run, **kw: jaxssl.embed(run, [], **kw),
    "train": train_from,
    "export": lambda run, **kw: export(run, ["safetensors"], **kw),
    "report": lambda run: write_page([run]),
    "results": lambda run: (jaxssl.Run(run).config, jaxssl.Run(run).metrics),
}


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_loading_an_untrusted_run_executes_no_python_file_that_it_names(name, forge, plugin):
    group = {"loss.name": f"{plugin}:loss", "eval.protocols": [f"{plugin}:loss"]}
    run = forge({f"config.{key}": value for key, value in group.items()})
    if name in ("report", "results"):
        READERS[name](run)
    else:
        digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
        message = rf"since you trained with them: {plugin} \(SHA-256 {digest}\); read them.*--trust"
        with pytest.raises(UserError, match=message):
            READERS[name](run)
    assert not plugin.with_name("executed").exists() and not run.with_name("new").exists()


def test_run_whose_loss_this_version_does_not_train_can_be_read(forge):
    loss = {"name": "sup_con", "temperature": 0.1, "base_temperature": None, "learn": []}
    run = forge({"config.loss": {**loss, "block_size": None, "ring": False}})
    assert "net" in load_pretrained(run).variables


def test_python_files_named_as_protocol_or_data_of_an_untrusted_run_are_not_executed(forge, plugin):
    run = forge({"config.eval.protocols": [f"{plugin}:loss:preset"]})
    with pytest.raises(UserError, match=f"since you trained with them: {plugin} "):
        evaluation.evaluate(load_pretrained(run), data={})
    document = json.loads((run / "config.json").read_text())
    document["data"]["name"] = f"{plugin}:loss"
    (run / "config.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"another config than .*config.json \(data.name: 'digits'"):
        evaluation.evaluate(run, ["knn"])
    assert not plugin.with_name("executed").exists()


def test_python_file_is_executed_if_the_run_is_trusted_or_the_user_trained_with_it(forge, plugin):
    name = f"{plugin}:loss"
    run = forge({"config.loss.name": name})
    executed = plugin.with_name("executed")
    jaxssl.load_encoder(run, trust=True)
    assert executed.exists()
    with pytest.raises(UserError, match="since you trained with them"):  # trust is not remembered
        jaxssl.load_encoder(run)
    executed.unlink()
    components._load_plugin.cache_clear()
    trust.remember([name, "nt_xent", "python:Loss"])
    [markers] = Path(os.environ["XDG_STATE_HOME"]).glob("jaxssl/trained_with")
    assert markers.stat().st_mode & 0o077 == 0
    jaxssl.load_encoder(run)
    assert executed.exists()
    plugin.write_text(PLUGIN + "# changed")
    with pytest.raises(UserError, match="since you trained with them"):
        jaxssl.load_encoder(run)
    copy = plugin.with_name("copy.py")
    copy.write_text(PLUGIN)  # Trust depends on the path too: the file may read its neighbours.
    with pytest.raises(UserError, match="since you trained with them"):
        trust.require([f"{copy}:loss"], run, False)


def test_warning_says_why_trust_cannot_be_recorded(plugin, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    trust.remember([f"{plugin}:loss"])
    assert f"cannot record that you train with {plugin} (Not a directory)" in caplog.text


@pytest.mark.long
def test_training_starts_from_a_run_that_the_user_trusts(forge, plugin):
    run = forge({"config.loss.name": f"{plugin}:loss"})
    report = train_from(run, trust=True).init
    assert report is not None and report["from"] == str(run) and report["loaded"] > 0
    assert plugin.with_name("executed").exists()


@pytest.mark.parametrize("key", ["config.log", "config.eval.protocols"])
@pytest.mark.parametrize("preset", ["", ":other"])
def test_loggers_and_protocols_of_an_untrusted_run_are_not_executed_by_training(
    key, preset, forge, plugin, tmp_path
):
    run = forge({key: [f"{plugin}:loss{preset}"]})
    for act in (
        lambda: jaxssl.resume(run),
        lambda: jaxssl.train(run / "config.json", workdir=tmp_path / "ours"),
    ):
        with pytest.raises(UserError, match=f"since you trained with them: {plugin} "):
            act()
    assert not plugin.with_name("executed").exists()
    short = key.rpartition(".")[2]
    assert config.load(run / "config.json", [(short, "()"), ("data.dir", "")])


class Opened(Exception):
    """The data set of a run was opened."""


@pytest.mark.parametrize("key", long_except(trust.DATA_KEYS[:1], trust.DATA_KEYS))
def test_data_paths_of_an_untrusted_run_are_not_opened(key, forge, tmp_path, monkeypatch):
    def opened(*_):
        raise Opened

    theirs, defaults = tmp_path / "theirs", base.get_config().data
    run = forge({"config.data.dir": "", f"config.data.{key}": str(theirs)})
    message = f"names data that you have not trained with: data.{key}={theirs}; .*--trust"
    for read in (
        lambda: jaxssl.evaluate(run, "knn"),
        lambda: data_config(run, defaults, None, [("data.test_split", "test")]),
        lambda: jaxssl.resume(run),
        lambda: config.load(run / "config.json"),
        lambda: jaxssl.train(run / "config.json", workdir=tmp_path / "ours"),
    ):
        with pytest.raises(UserError, match=message):
            read()
    assert not theirs.exists()

    named = data_config(run, defaults, None, [(f"data.{key}", "/ours")])
    assert named is not None and named[key] == "/ours"
    assert config.load(run / "config.json", [(f"data.{key}", "/ours")]).data[key] == "/ours"
    assert config.load(run / "config.json", trust=True).data[key] == str(theirs)
    monkeypatch.setattr(evaluation.source, "load_splits", opened)
    for options in ({"trust": True}, {"data": named}):
        with pytest.raises(Opened):
            evaluation.evaluate(run, ["knn"], **options)
    with pytest.raises(Opened):
        jaxssl.train(run / "config.json", workdir=tmp_path / "ours", trust=True)
    trust.remember([], {"name": "folder", key: str(theirs)})
    with pytest.raises(Opened):
        jaxssl.evaluate(run, "knn")


def test_trusted_data_are_known_by_absolute_path(tmp_path, monkeypatch):
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    trust.remember([], {"dir": "~/sets", "path": "pictures", "labels": "gs://bucket/labels"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    same = {"dir": f"{tmp_path}/sets", "path": "../pictures", "labels": "gs://bucket/labels"}
    trust.require_data(same, "run", False)
    with pytest.raises(UserError, match="not trained with: data.path=pictures; name"):
        trust.require_data({**same, "path": "pictures"}, "run", False)


def test_evaluating_another_data_set_uses_no_data_path_of_an_untrusted_run(forge, tmp_path):
    run = forge({"config.data.dir": str(tmp_path / "theirs"), "config.data.path": "elsewhere"})
    with pytest.raises(UserError, match=f"not trained with: data.dir={tmp_path}/theirs; "):
        data_config(run, base.get_config().data, "digits", [])
    assert data_config(run, base.get_config().data, "digits", [("data.dir", "ours")]).path == ""


# Each case forges values of a checkpoint's metadata and of config.json.
FORGED = {
    "data is no mapping": ({"data": 3}, "no valid 'data'"),
    "number of examples": ({"data.num_examples": 10**18}, "'num_examples' expects int"),
    "checksums": ({"checksums": 5}, "no valid 'checksums'"),
    "data path": ({"config.data.path": 5}, "'data.path' expects str"),
    "score": ({"score": "best"}, "no valid 'score'"),
    "group is a number": ({"config.net": 4}, "lacks the group 'net'"),
    "component is a number": ({"config.net.name": 4}, "the group 'net', or the name"),
    "unknown loss": ({"config.loss": {"name": "none"}}, "loss.name='none' is unknown"),
    "unknown argument": ({"config.net.foo": 4}, "net.foo is not a setting"),
    "text in a list": ({"config.net.widths": [4, "a"]}, "net.widths' expects tuple of int"),
    "lengths": ({"config.net.strides": [2]}, r"net.strides \[2\] must have equal lengths"),
    "wider than its arrays": ({"config.net.widths": [4, 16]}, "does not fit its config: the"),
    "huge width": ({"config.net.widths": [4, 10**9]}, "'net.widths' must be <= 1048576"),
    "many widths": ({"config.net.widths": [4] * 10**5}, "must have at most 1000"),
    "head": ({"config.head.proj_hidden_dim": 2**19}, r"the config makes \(524288,\)"),
    "huge head": ({"config.head.proj_hidden_dim": 4 * 10**6}, "dim' must be <= 1048576"),
    "many layers": ({"config.head.proj_layers": 10**7}, "proj_layers' must be <= 1000"),
    "deep head": ({"config.head.proj_layers": 5}, "has the shape None, but"),
    "huge images": ({"config.augment.size": 65536}, "'augment.size' must be <= 32768"),
    "negative images": ({"config.augment.size": -1}, "'augment.size' must be >= 1"),
    "not a number": ({"config.loss.temperature": float("nan")}, "temperature: nan -> nan"),
    "schedule": ({"config.loss.temperature": {"schedule": 3}}, "schedule must be one of"),
    "batch": ({"config.batch_size": "a"}, "'batch_size' expects int"),
    "seed": ({"config.seed": 2**40}, "'seed' expects int"),
    "protocols": ({"config.eval.protocols": [1]}, "'eval.protocols' expects tuple of str"),
    "views": ({"config.second_view": {"zz": 1}}, "second_view.zz is not an argument"),
    "missing key": ({"config.optim": {"name": "sgd"}}, "'optim.clip_norm' is missing"),
    "precision": ({"config.precision": "f8"}, "precision='f8' is unknown"),
    "graphs": ({"config.augment": {"name": "graph"}}, "does not fit its config: the ConvNet"),
    "videos": ({"config.augment": {"name": "video"}}, "net.name='convnet' takes images"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_config_values_of_a_run_raise_a_one_line_error(name, forge):
    changes, message = FORGED[name]
    run = forge(changes)
    with pytest.raises(UserError, match=message) as error:
        jaxssl.load_encoder(run)
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 1500


def test_config_json_that_differs_from_the_config_in_the_checkpoint_is_refused(forge):
    run = forge({"config.seed": 1}, config_json=False)
    with pytest.raises(UserError, match=r"another config than .*config.json \(seed: 1 -> 0\)"):
        jaxssl.load_encoder(run)


def test_checkpoint_with_a_pipe_or_a_link_is_refused(forge):
    run = forge({})
    state = run / "checkpoints" / "6" / "state"
    os.mkfifo(state / "d" / "pipe")
    with pytest.raises(UserError, match="'pipe' is neither a file nor a folder"):
        jaxssl.load_encoder(run)
    (state / "d" / "pipe").unlink()
    shutil.move(state / "_METADATA", run / "elsewhere")
    (state / "_METADATA").symlink_to(run / "elsewhere")
    with pytest.raises(UserError, match="'_METADATA' is neither a file nor a folder"):
        jaxssl.load_encoder(run)
