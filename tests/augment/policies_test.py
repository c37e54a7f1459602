"""Colour operations against Pillow, colorsys and SciPy; policies against Pillow and the papers."""

import colorsys
from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import ndimage

from jaxssl.augment import colour, policies
from jaxssl.augment.policies import CIFAR, IMAGENET, OPERATIONS

pytestmark = pytest.mark.fast

FACTORS = np.array([0.0, 0.6, 1.0, 1.8], np.float32)
THRESHOLDS = [0, 100, 128, 256]
SHIFTS = np.array([-0.5, -0.1, 0.0, 0.25, 0.5], np.float32)
STRENGTHS = np.array([0, 0.31, 0.64, 1], np.float32)
SETTINGS = np.array([(s, sign) for s in STRENGTHS for sign in (1, -1)], np.float32)
# Names of Pillow's ImageEnhance classes.
ENHANCED = {"brightness": "Brightness", "contrast": "Contrast"}
GEOMETRY = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")


def draw(*shape, seed=0):
    """Return uniform numbers in [0, 1)."""
    return np.random.default_rng(seed).random(shape, np.float32)


def picture(channels, seed=0):
    """Return a Pillow image with smooth shapes and levels from 20 to 240."""
    noise = np.random.default_rng(seed).normal(size=(24, 20, channels))
    soft = ndimage.gaussian_filter(noise, (1.5, 1.5, 0))
    levels = (128 + 60 * soft / np.abs(soft).max() + 10 * noise).clip(20, 240).astype(np.uint8)
    return Image.fromarray(levels if channels == 3 else levels[:, :, 0])


def flat(channels):
    """Return a Pillow image of one colour."""
    return Image.new("RGB" if channels == 3 else "L", (20, 24), (90, 91, 200)[:channels])


def planes(picture):
    """Convert a Pillow image to [c, h, w] in [0, 1]."""
    return np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1).astype(np.float32) / 255


@jax.jit
def every_operation(image):
    """Apply every operation of `colour` with all test parameters."""

    def over(name, values):
        return jax.vmap(partial(getattr(colour, name), image))(jnp.asarray(values))

    enhanced = {name: over(name, FACTORS) for name in ENHANCED}
    plain = ("grayscale", "autocontrast", "equalize", "smooth")
    return {
        **enhanced,
        **{name: getattr(colour, name)(image)[None] for name in plain},
        "solarize": over("solarize", np.array(THRESHOLDS, np.float32) / 255),
        "posterize": over("posterize", np.arange(1, 9, dtype=np.int32)),
    }


def pillows(picture):
    """Apply Pillow's operations with the same parameters."""
    enhance = {
        name: getattr(ImageEnhance, kind)(picture).enhance for name, kind in ENHANCED.items()
    }
    return {
        **{name: [of(float(factor)) for factor in FACTORS] for name, of in enhance.items()},
        "grayscale": [picture.convert("L").convert(picture.mode)],
        "autocontrast": [ImageOps.autocontrast(picture)],
        "equalize": [ImageOps.equalize(picture)],
        "smooth": [picture.filter(ImageFilter.SMOOTH)],
        "solarize": [ImageOps.solarize(picture, threshold) for threshold in THRESHOLDS],
        "posterize": [ImageOps.posterize(picture, bits) for bits in range(1, 9)],
    }


@pytest.mark.parametrize("make", [picture, flat])
@pytest.mark.parametrize("channels", [1, 3])
def test_colour_operations_equal_pillow(make, channels):
    actual, expected = every_operation(planes(make(channels))), pillows(make(channels))
    assert set(actual) == set(expected)
    for name, images in expected.items():
        # Pillow rounds to integers, and truncates blends of an image with a rounded grey image.
        atol = 1.6 / 255 if name in ENHANCED else 1.01 / 255
        atol = 1e-6 if name in ("equalize", "solarize", "posterize") else atol
        images = np.stack([planes(image) for image in images])
        np.testing.assert_allclose(actual[name], images, atol=atol, err_msg=name)


def colorsys_hue(image, shift):
    """Shift the hue of each pixel with the standard library, in float64."""
    pixels = image.reshape(3, -1).T.astype(np.float64)
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in pixels]
    turned = [colorsys.hsv_to_rgb((h + shift) % 1, s, v) for h, s, v in hsv]
    return np.array(turned).T.reshape(image.shape)


def test_hue_equals_colorsys_and_keeps_grey_images():
    image = np.random.default_rng(0).random((3, 9, 8), np.float32)
    image[:, 0] = image[:1, 0]  # grey pixels, and pixels with two equal channels
    image[1, 1] = image[0, 1]
    actual = jax.jit(jax.vmap(colour.hue, in_axes=(None, 0)))(image, SHIFTS)
    expected = [colorsys_hue(image, float(shift)) for shift in SHIFTS]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_array_equal(actual[2], image)
    np.testing.assert_array_equal(colour.hue(image[:1], 0.3), image[:1])


@pytest.mark.parametrize("kernel", [3, 9])
def test_blur_equals_scipy_with_reflected_edges(kernel):
    image, sigmas = planes(picture(3)), np.array([0.1, 0.7, 2.0], np.float32)
    actual = jax.jit(jax.vmap(lambda sigma: colour.blur(image, kernel, sigma)))(sigmas)
    for blurred, sigma in zip(actual, sigmas, strict=True):
        taps = np.exp(-0.5 * ((np.arange(kernel) - kernel // 2) / float(sigma)) ** 2)
        expected = image.astype(np.float64)
        for axis in (1, 2):
            expected = ndimage.convolve1d(expected, taps / taps.sum(), axis, mode="mirror")
        np.testing.assert_allclose(blurred, expected, atol=1e-6)


def test_blur_with_a_sigma_of_zero_keeps_the_image():
    image = planes(picture(3))
    for u in (0.0, 0.5):
        blurred = colour.random_blur(jnp.array([0.0, u]), image, 3, (0.0, 0.0), 1.0)
        np.testing.assert_array_equal(blurred, image)


@pytest.mark.parametrize("kernel", [0, 4, 17])
def test_even_or_too_large_blur_kernel_is_rejected(kernel):
    with pytest.raises(ValueError, match=f"blur kernel must be odd .*, got {kernel}"):
        colour.blur(jnp.zeros((1, 8, 9)), kernel, jnp.float32(1))


def oracle_jitter(image, order, factors, shift):
    """Apply the operations in order, in float64."""
    image = image.astype(np.float64)
    for operation in order:
        grey = np.tensordot(colour.GREY_WEIGHTS, image, 1)
        if operation == colour.HUE:
            image = colorsys_hue(image, shift)
        else:
            other = (np.zeros_like(grey), np.full_like(grey, grey.mean()), grey)[operation]
            image = (other + factors[operation] * (image - other)).clip(0, 1)
    return image


def test_jitter_equals_float64_operations_in_every_order():
    image = np.random.default_rng(1).random((3, 5, 4), np.float32)
    factors, shift = np.array([1.3, 0.6, 1.7], np.float32), 0.2
    orders = np.array(colour.ORDERS, np.int32)
    jitter = jax.jit(jax.vmap(colour.jitter, in_axes=(None, 0, None, None)))
    actual = np.asarray(jitter(image, orders, factors, shift))
    expected = [oracle_jitter(image, order, factors, shift) for order in orders]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    # The order of operations changes the result.
    assert len(np.unique(actual.reshape(24, -1).round(4), axis=0)) > 12


def test_random_jitter_draws_uniform_orders_and_strengths(monkeypatch):
    # Replace `jitter` by a function that returns its parameters; `jitter` is tested above.
    monkeypatch.setattr(colour, "jitter", lambda image, *parameters: parameters)
    strengths = {"brightness": 0.4, "contrast": 1.2, "saturation": 0.2, "hue": 0.1}
    rgb = jnp.zeros((3, 1, 1))
    parameters = lambda u: colour.random_jitter(u, rgb, **strengths, probability=0.8)  # noqa: E731
    u = draw(300, 6)
    order, *values = map(np.asarray, jax.vmap(parameters)(u))
    np.testing.assert_array_equal(order, np.array(colour.ORDERS)[(24 * u[:, 1]).astype(int)])
    low, high = np.array([[0.6, 0.0, 0.8, -0.1], [1.4, 2.2, 1.2, 0.1]])
    expected = np.where(u[:, :1] < 0.8, low + u[:, 2:] * (high - low), [1, 1, 1, 0])
    np.testing.assert_allclose(np.column_stack(values), expected, atol=1e-5)


@jax.jit
def random_operations(u, probability):
    """Return the result of each random operation on one image, and the image."""
    image = jnp.asarray(planes(picture(3))[:, :6, :5])
    strengths = dict(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    made = lambda u: (  # noqa: E731
        colour.random_jitter(u, image, **strengths, probability=probability),
        colour.random_grayscale(u[0], image, probability),
        colour.random_blur(u, image, 3, (0.5, 2.0), probability),
        colour.random_solarize(u[0], image, probability),
    )
    return jax.vmap(made)(u), image


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_random_colour_operations_have_the_given_probability(probability):
    actual, image = random_operations(draw(1000, 6), probability)
    for images in actual:
        changed = (np.asarray(images) != np.asarray(image)).any(axis=(1, 2, 3)).mean()
        atol = 0.05 * (0 < probability < 1)
        np.testing.assert_allclose(changed, probability, atol=atol)


def test_random_blur_draws_sigma_between_its_bounds():
    image = jnp.asarray(planes(picture(3))[:, :6, :5])
    blurred = jax.jit(lambda u: colour.random_blur(u, image, 3, (0.5, 2.0), 0.5))
    for u in (0.0, 0.4, 0.9):
        expected = colour.blur(image, 3, jnp.float32(0.5 + 1.5 * u))
        np.testing.assert_allclose(blurred(jnp.array([0.2, u])), expected, atol=1e-5)
        np.testing.assert_array_equal(blurred(jnp.array([0.7, u])), image)


def test_random_brightness_contrast_changes_brightness_before_contrast():
    image = planes(picture(3))[:, :6, :5].astype(np.float64)
    u = np.array([0.9, 0.2])
    actual = colour.random_brightness_contrast(jnp.float32(u), jnp.float32(image), 0.8)
    bright, factor = 0.2 + 1.6 * u
    image = np.clip(bright * image, 0, 1)
    mean = np.einsum("c,chw->hw", [0.299, 0.587, 0.114], image).mean()
    expected = np.clip(factor * image + (1 - factor) * mean, 0, 1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def pillow_operation(name, picture, strength, sign):
    """Apply one operation with Pillow, as in the papers' code."""
    size, signed = picture.size, strength * sign
    fill = (128,) * len(picture.getbands())
    matrices = {
        "shear_x": (1, 0.3 * signed, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, 0.3 * signed, 1, 0),
        "translate_x": (1, 0, 150 / 331 * size[0] * signed, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, 150 / 331 * size[1] * signed),
    }
    if name in matrices:
        return picture.transform(size, Image.Transform.AFFINE, matrices[name], fillcolor=fill)
    if name in ("brightness", "color", "contrast", "sharpness"):
        return getattr(ImageEnhance, name.capitalize())(picture).enhance(1 + 0.9 * signed)
    return {
        "identity": lambda: picture,
        "rotate": lambda: picture.rotate(30 * signed, fillcolor=fill),
        "posterize": lambda: ImageOps.posterize(picture, 8 - round(4 * strength)),
        "solarize": lambda: ImageOps.solarize(picture, 256 * (1 - strength)),
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "invert": lambda: ImageOps.invert(picture),
    }[name]()


@pytest.mark.parametrize("channels", [1, 3])
def test_policy_operations_equal_pillow(channels):
    image = picture(channels)
    of_setting = jax.vmap(policies.apply, in_axes=(None, None, 0, 0))
    of_operation = jax.jit(jax.vmap(of_setting, in_axes=(None, 0, None, None)))
    actual = of_operation(planes(image), np.arange(len(OPERATIONS)), *SETTINGS.T)
    for name, images in zip(OPERATIONS, np.asarray(actual), strict=True):
        for setting, ours in zip(SETTINGS.tolist(), images, strict=True):
            off = np.abs(ours - planes(pillow_operation(name, image, *setting))) > 1.6 / 255
            # Pillow computes positions in fixed point, which may differ at pixel boundaries.
            assert off.mean() <= (0.01 if name in GEOMETRY else 0), (name, setting)


def test_policy_tables_equal_the_published_tables():
    assert len(CIFAR) == len(IMAGENET) == 25
    assert {len(row) for row in CIFAR + IMAGENET} == {2}
    assert {name for row in CIFAR + IMAGENET for name, *_ in row} < set(OPERATIONS)
    for table, place, row in [
        (CIFAR, 0, (("invert", 0.1, 0), ("contrast", 0.2, 6))),
        (CIFAR, 1, (("rotate", 0.7, 2), ("translate_x", 0.3, 9))),
        (CIFAR, 24, (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0))),
        (IMAGENET, 0, (("posterize", 0.4, 8), ("rotate", 0.6, 9))),
        (IMAGENET, 18, (("shear_x", 0.6, 5), ("equalize", 1.0, 0))),
        (IMAGENET, 24, (("equalize", 0.8, 0), ("equalize", 0.6, 0))),
    ]:
        assert table[place] == [(name, p, level / 9) for name, p, level in row]


@pytest.mark.parametrize("table", [CIFAR, IMAGENET], ids=["cifar", "imagenet"])
def test_autoaugment_draws_sub_policies_uniformly_with_their_probabilities(table, monkeypatch):
    # Replace `_apply_all` by a function that returns its arguments; operations are tested above.
    monkeypatch.setattr(policies, "_apply_all", lambda image, *given: given)
    u = draw(50_000, 5)
    given = jax.vmap(lambda u: policies.auto_augment(u, None, table))(u)
    operation, strength, signs = map(np.asarray, given)
    for place, row in enumerate(table):
        mine = np.floor(u[:, 0] * 25).astype(int) == place
        np.testing.assert_allclose(mine.mean(), 1 / 25, atol=0.005)
        for i, (name, probability, share) in enumerate(row):
            happened = operation[mine, i] == OPERATIONS.index(name)
            assert (happened | (operation[mine, i] == 0)).all()
            atol = 0.05 * (0 < probability < 1)
            np.testing.assert_allclose(happened.mean(), probability, atol=atol)
            np.testing.assert_allclose(strength[mine, i], share, rtol=1e-6)
    np.testing.assert_array_equal(signs, u[:, [2, 4]])


def test_randaugment_draws_fourteen_operations_uniformly(monkeypatch):
    monkeypatch.setattr(policies, "_apply_all", lambda image, *given: given)
    u = draw(6000, 3, 2)
    given = jax.vmap(lambda u: policies.rand_augment(u, None, 4))(u)
    operation, strength, signs = map(np.asarray, given)
    assert operation.shape == (6000, 3)
    counts = np.bincount(operation.ravel(), minlength=15) / operation.size
    np.testing.assert_allclose(counts[:14], 1 / 14, atol=0.01)
    assert counts[14] == 0 and OPERATIONS[14] == "invert"
    np.testing.assert_allclose(strength, 0.4, rtol=1e-6)
    np.testing.assert_array_equal(signs, u[..., 1])
    with pytest.raises(ValueError, match=r"magnitude of RandAugment must be in \[0, 10\], got 11"):
        policies.rand_augment(u[0], None, 11)


def test_policy_operations_are_applied_in_order_with_random_signs(monkeypatch):
    def note(image, operation, strength, sign):
        return 100 * image + sign * (10 * strength + operation.astype(jnp.float32))

    monkeypatch.setattr(policies, "apply", note)
    u = jnp.array([0.7, 0.2, 0.5])  # The sign is negative if u < 0.5.
    actual = policies._apply_all(jnp.ones(1), jnp.array([1, 2, 3]), jnp.array([0.4, 0.5, 0.6]), u)
    np.testing.assert_allclose(actual, 1_000_000 + 50_000 - 700 + 9)
