"""The published sets of corrupted images in each layout, mCE, and incomplete sets."""

import io
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow_datasets as tfds
from data_cases import data_config
from PIL import Image
from tensorflow_datasets.datasets.imagenet2012 import imagenet_common

from jaxssl.augment.corruptions import CORRUPTIONS, SEVERITIES
from jaxssl.evaluation import corrupted_sets
from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.evaluation.protocols import corruptions

pytestmark = pytest.mark.fast

KEYS = [(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]
READ = [("glass_blur", 2), ("elastic_transform", 5), KEYS[0], KEYS[-1]]
IMAGENET = tuple(Path(imagenet_common.label_names_file()).read_text().split())
WNIDS = IMAGENET[:3]
LABELS = np.array([0, 1, 2, 1])


def images_of(name, severity, side=32):
    """Four images of one colour, which is a matter of corruption, severity and image."""
    values = np.array([8 * CORRUPTIONS.index(name) + severity + 128 * (i % 2) for i in range(4)])
    return np.broadcast_to(values.astype(np.uint8)[:, None, None, None], (4, side, side, 3))


def write_arrays(root):
    root.mkdir()
    np.save(root / "labels.npy", np.tile(LABELS, 5).astype(np.uint8))
    for name in CORRUPTIONS:
        np.save(root / f"{name}.npy", np.concatenate([images_of(name, s) for s in SEVERITIES]))


def write_pictures(root):
    for name, severity in KEYS:
        for i, (image, label) in enumerate(zip(images_of(name, severity), LABELS, strict=True)):
            folder = root / name / str(severity) / WNIDS[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{i}.JPEG", "png")


class Prepared(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Writes the format of TFDS, with the names and the features of its two sets."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        cifar = self.name == "cifar10_corrupted"
        side, classes = (32, {"num_classes": 10}) if cifar else (224, {"names": IMAGENET})
        features = {
            "image": tfds.features.Image(shape=(side, side, 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(**classes),
        }
        options = {"features": tfds.features.FeaturesDict(features), "disable_shuffling": True}
        return tfds.core.DatasetInfo(builder=self, **options)

    def _split_generators(self, dl_manager):
        return {corrupted_sets.TFDS[self.name][1]: self._generate_examples()}

    def _generate_examples(self):
        theirs, _, severity = self.builder_config.name.rpartition("_")
        [name] = [n for n, t in corrupted_sets.TFDS[self.name][0].items() if t == theirs]
        side = self.info.features["image"].shape[0]
        for i, image in enumerate(images_of(name, int(severity), side)):
            file = io.BytesIO()
            Image.fromarray(image).save(file, "png")
            yield i, {"image": file.getvalue(), "label": LABELS[i]}


def write_prepared(root):
    """Prepare the configurations that are read, and copy one of them to the other names."""
    version = {"cifar10_corrupted": "1.0.0", "imagenet2012_corrupted": "3.1.0"}[root.name]
    names = corrupted_sets.TFDS[root.name][0]
    for name, severity in READ:
        config = tfds.core.BuilderConfig(name=f"{names[name]}_{severity}", version=version)
        fields = {"name": root.name, "BUILDER_CONFIGS": [config]}
        builder = type("Named", (Prepared,), fields, skip_registration=True)
        prepared = builder(data_dir=root.parent, config=config)
        prepared.download_and_prepare(file_format="array_record")
    for name, severity in KEYS:
        folder = root / f"{names[name]}_{severity}"
        if not folder.exists():
            shutil.copytree(prepared.data_path.parent, folder)


SETS = {
    "CIFAR-10-C": (write_arrays, corrupted_sets.CIFAR10),
    "ImageNet-C": (write_pictures, WNIDS),
    "cifar10_corrupted": (write_prepared, corrupted_sets.CIFAR10),
    "imagenet2012_corrupted": (write_prepared, IMAGENET[::-1]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the four sets."""
    root = tmp_path_factory.mktemp("sets")
    for name, (write, _) in SETS.items():
        write(root / name)
    return root


def open_set(folder, name, class_names=None):
    data = data_config(name="cifar10", dir=str(folder))
    return corrupted_sets.open_set(name, data, class_names or SETS[name][1], 32)


def test_prepared_corrupted_set_of_a_bucket_is_read_from_its_copy(folder, monkeypatch):
    monkeypatch.setattr(corrupted_sets, "fetch", lambda path: folder / path.rpartition("/")[2])
    opened = open_set("gs://bucket/sets", "cifar10_corrupted")
    images, _ = opened[READ[0]]()
    np.testing.assert_array_equal(images[:], images_of(*READ[0]))


@pytest.mark.parametrize("name", SETS)
def test_published_corrupted_sets_are_read_by_corruption_and_severity(name, folder):
    opened = open_set(folder, name)
    assert list(opened) == KEYS
    for key in READ:
        images, labels = opened[key]()
        # Sets that are folders of pictures are read class by class.
        order = np.argsort(LABELS, kind="stable") if name == "ImageNet-C" else np.arange(4)
        np.testing.assert_array_equal(images[:], images_of(*key, images.shape[1])[order])
        classes = np.array(SETS[name][1])[labels]
        known = corrupted_sets.CIFAR10 if "CIFAR" in name.upper() else IMAGENET
        np.testing.assert_array_equal(classes, np.array(known)[LABELS[order]])


PARTS = dict(zip(SETS, ("fog.npy", "fog/3", "fog_3", "fog_3"), strict=True))


@pytest.mark.parametrize(("name", "part"), PARTS.items())
def test_corrupted_set_lacking_a_severity_is_refused_with_a_list(name, part, folder, tmp_path):
    shutil.copytree(folder / name, tmp_path / name)
    path, lacking, rest = tmp_path / name / part, "fog 3", "fog 1 2 4 5"
    if path.is_dir():
        shutil.rmtree(path)
    else:
        np.save(path, np.load(path)[:16])
        lacking, rest = "fog 5", "fog 1 2 3 4"
    expected = rf"{name} lacks {lacking}; it holds gaussian_noise 1 2 3 4 5, .*, {rest}, bright"
    with pytest.raises(ValueError, match=expected):
        open_set(tmp_path, name)


def test_missing_corrupted_sets_and_test_sets_of_other_classes_are_refused(folder, tmp_path):
    for name in ("ImageNet-C", "cifar10_corrupted"):
        with pytest.raises(ValueError, match=f"{name} lacks .*; it holds nothing; put the whole"):
            open_set(tmp_path, name)
    with pytest.raises(ValueError, match=r"lacks labels.npy; put the files of CIFAR-10-C there"):
        open_set(tmp_path, "CIFAR-10-C")
    with pytest.raises(ValueError, match="has the classes airplane, .*, got n01440764, .*;"):
        open_set(folder, "CIFAR-10-C", WNIDS)
    for name, number in (("ImageNet-C", 3), ("imagenet2012_corrupted", 1000)):
        expected = f"must have the 2 classes of the test set, got {number}; '{WNIDS[2]}' is in one"
        with pytest.raises(ValueError, match=expected):
            open_set(folder, name, WNIDS[:2])[KEYS[0]]()


def test_severity_with_fewer_pictures_is_refused_and_other_files_are_ignored(folder, tmp_path):
    shutil.copytree(folder / "ImageNet-C" / "fog", tmp_path / "ImageNet-C" / "fog")
    readers = corrupted_sets._find_pictures(tmp_path / "ImageNet-C", WNIDS, 32, "bilinear")
    fog = tmp_path / "ImageNet-C" / "fog"
    (fog / "1" / WNIDS[0] / ".DS_Store").touch()
    images, labels = readers["fog", 1]()
    assert images.shape[0] == len(labels) == 4
    (fog / "2" / WNIDS[1] / "3.JPEG").unlink()
    (fog / "3" / WNIDS[2] / "2.JPEG").rename(fog / "3" / WNIDS[0] / "2.JPEG")
    for severity, number in ((2, 3), (3, 4)):
        with pytest.raises(
            ValueError, match=rf"fog/{severity} must .* {fog}/1 \(4\), got {number};"
        ):
            readers["fog", severity]()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (4, "labels.npy must have labels of 5 severities, got 4"),
        (3, "labels.npy must have labels of 5 severities, got 3"),
        (10, "gaussian_noise.npy must have 10 images like labels.npy, got 20"),
    ],
)
def test_labels_of_fewer_images_than_the_corrupted_set_has_are_refused(number, message, tmp_path):
    write_arrays(tmp_path / "CIFAR-10-C")
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.tile(LABELS, 5)[:number])
    with pytest.raises(ValueError, match=message):
        open_set(tmp_path, "CIFAR-10-C")


def test_corrupted_pictures_are_resized_as_the_encoder_asks_and_damaged_ones_are_named(tmp_path):
    path = tmp_path / "ImageNet-C" / "fog" / "1" / WNIDS[0] / "x.png"
    path.parent.mkdir(parents=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    picture.save(path)
    for interpolation in ("bilinear", "bicubic"):
        root = tmp_path / "ImageNet-C"
        readers = corrupted_sets._find_pictures(root, WNIDS[:1], 32, interpolation)
        images, _ = readers["fog", 1]()
        expected = picture.resize((32, 32), Image.Resampling[interpolation.upper()])
        np.testing.assert_allclose(images[:][0], np.asarray(expected), atol=1)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"fog/1/n01440764/x.png cannot be read"):
        images[:]
    write_arrays(tmp_path / "CIFAR-10-C")
    (tmp_path / "CIFAR-10-C" / "labels.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"CIFAR-10-C/labels.npy cannot be read"):
        open_set(tmp_path, "CIFAR-10-C")


def test_mean_corruption_error_is_relative_to_alexnet():
    of_alexnet = dict(zip(CORRUPTIONS, corruptions.ALEXNET, strict=True))
    accuracies = {name: np.full(5, 100 * (1 - e)) for name, e in of_alexnet.items()}
    assert corruptions.mean_corruption_error(accuracies) == pytest.approx(100)
    # AlexNet's errors for some corruptions, as the paper's Table 1 prints them.
    printed = {"gaussian_noise": 88.6, "snow": 86.7, "brightness": 56.5, "jpeg_compression": 60.7}
    assert {name: round(100 * of_alexnet[name], 1) for name in printed} == printed
    rng = np.random.default_rng(0)
    accuracies = {name: rng.uniform(0, 100, 5) for name in CORRUPTIONS}
    total = 0.0
    for name, error in of_alexnet.items():
        total += sum(100 - a for a in accuracies[name]) / (5 * error) / 15
    assert corruptions.mean_corruption_error(accuracies) == pytest.approx(total)


@pytest.mark.parametrize(("preset", "metric"), [("cifar10_c", "mean_error"), ("imagenet_c", "mce")])
def test_presets_of_published_corrupted_sets_report_the_metric_of_the_set(preset, metric, folder):
    name = corruptions.PRESETS[preset]["corruptions"]
    # Images of class 1 are bright at all severities, all other images are equally dark.
    images = np.repeat(np.array([[50], [200]], np.uint8), 8, axis=0)[:, :, None, None]
    images, labels = np.broadcast_to(images, (16, 32, 32, 3)), np.repeat([0, 1], 8)
    dark, bright = images[0], images[-1]
    source = SimpleNamespace(images=lambda size: images, class_names=SETS[name][1])

    def encode(x):
        return np.float32(x[:][:, 0, 0, :1])

    # Half of the clean test images, which have the labels of a severity, are misclassified.
    test = encode(np.stack([dark, bright, dark, dark]))
    features = Features(encode(images), labels, test, LABELS)
    data = data_config(dir=str(folder))
    context = EvalContext(features, source, source, encode, size=32, data=data)
    rows = {row.metric: row for row in corruptions.run(context, seed=0, preset=preset)}
    assert rows["corruption_clean_top1"].value == 50
    # Of the four images of a severity, that of class 2 is predicted as class 0.
    assert rows["corruption_mean_top1"].value == 75
    assert rows["corruption_drop"].value == -50  # percent of the clean accuracy
    expected = 25 if metric == "mean_error" else 25 * np.mean(1 / np.array(corruptions.ALEXNET))
    assert rows[f"corruption_{metric}"].value == pytest.approx(expected)
    assert rows["corruption_fog_top1"].details["corruptions"] == name
    part = context._replace(features=features._replace(test=test[:2], test_labels=LABELS[:2]))
    with pytest.raises(ValueError, match="4 images of the whole test set, and .* has 2 others"):
        corruptions.run(part, seed=0, preset=preset)
