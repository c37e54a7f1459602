"""The wheel, installed outside of the checkout, as a stranger uses it."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tiny import flags, short
from xla_flags import QUICK_FLAGS

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[1]
SETTINGS = short(4, **{"eval.protocols": "knn", "loss.name": "mmcl"})


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Return a copy of the files that git would ship, so that builds do not touch the checkout."""
    copy = tmp_path_factory.mktemp("install") / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, files):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def site(source) -> Path:
    """Return a folder for sys.path that holds nothing but the contents of the wheel."""
    folder, site = source.parent, source.parent / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *options, "-w", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    return site


def python(site: Path, cwd: Path, *arguments: str) -> str:
    """Run Python with the wheel and return the standard output."""
    env = {**os.environ, "PYTHONPATH": str(site), "XLA_FLAGS": QUICK_FLAGS}
    command = [sys.executable, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
    assert out.returncode == 0, out.stderr
    return out.stdout


# Program that runs several command lines, so that everything is imported and compiled once.
COMMANDS = """
import json, sys
from jaxssl import cli
for line in json.loads(sys.argv[1]):
    print("$ jaxssl", line[0])
    try:
        cli.run(line[0], line[1:])
    except SystemExit as stop:
        if stop.code:
            raise
"""


def test_installed_wheel_trains_evaluates_studies_and_exports_outside_the_checkout(
    site, tmp_path, data_dir
):
    where = "import jaxssl, jaxssl.configs.base as base; print(jaxssl.__file__, base.__file__)"
    imported = python(site, tmp_path, "-c", where).split()
    assert imported and all(Path(path).is_relative_to(site) for path in imported)

    assert "cifar10_baselines:simclr" in python(site, tmp_path, "-m", "jaxssl", "list", "configs")
    data, workdir = f"--config.data.dir={data_dir}", str(tmp_path / "runs" / "digits")
    lines = (
        ("train", *flags(SETTINGS), data),
        ("eval", "--workdir", workdir, "--protocols", "retrieval", data),
        ("export", workdir, "--to", "safetensors", "--out", "exported"),
        ("study", "support_vectors", "--workdir", workdir),
    )
    out = python(site, tmp_path, "-c", COMMANDS, json.dumps(lines))
    _, trained, evaluated, _, studied = out.split("$ jaxssl ")
    assert "knn_top1" in trained and (Path(workdir) / "report.html").exists()
    assert "retrieval" in evaluated and "page: " in studied
    assert list((tmp_path / "exported").glob("*.safetensors"))


def test_source_archive_has_all_files_and_the_configs_of_the_wheel(source):
    code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    out = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=source)
    with tarfile.open(source / "dist" / out.splitlines()[-1]) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    shipped = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    built = ("build/", "dist/", "jaxssl.egg-info/")
    assert {name for name in shipped - files if not name.startswith(built)} == set()
    assert "jaxssl/configs/digits.py" in files
