"""Corruptions against Pillow, SciPy, Matplotlib and NumPy, and the protocol."""

import io
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from marks import long_except
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_sample_images

from jaxssl.augment import corruptions as ops
from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.evaluation.protocols import corruptions

pytestmark = pytest.mark.fast

NAMES = ops.CORRUPTIONS
SHAPES = [(32, 32, 3), (8, 8, 1), (11, 9, 3)]


@pytest.fixture(scope="module")
def photos():
    """Return crops [8, 32, 32, 3] uint8 of two photographs."""
    crops = []
    for photo in load_sample_images().images:
        small = np.asarray(Image.fromarray(photo).resize((128, 64), Image.Resampling.BOX))
        crops += [small[y : y + 32, x : x + 32] for y in (0, 32) for x in (16, 64)]
    return np.stack(crops)


@partial(jax.jit, static_argnums=0)
def corrupt_batch(name, u, images, severity):
    """Apply a JAX corruption to a batch, without rounding to uint8."""
    return jax.vmap(ops.JAX_CORRUPTIONS[name], in_axes=(0, 0, None))(u, images, severity)


def apply(name, images, severity, seed=0):
    """Return corrupted images in [0, 255], not rounded, and the uniform numbers that were used."""
    if name == "jpeg_compression":
        return ops.jpeg_compression(images, severity).astype(np.float32), None
    key, shape = jax.random.key(seed), images.shape[1:]
    u = ops._draw_block(key, np.arange(len(images), dtype=np.int32), shape)
    pixels = corrupt_batch(name, u, images / np.float32(255), severity)
    return 255 * np.asarray(pixels), np.asarray(u)


def batch(photos, shape):
    h, w, c = shape
    return np.ascontiguousarray(photos[:, 4 : 4 + h, 8 : 8 + w, :c]) if h < 32 else photos


@pytest.mark.parametrize("shape", long_except(SHAPES[:1], SHAPES), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_corruptions_give_images_that_depend_on_severity(name, shape, photos):
    images = batch(photos, shape)
    images = np.concatenate([images, np.zeros_like(images[:1]), np.full_like(images[:1], 255)])
    actual = [apply(name, images, severity)[0] for severity in ops.SEVERITIES]
    for x in actual:
        assert x.shape == images.shape and np.isfinite(x).all()
        assert 0 <= x.min() and x.max() <= 255.001
    assert np.abs(actual[4][:8] - images[:8]).mean() > 1
    assert not np.allclose(actual[0], actual[4])
    assert corrupt_batch._cache_size() <= len(NAMES) * len(SHAPES)  # one program for all severities


def test_corruption_depends_only_on_seed_index_and_image(photos):
    many = np.concatenate([photos] * 40)
    for name in ("gaussian_noise", "snow"):
        actual = ops.corrupt(name, many, 2, seed=3)
        few = ops.corrupt(name, many[:2], 2, seed=3)
        np.testing.assert_array_equal(actual[:2], few)
        # All copies of a picture get different noise, because their indices differ.
        assert len({image.tobytes() for image in actual[::8]}) == 40
        assert not np.array_equal(few, ops.corrupt(name, many[:2], 2, seed=4))
        u = ops.draw(jax.random.fold_in(jax.random.key(3), 1), many.shape[1:])
        single = ops.JAX_CORRUPTIONS[name](u, jnp.asarray(many[1] / np.float32(255)), 2)
        np.testing.assert_allclose(actual[1], 255 * single, atol=0.51)


def test_unknown_corruption_is_rejected():
    with pytest.raises(ValueError, match="must be one of gaussian_noise, .* got 'rain'"):
        ops.corrupt("rain", np.zeros((1, 8, 8, 3), np.uint8), 1, seed=0)


@pytest.mark.parametrize("name", ["contrast", "jpeg_compression"])
@pytest.mark.parametrize("severity", [0, 6])
def test_unknown_severity_is_rejected(name, severity):
    message = rf"^severity must be one of \(1, 2, 3, 4, 5\), got {severity}$"
    with pytest.raises(ValueError, match=message):
        ops.corrupt(name, np.zeros((1, 8, 8, 3), np.uint8), severity, seed=0)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((1, 8, 8, 3), np.float32), "need uint8 images, from 0 to 255, got float32"),
        (np.zeros((1, 8, 8, 4), np.uint8), "need grey or RGB images, got 4 channels"),
    ],
)
def test_images_of_another_dtype_or_number_of_channels_are_rejected(images, message):
    with pytest.raises(ValueError, match=message):
        ops.corrupt("brightness", images, 1, seed=0)


GREY = np.full((16, 32, 32, 3), 128, np.uint8)


def test_gaussian_noise_has_the_given_standard_deviation():
    for severity, stddev in zip(ops.SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.10), strict=True):
        change = (apply("gaussian_noise", GREY, severity)[0] - GREY) / 255
        assert change.mean() == pytest.approx(0, abs=1e-3)
        assert change.std() == pytest.approx(stddev, rel=0.02)


@pytest.mark.parametrize("level", [0, 1, 5, 40, 128])
def test_shot_noise_has_the_moments_of_poisson_counts(level):
    images = np.full_like(GREY, level)
    for severity, full in zip(ops.SEVERITIES, (500, 250, 100, 75, 50), strict=True):
        counts = apply("shot_noise", images, severity)[0] / 255 * full
        expected = level / 255 * full
        np.testing.assert_allclose(counts, np.round(counts), atol=1e-3)
        assert counts.mean() == pytest.approx(expected, abs=0.06 + 0.005 * expected)
        assert counts.var() == pytest.approx(expected, abs=0.06 + 0.05 * expected)


def test_impulse_noise_sets_a_fraction_to_black_and_white():
    for severity, share in zip(ops.SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True):
        actual = np.round(apply("impulse_noise", GREY, severity)[0])
        assert set(np.unique(actual)) == {0, 128, 255}
        for value in (0, 255):
            assert np.mean(actual == value) == pytest.approx(share / 2, rel=0.15)


def test_defocus_blur_equals_scipy_and_its_kernels_sum_to_1(photos):
    for scale, width in ((1.0, 7), (4.0, 21)):
        kernels = ops.disks(scale)
        assert kernels.shape == (5, width, width)
        np.testing.assert_allclose(kernels.sum(axis=(1, 2)), 1)
        np.testing.assert_allclose(kernels, kernels[:, ::-1, ::-1].swapaxes(1, 2))
    # For 32 x 32 pixels and radius 1.5, the disk is a 3 x 3 square.
    np.testing.assert_allclose(ops.disks(1.0)[4, 2:5, 2:5], 1 / 9, atol=1e-6)
    for severity in ops.SEVERITIES:
        kernel = ops.disks(1.0)[severity - 1][:, :, None]
        expected = [ndimage.convolve(x.astype(float), kernel, mode="mirror") for x in photos]
        actual, _ = apply("defocus_blur", photos, severity)
        np.testing.assert_allclose(actual, expected, atol=1e-2)


def test_glass_blur_moves_pixels_by_at_most_one(photos):
    actual, _ = apply("glass_blur", photos, 1)  # severity 1 blurs too little to change pixels
    padded = np.pad(photos.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    near = [padded[:, y : y + 32, x : x + 32] for y in range(3) for x in range(3)]
    distance = np.abs(np.stack(near) - actual).max(axis=-1)
    assert distance.min(axis=0).max() < 1e-2
    assert np.mean(distance[4] < 1e-2) < 0.6  # many pixels take a neighbour's value
    np.testing.assert_allclose(apply("glass_blur", GREY, 5)[0], GREY, atol=1e-3)


def test_motion_blur_averages_along_a_line_with_half_gaussian_weights(photos):
    table = [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)]
    for severity, (radius, sigma) in zip(ops.SEVERITIES, table, strict=True):
        actual, u = apply("motion_blur", photos[:2], severity)
        for image, of_image, result in zip(photos, u, actual, strict=False):
            angle = np.pi / 2 * (of_image[0] - 0.5)
            expected, total = np.zeros(image.shape), 0.0
            for i in range(2 * radius + 1):
                weight = np.exp(-(i**2) / (2 * sigma**2))
                dy, dx = (int(np.ceil(i * d - 0.5)) for d in (np.sin(angle), np.cos(angle)))
                y, x = np.arange(32) + dy, np.arange(32) + dx
                expected += weight * image[np.clip(y, 0, 31)][:, np.clip(x, 0, 31)]
                total += weight
            np.testing.assert_allclose(result, expected / total, atol=2e-2)


def test_zoom_blur_equals_the_mean_of_scipy_zooms(photos):
    image = photos[0].astype(float)
    total, done = image.copy(), 0
    for severity, steps in zip(ops.SEVERITIES, (7, 12, 16, 21, 26), strict=True):
        for factor in 1 + 0.01 * np.arange(done, steps):
            matrix, offset = np.diag([1 / factor, 1 / factor, 1]), 15.5 * (1 - 1 / factor)
            options = {"offset": [offset, offset, 0], "order": 1, "mode": "nearest"}
            total += ndimage.affine_transform(image, matrix, **options)
        done = steps
        actual = apply("zoom_blur", photos, severity)[0][0]
        np.testing.assert_allclose(actual, total / (steps + 1), atol=1e-2)


def test_snow_corruption_whitens_the_image_and_adds_flakes(photos):
    kept = [0.95, 0.9, 0.9, 0.85, 0.8]
    images = photos / 255
    light = images @ [0.299, 0.587, 0.114]
    white = np.maximum(images, 1.5 * light[..., None] + 0.5)
    for severity, share in zip(ops.SEVERITIES, kept, strict=True):
        flakes = apply("snow", photos, severity)[0] / 255 - share * images - (1 - share) * white
        free = white < 0.9  # brighter pixels are clipped, which hides flakes
        assert flakes[free].min() > -1e-5
        assert flakes[free].max() > 0.2


def test_frost_corruption_adds_an_overlay_independent_of_the_image(photos):
    kept = [1, 1, 0.9, 0.85, 0.75]
    for severity, share in zip(ops.SEVERITIES, kept, strict=True):
        ice, _ = apply("frost", np.zeros_like(photos), severity)
        assert ice.std(axis=(1, 2)).min() > 3
        np.testing.assert_allclose(ice, ice[..., 2:] * [0.85, 0.95, 1], atol=1e-3)
        expected = np.minimum(share * photos + ice, 255)
        np.testing.assert_allclose(apply("frost", photos, severity)[0], expected, atol=1e-2)


def test_fog_on_grey_has_the_expected_range_and_is_smooth():
    x = 128 / 255
    for severity, strength in zip(ops.SEVERITIES, (0.2, 0.5, 0.75, 1, 1.5), strict=True):
        actual = apply("fog", GREY, severity)[0] / 255
        np.testing.assert_allclose(actual.max(axis=(1, 2)), x, atol=1e-5)
        np.testing.assert_allclose(actual.min(axis=(1, 2)), x**2 / (x + strength), atol=1e-5)
        near, far = (np.abs(np.diff(x, axis=1)).mean() for x in (actual, actual[:, ::8]))
        assert near < 0.5 * far  # neighbouring pixels are similar


def test_brightness_raises_the_hsv_value_as_matplotlib(photos):
    for severity, amount in zip(ops.SEVERITIES, (0.05, 0.1, 0.15, 0.2, 0.3), strict=True):
        hsv = rgb_to_hsv(photos / 255)
        hsv[..., 2] = np.minimum(hsv[..., 2] + amount, 1)
        actual, _ = apply("brightness", photos, severity)
        np.testing.assert_allclose(actual, 255 * hsv_to_rgb(hsv), atol=1e-2)


def test_contrast_scales_the_distance_from_channel_means(photos):
    for severity, factor in zip(ops.SEVERITIES, (0.75, 0.5, 0.4, 0.3, 0.15), strict=True):
        mean = photos.mean(axis=(1, 2), keepdims=True)
        actual, _ = apply("contrast", photos, severity)
        np.testing.assert_allclose(actual, mean + factor * (photos - mean), atol=1e-2)


def test_elastic_transform_equals_scipy_interpolation_at_displaced_positions(photos):
    table = [(0, 1, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05)]
    grid = np.stack(np.meshgrid(np.arange(32.0), np.arange(32.0), indexing="ij"))
    corners = np.array([[26, 26], [6, 26], [6, 6]])  # [row, column] of three corners that move
    for severity, (alpha, sigma, bend) in zip(ops.SEVERITIES, table, strict=False):
        actual, u = apply("elastic_transform", photos, severity)
        for image, of_image, result in zip(photos[:2], u, actual, strict=False):
            moved = 32 * bend * (2 * of_image[:6].reshape(2, 3) - 1)
            affine = np.linalg.solve(np.c_[corners, np.ones(3)], moved.T)
            indices = grid + np.einsum("kyx,kd->dyx", np.r_[grid, np.ones((1, 32, 32))], affine)
            for axis in range(2):
                raw = 2 * of_image[6 + 1024 * axis :][:1024].reshape(32, 32) - 1
                smooth = ndimage.gaussian_filter(raw, 32 * sigma, mode="mirror")
                indices[axis] += 32 * alpha * smooth
            move = partial(ndimage.map_coordinates, coordinates=indices, order=1, mode="mirror")
            expected = [move(image[..., c].astype(float)) for c in range(3)]
            np.testing.assert_allclose(result, np.moveaxis(expected, 0, 2), atol=0.5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pixelate_equals_pillow_box_resizing(shape, photos):
    images = batch(photos, shape)
    h, w, channels = shape
    for severity, share in zip(ops.SEVERITIES, (0.95, 0.9, 0.85, 0.75, 0.65), strict=True):
        actual, _ = apply("pixelate", images, severity)
        for image, result in zip(images, actual, strict=True):
            picture = Image.fromarray(image if channels == 3 else image[..., 0])
            small = picture.resize((int(w * share), int(h * share)), Image.Resampling.BOX)
            expected = np.asarray(small.resize((w, h), Image.Resampling.BOX))
            np.testing.assert_allclose(result, expected.reshape(shape), atol=1.51)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_jpeg_compression_equals_pillow(shape, photos):
    images = batch(photos, shape)
    for severity, quality in zip(ops.SEVERITIES, (80, 65, 58, 50, 40), strict=True):
        actual = ops.corrupt("jpeg_compression", images, severity, seed=0)
        for image, result in zip(images, actual, strict=True):
            file = io.BytesIO()
            picture = Image.fromarray(image if shape[2] == 3 else image[..., 0])
            picture.save(file, "JPEG", quality=quality)
            np.testing.assert_array_equal(result, np.asarray(Image.open(file)).reshape(shape))


def context_of(photos):
    """Return a subject with grey and coloured images as two classes and pixels as features."""
    grey = np.broadcast_to(photos[..., :1], photos.shape)
    images = np.concatenate([photos, grey])
    labels = np.repeat([3, 7], 8)
    source = SimpleNamespace(images=lambda size: images, class_names=())

    def encode(x):
        return np.float32(x[:, ::4, ::4].reshape(len(x), -1)) / 255

    features = Features(encode(images), labels, encode(images), labels)
    return EvalContext(features, source, source, encode, size=32), images


@pytest.mark.long
def test_corruption_evaluation_classifies_the_corrupted_images(photos):
    seen = []

    def predict(images):
        seen.append(images)
        return np.arange(len(images)) % 2

    labels = np.array([0, 0, 0, 1])
    settings = {"severities": (2, 4), "seed": 1}
    actual = corruptions.evaluate(photos[:4], labels, predict, **settings)
    assert tuple(actual) == NAMES
    for name, accuracy in actual.items():
        np.testing.assert_array_equal(accuracy, [75, 75], err_msg=name)
    expected = [ops.corrupt(name, photos[:4], s, seed=1) for name in NAMES for s in (2, 4)]
    np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize(("n", "severities"), [(2, (0, 1)), (2, (6,)), (0, (1,))])
def test_invalid_severities_are_rejected(n, severities, photos):
    with pytest.raises(ValueError, match="severities must be in 1 to 5 and there must be images"):
        corruptions.evaluate(photos[:n], np.zeros(n), len, severities=severities, seed=0)


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_corruptions_of_images_that_are_neither_grey_nor_rgb_are_refused(channels):
    images = np.zeros((2, 8, 8, channels), np.uint8)
    with pytest.raises(ValueError, match=f"need grey or RGB images, got {channels} channels"):
        corruptions.evaluate(images, np.zeros(2), len, severities=(1,), seed=0)


@pytest.mark.parametrize(
    ("dtype", "labels", "message"),
    [
        (np.float32, [0, 1], "need uint8 images, from 0 to 255, got float32"),
        (np.uint8, [[0], [1]], r"labels must be \[2\], got \[2, 1\]"),
        (np.uint8, [0, 1, 1], r"labels must be \[2\], got \[3\]"),
    ],
)
def test_corruptions_of_wrong_images_or_labels_are_refused(dtype, labels, message):
    images = np.zeros((2, 8, 8, 3), dtype)
    with pytest.raises(ValueError, match=message):
        corruptions.evaluate(images, np.array(labels), len, severities=(1,), seed=0)


def test_corruption_rows_contain_the_settings_and_the_mean_over_corruptions(photos, monkeypatch):
    preset = {**corruptions.PRESETS["quick"], "limit": 10}
    monkeypatch.setitem(corruptions.PRESETS, "quick", preset)
    context, _ = context_of(photos)
    rows = {row.metric: row for row in corruptions.run(context, seed=0)}
    single = [rows[f"corruption_{name}_top1"] for name in NAMES]
    mean, clean = rows["corruption_mean_top1"].value, rows["corruption_clean_top1"].value
    assert len(rows) == 18
    assert mean == pytest.approx(np.mean([row.value for row in single]))
    assert rows["corruption_drop"].value == pytest.approx(100 * (clean - mean) / clean)
    assert clean > 50
    for row in rows.values():
        assert row.details.items() >= {**preset, "preset": "quick", "images": 10}.items()
    for row in single:
        assert row.details["by_severity"] == {"3": row.value}


def test_corruption_rows_are_the_accuracies_on_the_sampled_test_images(photos, monkeypatch):
    """The images hold their numbers, so that each can be told from the others."""
    preset = {**corruptions.PRESETS["quick"], "severities": (1, 4, 5), "limit": 10}
    monkeypatch.setitem(corruptions.PRESETS, "quick", preset)
    context, _ = context_of(photos)
    images = np.arange(len(context.features.test), dtype=np.uint8)[:, None, None, None]
    predicted = np.arange(len(images)) // 3 % 2  # the features are the scores of the classes
    features = context.features._replace(test=np.eye(2)[predicted])
    context = context._replace(test=SimpleNamespace(images=lambda size: images), features=features)
    monkeypatch.setattr(corruptions.logistic_regression, "scores", lambda _, features: features)
    seen = []

    def evaluate(images, labels, predict, *, severities, seed):
        seen.append((images.ravel(), labels, severities))
        return {name: np.array([90.0, 60.0, 30.0 + i]) for i, name in enumerate(NAMES)}

    monkeypatch.setattr(corruptions, "evaluate", evaluate)
    rows = {row.metric: row for row in corruptions.run(context, seed=3)}
    [(places, labels, severities)] = seen
    assert len(places) == 10 and places.tolist() != list(range(10)) and severities == (1, 4, 5)
    np.testing.assert_array_equal(labels, context.features.test_labels[places])
    for i, name in enumerate(NAMES):
        by_severity = rows[f"corruption_{name}_top1"].details["by_severity"]
        assert by_severity == {"1": 90.0, "4": 60.0, "5": 30.0 + i}
        assert rows[f"corruption_{name}_top1"].value == pytest.approx(60 + i / 3)
    right = np.array([3, 7])[predicted] == features.test_labels
    assert right[places].mean() != right.mean()
    assert rows["corruption_clean_top1"].value == 100 * right[places].mean()


@pytest.mark.parametrize("name", ["fog", "frost"])
def test_noise_of_a_single_pixel_is_finite(name):
    out = ops.corrupt(name, np.zeros((1, 1, 1, 3), np.uint8), 1, seed=0)
    assert out.shape == (1, 1, 1, 3)
