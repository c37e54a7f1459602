"""`jaxssl completion`: scripts for the shells, and the words that they offer."""

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxssl import components
from jaxssl.cli import completion
from jaxssl.training import config
from jaxssl.training.config.values import flat_keys

ROOT = Path(__file__).parents[1]
ALL = [(group, name) for group in config.GROUPS for name in components.names(group)]


@pytest.fixture
def environment(tmp_path):
    """Return environment variables with a command `jaxssl` of this checkout on the path."""
    command = tmp_path / "jaxssl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jaxssl "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.fast
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("jaxssl tr", "train"),
        ("jaxssl da", "data"),
        ("jaxssl data ", "--help --version convert prepare show"),
        ("path/to/jaxssl  data  sh", "show"),
        ("jaxssl train --dry", "--dry_run"),
        ("jaxssl train --w", "--workdir="),
        ("jaxssl train --config=decl:st", "--config=decl:stl10 --config=decl:stl10_simclr"),
        ("jaxssl train --config graphs/neck", "graphs/necklaces"),
        ("jaxssl train --config.loss.name=nt", "--config.loss.name=nt_xent"),
        ("jaxssl train --config.loss.name nt", "nt_xent"),
        ("jaxssl train --config.text.name=no", "--config.text.name=none"),
        ("jaxssl train --config.l", "--config.log= --config.log_every= --config.loss."),
        ("jaxssl train --config.loss.al", "--config.loss.alpha="),
        ("jaxssl train --config.loss.name=tcl --config.loss.k2", "--config.loss.k2="),
        ("jaxssl train --config mmcl:cifar100_inv --config.loss.so", "--config.loss.solver="),
        ("jaxssl train --config nowhere.py --config.optim.mo", "--config.optim.momentum="),
        ("jaxssl train --config.loss.preset=pap", "--config.loss.preset=paper"),
        ("jaxssl train --config.optim.name=s", "--config.optim.name=sgd"),
        ("jaxssl train --config.optim.nesterov=T", "--config.optim.nesterov=True"),
        ("jaxssl train --config.crops.no", "--config.crops.noise="),
        ("jaxssl train --config.data.name=stl", "--config.data.name=stl10"),
        ("jaxssl train --grid=optim.lr", "--grid=optim.lr= --grid=optim.lr_scaling="),
        ("jaxssl train x", ""),
        ("jaxssl eval --protocols=knn,svm:k", "--protocols=knn,svm:kernel"),
        ("jaxssl eval --config.", "--config.data."),
        ("jaxssl eval --suite ele", "elevater elevater_19"),
        ("jaxssl embed --on_error=", "--on_error=skip --on_error=stop"),
        ("jaxssl embed --layer b", "backbone"),
        ("jaxssl report --config.", ""),
        ("jaxssl study cl", "claims"),
        ("jaxssl study --scale p", "paper paper_simclr"),
        ("jaxssl list lo", "loggers losses"),
        ("jaxssl list losses sup", "sup_con"),
        ("jaxssl list configs x", ""),
        ("jaxssl data prepare dig", "digit_captions digits"),
        ("jaxssl completion ", "bash fish zsh"),
    ],
)
def test_last_word_of_a_command_line_is_completed(line, expected):
    assert completion.complete(line) == expected.split()


@pytest.mark.fast
@pytest.mark.parametrize(("group", "name"), ALL)
def test_completion_reads_the_arguments_and_presets_of_a_component_from_its_file(group, name):
    parameters = inspect.signature(components.factory(group, name)).parameters.values()
    keyword = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert sorted(completion._arguments_of(group, name)) == sorted(keyword)
    presets = getattr(components.module(group, name), "PRESETS", {})
    assert completion._presets(group, name) == list(presets)


@pytest.mark.fast
@pytest.mark.parametrize("name", ["digits", "auc_cl:imagenet_vit_s", "graphs/tu:mmcl", "base"])
def test_completion_offers_all_keys_of_a_config(name):
    keys = set(flat_keys(config.load(name))) - {"plugins", "extended"}
    assert keys <= set(completion.config_keys([f"--config={name}"]))


def test_completion_does_not_import_jax():
    lines = ("jaxssl train --config.loss.", "jaxssl study ", "jaxssl eval --protocols=")
    code = "import sys; from jaxssl.cli.completion import complete; print(all(map(complete, "
    code += f"{lines})), sorted(sys.modules.keys() & {{'jax', 'numpy', 'flax'}}))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True []\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["jaxssl", "tra"], ["train"]),
        # bash splits words at "=" and ":", and replaces only the last part of a word.
        (["jaxssl", "train", "--config.loss.name", "=", "nt"], ["nt_xent"]),
        (["jaxssl", "train", "--config", "=", "decl", ":", "cif"], ["cifar10"]),
        (["jaxssl", "train", "--workdir", "=", "runs/"], []),  # bash itself completes files
    ],
)
def test_bash_completion_returns_only_the_part_after_the_last_break(words, expected, environment):
    line = " ".join(words).replace(" = ", "=").replace(" : ", ":")
    call = (
        'eval "$(jaxssl completion bash)"; COMP_LINE=$1; COMP_POINT=${#1}; shift; '
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _jaxssl "$1"; '
        'printf "%s\\n" "${COMPREPLY[@]}"; complete -p jaxssl'
    )
    command = ["bash", "--norc", "-c", call, "bash", line, *words]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    *offered, registered = out.stdout.split("\n")[:-1]
    assert list(filter(None, offered)) == expected
    assert registered == "complete -o default -F _jaxssl jaxssl" and out.stderr == ""


@pytest.mark.parametrize(("shell", "check"), [("zsh", "-n"), ("fish", "--no-execute")])
def test_completion_scripts_of_zsh_and_fish_have_no_syntax_errors(shell, check, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(completion.script(shell))
    subprocess.run([shell, check, str(tmp_path / "script")], check=True)


@pytest.mark.fast
def test_completion_command_rejects_missing_or_unknown_shells(run_command):
    messages = [run_command("completion", *arguments)[2] for arguments in ([], ["tcsh"])]
    assert messages == [
        "error: name the shell: jaxssl completion bash|zsh|fish\n",
        "error: flag --shell=tcsh: value should be one of <bash|zsh|fish>\n",
    ]
