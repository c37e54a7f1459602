"""Every config builds and has the stated shapes; those of images take two steps at tiny size."""

import ast
import io
import json
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from file_cases import refused
from jax import numpy as jnp
from marks import long_except
from settings_test import flat

from jaxssl import components, distributed
from jaxssl.data import kind
from jaxssl.evaluation.selection import select_protocols
from jaxssl.methods.base import image_groups
from jaxssl.models import resnet, vit
from jaxssl.training import build as build_lib
from jaxssl.training import config as config_lib
from jaxssl.training import dry_run
from jaxssl.training.build import build, make_init
from jaxssl.training.config.method import check_labels, make_crops, make_networks
from jaxssl.training.dry_run import open_training_split
from jaxssl.training.state import make_train_step

ROOT = Path(__file__).parents[2]
# Not tested here: base settings of all configs and studies, and the config of users' pictures.
OTHERS = {"base", "studies", "pictures"}
FILES = {name: path for name, path in components.packaged().items() if name not in OTHERS}
IMAGES = [name for name in FILES if "/" not in name]
CONFIGS = [name for name in components.configs() if name.partition(":")[0] in IMAGES]
FOLDERS = {"graphs": "graph", "image_text": "image_text", "video": "video"}
MODAL = [name for name in components.configs() if "/" in name]
BATCH, SIDE, CROP = 4, 8, 4
KEY = jax.eval_shape(lambda: jax.random.key(0))
# Tiny values of arguments, if a config has them. All others keep the values of the config.
TINY = {
    "net": {"width": 2, "widths": (2, 4), "strides": (2, 2), "dim": 8, "layers": 1, "num_heads": 2}
    | {"patch_size": 4},
    "head": {"proj_hidden_dim": 8, "proj_output_dim": 6, "proj_bottleneck_dim": 4},
    "predictor": {"pred_hidden_dim": 8},
    "method": {"queue_size": 8},
    "loss": {"support_size": 8, "num_prototypes": 5, "num_steps": 3, "num_classes": 3},
    "augment": {"size": SIDE, "blur_kernel": 3},
    "crops": {"size": CROP},
}
# Groups and keys that do not change the compiled step.
OUTSIDE = ("data", "augment", "second_view", "crops", "eval", "checkpoint", "epochs", "total_steps")
PROBABILITIES = ("flip", "jitter", "grayscale", "blur", "solarize", "erasing")

each_config = pytest.mark.parametrize("name", CONFIGS)
load = cache(config_lib.load)  # The cached configs must not be changed.


def shrunk(name: str):
    """Return a config with tiny networks, images and buffers."""
    config = load(name).copy_and_resolve_references()
    config.batch_size, config.total_steps = BATCH, config.epochs
    for group, values in TINY.items():
        for key, value in values.items():
            if config[group].get(key):
                config[group][key] = value
    if config.net.name == "vit":
        config.net.update({key: TINY["net"][key] for key in ("dim", "layers", "num_heads")})
    elif config.net.name == "resnet":
        config.net.update({"depth": 18, "stem": "cifar"})
    config.head.proj_layers = min(config.head.proj_layers, 2)
    if config.crops.number:
        config.crops.number = 2
    return config


def channels(config) -> int:
    return open_training_split(config).shape[2]


# Documentation of the configs


@pytest.mark.parametrize("name", FILES)
def test_config_file_documents_its_command_and_each_variant_in_a_line(name):
    text = ast.get_docstring(ast.parse(FILES[name].read_text())) or ""
    lines = components.variants(FILES[name])
    command = f"Command: jaxssl train --config {name}{':VARIANT' if lines else ''}"
    assert (command if name != "digits" else "Command: jaxssl train\n") in text
    assert "\nExpected" in text or "\nPublished, not run here: " in text
    assert all(line and len(line) < 100 and "\n" not in line for line in lines.values())


def test_auc_cl_configs_use_the_recommended_or_released_preset():
    configs = {name: load(name) for name in (*CONFIGS, "graphs/tu:auc_cl")}
    presets = {n: c.loss.preset for n, c in configs.items() if c.loss.name == "auc_cl"}
    released = {name for name, preset in presets.items() if preset == "released_cifar"}
    assert released == {"auc_cl:cifar10_released"} and {"digits", "graphs/tu:auc_cl"} < set(presets)
    assert set(presets.values()) == {"recommended", "released_cifar"}


def test_methods_page_lists_every_config_file_for_images_once():
    rows = (ROOT / "docs" / "methods.md").read_text().splitlines()
    actual = [line.split("`")[1] for line in rows if line.startswith("| [`")]
    assert sorted(actual) == sorted([*IMAGES, "pictures"])


# Configs at full size: only shapes are computed


SEEN: dict[str, Any] = {}  # output shapes that several configs share


@each_config
def test_config_builds_and_its_views_have_the_configured_shapes(name):
    config = load(name)
    assert config.is_locked
    known = open_training_split(config)
    check_labels(config, known.num_classes)
    parts = build(config, len(known))
    assert parts.steps_per_epoch == len(known) // config.batch_size
    assert parts.total_steps == config.epochs * parts.steps_per_epoch
    select_protocols((*config.eval.protocols, f"knn:{config.eval.knn}"))

    groups = [config[group].to_dict() for group in ("augment", "second_view", "crops")]
    key = json.dumps([config.views, known.shape, groups])
    if key not in SEEN:
        shape = jax.ShapeDtypeStruct
        images = shape((BATCH, *known.shape_at(256)), jnp.uint8)
        SEEN[key] = jax.eval_shape(parts.augment, KEY, images, shape((BATCH,), jnp.int32))
    views = SEEN[key]
    sizes = {"views": (config.views, config.augment.size)}
    if config.crops.number:
        sizes["crops"] = (config.crops.number, config.crops.size)
    expected = {k: (n, BATCH, side, side, known.shape[2]) for k, (n, side) in sizes.items()}
    assert {k: x.shape for k, x in views.items()} == expected
    assert {x.dtype for x in views.values()} == {jnp.dtype("float32")}


@each_config
def test_features_and_embeddings_of_a_config_have_the_configured_sizes(name):
    config = load(name)
    encoder = make_networks(config)
    sides = [config.augment.size] + ([config.crops.size] if config.crops.number else [])
    for side in sides:
        key = f"{encoder.net} {side} {channels(config)}"
        if key not in SEEN:
            SEEN[key] = output(encoder.net, (2, side, side, channels(config)))
        assert SEEN[key] == (2, features_of(config))
    z = output(encoder.projector, (2, features_of(config)))
    layers = config.head.get("proj_layers")
    assert z == (2, config.head.proj_output_dim if layers else features_of(config))
    if encoder.predictor is not None:
        assert output(encoder.predictor, z) == z


def output(module, shape: tuple[int, ...]) -> tuple[int, ...]:
    def run(key, x):
        return module.init_with_output(key, x, train=False)[0]

    return jax.eval_shape(run, KEY, jax.ShapeDtypeStruct(shape, jnp.float32)).shape


def features_of(config) -> int:
    net = config.net
    if net.name == "resnet":
        return net.width * (32 if net.depth >= 50 else 8)
    return vit.SIZES[net.size][0] if net.name == "vit" else net.widths[-1]


# Configs at tiny size: views and steps are computed


def settings() -> dict[str, tuple[str, dict]]:
    """Return a (recipe, arguments, channels) for each set of compiled operations."""
    actual = {}
    for name in CONFIGS:
        config = load(name)
        first, c = config_lib.arguments(config.augment), channels(config)
        crops = {k: v for k, v in config.crops.items() if k != "number"}
        for changes in ({}, config.second_view.to_dict(), crops if config.crops.number else {}):
            hyper = {**first, **changes}
            on = [k for k in PROBABILITIES if hyper.get(k)]
            words = [v for v in hyper.values() if isinstance(v, str)]
            key = " ".join([config.augment.name, *words, *on, str(c)])
            actual.setdefault(key, (config.augment.name, hyper, c))
    return actual


VIEWS = settings()


@pytest.mark.parametrize("case", VIEWS.values(), ids=VIEWS)
def test_augmentation_recipes_of_all_configs_give_finite_views_in_range(case):
    name, hyper, c = case
    small = {k: v for k, v in TINY["augment"].items() if k in hyper}
    recipe = config_lib.factory("augment", name)(**{**hyper, **small})
    image = np.random.default_rng(0).random((12, 10, c), np.float32)
    run = jax.jit(jax.vmap(recipe, in_axes=(0, None)))
    views = np.asarray(run(jax.random.split(jax.random.key(1), 3), image))
    assert views.shape == (3, SIDE, SIDE, c)
    assert np.isfinite(views).all() and 0 <= views.min() and views.max() <= 1
    assert not np.array_equal(views[0], views[1])


def choices(config) -> set[str]:
    """Return what the compiled step of a config depends on: of a number, only whether it is 0."""
    kept = {k: v for k, v in config.to_dict().items() if k not in OUTSIDE}
    kept["net"].pop("size", None)
    kept |= {"channels": channels(config), "crops": config.crops.number}
    method = config.method.name
    leaves = {key: value for key, value in flat(kept).items() if "preset" not in key}
    zero = {key: not value for key, value in leaves.items() if isinstance(value, float)}
    return {f"{method} {key}={value}" for key, value in {**leaves, **zero}.items()}


def programs() -> list:
    """Return configs that together have all `choices` of all configs with each method.

    `make test` has one config per method. `whole_step_test.py` computes the steps of the losses.
    """
    configs = {name: shrunk(name) for name in CONFIGS}
    left = {name: choices(config) for name, config in configs.items()}
    count = Counter(chain.from_iterable(left.values()))
    # First leave out configs with many crops, whose programs are large.
    for name in sorted(left, key=lambda name: -configs[name].crops.number):
        if all(count[choice] > 1 for choice in left[name]):
            count.subtract(left.pop(name))
    seen, cases = set(), []
    for name in sorted(left, key=lambda name: configs[name].crops.number):
        method = configs[name].method.name
        cases.append(pytest.param(name, marks=pytest.mark.long if method in seen else ()))
        seen.add(method)
    return cases


@pytest.mark.parametrize("name", programs())
def test_tiny_version_of_a_config_takes_two_training_steps(name, monkeypatch):
    config = shrunk(name)
    # Without weight decay, only gradients move the parameters. A schedule remains, from 0 to 0.
    constant = isinstance(config.optim.weight_decay, float)
    config.optim.update({"weight_decay": 0.0 if constant else {"start": 0.0, "end": 0.0}})
    # Recipes are tested above; here, a cheap one with the same arguments draws the views.
    monkeypatch.setattr(build_lib, "factory", cheap_factory)
    monkeypatch.setitem(resnet.DEPTHS, 18, ((), False))  # only a stem, which compiles quickly
    parts = build(config, BATCH)
    assert parts.total_steps == config.epochs

    mesh = distributed.make_mesh(jax.devices()[:1])
    rng = np.random.default_rng(0)
    batch = {
        "input": rng.integers(0, 256, (BATCH, SIDE, SIDE, channels(config)), np.uint8),
        "label": np.array([0, 1, 0, 2], np.int32),
        "index": np.arange(BATCH, dtype=np.int32),
    }
    with jax.disable_jit():  # the random draws are compiled once for all configs
        state = make_init(parts, batch, BATCH, mesh)(config.seed)
    # With the layout of the state that the step returns, the step is compiled once.
    state = distributed.replicate(state, mesh)
    before = jax.tree.map(np.array, state.params)
    batch = distributed.shard(batch, mesh)
    step = make_train_step(parts.method, parts.optimiser, parts.augment, mesh)
    z: Any = None
    for _ in range(2):  # with a warm-up, the first rate is 0
        state, metrics, z = step(state, batch)
        assert all(np.isfinite(value) for value in jax.device_get(metrics).values())
    assert int(state.step) == 2
    assert z.shape[:2] == (config.views, BATCH) and np.isfinite(np.asarray(z)).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    same = jax.tree.map(np.array_equal, before, jax.device_get(state.params))
    paths = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(same)}
    kernels = [path for path in paths if "kernel" in path]
    assert [p for p in kernels if paths[p]] == [p for p in kernels if "frozen" in p]


def cheap_factory(group: str, name: str):
    """Like `jaxssl.training.config.factory`, but views are only cut and darkened."""
    factory = config_lib.factory(group, name)
    if group != "augment":
        return factory

    def recipe(*, size, **hyper):
        factory(size=size, **hyper)  # raises for invalid arguments
        return lambda key, image: image[:size, :size] * jax.random.uniform(key)

    return recipe


# The dry run of a config


@pytest.mark.long
def test_dry_run_prints_shapes_settings_and_memory(capsys, monkeypatch):
    monkeypatch.setitem(resnet.DEPTHS, 50, ((1,), True))
    overrides = {"batch_size": "4096", "augment.size": "8", "net.width": "2", "views": "2"}
    overrides |= {"head.proj_layers": "1", "second_view.flip": "0.25"}
    overrides |= {"crops.number": "3", "crops.size": "6", "eval.protocols": "knn,linear"}
    config = config_lib.load("tcl_supervised:fashion_mnist", list(overrides.items()))
    dry_run.dry_run(config)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["data"] == "fashion_mnist, train: 60000 images of 28x28x1, 10 classes"
    assert "crops [3, 4096, 6, 6, 1], views [2, 4096, 8, 8, 1]" in lines["views"]
    assert lines["second"] == "view flip=0.25"
    assert lines["small"] == "crops number=3, size=6"
    assert lines["protocols"] == "after training: knn, linear"
    # A bottleneck block from a stem of 2 channels to 8 features, then a layer to 128 dimensions.
    convolutions = 3 * 3 * 1 * 2 + 2 * 2 + 3 * 3 * 2 * 2 + 2 * 8 + 2 * 8
    norms = 2 * (2 + 2 + 2 + 8 + 8)
    net, head = convolutions + norms, 8 * 128 + 128
    assert lines["parameters"].startswith(f"{net + head:,} (net {net}, projector {head:,})")
    assert lines["network"].endswith("; features 8, float32")
    assert "tcl (supervised_cifar10): " in lines["loss"] and "k1=5000.0" in lines["loss"]
    assert "peak learning rate 0.09" in lines["optimiser"]
    assert "MiB on each device" in lines["memory"]
    assert lines["memory"].endswith("(of the compiled step of 4096 examples)")
    assert "too" not in lines
    # The step of 4096 images is compiled, but only two images on each of 8 devices are encoded.
    assert "of 16 examples" in lines["one"]
    assert np.isfinite(float(lines["one"].split("loss ")[1].split(",")[0]))


@pytest.mark.parametrize("name", sorted(dry_run.COMMON.keys() - {"digits", "imagenet100"}))
def test_random_images_of_a_dry_run_have_shape_and_classes_of_the_data_set(name, tmp_path):
    features = tfds.builder(name, data_dir=tmp_path).info.features
    expected = features["image"].shape, features["label"].num_classes
    splits = [("data.name", name), ("data.test_split", "train")]
    train = open_training_split(config_lib.load("digits", splits))
    assert (train.shape, train.num_classes) == expected


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("cifar10", "train[:20%]", "10000 images of 32x32x3, 10 classes"),
        ("stl10", "train", "5000 images of 96x96x3, 10 classes"),
        ("stl10", "train+unlabelled", "105000 images of 96x96x3, no labels"),
        ("imagenet2012", "train[:100]+validation[:10]", "110 images of many sizes, 1000 classes"),
    ],
)
def test_dry_run_has_as_many_images_as_the_training_split(name, split, expected):
    splits = {"train_split": split, "test_split": "train"}
    overrides = [("data.name", name), *((f"data.{key}", x) for key, x in splits.items())]
    config = config_lib.load("digits", overrides)
    train = open_training_split(config)
    assert train.describe() == f"{name}, {split}: {expected}"
    assert len(train.read(np.arange(len(train) - 2, len(train)))) == 2


@pytest.mark.parametrize("key", ["train_split", "bank_split", "test_split"])
@pytest.mark.parametrize("name", ["digits", "necklaces"])
def test_dry_run_with_an_unknown_split_is_refused(data_dir, name, key):
    path = "graphs/necklaces" if name == "necklaces" else name
    config = config_lib.load(path, [(f"data.{key}", "trian"), ("data.dir", str(data_dir))])
    with refused(f"'{name}' has no split 'trian'; did you mean 'train'?"):
        open_training_split(config)


def test_dry_run_with_selected_classes_opens_the_data_set(data_dir, tmp_path):
    path = tmp_path / "classes.txt"
    path.write_text("1\n7\n")
    values = {"data.dir": str(data_dir), "data.classes": str(path)}
    train = open_training_split(config_lib.load("digits", list(values.items())))
    assert train.class_names == ("1", "7") and 0 < len(train) < 1297 / 2


def test_dry_run_refuses_measured_statistics_of_clips_as_training_does(monkeypatch):
    known = open_training_split(config_lib.load("digits"))
    monkeypatch.setattr(dry_run, "open_training_split", lambda _: known)
    config = config_lib.load("video/moving_digits", [("data.normalise", "measured")])
    with refused("data.normalise='measured' is only for images"):
        dry_run.dry_run(config)


SMALL = [("batch_size", "16"), ("net.widths", "(4, 8)"), ("net.strides", "(2, 2)")]


@pytest.mark.parametrize(
    "limit", long_except(["MOST_OPERATIONS"], ["MOST_OPERATIONS", "MOST_BYTES"])
)
def test_dry_run_compiles_a_large_program_once_and_takes_no_step(limit, capsys, monkeypatch):
    compiled, compile_step = [], dry_run._compile
    record = lambda *args: compiled.append(args) or compile_step(*args)  # noqa: E731
    monkeypatch.setattr(dry_run, "_compile", record)
    monkeypatch.setattr(dry_run, limit, 100)
    dry_run.dry_run(config_lib.load("digits", SMALL))
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert len(compiled) == 1 and "of the compiled step of 16 examples" in lines["memory"]
    assert "left out: " in lines["one"] and "operations and 0 MiB of state" in lines["one"]


def test_dry_run_says_that_a_step_is_too_large_for_the_memory(capsys, monkeypatch):
    monkeypatch.setattr(dry_run, "_available_memory", lambda: 1)
    dry_run.dry_run(config_lib.load("digits", SMALL))
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["too"] == "large  0 MiB are available; reduce batch_size or raise accumulate_steps"
    assert lines["one"] == "step   left out: 0 MiB are available; take a smaller network"


@pytest.mark.parametrize(
    ("text", "expected"), [("MemTotal: 9 kB\nMemAvailable:  5 kB\n", 5120), ("MemTotal: 9 kB\n", 0)]
)
def test_memory_of_a_machine_is_unknown_if_the_system_does_not_state_it(
    text, expected, monkeypatch
):
    monkeypatch.setattr(dry_run, "open", lambda _: io.StringIO(text), raising=False)
    assert dry_run._available_memory() == expected // jax.local_device_count()


@pytest.mark.parametrize("name", ["imagenet_dino:vit_s", "imagenet_moco_v3:vit_s"])
def test_dry_run_uses_the_shapes_of_host_crops_for_photographs(name):
    config = config_lib.load(name, [("batch_size", "3")])
    known = open_training_split(config)
    assert not known.one_size and len(known) == 1_281_167
    mesh = distributed.make_mesh(jax.devices()[:1])
    reader, _ = dry_run._make_reader(config, known, 3, make_crops(config), mesh)
    crops = {"crops": (3, config.crops.number, 96, 96, 3)} if config.crops.number else {}
    expected = {"views": (3, 2, 224, 224, 3), **crops}
    assert {name: x.shape for name, x in reader.shapes["input"].items()} == expected
    batch = reader.read(0, np.arange(3))
    assert {name: x.shape for name, x in batch["input"].items()} == expected
    assert batch["label"].tolist() == [0, 1, 2]


def test_dry_run_with_a_wrong_number_of_classes_raises_a_one_line_error():
    config = config_lib.load("tcl_supervised:cifar10_cross_entropy", [("loss.num_classes", "7")])
    with refused("'cifar10' has 10 classes"):
        dry_run.dry_run(config)


# Configs of graphs, captioned images and videos


def example_shapes(config, b: int) -> tuple:
    """Return input and index of a batch as `jax.ShapeDtypeStruct`."""
    shape = jax.ShapeDtypeStruct
    size = config.augment.get("size", 0)
    images = shape((b, size, size, 3), jnp.uint8)
    if kind.name_of(config) == "graph":
        actual = {
            "x": shape((1, 40, 7), jnp.uint8),
            "graph": shape((1, 40), jnp.int32),
            "edge": shape((1, 50, 2), jnp.int32),
            "size": shape((1, b), jnp.int32),
        }
    elif kind.name_of(config) == "video":
        frames = make_crops(config).frames[0]
        actual = shape((b, frames + 2, size, size, 3), jnp.uint8)
    else:
        actual = {"image": images, "text": shape((b, 5, config.data.context), jnp.int32)}
    return actual, shape((b,), jnp.int32)


# `make test` keeps one config of each kind of data.
ONE_OF_A_KIND = {name.partition("/")[0]: name for name in MODAL}.values()


@pytest.mark.parametrize("name", long_except(ONE_OF_A_KIND, MODAL))
def test_config_of_graphs_captions_or_videos_builds_networks_that_accept_its_views(name):
    config = load(name)
    assert kind.name_of(config) == FOLDERS[name.partition("/")[0]]
    parts = build(config, 4 * config.batch_size)
    assert parts.total_steps == 4 * config.epochs
    select_protocols((*config.eval.protocols, f"knn:{config.eval.knn}"))
    views = jax.eval_shape(parts.augment, KEY, *example_shapes(config, 2))
    first = jax.tree.leaves(image_groups(views)[0])[0]
    assert first.shape[0] == config.views

    def start(key, views):
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), views)
        return parts.method.init(key, {**blank, "index": jnp.arange(2, dtype=jnp.int32)}, 8)

    params, _ = jax.eval_shape(start, KEY, views)
    assert ("text" in params) == (config.text.name != "none")


def test_every_config_of_graphs_captions_and_videos_is_listed_on_its_page():
    page = {folder: (ROOT / "docs" / f"{folder}.md").read_text() for folder in FOLDERS}
    for name in MODAL:
        path, _, variant = name.partition(":")
        text = page[name.partition("/")[0]]
        assert f"configs/{path}.py" in text and variant in text, name


@pytest.mark.parametrize("name", ["graphs/tu:nt_xent", "video/moving_digits"])
def test_small_crops_are_rejected_for_graphs_and_videos(name):
    config = config_lib.load(name, [("crops.number", "2")])
    with refused("no small crops; set crops.number=0"):
        build(config, 2 * config.batch_size)


@pytest.mark.parametrize(
    ("name", "net", "takes", "makes"),
    [
        ("graphs/tu:graphcl", "convnet", "images", "'graph' makes graphs"),
        ("video/moving_digits", "resnet", "images", "'video' makes clips"),
        ("image_text/digit_captions", "gin", "graphs", "'clip' makes images"),
        ("image_text/digit_captions", "text", "captions", "'clip' makes images"),
        ("graphs/tu:graphcl", "s3d", "clips", "'graph' makes graphs"),
    ],
)
def test_network_for_another_kind_of_examples_is_rejected(name, net, takes, makes):
    config = config_lib.load(name, [("net.name", net)])
    with refused(f"net.name='{net}' takes {takes}, but augment.name={makes}; choose another"):
        build(config, 2 * config.batch_size)
