"""The command `jaxssl study`."""

import shlex
import subprocess
import sys

import pytest
from study_cases import NAMES, setting

from jaxssl.cli import study
from jaxssl.errors import UserError
from jaxssl.studies import alpha, batch_size
from jaxssl.studies.study import Findings


def test_recorded_command_has_all_arguments_that_change_results_and_no_absolute_paths(
    monkeypatch, run_command
):
    commands = []
    monkeypatch.setattr(sys, "argv", ["program", "of", "another", "name"])
    monkeypatch.setattr(study, "_run", lambda *args: commands.append(study._command(*args)))
    arguments = ["--scale", "small", "--out", "a b", "--equal_steps", "--config.seed", "1"]
    paths = ["--out", "/tmp/x/out", "--config.data.path=/data/a b/x.tar.xz", "--page", "docs/x.md"]
    earlier = ["--finished", "--earlier", "x.json"]
    for line in (arguments, paths, earlier):
        run_command("study", "alpha", *line)
    recorded, with_paths, plain = map(shlex.split, commands)
    assert recorded[:3] == with_paths[:3] == plain == ["jaxssl", "study", "alpha"]
    # The folder of the results does not change them.
    assert sorted(recorded[3:]) == ["--config.seed=1", "--equal_steps", "--scale=small"]
    assert with_paths[3:] == ["--config.data.path=x.tar.xz"]


def test_studies_of_a_part_of_the_grid_write_files_of_distinct_names(tmp_path):
    parts = {"methods": [("simclr",), ("mmcl",)], "batch_sizes": [(32,), (32, 64)]}
    parts |= {"equal_steps": [True], "workdir": [tmp_path / "a", tmp_path / "b"]}
    parts |= {"overrides": [(("epochs", "5"),), (("data.name", "folder"), ("data.path", "/a"))]}
    partial = [{}, *({key: value} for key, values in parts.items() for value in values)]
    stems = [study._stem("fig3", setting(tmp_path, **changes)) for changes in partial]
    assert stems[0] == "fig3" and len(set(stems)) == len(stems)


def test_folder_of_the_page_is_made_before_the_study_runs(run_command, tmp_path, monkeypatch):
    page = tmp_path / "new" / "page.md"
    runs = []

    def run(setting):
        runs.append(page.parent.is_dir())
        raise UserError("measured nothing")

    monkeypatch.setattr(alpha, "run", run)
    arguments = ["alpha", "--out", tmp_path / "out", "--page", page]
    assert run_command("study", *arguments)[::2] == (2, "error: measured nothing\n")
    assert runs == [True]
    page.with_suffix(".json").write_text('{"mine": 1}')
    _, _, error = run_command("study", *arguments)
    assert "page.json is damaged (the file is not the document of a study)" in error
    assert runs == [True]


def test_document_of_another_scale_or_data_set_or_of_more_seeds_is_not_replaced(
    run_command, tmp_path, monkeypatch
):
    monkeypatch.setattr(alpha, "run", lambda setting: Findings([], [], {}, {}, "digits"))
    arguments = ["alpha", "--out", tmp_path]
    path, page = tmp_path / "alpha.json", tmp_path / "alpha.md"
    for seeds in (2, 2, 3):  # The same command again, and more seeds, replace the document.
        assert run_command("study", *arguments, f"--seeds={seeds}")[0] == 0
    written = path.read_bytes()
    for flag, old in [("scale=small", "tiny"), ("dataset=mnist", "default"), ("seeds=2", "3")]:
        status, _, error = run_command("study", *arguments, "--seeds=3", f"--{flag}")
        key, new = flag.split("=")
        expected = f"{path} was made with {key} {old}, and would be replaced"
        assert status == 2 and error.startswith(f"error: {expected}")
        copied = run_command("study", "alpha", f"--out={tmp_path}/b", "--page", page, f"--{flag}")
        assert copied[0] == 2 and "would be replaced" in copied[2]
    assert path.read_bytes() == written


def test_study_command_without_a_name_lists_the_studies():
    command = [sys.executable, "-m", "jaxssl", "study"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in out.stdout.splitlines()] == list(NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["claims", "--methods=simclr"], "--methods=simclr is not used by `claims`; leave it out"),
        (["claims", "--config.seed=1"], "--config.seed=1 is not used by `claims`; leave it out"),
        (["alpha", "--page=alpha.json"], "--page=alpha.json must be a Markdown file"),
    ],
)
def test_flag_that_has_no_effect_or_would_overwrite_a_document_is_refused(
    run_command, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "_run", lambda *_: None)
    status, _, errors = run_command("study", *arguments, "--out", tmp_path / "out")
    assert status == 2 and message in errors and list(tmp_path.iterdir()) == []


def test_repeated_batch_size_counts_as_one(run_command, tmp_path, monkeypatch):
    settings = []

    def run(setting):
        settings.append(setting)
        raise UserError("enough")

    monkeypatch.setattr(batch_size, "run", run)
    run_command("study", "batch_size", "--batch_sizes=32,32", "--out", tmp_path)
    assert settings[0].batch_sizes == (32,)
