"""Image operations against Pillow, SciPy and NumPy; views of a batch; recipes."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from marks import long_except
from PIL import Image
from scipy import ndimage, stats

from jaxssl import components
from jaxssl.augment import image as ops
from jaxssl.augment import recipes
from jaxssl.augment.views import HALF, Inputs, make_views, standardise, to_float, to_uint8
from jaxssl.kinds.image_text import make_image_text_views

pytestmark = pytest.mark.fast

KEY = jax.random.key(0)
crop_resize = jax.jit(ops.crop_resize, static_argnames="size")
many_boxes = jax.vmap(ops.random_crop_box, in_axes=(0, None, None, None))
crop_boxes = jax.jit(many_boxes, static_argnums=(1, 2, 3))
affine = jax.jit(ops.affine)
pad_crop = jax.jit(ops.pad_crop, static_argnames="pad")


def draw(*shape, seed=0):
    """Return uniform numbers in [0, 1)."""
    return np.random.default_rng(seed).random(shape, np.float32)


def window(key, image):
    """A recipe that compiles quickly."""
    return (image[:4, :4] + jax.random.uniform(key, (4, 4, image.shape[2]))) / 2


def pillow_resize(image, size, box=None):
    """Resize each channel with Pillow as float32."""
    channels = [
        np.asarray(Image.fromarray(channel).resize((size, size), Image.Resampling.BILINEAR, box))
        for channel in np.moveaxis(image, 2, 0).copy()
    ]
    return np.stack(channels, axis=2)


@pytest.mark.parametrize("size", [5, 16, 40])
@pytest.mark.parametrize(
    "box",
    [(0, 0, 20, 13), (2, 3, 18, 11), (0.4, 1.7, 19.2, 12.9), (5.5, 5.25, 8.0, 7.75)],
    ids=["whole", "integer", "fractional", "small"],
)
def test_crop_resize_equals_pillow(box, size):
    image = draw(13, 20, 3)
    actual = crop_resize(image, jnp.array(box, jnp.float32), size=size)
    assert actual.shape == (size, size, 3)
    np.testing.assert_allclose(actual, pillow_resize(image, size, box), atol=1e-4)


def numpy_box(u, shape, scale, ratio):
    """Return the box of a random resized crop in float64, as torchvision draws it."""
    h, w = shape
    for a, r in u[2:].reshape(-1, 2):
        area = h * w * (scale[0] + a * (scale[1] - scale[0]))
        aspect = ratio[0] ** (1 - r) * ratio[1] ** r  # width / height
        width, height = np.sqrt(area * aspect), np.sqrt(area / aspect)
        if width <= w and height <= h:
            left, top = u[0] * (w - width), u[1] * (h - height)
            return [left, top, left + width, top + height]
    aspect = np.clip(w / h, *ratio)
    width, height = min(w, h * aspect), min(h, w / aspect)
    return [(w - width) / 2, (h - height) / 2, (w + width) / 2, (h + height) / 2]


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
# Large areas rarely or never fit into the image, so that later tries or the central box are taken.
@pytest.mark.parametrize("scale", [(0.1, 0.6), (0.6, 1.0), (0.9, 1.0)])
@pytest.mark.parametrize("ratio", [(1.5, 3.0), (0.25, 0.6)])
def test_random_crop_box_has_the_drawn_area_ratio_and_corner(shape, scale, ratio):
    u = draw(64, ops.CROP_NUMBERS)
    boxes = crop_boxes(u, (*shape, 3), scale, ratio)
    expected = [numpy_box(row, shape, scale, ratio) for row in u.astype(np.float64)]
    np.testing.assert_allclose(boxes, expected, rtol=1e-4, atol=1e-3)


def test_clips_crops_keep_nearly_the_whole_of_a_photo():
    """A box of OpenCLIP's areas fits into a photo of 4:3 for few aspect ratios only."""
    left, top, right, bottom = crop_boxes(
        draw(2000, ops.CROP_NUMBERS), (300, 400, 3), (0.9, 1.0), (3 / 4, 4 / 3)
    ).T
    area = (right - left) * (bottom - top) / (300 * 400)
    assert area.min() >= 0.9 * (1 - 1e-5) and area.max() <= 1 + 1e-5


def test_random_resized_crop_equals_pillow_on_its_box():
    image, settings = draw(13, 20, 3), ((0.1, 0.6), (1.5, 3.0))
    crop = jax.jit(ops.random_resized_crop, static_argnums=(2, 3, 4))
    for u in draw(4, ops.CROP_NUMBERS):
        expected = pillow_resize(image, 7, numpy_box(u, (13, 20), *settings))
        np.testing.assert_allclose(crop(u, image, 7, *settings), expected, atol=1e-4)


def test_flip_mirrors_horizontally_and_is_its_own_inverse():
    image = jnp.asarray(draw(4, 6, 3))
    np.testing.assert_array_equal(ops.flip(image, True), np.fliplr(image))
    np.testing.assert_array_equal(ops.flip(ops.flip(image, True), True), image)
    np.testing.assert_array_equal(ops.flip(image, False), image)
    for u, flipped in ((0.2, True), (0.3, False)):
        actual = ops.random_flip(jnp.float32(u), image, 0.3)
        np.testing.assert_array_equal(actual, ops.flip(image, flipped))


@pytest.mark.parametrize("scale", [(0.0, 1), (0.5, 0.4), (0.5,), (0.1, 0.2, 0.3), 0.5])
def test_crop_range_that_is_empty_or_no_pair_is_rejected(scale):
    with pytest.raises(ValueError, match="with 0 < smallest <= largest <= 1"):
        ops.random_resized_crop(draw(ops.CROP_NUMBERS), draw(8, 8, 3), 4, scale)


@pytest.mark.parametrize("corner", [(0, 0), (4, 4), (8, 0), (3, 7)])
def test_pad_crop_equals_numpy(corner):
    image = draw(6, 9, 2)
    x, y = corner
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    actual = pad_crop(image, jnp.array(corner), pad=4)
    np.testing.assert_array_equal(actual, padded[y : y + 6, x : x + 9])


def test_random_pad_crop_draws_corners_uniformly():
    image = np.arange(25, dtype=np.float32).reshape(5, 5, 1)
    crops = jax.jit(jax.vmap(ops.random_pad_crop, in_axes=(0, None, None)), static_argnums=2)
    actual = np.asarray(crops(draw(3000, 2), image, 1))[..., 0]
    padded = np.pad(image[..., 0], 1, mode="reflect")
    corners = [padded[y : y + 5, x : x + 5] for y in range(3) for x in range(3)]
    counts = [(actual == corner).all(axis=(1, 2)).mean() for corner in corners]
    np.testing.assert_allclose(counts, 1 / 9, atol=0.02)
    with pytest.raises(ValueError, match="less than the image sides 5 x 5"):
        ops.pad_crop(image, jnp.zeros(2, jnp.int32), 5)


def test_erase_sets_the_pixels_inside_the_box():
    image = draw(6, 8, 3)
    expected = image.copy()
    expected[1:4, 2:7] = 0.5
    np.testing.assert_array_equal(ops.erase(image, jnp.array([2.0, 1, 7, 4])), expected)


def test_random_erase_decides_by_the_first_random_number_and_draws_its_box_from_the_others():
    image = draw(12, 30, 2)
    erase = jax.jit(lambda u: ops.random_erase(u, image, 0.5))
    for u in draw(20, 1 + ops.CROP_NUMBERS):
        left, top, right, bottom = numpy_box(u[1:], (12, 30), (0.02, 0.33), (0.3, 3.3))
        y, x = np.arange(12) + 0.5, np.arange(30) + 0.5
        inside = ((y >= top) & (y < bottom))[:, None] & ((x >= left) & (x < right))
        expected = np.where((inside & (u[0] < 0.5))[:, :, None], 0.5, image)
        np.testing.assert_array_equal(erase(u), expected)


def scipy_affine(image, angle, shear, zoom, shift):
    """Shear, rotate, zoom and shift about the centre with SciPy."""
    # In (x, y) with y pointing down, this rotates clockwise.
    rotation = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    forward = rotation @ np.array([[1, shear], [0, 1]])
    backward = np.linalg.inv(forward)[::-1, ::-1]  # from (x, y) to (row, column) order
    centre = (np.array(image.shape[:2]) - 1) / 2
    offset = centre - backward @ (centre + np.array(shift)[::-1])
    channels = [
        ndimage.affine_transform(channel, backward, offset, order=1, mode="nearest")
        for channel in np.moveaxis(image.astype(np.float64), 2, 0)
    ]
    return np.stack(channels, axis=2)


@pytest.mark.parametrize("shape", [(12, 12, 1), (9, 14, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_affine_equals_scipy(shape, seed):
    rng, image = np.random.default_rng(seed), draw(*shape)
    angle, shear = rng.uniform(-1, 1), rng.uniform(-0.5, 0.5)
    zoom, shift = rng.uniform(0.7, 1.4), rng.uniform(-3, 3, 2)
    actual = affine(image, angle, shear, zoom, jnp.asarray(shift, jnp.float32))
    np.testing.assert_allclose(actual, scipy_affine(image, angle, shear, zoom, shift), atol=1e-4)


def test_positive_angle_rotates_clockwise():
    image = draw(8, 8, 1)
    turned = affine(image, np.pi / 2, 0.0, 1.0, jnp.zeros(2))
    np.testing.assert_allclose(turned, np.rot90(image, -1), atol=1e-5)


def test_random_affine_parameters_cover_their_ranges(monkeypatch):
    # Replace `affine` by a function that returns its parameters; `affine` is tested above.
    monkeypatch.setattr(ops, "affine", lambda image, *parameters: parameters)
    ranges = {"degrees": 20.0, "shear": 0.3, "zoom": 0.2, "shift": 0.1}
    image = jnp.zeros((10, 20, 1))
    parameters = jax.jit(jax.vmap(lambda u: ops.random_affine(u, image, **ranges)))
    u = draw(100, 5)
    angle, shear, zoom, shift = map(np.asarray, parameters(u))
    actual = np.stack([np.rad2deg(angle), shear, zoom - 1, shift[:, 0] / 20, shift[:, 1] / 10])
    limits = np.array([20.0, 0.3, 0.2, 0.1, 0.1])
    np.testing.assert_allclose(actual, limits[:, None] * (2 * u.T - 1), atol=1e-4)


@pytest.mark.parametrize("zoom", [1.0, 1.5, -0.1])
def test_zoom_that_allows_a_factor_of_zero_is_refused(zoom):
    with pytest.raises(ValueError, match=rf"zoom must be in \[0, 1\), .* got {zoom}"):
        ops.random_affine(draw(5), draw(6, 6, 1), degrees=0.0, shear=0.0, zoom=zoom, shift=0.0)


def test_random_noise_stays_in_range():
    grey = jnp.full((64, 64, 3), 0.5)
    u = draw(64, 64, 3)
    loud = ops.random_noise(u, grey, 3.0)
    assert (loud.min(), loud.max()) == (0, 1)
    np.testing.assert_array_equal(ops.random_noise(u, grey, 0.0), grey)
    edges = ops.random_noise(jnp.array([[[0.0], [1 - 2.0**-23]]]), grey[:1, :2, :1], 0.01)
    # The smallest and the largest uniform number give noise of 5.3 standard deviations.
    np.testing.assert_allclose(edges, [[[0.4471], [0.5529]]], atol=3e-3)


def test_random_noise_is_normal():
    u = (np.arange(1000, dtype=np.float32) + 0.5).reshape(10, 100, 1) / 1000
    actual = np.asarray(ops.random_noise(u, jnp.full(u.shape, 0.5), 0.1) - 0.5) / 0.1
    np.testing.assert_allclose(actual, stats.norm.ppf(u), atol=1e-3)


def pixels(b, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (b, *shape)).astype(np.uint8)


def views_of(recipe, num_views):
    """`(key, images, index) -> views`, compiled."""
    augment = make_views([recipe] * num_views)
    return jax.jit(lambda *batch: augment(*batch)["views"])


two_views = views_of(window, 2)


def test_views_of_an_example_do_not_depend_on_the_batch():
    batch, index = pixels(8, 8, 8, 1), np.arange(8) + 1000
    whole = np.asarray(two_views(KEY, batch, index))
    order = np.random.default_rng(1).permutation(8)
    permuted = two_views(KEY, batch[order], index[order])
    np.testing.assert_allclose(permuted, whole[:, order], atol=1e-6)
    halves = [two_views(KEY, batch[part], index[part]) for part in (slice(4), slice(4, 8))]
    np.testing.assert_allclose(np.concatenate(halves, axis=1), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "index", "message"),
    [
        ((4, 8, 8), np.arange(4), r"\[b, h, w, c\] .* grey images \[b, h, w\] become"),
        ((4, 8, 8, 1), np.arange(4) / 4, "index must have integers, got float32"),
        ((4, 8, 8, 1), np.arange(3), r"and index \[b\], got the shapes \(4, 8, 8, 1\) and \(3,\)"),
    ],
)
def test_images_and_index_of_another_shape_are_refused(shape, index, message):
    with pytest.raises(ValueError, match=message):
        two_views(KEY, pixels(*shape), index)


@pytest.mark.parametrize("make", [make_views, make_image_text_views])
@pytest.mark.parametrize("given", [window, []], ids=["recipe", "empty"])
def test_recipe_in_place_of_a_list_of_recipes_is_refused(make, given):
    with pytest.raises(ValueError, match="recipes must be lists"):
        make(given)


def test_random_draws_differ_between_views_small_crops_examples_and_keys():
    batch, index = np.repeat(pixels(1, 8, 8, 1), 8, axis=0), np.arange(8)
    augment = jax.jit(make_views([window] * 2, [window] * 2))
    drawn = [augment(jax.random.key(seed), batch, index) for seed in (0, 1)]
    rows = np.concatenate([x for views in drawn for x in views.values()]).reshape(64, -1)
    distance = np.abs(rows[:, None] - rows[None]).max(axis=2)
    assert distance[~np.eye(64, dtype=bool)].min() > 0.01


def test_views_and_small_crops_use_their_configured_recipes():
    def marked(value, size):
        return lambda key, image: jnp.full((size, size, 1), value) + 0 * jax.random.uniform(key)

    first, second, crop = marked(0.25, 4), marked(0.75, 4), marked(1.0, 2)
    augment = jax.jit(make_views([first, second, first], [crop] * 2))
    actual = augment(KEY, pixels(5, 8, 8, 1), np.arange(5))
    shapes = {name: x.shape for name, x in actual.items()}
    assert shapes == {"views": (3, 5, 4, 4, 1), "crops": (2, 5, 2, 2, 1)}
    for view, value in zip(actual["views"], (-0.5, 0.5, -0.5), strict=True):
        np.testing.assert_allclose(view, value)
    np.testing.assert_allclose(actual["crops"], 1)


# Settings of each image recipe. Some enable operations that are off by default.
SETTINGS = {
    # With the default areas, views of a 4:3 image are often the whole image.
    "clip": [{"crop_scale": (0.5, 1.0)}],
    "digits": [{}],
    "simclr": [{}, {"blur": 0.5, "solarize": 0.5, "erasing": 0.5}],
    "policy": [
        {"pad": 2},
        {"pad": 2, "policy": "autoaugment_cifar"},
        {"crop": "resized", "policy": "randaugment", "erasing": 0.2},
    ],
}
CASES = [(name, setting) for name, settings in SETTINGS.items() for setting in settings]


def test_recipes_of_all_image_augmentations_are_tested():
    # Recipes of graphs and videos are tested in other files.
    assert {*SETTINGS, "graph", "video"} == set(components.names("augment"))


@pytest.mark.parametrize("channels", long_except([3], [1, 3]))
@pytest.mark.parametrize(("name", "setting"), CASES)
def test_recipes_give_views_of_the_given_size_and_range(name, setting, channels):
    recipe = getattr(recipes, name)(size=7, **setting)
    extremes = np.stack([np.zeros((9, 12, channels)), np.full((9, 12, channels), 255)])
    batch = np.concatenate([pixels(4, 9, 12, channels), extremes.astype(np.uint8)])
    batch = np.concatenate([batch, batch[:1]])
    key = jax.random.key(0, impl="unsafe_rbg")  # This random generator compiles faster.
    views = views_of(recipe, 2)(key, batch, np.arange(7))
    assert (views.shape, views.dtype) == ((2, 7, 7, 7, channels), jnp.float32)
    assert np.isfinite(views).all() and np.abs(views).max() <= 1
    assert np.std(views[:, :4]) > 0.1
    # The views of equal images with different indices differ.
    same = np.asarray(views)[:, [0, 6]].reshape(4, -1)
    assert (np.abs(same[:, None] - same[None]).max(axis=2) + np.eye(4)).min() > 0.01


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("simclr", {"jitter": 1.5}, r"jitter must be in \[0, 1\], got 1.5"),
        ("simclr", {"blur": -0.1}, r"blur must be in \[0, 1\], got -0.1"),
        ("simclr", {"brightness": -0.1}, "brightness must be >= 0, got -0.1"),
        ("simclr", {"hue": 0.6}, r"hue must be in \[0, 0.5\], got 0.6"),
        ("simclr", {"blur_kernel": 4}, "blur_kernel must be 0 or odd, got 4"),
        ("video", {"blur_sigma": (2.0, 1.0)}, r"blur_sigma must be .* got \(2.0, 1.0\)"),
        ("video", {"blur_sigma": 1.0}, "blur_sigma must be .* got 1.0"),
        ("digits", {"jitter": 1.5}, r"jitter must be in \[0, 1\], got 1.5"),
        ("digits", {"noise": -1.0}, "noise must be >= 0, got -1.0"),
        ("digits", {"shear": np.nan}, "shear must be >= 0, got nan"),
        ("policy", {"crop": "centre"}, "crop must be one of .*'pad', 'resized'.* got 'centre'"),
        ("policy", {"policy": "auto"}, "policy must be one of .*'autoaugment_cifar'.* got 'auto'"),
        ("policy", {"num_ops": -1}, "num_ops must be >= 0, got -1"),
    ],
)
def test_invalid_recipe_settings_raise_an_error_that_names_them(name, setting, message):
    with pytest.raises(ValueError, match=message):
        getattr(recipes, name)(**setting)


def test_simclr_recipe_without_colour_operations_and_flip_is_the_random_crop():
    image = draw(9, 12, 3)
    nothing = {"flip": 0.0, "jitter": 0.0, "grayscale": 0.0}
    plain, mirrored = (recipes.simclr(size=6, **{**nothing, "flip": p}) for p in (0.0, 1.0))
    both = jax.jit(lambda key: (plain(key, image), mirrored(key, image)))
    view, flipped = both(KEY)
    u = jax.random.uniform(KEY, (12 + 2 * ops.CROP_NUMBERS,))[: ops.CROP_NUMBERS]
    box = ops.random_crop_box(u, image.shape, (0.08, 1.0))
    np.testing.assert_allclose(view, pillow_resize(image, 6, tuple(box.tolist())), atol=1e-4)
    np.testing.assert_allclose(flipped, np.fliplr(view), atol=1e-6)


@pytest.mark.parametrize("size", [5, 8, 16])
def test_preprocess_equals_pillow_resizing(size):
    batch = pixels(3, 8, 8, 3)
    actual = jax.jit(Inputs(size, batch.shape[3]).prepare)(batch)
    for view, image in zip(actual, batch, strict=True):
        expected = pillow_resize(image.astype(np.float32) / 255, size) * 2 - 1
        np.testing.assert_allclose(view, expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(20, 32), (32, 20)])
def test_preprocess_cuts_the_centre_and_standardises_each_channel(shape):
    batch = pixels(2, *shape, 3)
    mean, std = (0.1, 0.5, 0.8), (0.2, 0.3, 0.4)
    actual = jax.jit(Inputs(9, 3, mean, std, crop=0.75).prepare)(batch)
    # The image is resized to a short side of 9 / 0.75 = 12 and a long side of 12 * 32 / 20 = 19.2.
    whole = (12, 19) if shape == (20, 32) else (19, 12)
    top, left = (2, 5) if shape == (20, 32) else (5, 2)  # (12 - 9) / 2, rounded, and (19 - 9) / 2
    for view, image in zip(actual, batch, strict=True):
        channels = [
            Image.fromarray(x).resize(whole[::-1], Image.Resampling.BILINEAR)
            for x in np.moveaxis(image.astype(np.float32) / 255, 2, 0).copy()
        ]
        expected = np.stack(channels, axis=2)[top : top + 9, left : left + 9]
        np.testing.assert_allclose(view, (expected - mean) / std, atol=1e-3)


def test_preprocess_repeats_a_grey_image_over_the_channels():
    batch = pixels(2, 8, 12, 1)
    actual = jax.jit(Inputs(8, 3, crop=1.0).prepare)(batch)
    expected = jax.jit(Inputs(8, 3, crop=1.0).prepare)(np.repeat(batch, 3, 3))
    np.testing.assert_array_equal(actual, expected)
    with pytest.raises(ValueError, match="takes 1-channel images, got 3-channel"):
        Inputs(8, 1).prepare(pixels(1, 8, 8, 3))
    with pytest.raises(ValueError, match=r"pass grey images \[n, h, w\] as images\[..., None\]"):
        Inputs(8, 1).prepare(pixels(1, 4, 8, 8))


def test_each_view_and_small_crop_is_made_from_its_own_host_crop():
    plain = lambda key, image: image + 0 * jax.random.uniform(key)  # noqa: E731
    other = lambda key, image: image / 2 + 0 * jax.random.uniform(key)  # noqa: E731
    batch = {"views": pixels(3, 3, 4, 5, 1), "crops": pixels(3, 2, 2, 3, 1, seed=1)}
    actual = jax.jit(make_views([plain, plain, other], [plain] * 2))(KEY, batch, jnp.arange(3))
    expected = standardise(to_float(batch["views"].swapaxes(0, 1)), HALF)
    np.testing.assert_allclose(actual["views"][:2], expected[:2], atol=1e-6)
    np.testing.assert_allclose(actual["views"][2], (expected[2] + 1) / 2 - 1, atol=1e-6)
    crops = standardise(to_float(batch["crops"].swapaxes(0, 1)), HALF)
    np.testing.assert_allclose(actual["crops"], crops, atol=1e-6)


def test_to_uint8_inverts_normalise_and_to_float():
    values = np.arange(256).astype(np.uint8)
    seen = standardise(to_float(jnp.asarray(values)), HALF)
    np.testing.assert_allclose(seen, np.linspace(-1, 1, 256), atol=1e-6)
    np.testing.assert_array_equal(to_uint8(seen), values)
    assert to_uint8(seen).dtype == jnp.uint8
