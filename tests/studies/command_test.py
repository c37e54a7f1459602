"""The command `jaxssl study`."""

import shlex
import subprocess
import sys

import pytest
from study_cases import NAMES, setting

from jaxssl import cli
from jaxssl.cli import study


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gradient_bais"], "study 'gradient_bais' is unknown; did you mean 'gradient_bias'"),
        (
            ["alpha", "--scale", "huge"],
            "flag --scale=huge: value should be one of <tiny|small|medium|paper|paper_simclr>",
        ),
        (["alpha", "--batch_sizes", "8,x"], "--batch_sizes expects numbers > 0, got 8,x"),
        (["alpha", "--seeds", "0"], "flag --seeds=0"),
        (["alpha", "--methods", "simclr"], "--methods is not used by the study 'alpha'"),
        (["alpha", "--equal_steps"], "--equal_steps is not used by the study 'alpha'"),
        (["alpha", "--finished"], "--finished is not used by the study 'alpha'"),
        (["alpha", "--earlier", "x.json"], "--earlier is not used by the study 'alpha'"),
    ],
)
def test_wrong_study_arguments_print_a_one_line_error(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.run("study", [*arguments, "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.startswith("error: ") and message in error
    assert error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_recorded_study_command_has_all_arguments_that_change_results(monkeypatch):
    commands = []
    monkeypatch.setattr(sys, "argv", ["program", "of", "another", "name"])
    monkeypatch.setattr(study, "_run", lambda *args: commands.append(study._command(*args)))
    arguments = ["alpha", "--scale", "small", "--out", "a b", "--equal_steps", "--config.seed", "1"]
    for line in (arguments, ["alpha"]):
        with pytest.raises(SystemExit):
            cli.run("study", line)
    recorded, plain = map(shlex.split, commands)
    assert recorded[:3] == plain == ["jaxssl", "study", "alpha"]
    # The folder of the results does not change them.
    assert sorted(recorded[3:]) == ["--config.seed=1", "--equal_steps", "--scale=small"]


def test_recorded_study_command_has_no_absolute_paths(monkeypatch):
    commands = []
    monkeypatch.setattr(study, "_run", lambda *args: commands.append(study._command(*args)))
    paths = ["--out", "/tmp/x/out", "--config.data.path=/data/a b/x.tar.xz", "--page", "docs/x.md"]
    with pytest.raises(SystemExit):
        cli.run("study", ["alpha", *paths])
    [words] = map(shlex.split, commands)
    assert words[3:] == ["--config.data.path=x.tar.xz"]


def test_studies_of_a_part_of_the_grid_write_files_of_distinct_names(tmp_path):
    partial: tuple[dict, ...] = (
        {},
        {"methods": ("simclr",)},
        {"methods": ("mmcl",)},
        {"batch_sizes": (32,)},
        {"batch_sizes": (32, 64)},
        {"equal_steps": True},
        {"workdir": tmp_path / "a"},
        {"workdir": tmp_path / "b"},
    )
    stems = [study._stem("fig3", setting(tmp_path, **changes)) for changes in partial]
    assert stems[0] == "fig3" and len(set(stems)) == len(stems)


def test_study_command_without_a_name_lists_the_studies():
    command = [sys.executable, "-m", "jaxssl", "study"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in out.stdout.splitlines()] == list(NAMES)
