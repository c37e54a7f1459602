"""Surface normals: of depth, angles, the dense head, data that is refused, and the protocol."""

from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from data_cases import data_config
from file_cases import refused
from jax import numpy as jnp
from net_cases import count_params, init_shapes
from PIL import Image
from scene_cases import render

from jaxssl.augment.views import Inputs
from jaxssl.data import source
from jaxssl.evaluation import dense_head, run
from jaxssl.evaluation import surface_normals as sn
from jaxssl.evaluation.dense_head import Training, fit_dense_head
from jaxssl.evaluation.protocols import normals
from jaxssl.models import convnet, heads, resnet
from jaxssl.models.encoder import Encoder
from jaxssl.pretrained.encoder import PretrainedEncoder

SHORT = Training(sides=(32,), steps=2, batch_size=4, width=8, directions=6)


def make_encoder(net, size=32):
    image = jnp.zeros((1, size, size, 3))
    variables = {"net": dict(net.init(jax.random.key(0), image, train=False))}
    metadata = {"net": {"name": "resnet"}, "source": "test"}
    encoder = Encoder(net, heads.mlp(proj_layers=0))
    return PretrainedEncoder(encoder, variables, Inputs(size, 3), lambda seed: variables, metadata)


# Surface normals and the angles between them.


@pytest.mark.fast
@pytest.mark.parametrize("seed", range(3))
def test_normals_from_depth_are_exact_on_planes_and_close_on_spheres(seed):
    _, depth, expected = render(seed, 480, 640, sn.NYU, spheres=0)
    actual = sn.from_depth(depth)
    known = np.isfinite(actual[..., 0])
    assert known[5:-5, 5:-5].all() and known.sum() == 470 * 630  # border pixels have no normal
    assert sn.angles(actual, expected).max() < 1e-3
    _, depth, expected = render(seed, 480, 640, sn.NYU, spheres=1)
    assert np.median(sn.angles(sn.from_depth(depth), expected)[depth[known] < 4]) < 0.5


@pytest.mark.fast
def test_surface_normals_near_unknown_depth_are_unknown():
    depth = np.full((30, 60), 2.0)
    depth[10, 20], depth[20, 30], depth[15, 50] = 0, np.nan, np.inf
    known = np.isfinite(sn.from_depth(depth, radius=2)[..., 0])
    expected = np.zeros((30, 60), bool)
    expected[2:-2, 2:-2] = True
    expected[8:13, 18:23] = expected[18:23, 28:33] = expected[13:18, 48:53] = False
    np.testing.assert_array_equal(known, expected)


@pytest.mark.fast
def test_angles_between_normals_and_their_summary_equal_numpy():
    rng = np.random.default_rng(0)
    a, b = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in rng.normal(size=(2, 4, 50, 3)))
    b[0] = a[0] + 1e-4 * rng.normal(size=(50, 3))  # small angles, where float32 arc cosines fail
    b[1, 7] = np.nan
    actual = sn.angles(a.astype(np.float32), b.astype(np.float32))
    expected = []
    for p, q in zip(a.reshape(-1, 3), b.reshape(-1, 3), strict=True):
        if np.isfinite(q).all():
            cosine = p @ q / np.sqrt((p @ p) * (q @ q))
            expected.append(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    np.testing.assert_allclose(actual, expected, atol=1e-3)
    scores = normals.summarise(actual)
    assert scores["normals_mean_angle"] == pytest.approx(np.mean(expected), abs=1e-3)
    assert scores["normals_median_angle"] == pytest.approx(np.median(expected), abs=1e-3)
    for limit in ("11.25", "22.5", "30"):
        share = sum(angle < float(limit) for angle in expected) / len(expected)
        assert scores[f"normals_within_{limit}"] == pytest.approx(100 * share)


# Feature maps and pyramid pooling of the network.


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"depth": 18}, {"depth": 26, "stem": "imagenet"}], ids=str)
def test_dilated_feature_maps_contain_those_of_the_strided_network(settings):
    net = resnet.net(width=4, **settings)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 64, 96, 3)), jnp.float32)
    variables = jax.jit(partial(net.init, train=False))(jax.random.key(0), x)
    nets = net.clone(maps=True), net
    maps, expected = jax.jit(lambda v, x: [n.apply(v, x, train=False) for n in nets])(variables, x)
    stride = 8 if "stem" in settings else 2
    assert maps.shape[1:3] == (64 // stride, 96 // stride)
    # Without two strides of 2, every fourth point of the maps is a point of the strided network.
    np.testing.assert_allclose(maps[:, ::4, ::4].mean(axis=(1, 2)), expected, atol=1e-5)


@pytest.mark.fast
def test_pyramid_pooling_averages_over_the_same_cells_as_adaptive_pooling():
    for side in (2, 6, 7, 16):
        for cells in (1, 2, 3, 6):
            weights = dense_head._cell_weights(side, cells)
            for i, row in enumerate(weights):
                first, last = i * side // cells, int(np.ceil((i + 1) * side / cells))
                expected = [first <= x < last for x in range(side)] / np.float64(last - first)
                np.testing.assert_allclose(row, expected, rtol=1e-6)


@pytest.mark.fast
def test_pyramid_pooling_has_the_parameters_of_its_convolutions_and_norms():
    variables, out = init_shapes(dense_head.PyramidPooling(3, 4, 0.1), 2, 8, 9, 5)
    first, second, last = 4 * (5 * 4), 9 * (5 + 4 * 4) * 4, (4 + 1) * 3
    assert count_params(variables) == first + second + last + 5 * (2 * 4)
    assert out.shape == (2, 8, 9, 3)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [((64, 48), 24, (24, 32)), ((48, 64), 24, (32, 24)), ((50, 40), 25, (32, 32))],
)
def test_resized_picture_has_the_short_side_rounded_up_to_a_multiple_of_8(size, side, expected):
    picture = Image.new("RGB", size)  # width, height
    assert dense_head.resize(picture, side).shape == (*expected, 3)


@pytest.mark.fast
def test_normals_are_quantised_to_the_nearest_direction_on_a_grid():
    directions = np.eye(3, dtype=np.float32)
    target = np.random.default_rng(0).normal(size=(8, 12, 3)).astype(np.float32)
    target[1, 1] = np.nan
    actual = dense_head.quantise(target, directions, 4, 6)
    expected = np.argmax(np.nan_to_num(target), -1)[1::2, 1::2]
    expected[0, 0] = -1
    np.testing.assert_array_equal(actual, expected)


def read_scenes(indices):
    scenes = [render(int(seed)) for seed in indices]
    return [(Image.fromarray(image), target.astype(np.float32)) for image, _, target in scenes]


@pytest.mark.long
def test_training_of_a_dense_head_on_a_frozen_backbone_is_repeatable():
    encoder = make_encoder(resnet.net(depth=18, width=4))
    options = encoder, SHORT._replace(sides=(24, 32)), read_scenes, 6, 3
    predict, trained = fit_dense_head(*options)
    jax.tree.map(np.testing.assert_array_equal, trained, encoder.variables["net"])
    [(picture, _)] = read_scenes([0])
    predicted = predict(picture, (32, 48))
    np.testing.assert_allclose(np.linalg.norm(predicted, axis=-1), np.ones((32, 48)), rtol=1e-5)
    again, _ = fit_dense_head(*options)
    np.testing.assert_array_equal(predicted, again(picture, (32, 48)))


@pytest.mark.long
def test_training_of_a_dense_head_moves_every_kernel_of_a_backbone_that_is_not_frozen():
    encoder = make_encoder(resnet.net(depth=18, width=4))
    training = SHORT._replace(frozen=False, weight_decay=0.0)
    _, trained = fit_dense_head(encoder, training, read_scenes, 6, 3)
    same = jax.tree.map(np.array_equal, trained, encoder.variables["net"])
    kernels = [x for path, x in jax.tree.leaves_with_path(same) if "kernel" in str(path)]
    assert len(kernels) == 20 and not any(kernels)


def predictions(monkeypatch, targets, **changes):
    """Predict normals [32, 48, 3] after training on one picture that has several targets."""
    monkeypatch.setattr(dense_head, "_find_directions", lambda *_: np.eye(3, dtype=np.float32))
    picture = Image.fromarray(render(0)[0])
    training = SHORT._replace(directions=3, dropout=0.0, **changes)
    read = lambda indices: [(picture, targets[i]) for i in indices]  # noqa: E731
    encoder = make_encoder(resnet.net(depth=18, width=4))
    return fit_dense_head(encoder, training, read, len(targets), 0)[0](picture, (32, 48))


@pytest.mark.long
def test_dense_head_learns_the_direction_of_the_training_normals(monkeypatch):
    target = np.broadcast_to(np.float32([0, 1, 0]), (32, 48, 3))
    actual = predictions(monkeypatch, [target], steps=8, lr=0.3)
    assert np.median(sn.angles(actual, target)) < 5


@pytest.mark.long
def test_pixels_without_a_normal_have_no_part_in_the_mean_loss_of_a_dense_head(monkeypatch):
    """A second copy of the image changes nothing, whether its normals are the same or unknown."""
    target = render(0)[2].astype(np.float32)
    unknown = np.full_like(target, np.nan)
    expected, actual = (predictions(monkeypatch, [target, x]) for x in (target, unknown))
    np.testing.assert_allclose(actual, expected, atol=1e-4)


@pytest.mark.long
def test_dense_prediction_is_a_mean_over_the_sides_in_any_order(monkeypatch):
    target = render(0)[2].astype(np.float32)
    sides = (24, 32), (32, 24)
    first, second = (predictions(monkeypatch, [target], steps=0, sides=x) for x in sides)
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_dense_head_refuses_an_encoder_that_is_not_finite_and_too_few_normals(monkeypatch):
    monkeypatch.setattr(dense_head, "_make_step", lambda *_: lambda state, *_: state)
    image, _, target = render(0)
    read = lambda indices: [(Image.fromarray(image), target)] * len(indices)  # noqa: E731
    encoder = make_encoder(resnet.net(depth=18, width=4))
    broken = encoder._replace(variables=jax.tree.map(lambda x: x * jnp.nan, encoder.variables))
    predict, _ = fit_dense_head(broken, SHORT, read, 2, 0)
    with pytest.raises(ValueError, match="predictions must be finite, got NaN or infinity"):
        predict(Image.fromarray(image), (32, 48))
    target = np.full_like(target, np.nan)
    with pytest.raises(ValueError, match="6 directions need as many .* or more, got 0; add"):
        fit_dense_head(encoder, SHORT, read, 2, 0)


# The protocol `normals`.


@pytest.fixture
def folder(tmp_path):
    """A folder of scenes with their normals, as the protocol reads it."""
    root = tmp_path / "scenes"
    for split, seeds in {"train": range(5), "test": range(5, 8)}.items():
        (root / split).mkdir(parents=True)
        for seed in seeds:
            image, _, target = render(seed)
            Image.fromarray(image).save(root / split / f"{seed}.png")
            np.save(root / split / f"{seed}.npy", target.astype(np.float32))
    return root


def settings_of(folder, **changes):
    settings = {"name": "folder", "path": str(folder), "dir": str(folder.parent / "prepared")}
    return data_config(**settings | changes)


def evaluate(encoder, data, out, monkeypatch):
    monkeypatch.setitem(normals.PRESETS, "quick", {"training": SHORT})
    rows = run.evaluate(encoder, ["normals"], data=data, out=out, kinds=["pretrained"])
    return {row["metric"]: row for row in rows}


def test_normals_protocol_reports_angles_on_a_folder_of_scenes(folder, tmp_path, monkeypatch):
    scenes = {render(seed)[0].tobytes(): seed for seed in range(5, 8)}

    def predict(picture, shape):
        """Predict the true normals, turned by 20 degrees in one picture."""
        seed = scenes[picture.tobytes()]
        target, turn = render(seed)[2], np.radians(20 * (seed == 6))
        axis = np.cross(target, np.roll(target, 1, axis=-1))
        axis /= np.linalg.norm(axis, axis=-1, keepdims=True)
        return np.cos(turn) * target + np.sin(turn) * np.cross(axis, target)

    monkeypatch.setattr(normals, "fit_dense_head", lambda *_: (predict, {}))
    encoder = make_encoder(resnet.net(depth=18, width=4))
    rows = evaluate(encoder, settings_of(folder), tmp_path / "out", monkeypatch)
    assert rows["normals_mean_angle"]["value"] == pytest.approx(20 / 3, abs=1e-3)
    assert rows["normals_median_angle"]["value"] == pytest.approx(0, abs=1e-3)
    assert rows["normals_within_11.25"]["value"] == pytest.approx(200 / 3)
    assert rows["normals_within_22.5"]["value"] == rows["normals_within_30"]["value"] == 100
    assert rows["normals_mean_angle"]["unit"] == "°"
    assert rows["normals_within_30"]["unit"] == "%"
    assert rows["normals_mean_angle"]["details"].items() >= {"sides": (32,), "frozen": True}.items()


@pytest.mark.parametrize("unknown", [[0, 0, 0], [0, 0, np.inf], [np.nan, 0, 1]], ids=str)
def test_test_images_without_a_known_normal_are_refused(unknown, folder, tmp_path, monkeypatch):
    for path in (folder / "test").glob("*.npy"):
        np.save(path, np.tile(np.array(unknown, np.float32), (32, 48, 1)))
    predict = lambda picture, shape: np.ones((*shape, 3))  # noqa: E731
    monkeypatch.setattr(normals, "fit_dense_head", lambda *_: (predict, {}))
    encoder = make_encoder(resnet.net(depth=18, width=4))
    with refused("protocol 'normals': no pixel of 'test' has a known normal"):
        evaluate(encoder, settings_of(folder), tmp_path / "out", monkeypatch)


class NyuDepth(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Writes TFDS' nyu_depth_v2 with rendered scenes."""

    name, VERSION = "nyu_depth_v2", tfds.core.Version("0.0.1")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(480, 640, 3)),
            "depth": tfds.features.Tensor(shape=(480, 640), dtype=np.float16),
        }
        features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        seeds = {"train": [0, 1], "validation": [2]}
        return {split: self._generate_examples(own) for split, own in seeds.items()}

    def _generate_examples(self, seeds):
        for seed in seeds:
            image, depth, _ = render(seed, 480, 640, sn.NYU)
            file = self.data_path.parent / f"{seed}.png"
            Image.fromarray(image).save(file)
            yield seed, {"image": file.read_bytes(), "depth": depth.astype(np.float16)}


@pytest.mark.long
def test_nyu_depth_of_tfds_gives_normals_from_its_depth(tmp_path, monkeypatch):
    (tmp_path / "nyu_depth_v2").mkdir()
    NyuDepth(data_dir=tmp_path).download_and_prepare(file_format="array_record")
    data = data_config(name="nyu_depth_v2", dir=str(tmp_path), test_split="validation")
    test = source.load(data, "validation")
    sn.check(test, data)
    [(picture, target)] = sn.read(test, np.array([0]), data)
    image, _, expected = render(2, 480, 640, sn.NYU)
    np.testing.assert_array_equal(picture, image)
    assert np.median(sn.angles(target, expected)) < 0.5  # depth is stored as float16
    monkeypatch.setattr(dense_head, "KMeans", lambda k, random_state: Means(k))
    rows = evaluate(make_encoder(resnet.net(depth=18, width=4)), data, tmp_path / "o", monkeypatch)
    assert 0 < rows["normals_median_angle"]["value"] < 90
    assert rows["normals_mean_angle"]["details"]["training_images"] == 2


class Means(SimpleNamespace):
    """The first rows in place of k-means."""

    def __init__(self, k):
        self.k = k

    def fit(self, rows):
        return SimpleNamespace(cluster_centers_=rows[: self.k])


def test_folder_of_normals_in_a_bucket_is_looked_up_once(folder, monkeypatch):
    train, asked = source.load(settings_of(folder), "train"), []
    monkeypatch.setattr(sn, "fetch", lambda path: asked.append(path) or folder)
    data = {"path": "gs://bucket/scenes"}
    sn.check(train, data)
    assert len(sn.read(train, np.arange(len(train)), data)) == 5
    assert asked == ["gs://bucket/scenes"]


def test_images_with_missing_or_misshapen_normals_are_refused(folder, tmp_path, monkeypatch):
    net, out, file = make_encoder(resnet.net(depth=18, width=4)), tmp_path / "out", "test/6.npy"
    shape = "expected [32, 48, 3] like the image"
    for normals_of, parts in (
        (None, (f"the image test/6.png has no normals; expected {folder / file} [32, 48, 3]",)),
        (np.zeros((16, 48, 3)), (f"{folder / file} has the shape [16, 48, 3]", shape)),
        (
            np.zeros((32, 48, 3), np.uint8),
            (f"{folder / file} has the dtype uint8, expected floats",),
        ),
        (b"a text", (f"{folder / file} cannot be read: ",)),
    ):
        (folder / file).unlink(missing_ok=True)
        if isinstance(normals_of, bytes):
            (folder / file).write_bytes(normals_of)
        elif normals_of is not None:
            np.save(folder / file, normals_of)
        with refused("protocol 'normals': ", *parts):
            evaluate(net, settings_of(folder), out, monkeypatch)
    (folder / file).unlink()
    Image.new("RGB", (8, 8)).save(folder / "test" / "6.png")
    with refused("'train' must have images of one size, got several"):
        evaluate(net, settings_of(folder), out, monkeypatch)
    assert not out.exists()


def test_normals_protocol_refuses_data_without_normals_and_networks_without_maps(
    folder, data_dir, tmp_path, monkeypatch
):
    other = make_encoder(convnet.net(widths=(4,), strides=(2,)))
    with refused("dense predictions need the maps of a ResNet, got ConvNet"):
        evaluate(other, settings_of(folder), tmp_path / "out", monkeypatch)
    digits = data_config(name="digits", dir=str(data_dir))
    net = make_encoder(resnet.net(depth=18, width=4))
    with refused("'digits' has images without normals; expected --dataset nyu_depth_v2, or folder"):
        evaluate(net, digits, tmp_path / "out", monkeypatch)


@pytest.mark.long
def test_encoder_trained_on_scenes_predicts_normals_better_than_an_untrained_one():
    scenes = [render(seed) for seed in range(220)]
    examples = [(Image.fromarray(x), n.astype(np.float32)) for x, _, n in scenes]
    encoder = make_encoder(resnet.net(depth=18, width=8))
    options = {"batch_size": 4, "lr": 0.05, "width": 32, "directions": 20}
    training = Training(sides=(32,), steps=60, frozen=False, **options)

    def median(encoder):
        """Return the median angle of a head on the frozen encoder, on scenes that no one saw."""
        read = lambda indices: [examples[i] for i in indices]  # noqa: E731
        predict, _ = fit_dense_head(encoder, training._replace(frozen=True), read, 60, 0)
        pairs = examples[200:]
        angles = [sn.angles(predict(x, n.shape[:2]), n) for x, n in pairs]
        return np.median(np.concatenate(angles))

    others = lambda indices: [examples[60 + i] for i in indices]  # noqa: E731
    _, trained = fit_dense_head(encoder, training._replace(steps=100), others, 140, 1)
    better = median(encoder._replace(variables={"net": trained}))
    assert better < median(encoder) - 3
