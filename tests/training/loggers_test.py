"""Loggers beside metrics.jsonl: the protocol, the services offline, and missing packages."""

import contextlib
import importlib.util
import json
import sqlite3
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from jaxssl import components
from jaxssl.errors import UserError
from jaxssl.training import config
from jaxssl.training.output import loggers, metrics_writer


@pytest.mark.fast
def test_loggers_get_each_step_and_are_synced_and_closed(tmp_path, monkeypatch):
    opened = Mock()
    monkeypatch.setattr(components, "factory", lambda *names: opened)
    writer = metrics_writer.MetricsWriter(tmp_path, 3, ("memory",), {"seed": 1})
    writer.write(4, {"loss": 2.0})
    writer.sync()
    writer.close()
    assert opened.mock_calls == [
        call(tmp_path, 3, {"seed": 1}),
        *(call().write(4, {"loss": 2.0}), call().sync(), call().close()),
    ]


@pytest.mark.fast
def test_unknown_logger_or_missing_package_raises_a_one_line_error(monkeypatch):
    with pytest.raises(UserError, match="unknown logger 'wandbb'.*wandb"):
        loggers.check(("wandbb",))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "jaxssl\[wandb\]"'):
        loggers.check(("tensorboard", "wandb"))


@pytest.mark.fast
@pytest.mark.parametrize("kind", [RuntimeError, ConnectionError])
def test_logger_that_cannot_be_opened_raises_a_one_line_error(tmp_path, monkeypatch, kind):
    def refuse(workdir, step, config):
        raise kind("No API key configured.\nRun: login")

    monkeypatch.setattr(loggers.components, "factory", lambda group, name: refuse)
    with pytest.raises(UserError, match="'wandb' cannot be opened .No API key .*; fix this or rem"):
        loggers.open_logger("wandb", tmp_path, 0, {})


def test_config_key_log_takes_one_or_several_loggers_and_may_change_on_resume():
    one = config.load("digits", [("log", "wandb")])
    two = config.load("digits", [("log", "tensorboard,wandb")])
    assert (one.log, two.log) == (("wandb",), ("tensorboard", "wandb"))
    old = {key: value for key, value in json.loads(one.to_json()).items() if key != "log"}
    assert config.conflicts(two, old) == []


@pytest.mark.fast
def test_service_logger_gets_each_step_once_under_its_first_identity(tmp_path):
    path, sent = tmp_path / "service.json", []
    log = lambda metrics, step: sent.append((step, metrics))  # noqa: E731
    client = SimpleNamespace(log=log, finish=lambda: sent.append("end"))
    for new_id, steps in (("a", (1, 2)), ("b", (2, 3))):
        logger = loggers.ServiceLogger(client, loggers.ServiceState(path, new_id))
        # A run that crashes before its first metrics has the same log afterwards.
        assert json.loads(path.read_text()) == {"id": "a", "last_step": 2 * (new_id == "b")}
        for step in steps:
            logger.write(step, {"loss": float(step)})
        logger.close()
    assert sent == [(1, {"loss": 1.0}), (2, {"loss": 2.0}), "end", (3, {"loss": 3.0}), "end"]
    path.write_text('{"id": "a"}')
    with pytest.raises(UserError, match="service.json is damaged .*; move it away"):
        loggers.ServiceState(path, "c")


@pytest.mark.fast
def test_training_goes_on_if_a_service_fails_which_is_logged_once(tmp_path, caplog):
    sent = []

    def log(metrics, step):
        if step in (2, 3):
            raise ConnectionError("the server is gone")
        sent.append(step)

    client = SimpleNamespace(log=log, finish=lambda: log({}, 3))
    state = loggers.ServiceState(tmp_path / "mlflow.json", "a")
    logger = loggers.ServiceLogger(client, state)
    for step in range(1, 5):
        logger.write(step, {"loss": 1.0})
    logger.close()
    assert sent == [1, 4]
    (message,) = caplog.messages
    assert message.startswith("the logger 'mlflow' fails (the server is gone); its service may")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by the loggers' packages
@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_logger_continues_its_run_after_resume_and_gets_no_step_twice(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # Trackio reads it on import
    pytest.importorskip(name)
    if name == "mlflow":
        pytest.importorskip("sqlalchemy")  # mlflow-skinny lacks it and has no local store.
    ids = set()
    for first, steps in ((0, (1, 2)), (1, (2, 3))):
        writer = metrics_writer.MetricsWriter(tmp_path, first, (name,), {"seed": 0})
        for step in steps:
            writer.write(step, {"loss": float(step)})
        writer.close()
        state = json.loads((tmp_path / f"{name}.json").read_text())
        ids.add(state["id"])
    assert len(ids) == 1 and state["last_step"] == 3
    if name == "mlflow":
        from mlflow import MlflowClient

        client = MlflowClient()
        history = client.get_metric_history(state["id"], "loss")
        assert [(point.step, point.value) for point in history] == [(1, 1), (2, 2), (3, 3)]
        assert client.get_run(state["id"]).info.status == "FINISHED"
        writer = metrics_writer.MetricsWriter(tmp_path, 3, (name,), {"seed": 0})
        with pytest.raises(KeyboardInterrupt), contextlib.closing(writer):
            raise KeyboardInterrupt
        assert client.get_run(state["id"]).info.status == "KILLED"
    if name == "wandb":
        stored = [path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/*.wandb")]
        assert len(stored) == 2 and all(b"loss" in content for content in stored)
    if name == "trackio":
        [database] = (tmp_path / "trackio").glob("*.db")
        with contextlib.closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("select step, metrics from metrics order by step").fetchall()
        assert [(step, json.loads(text)["loss"]) for step, text in rows] == [(1, 1), (2, 2), (3, 3)]
