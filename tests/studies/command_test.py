"""The command `jaxssl study`."""

import shlex
import subprocess
import sys

from study_cases import NAMES, setting

from jaxssl.cli import study


def test_recorded_command_has_all_arguments_that_change_results_and_no_absolute_paths(
    monkeypatch, run_command
):
    commands = []
    monkeypatch.setattr(sys, "argv", ["program", "of", "another", "name"])
    monkeypatch.setattr(study, "_run", lambda *args: commands.append(study._command(*args)))
    arguments = ["--scale", "small", "--out", "a b", "--equal_steps", "--config.seed", "1"]
    paths = ["--out", "/tmp/x/out", "--config.data.path=/data/a b/x.tar.xz", "--page", "docs/x.md"]
    for line in (arguments, paths, []):
        run_command("study", "alpha", *line)
    recorded, with_paths, plain = map(shlex.split, commands)
    assert recorded[:3] == with_paths[:3] == plain == ["jaxssl", "study", "alpha"]
    # The folder of the results does not change them.
    assert sorted(recorded[3:]) == ["--config.seed=1", "--equal_steps", "--scale=small"]
    assert with_paths[3:] == ["--config.data.path=x.tar.xz"]


def test_studies_of_a_part_of_the_grid_write_files_of_distinct_names(tmp_path):
    parts = {"methods": [("simclr",), ("mmcl",)], "batch_sizes": [(32,), (32, 64)]}
    parts |= {"equal_steps": [True], "workdir": [tmp_path / "a", tmp_path / "b"]}
    partial = [{}, *({key: value} for key, values in parts.items() for value in values)]
    stems = [study._stem("fig3", setting(tmp_path, **changes)) for changes in partial]
    assert stems[0] == "fig3" and len(set(stems)) == len(stems)


def test_study_command_without_a_name_lists_the_studies():
    command = [sys.executable, "-m", "jaxssl", "study"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in out.stdout.splitlines()] == list(NAMES)
