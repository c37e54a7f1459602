"""What the host cuts of pictures for a recipe, and the pictures of images and their views."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from jaxssl.data.decoders import decoding
from jaxssl.data.decoders.decoding import Crop, Crops
from jaxssl.errors import UserError
from jaxssl.evaluation import gallery, loss_inspection
from jaxssl.evaluation.context import Arrays
from jaxssl.evaluation.protocol import Features, subset
from jaxssl.kinds import image as image_kind
from jaxssl.kinds import video
from jaxssl.kinds.video import frame_grid
from jaxssl.report.images import shrink
from jaxssl.report.workdir import read_gallery
from jaxssl.training import config as config_lib
from jaxssl.training.config.method import make_crops

RATIO = (3 / 4, 4 / 3)
STILL = {"augment.flip": "0.0", "augment.jitter": "0.0", "augment.grayscale": "0.0"}
STILL |= {"augment.blur": "0.0"}
SIZES = [(40, 30), (33, 64), (51, 50), (20, 90)]  # (width, height) of each picture


@pytest.fixture(scope="module")
def photographs(tmp_path_factory, load):
    """Pictures of many sizes, without labels."""
    path, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i, (width, height) in enumerate(SIZES):
        coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
        coarse.resize((width, height)).save(path / f"{i}.png")
    return load(path, test_fraction=0.0)


def settings(name="cifar10_baselines:simclr", **changes):
    return config_lib.load(name, list(changes.items()))


def test_host_crops_have_the_scale_and_ratio_of_the_augmentation_recipe():
    view = Crop(32, (0.08, 1.0), RATIO)
    assert make_crops(settings()) == Crops((view, view), (), 32)
    other = make_crops(settings(**{"second_view.crop_scale": "(0.5, 0.6)"}))
    assert other.views == (view, view._replace(scale=(0.5, 0.6)))
    changes = {"crops.number": "3", "crops.size": "16", "crops.crop_scale": "(0.05, 0.2)"}
    crops = make_crops(settings(views="1", **changes, **{"method.labels": "True"}))
    assert crops == Crops((view,), (Crop(16, (0.05, 0.2), RATIO),) * 3, 32)


@pytest.mark.parametrize("pads", ["augment", "second_view", "crops"])
def test_host_does_not_crop_for_recipes_that_pad_and_crop(pads):
    changes = {"augment.crop": "resized", "crops.number": "2", f"{pads}.crop": "pad"}
    crops = make_crops(settings("tcl_supervised:cifar100", **changes))
    assert crops == Crops((), (), 32)


def test_crop_scale_of_an_own_augmentation_that_is_no_range_is_not_cut_on_the_host():
    views = [{"size": 32, "crop_scale": 0.2}] * 2
    assert image_kind.find_crops(32, views, []) == Crops((), (), 32)
    with pytest.raises(UserError, match="an augmentation of clips needs the argument stride"):
        video.find_crops(32, [{"frames": 4}] * 2, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [("crop_scale", "(0.9, 0.1)"), ("crop_scale", "(0, 0)"), ("crop_ratio", "(0, 1)")],
)
def test_host_crops_reject_an_invalid_crop_range(key, value):
    with pytest.raises(UserError, match=rf"{key} must be .* with 0 < smallest"):
        make_crops(settings(**{f"augment.{key}": value}))


@pytest.mark.parametrize("scale", [(0.2, 0.5), (1.0, 1.0)])
def test_gallery_views_of_large_images_are_host_crops_and_write_no_cache(photographs, scale):
    config = settings(**{"augment.size": "16", "augment.crop_scale": str(scale), **STILL})
    images, result = gallery.example_views(config, photographs, 3)
    assert result.keys() == {"views"} and result["views"].shape == (3, 2, 16, 16, 3)
    examples, crops = photographs.read(np.arange(3)), make_crops(config)
    for place, (picture, *_) in enumerate(examples):
        rng = np.random.default_rng((config.seed, 0, place))
        expected = decoding.random_crops(picture, crops.views, rng)
        np.testing.assert_array_equal(result["views"][place], expected)
        np.testing.assert_array_equal(images[place], decoding.centre(picture, 16))
    [(part, _)] = photographs.parts
    assert not list(part.path.parent.glob("decoded-*"))


def test_write_sheet_draws_one_row_of_views_per_image(photographs, tmp_path):
    config = settings(**{"augment.size": "16", **STILL})
    gallery.write_sheet(config, photographs, 9, tmp_path / "views.png")
    with Image.open(tmp_path / "views.png") as image:
        assert image.format == "PNG" and image.height > len(SIZES) * 100


def test_views_have_all_channels_and_a_sheet_shows_the_first_three(load, tmp_path, monkeypatch):
    rng, drawn = np.random.default_rng(0), []
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", rng.integers(0, 256, (16, 16, 5), np.uint8))
    source = load(tmp_path, channels=5, test_fraction=0.0)
    changes = {"augment.size": "16", "augment.crop_scale": "(1.0, 1.0)", **STILL}
    images, views = gallery.example_views(settings(**changes), source, 3)
    assert images.shape == (3, 16, 16, 3)
    np.testing.assert_array_equal(views["views"], np.stack([source.images(16)] * 2, axis=1))
    monkeypatch.setattr(gallery.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    gallery.write_sheet(settings(**changes), source, 3, tmp_path / "views.png")
    assert {axis.images[0].get_array().shape for axis in drawn[0].axes} == {(16, 16, 3)}


@pytest.mark.parametrize(("key", "value"), [("pad", "32"), ("policy", "none at all")])
def test_sheet_of_views_with_invalid_augmentation_settings_is_refused(
    key, value, photographs, tmp_path
):
    config = settings("tcl_supervised:cifar100", **{f"augment.{key}": value})
    with pytest.raises(UserError, match=f"{key} must be .*, got '?{value}"):
        gallery.write_sheet(config, photographs, 2, tmp_path / "views.png")


def test_sheet_shows_each_view_and_small_crop_below_its_title(photographs, tmp_path, monkeypatch):
    crops = {"crops.number": "2", "crops.size": "8", "crops.crop_scale": "(0.05, 0.2)"}
    config, drawn = settings(**{"augment.size": "16", **crops, **STILL}), []
    monkeypatch.setattr(gallery.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    gallery.write_sheet(config, photographs, 3, tmp_path / "views.png")
    images, views = gallery.example_views(config, photographs, 3)
    axes = np.array(drawn[0].axes).reshape(3, 5)
    titles = ["image", "view 1", "view 2", "crop 1", "crop 2"]
    assert [axis.get_title() for axis in axes[0]] == titles
    for row, image, pair, small in zip(axes, images, views["views"], views["crops"], strict=True):
        for axis, expected in zip(row, (image, *pair, *small), strict=True):
            np.testing.assert_array_equal(axis.images[0].get_array(), expected)
        assert row[0].get_ylabel() == "unlabelled"


@pytest.mark.parametrize("side", [2, 200])
def test_gallery_has_test_queries_with_training_neighbours_and_a_map(tmp_path, monkeypatch, side):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (n, side, side, 1), np.uint8) for n in (12, 7)]
    labels = [rng.permutation(n) % k for n, k in ((12, 5), (7, 3))]
    data = Arrays(images[0], labels[0], images[1], labels[1])
    nearest = np.array([8, 3, 5, 1, 0, 11, 2])  # index of each test image's neighbour
    features = Features(np.eye(12), data.train_labels, np.eye(12)[nearest], data.test_labels)
    monkeypatch.setattr(gallery, "_map", lambda features, seed: features[:, :2] + seed)
    views = {"views": rng.integers(0, 256, (2, 2, side, side, 1), np.uint8)}
    originals = views["views"][:, 0]
    monkeypatch.setattr(gallery, "example_views", lambda *_: (originals, views))
    monkeypatch.setattr(loss_inspection, "inspect_batch", lambda *_: {"block_size": np.array(3)})
    monkeypatch.setattr(gallery, "MAP_POINTS", 6)
    splits: Any = SimpleNamespace(train=None, bank=SimpleNamespace(class_names=tuple("abcde")))
    inputs = SimpleNamespace(kind="image", channels=1)
    encoder: Any = SimpleNamespace(metadata={"step": 9}, inputs=inputs)
    path = gallery.write(tmp_path, ConfigDict({"seed": 4}), splits, features, data, encoder, "data")
    with np.load(path) as file:
        arrays = dict(file)
    query = loss_inspection.one_of_each(data.test_labels, gallery.QUERIES)
    assert data.test_labels[query[:3]].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(arrays["query"], shrink(data.test[query]))
    np.testing.assert_array_equal(arrays["query_label"], data.test_labels[query])
    first = arrays["neighbour"][:, 0], arrays["neighbour_label"][:, 0]
    np.testing.assert_array_equal(first[0], shrink(data.train[nearest[query]]))
    np.testing.assert_array_equal(first[1], data.train_labels[nearest[query]])
    shown = subset(len(features.test), 6, seed=4)
    np.testing.assert_array_equal(arrays["map"], features.test[shown, :2] + 4)
    np.testing.assert_array_equal(arrays["map_label"], data.test_labels[shown])
    np.testing.assert_array_equal(arrays["pairs"], shrink(views["views"]))
    np.testing.assert_array_equal(arrays["pairs_original"], shrink(originals))
    assert (arrays["step"], arrays["content"], arrays["block_size"]) == (9, "data", 3)
    assert list(arrays["class_names"]) == list("abcde")

    # Features that are not finite have no neighbours and no map.
    features.test[0, 0] = np.nan
    path = gallery.write(tmp_path, ConfigDict({"seed": 4}), splits, features, data, encoder, "data")
    with np.load(path) as file:
        rest = {"step", "content", "class_names", "pairs", "pairs_original", "block_size"}
        assert set(file) == rest and set(rest) < set(arrays)


class Trap:
    """A pickle that writes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_gallery_file_with_a_pickle_is_reported_as_damaged_and_runs_no_code(tmp_path):
    path, trap = tmp_path / "gallery.npz", tmp_path / "trap"
    np.savez(path, step=np.array(Trap(trap), object), content=np.array("data"))
    assert gallery.read_origin(tmp_path) is None
    with pytest.raises(UserError, match=r"gallery.npz is damaged"):
        read_gallery(path)
    assert not trap.exists()


def test_gallery_file_with_a_flipped_bit_is_written_again(tmp_path):
    """Such a file can ask for a password or an unknown compression, or have a step of two."""
    path = tmp_path / "gallery.npz"
    np.savez(path, step=np.array([1, 2]), content=np.array("data"))
    assert gallery.read_origin(tmp_path) is None
    np.savez(path, step=np.array(1), content=np.array("data"))
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        for bit in (0x01, 0x40):
            path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            assert gallery.read_origin(tmp_path) in (None, (1, "data"))


def test_empty_gallery_file_counts_as_missing(tmp_path):
    (tmp_path / "gallery.npz").touch()
    assert gallery.read_origin(tmp_path) is None


def test_map_of_a_single_test_image_is_one_point():
    np.testing.assert_array_equal(gallery._map(np.ones((1, 3), np.float32), 0), np.zeros((1, 2)))


def test_frame_grid_arranges_frames_of_a_clip_in_rows():
    clip = np.arange(7, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
    grid = frame_grid(clip)
    assert grid.shape == (4, 6, 1)
    np.testing.assert_array_equal(grid[::2, ::3, 0], [[0, 2], [4, 6]])


def test_frame_grid_of_optical_flow_shows_displacements_along_x():
    clip = np.random.default_rng(0).integers(0, 256, (7, 2, 3, 2), np.uint8)
    np.testing.assert_array_equal(frame_grid(clip), frame_grid(clip[..., :1]))
