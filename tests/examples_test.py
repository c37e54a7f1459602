"""The scripts of `examples/` run, and learn what they say."""

import importlib.util
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow_datasets as tfds
from tiny import short

import jaxssl
from jaxssl import api
from jaxssl.api import interfaces
from jaxssl.models import resnet
from jaxssl.training import config
from jaxssl.training.build import build
from jaxssl.training.config import custom

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pytestmark = pytest.mark.usefixtures("users_promotion")


@pytest.fixture
def tiny():
    """Return the config of two steps at the smallest sizes."""
    return config.load("digits", list(short(2, **{"eval.protocols": "knn"}).items()))


@pytest.mark.long
def test_nnx_example_lowers_the_loss_and_raises_the_accuracy():
    history, (before, after) = example("nnx_loop").main(steps=200)
    assert np.mean(history[-10:]) < 0.52 * history[0]
    assert after > before + 3


@pytest.mark.long
def test_training_the_time_series_example_raises_the_accuracy():
    before, after = example("time_series").main(steps=80)
    assert after > before + 5


@pytest.mark.parametrize(("name", "group"), [("SmallMixer", "net"), ("align_uniform", "loss")])
def test_example_puts_its_own_network_or_loss_into_the_config(name, group, tiny, monkeypatch):
    """tests/docs_test.py and tests/plugins_test.py train with these components."""
    monkeypatch.setattr(api, "_train", lambda config, *_: config)
    made = example({"net": "own_network", "loss": "own_loss"}[group]).main(config=tiny)
    assert made[group].name.startswith(f"python:{name}-")
    assert build(made, 100).steps_per_epoch == 100 // made.batch_size


@pytest.mark.long
def test_example_own_data_trains_and_evaluates_from_python(tiny, tmp_path):
    run = example("own_data").main(workdir=str(tmp_path / "run"), config=tiny)
    assert run.metrics[-1]["step"] == 2 and np.isfinite(run.metrics[-1]["loss"])
    assert ("knn", "pretrained") in {(row["protocol"], row["features"]) for row in run.results}
    assert run.config.data.name.startswith("python")


@pytest.mark.fast
def test_user_defined_loss_of_the_example_own_loss_is_lower_for_aligned_views():
    align_uniform = example("own_loss").align_uniform
    z = jax.random.normal(jax.random.key(0), (16, 8))
    aligned = jaxssl.losses.pair_views([z, z])
    mixed = jaxssl.losses.pair_views([z, jnp.roll(z, 1, axis=0)])
    assert align_uniform(aligned).mean() < align_uniform(mixed).mean()


# Replacements in the code of notebooks that make the test shorter.
SHORTER = {"steps=400": "steps=20", "(16, 64), (0, 1)": "(16,), (0, 1)"}


@pytest.mark.long
@pytest.mark.usefixtures("short_runs")
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.ipynb")))
def test_cells_of_a_notebook_run_in_order(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setitem(resnet.DEPTHS, 18, ((1, 1), False))  # two blocks, which compile quickly
    names = {"__name__": "__main__"}
    for cell in json.loads((EXAMPLES / name).read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            for long, short in SHORTER.items():
                source = source.replace(long, short)
            exec(compile(source, name, "exec"), names)


@pytest.mark.fast
def test_every_example_script_is_mentioned_on_a_docs_page():
    docs = EXAMPLES.parent / "docs"
    pages = "".join((docs / name).read_text() for name in ("extending.md", "weights.md"))
    assert all(f"examples/{path.name}" in pages for path in EXAMPLES.glob("*.py"))


@pytest.mark.fast
def test_extending_page_names_every_interface_of_user_defined_components():
    page = (EXAMPLES.parent / "docs" / "extending.md").read_text()
    names = "Network InitNetwork ApplyNetwork Loss View Method Data Images Probe MakeLogger Logger"
    for name in names.split():
        assert hasattr(interfaces, name) and f"`{name}`" in page, name


@pytest.mark.fast
def test_two_array_loss_on_the_extending_page_works_as_a_loss_of_pairs():
    page = (EXAMPLES.parent / "docs" / "extending.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    [text] = [block for block in blocks if "def loss(" in block]
    scope = {}
    exec(text, scope)
    z = jax.random.normal(jax.random.key(0), (2, 3, 4))
    objective = custom.make_factory("loss", "loss", scope["loss"])(weight=2.0)
    value = objective.loss(jaxssl.losses.pair_views(z), {}, (), step=jnp.int32(0), key=None)[0]
    np.testing.assert_allclose(value, 2 * jnp.mean((z[0] - z[1]) ** 2), rtol=1e-5)


@pytest.mark.long
def test_continue_pretraining_example_starts_from_pretrained_and_from_random_weights(
    tiny, tmp_path
):
    images = np.random.default_rng(0).integers(0, 256, (40, 28, 28, 1), np.uint8)
    split = images, np.arange(40) % 2
    small = {"augment.size": 8, "total_steps": 2, "schedule.warmup_epochs": 0.0}
    accuracies = example("continue_pretraining").main(
        (split, split), workdir=str(tmp_path), config=tiny, **small
    )
    assert set(accuracies) == {"digits", "random"}
    assert jaxssl.Run(tmp_path / "from_digits").init["missing"] == ["objective", "projector"]
    assert jaxssl.Run(tmp_path / "from_random").init is None
