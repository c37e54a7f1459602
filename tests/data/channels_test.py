"""Images of any number of channels, from Python and from folders, in 8 and in 16 bits."""

import io
import tracemalloc

import jax
import numpy as np
import pytest
from file_cases import pack, picture, pixels_of, refused, unpack

from jaxssl.augment import colour
from jaxssl.augment.recipes import needs_rgb
from jaxssl.augment.views import Scale, make_views, to_uint8
from jaxssl.data.decoders import decoding
from jaxssl.data.opening.in_memory import load_splits
from jaxssl.kinds.image import statistics

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(0)


def images(channels, dtype=np.uint8):
    """Return images [24, 9, 10, c], channel k below 256 / (k + 1), of a dtype, and their labels."""
    values = RNG.integers(0, 256, (24, 9, 10, channels)) // (1 + np.arange(channels))
    factor = {np.uint8: 1, np.uint16: 257, np.float32: np.float32(1 / 255)}[dtype]
    return (values * factor).astype(dtype), np.arange(24) % 3


def npy(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.mark.parametrize("channels", [2, 4, 5, 16])
def test_each_channel_of_an_image_is_cropped_and_resized_independently(channels):
    values = RNG.integers(0, 256, (9, 12, channels), np.uint8)
    values[..., -1] = 0  # Pillow would make pixels with alpha 0 black.
    crop = decoding.Crop(5, (0.3, 0.9), (0.75, 1.3))

    def cut(values):
        picture = decoding.from_pixels(values)
        random = decoding.random_crops(picture, [crop], np.random.default_rng(1))
        return np.stack([*random, decoding.centre(picture, 5)])

    expected = np.concatenate([cut(values[..., k : k + 1]) for k in range(channels)], axis=-1)
    np.testing.assert_array_equal(cut(values), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_images_in_memory_keep_any_number_of_channels(channels, dtype):
    pixels, labels = images(channels, dtype)
    expected = np.round(pixels * {np.uint8: 1, np.uint16: 1 / 257, np.float32: 255}[dtype])
    for data in ((pixels, labels), list(zip(pixels, labels, strict=True))):
        splits, _ = load_splits({"train": data, "test": data})
        assert splits.train.shape == (9, 10, channels)
        np.testing.assert_array_equal(splits.train.images(0), expected)


@pytest.mark.parametrize("shape", [(4, 8, 8, 17), (4, 3, 16, 16), (4, 1, 8, 8)])
def test_images_with_too_many_channels_or_channels_first_are_refused(shape):
    with refused(f"the shape {list(shape)}; expected images [n, h, w, c] with 1 to 16 channels"):
        load_splits(np.zeros(shape, np.uint8))


NPY = {
    "another shape": (npy(np.zeros((4, 4, 2), np.uint8)), "shape [4, 4, 2], expected"),
    "huge": (npy(np.zeros((4, 4, 5), np.uint8)).replace(b"(4, 4,", b"(9**9,"), ""),
    "cut short": (npy(np.zeros((4, 4, 5), np.uint8))[:-1], "cannot reshape"),
    "integers": (npy(np.zeros((4, 4, 5), np.int32)), "has the dtype int32"),
    "range": (npy(np.full((4, 4, 5), 2.0)), "has values in [2, 2]"),
    "objects": (npy(np.zeros((4, 4, 5), np.uint8)).replace(b"'|u1'", b"'|O' "), ""),
    "a picture": (picture("x"), "has 3 channels, expected 5"),
}


@pytest.mark.parametrize("name", NPY)
def test_npy_files_of_unsupported_shape_dtype_or_range_are_refused(name):
    content, message = NPY[name]
    with pytest.raises((ValueError, OSError)) as error:
        decoding.open_picture(content, 5)
    assert message in str(error.value)


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_folder_data_sets_read_grey_rgba_and_npy_pictures(channels, load, tmp_path):
    names = [f"{c}/{i}.{'npy' if channels > 4 else 'png'}" for c in "ab" for i in range(3)]
    shape = (6, 8, channels)
    pixels = {name: pixels_of(name, shape[: 2 + (channels > 1)]) for name in names}
    if channels > 4:
        content = {name: npy(values.astype(np.uint16) * 257) for name, values in pixels.items()}
    else:
        content = {name: picture(name, values.shape) for name, values in pixels.items()}
    for path in (unpack(tmp_path / "x", content), pack(tmp_path / "x.zip", content)):
        train = load(path, channels=channels, test_fraction=0.0)
        assert train.shape == shape
        expected = np.stack([pixels[name] for name in names]).reshape(-1, *shape)
        assert {x.tobytes() for x in train.images(0)} == {x.tobytes() for x in expected}
    if channels == 4:  # By default, alpha is dropped.
        assert load(tmp_path / "x", test_fraction=0.0).shape == (6, 8, 3)


def test_data_channels_setting_is_refused_for_data_sets_other_than_folders(load):
    with refused("does not read data.channels; set it to 0"):
        load("", name="digits", channels=4)


def test_normalisation_uses_mean_and_std_of_the_training_images():
    pixels, _ = images(5)
    train = load_splits(pixels)[0].train
    measured = statistics("auto", train, 8)
    flat = pixels.reshape(-1, 5) / 255
    np.testing.assert_allclose(measured["mean"], flat.mean(axis=0), atol=5e-5)
    np.testing.assert_allclose(measured["std"], flat.std(axis=0), atol=5e-5)
    constant = load_splits(np.zeros((4, 8, 8, 4), np.uint8))[0].train
    assert statistics("auto", constant, 8)["std"] == (0.0039,) * 4
    for channels, normalise, number in ((3, "auto", 0), (1, "measured", 1), (5, "half", 0)):
        train = load_splits(images(channels)[0])[0].train
        assert len(statistics(normalise, train, 8).get("mean", ())) == number


def test_measuring_images_takes_less_memory_than_all_of_them():
    pixels = np.random.default_rng(1).integers(0, 256, (1024, 32, 32, 5), np.uint8)
    train = load_splits(pixels)[0].train
    tracemalloc.start()
    statistics("measured", train, 32)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < pixels.nbytes


def test_views_are_normalised_per_channel_and_converted_back_for_display():
    pixels, _ = images(4)
    scale = Scale((0.5, 0.25, 0.1, 0.2), (0.3, 0.2, 0.1, 0.4))
    arguments = jax.random.key(0), pixels, np.arange(24, dtype=np.int32)
    views = make_views([lambda key, image: image], scale=scale)(*arguments)["views"][0]
    expected = (pixels / 255 - np.array(scale.mean)) / np.array(scale.std)
    np.testing.assert_allclose(views, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(to_uint8(views, scale), pixels)


@pytest.mark.parametrize("channels", [1, 2, 4, 5])
def test_colour_operations_that_need_rgb_are_left_out(channels):
    image = np.float32(RNG.random((channels, 6, 7)))
    u = np.float32([0, 0.3, 0.9, 0.1, 0.2, 0.8])  # draws that change brightness and contrast
    strengths = {"brightness": 0.4, "contrast": 0.4}
    with_all = colour.random_jitter(u, image, **strengths, saturation=0.9, hue=0.5)
    without = colour.random_jitter(u, image, **strengths, saturation=0.0, hue=0.0)
    np.testing.assert_array_equal(with_all, without)
    assert (with_all != image).any()
    np.testing.assert_array_equal(colour.random_grayscale(np.float32(0), image, 1.0), image)
    settings = {"jitter": 0.8, "saturation": 0.4, "hue": 0.1, "grayscale": 0.2}
    assert needs_rgb(settings) == ["saturation", "hue", "grayscale"]
    settings |= {"jitter": 0.0, "policy": "randaugment"}
    assert needs_rgb(settings) == ["grayscale", "color of the policy"]
