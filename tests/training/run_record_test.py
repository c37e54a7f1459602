"""Checkpoints belong to one run; processes of a run agree; changes of numbers are named."""

import json
import os
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from file_cases import refused
from tiny import DIGITS, SETTINGS

from jaxssl import distributed
from jaxssl.errors import UserError
from jaxssl.training import config
from jaxssl.training.workdir import checkpoint, opening, run_record

STATE = {"w": np.ones(2, np.float32)}
RECORD = run_record.RunRecord("mine", "data 1", {"jax": "0.1", "jax_enable_x64": False})


@pytest.fixture(scope="module")
def settings():
    return config.load(DIGITS, list(SETTINGS.items()))


def save(workdir, settings, *steps, **changes):
    """Write checkpoints with the record of a run."""
    manager = checkpoint.Manager(workdir, RECORD._replace(**changes)._asdict())
    for step in steps:
        manager.save(step, STATE, {}, settings.to_dict(), None)
    manager.close()


@pytest.fixture
def workdir(tmp_path, settings):
    save(tmp_path / "run", settings, 7, 12)
    (tmp_path / "run" / run_record.NAME).write_text(json.dumps({"run": "mine"}))
    return tmp_path / "run"


def check(workdir, settings, **changes):
    run_record.check_checkpoints(settings, workdir, RECORD._replace(run=None, **changes))


def test_checkpoints_written_by_the_same_run_are_accepted(workdir, settings):
    check(workdir, settings)
    restored = checkpoint.restore_arrays(workdir)
    assert restored.step == 12 and restored.facts.environment == RECORD.environment


def test_renamed_checkpoint_is_not_evaluated(workdir, settings):
    folder = workdir / "checkpoints"
    os.rename(folder / "12", folder / "20")
    with refused("20 is damaged or incomplete: the checkpoint was written at step 12"):
        checkpoint.restore_arrays(workdir, 20)
    assert checkpoint.restore_arrays(workdir).step == 7
    with pytest.raises(UserError, match="20 was written at step 12; move it away, or choose"):
        check(workdir, settings)


def test_checkpoints_of_another_run_config_or_data_set_are_refused(workdir, settings, tmp_path):
    with pytest.raises(UserError, match="7 was written with other training data than"):
        check(workdir, settings, fingerprint="data 2")
    moved = config.load(DIGITS, [*SETTINGS.items(), ("data.path", "b")])
    with pytest.raises(UserError, match="has now .data.path: '' -> '.*/b'.; restore the data"):
        check(workdir, moved, fingerprint="data 2")
    with pytest.raises(UserError, match="7 was written under another config .seed: 0 -> 1"):
        check(workdir, config.load(DIGITS, [*SETTINGS.items(), ("seed", "1")]))
    save(tmp_path / "other", settings, 20, run="other")
    shutil.copytree(tmp_path / "other" / "checkpoints" / "20", workdir / "checkpoints" / "20")
    (workdir / run_record.NAME).unlink()
    with pytest.raises(UserError, match="was written by another run"):
        check(workdir, settings)


def test_workdir_takes_the_run_id_of_its_checkpoints_or_draws_one(workdir, settings, tmp_path):
    (workdir / run_record.NAME).unlink()
    run_record.write(settings, workdir, RECORD._replace(run=None))
    assert run_record.read(workdir) == "mine"
    new = [tmp_path / "a", tmp_path / "b"]
    for path in new:
        path.mkdir()
        run_record.write(settings, path, RECORD._replace(run=None))
    first, second = map(run_record.read, new)
    assert len({first, second, None}) == 3
    run_record.write(settings, new[0], RECORD._replace(run=None))
    assert run_record.read(new[0]) == first


def test_checkpoints_of_version_0_1_are_accepted(tmp_path, settings):
    save(tmp_path, settings, 7)
    path = tmp_path / "checkpoints" / "7" / "facts" / "metadata"
    facts = json.loads(json.loads(path.read_text())["facts"])
    facts = json.dumps({key: facts[key] for key in ("data", "config", "score", "checksums")})
    path.write_text(json.dumps({"facts": facts, "digest": checkpoint._digest(facts)}))
    check(tmp_path, settings)
    assert checkpoint.restore_arrays(tmp_path).facts.environment is None
    with pytest.raises(UserError, match="written under another config .seed: 0 -> 1"):
        check(tmp_path, config.load(DIGITS, [*SETTINGS.items(), ("seed", "1")]))


def test_symbolic_links_among_checkpoints_are_set_aside(workdir, settings, tmp_path):
    target = tmp_path / "target"
    save(target, settings, 30, run="other")
    (workdir / "checkpoints" / "30").symlink_to(target / "checkpoints" / "30")
    (workdir / "checkpoints" / "40").symlink_to("nowhere")
    assert checkpoint.steps(workdir) == [7, 12]
    check(workdir, settings)
    checkpoint.set_aside(workdir)
    assert {path.name for path in (workdir / "damaged").iterdir()} == {"30", "40"}
    assert checkpoint.steps(target) == [30] and checkpoint.steps(workdir) == [7, 12]


RECORDS = {
    "run.json": ["", "{}", '{"run": 1}', "[" * 10_000, "null"],
    "init.json": ["{}", "[]", "cut"],
}


@pytest.mark.parametrize(("name", "text"), [(name, x) for name in RECORDS for x in RECORDS[name]])
def test_damaged_run_record_is_reported_in_one_line(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    read = {"run.json": run_record.read, "init.json": run_record.read_init}[name]
    with pytest.raises(UserError, match=f"{name} is damaged .*; delete it"):
        read(tmp_path)


def test_changes_of_versions_and_jax_settings_are_logged_with_both_values(caplog, settings):
    before = run_record.environment(settings)
    run_record.warn_of_changes(7, before, json.loads(json.dumps(before)))
    run_record.warn_of_changes(7, None, before)
    start = "since checkpoint 7 was written, these have changed: "
    assert not [text for text in caplog.messages if text.startswith(start)]
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        now = {**run_record.environment(settings), "jaxlib": "9.9"}
    run_record.warn_of_changes(7, before, now)
    [message] = [text for text in caplog.messages if text.startswith(start)]
    assert "jax_enable_x64: False -> True" in message
    assert "jax_default_matmul_precision: None -> 'highest'" in message
    assert f"jaxlib: {before['jaxlib']!r} -> '9.9'" in message


@pytest.mark.parametrize("key", ["batch_norm_group", "accumulate_steps"])
def test_another_number_of_devices_is_logged_if_batch_norm_depends_on_it(caplog, monkeypatch, key):
    configs = config.load("digits"), config.load("digits", [(key, "4")])
    before = [run_record.environment(values) for values in configs]
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    for values, old in zip(configs, before, strict=True):
        run_record.warn_of_changes(7, old, run_record.environment(values))
    [message] = [text for text in caplog.messages if "have changed" in text]
    assert "have changed: devices: 8 -> 2; the results may differ" in message


def gathered(monkeypatch, *others):
    """Let this process be the first of several, which have these values."""
    monkeypatch.setattr(distributed, "process_count", lambda: 1 + len(others))
    texts = [json.dumps(values).encode() for values in others]
    monkeypatch.setattr(distributed, "gather_process_texts", lambda text: [text, *texts])


def test_processes_with_different_configs_or_versions_stop_with_the_differences(
    settings, tmp_path, monkeypatch
):
    values = run_record.process_values(settings, tmp_path)
    other = config.load(DIGITS, [*SETTINGS.items(), ("seed", "1"), ("optim.lr", "0.5")])
    differing = run_record.process_values(other, tmp_path)
    gathered(monkeypatch, values, differing | {"jaxssl": "9"})
    expected = (
        f"process 2 differs from process 0 .config.optim.lr: {settings.optim.lr} -> 0.5; "
        "config.seed: 0 -> 1; jaxssl: .* -> '9'.; start all processes with the same command"
    )
    with pytest.raises(UserError, match=expected):
        run_record.require_equal(values)
    gathered(monkeypatch, values)
    run_record.require_equal(values)


def test_processes_may_have_their_own_data_folder_and_number_of_workers(settings, tmp_path):
    changes = [("data.dir", "/scratch/1"), ("data.workers", "3")]
    changes += [(f"data.{key}", f"/scratch/{key}") for key in ("path", "labels", "classes")]
    other = config.load(DIGITS, [*SETTINGS.items(), *changes])
    values = (run_record.process_values(one, tmp_path) for one in (settings, other))
    assert next(values) == next(values)


def test_reading_falls_back_to_a_newer_checkpoint_if_the_run_removes_the_old_ones(
    workdir, settings, tmp_path, monkeypatch
):
    later = tmp_path / "later"
    save(later, settings, 20, 30)
    read = checkpoint._read_facts

    def remove_first(folder, step):
        if step == 12:
            for old in ("7", "12"):
                shutil.rmtree(workdir / "checkpoints" / old)
            for new in ("20", "30"):
                os.rename(later / "checkpoints" / new, workdir / "checkpoints" / new)
        return read(folder, step)

    monkeypatch.setattr(checkpoint, "_read_facts", remove_first)
    restored = checkpoint.restore_arrays(workdir)
    assert (restored.step, restored.damaged) == (30, ())


def test_run_whose_checkpoints_are_all_removed_while_read_is_an_error(workdir, monkeypatch):
    listed = iter([[7, 12]])
    monkeypatch.setattr(checkpoint, "steps", lambda _: next(listed, []))
    with pytest.raises(UserError, match=r"checkpoint 12 of .* was removed meanwhile; no other is"):
        checkpoint.restore_arrays(workdir)


def test_error_about_a_checkpoint_removed_while_read_names_the_remaining_ones(workdir, monkeypatch):
    def remove(folder, step):
        shutil.rmtree(workdir / "checkpoints" / "7", ignore_errors=True)
        raise FileNotFoundError("metadata")

    monkeypatch.setattr(checkpoint, "_read_facts", remove)
    message = r"checkpoint 7 of .* was removed meanwhile; there are also \[12\]"
    with pytest.raises(UserError, match=message):
        checkpoint.restore_arrays(workdir, 7)


@pytest.mark.fast
def test_run_with_the_epochs_of_its_config_file_can_be_extended(tmp_path, monkeypatch):
    settings = config.load("digits")
    (tmp_path / "config.json").write_text(settings.to_json())
    facts = SimpleNamespace(data={"num_examples": 1297})
    monkeypatch.setattr(opening.checkpoint, "read_all_facts", lambda workdir: {40: facts})
    extended = opening.resume_config(tmp_path, settings.epochs + 0.5)
    assert extended.epochs == settings.epochs + 0.5
    assert extended.extended == (f"{settings.epochs:g} epochs until step 40",)
