"""The wheel, installed outside of the checkout, as a stranger uses it."""

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
    folder = source.parent
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *options, "-w", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True
    )
    return folder / "site"


def python(site: Path, cwd: Path, *arguments: str) -> str:
    """Run Python with the wheel and return the standard output."""
    env = {**os.environ, "PYTHONPATH": str(site), "XLA_FLAGS": QUICK_FLAGS}
    command = [sys.executable, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
    assert out.returncode == 0, out.stderr
    return out.stdout


def run(site: Path, cwd: Path, *arguments: str) -> str:
    """Run `jaxssl` from the wheel and return the standard output."""
    return python(site, cwd, "-m", "jaxssl", *arguments)


def test_wheel_trains_evaluates_studies_and_exports_outside_of_the_checkout(
    site, tmp_path, data_dir
):
    where = "import jaxssl, jaxssl.configs.base as base; print(jaxssl.__file__, base.__file__)"
    imported = python(site, tmp_path, "-c", where).split()
    assert imported and all(Path(path).is_relative_to(site) for path in imported)

    data = f"--config.data.dir={data_dir}"
    assert "cifar10_baselines:simclr" in run(site, tmp_path, "list", "configs")
    assert "knn_top1" in run(site, tmp_path, "train", *flags(SETTINGS), data)
    workdir = tmp_path / "runs" / "digits"
    assert (workdir / "report.html").exists()
    evaluation = ("eval", "--workdir", str(workdir), "--protocols", "retrieval", data)
    assert "retrieval" in run(site, tmp_path, *evaluation)
    run(site, tmp_path, "export", str(workdir), "--to", "safetensors", "--out", "exported")
    assert list((tmp_path / "exported").glob("*.safetensors"))
    study = ("study", "support_vectors", "--workdir", str(workdir), data)
    assert "page: " in run(site, tmp_path, *study)


def test_losses_import_without_the_packages_of_training(site, tmp_path):
    """The losses work with jax alone, as after `pip install --no-deps jaxssl`."""
    code = """
import sys
packages = ("absl", "chex", "filelock", "flax", "grain", "jinja2", "matplotlib", "ml_collections",
    "optax", "orbax", "PIL", "rich", "sklearn", "tensorboardX", "tensorflow_datasets")
for name in packages:
    sys.modules[name] = None
import jaxssl, jax
z1, z2 = jax.random.normal(jax.random.key(0), (2, 8, 4))
print(float(jaxssl.losses.auc_cl(z1, z2)), jaxssl.solvers.__name__)
"""
    assert python(site, tmp_path, "-c", code).endswith("jaxssl.solvers\n")


def test_source_archive_has_the_configs_and_the_examples(source):
    code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=source, check=True
    )
    with tarfile.open(source / "dist" / out.stdout.splitlines()[-1]) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    examples = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    assert examples and examples <= files
    assert "jaxssl/configs/digits.py" in files
