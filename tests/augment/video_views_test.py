"""Views of videos: one draw for all frames, windows, the sign of optical flow."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl.augment import colour, recipes
from jaxssl.augment import image as image_ops
from jaxssl.augment import video as video_ops

pytestmark = pytest.mark.fast

KEY = jax.random.key(0)
T, H, W, SIZE, FRAMES = 6, 9, 12, 8, 4
SHAPES = {"rgb": (T, H, W, 3), "flow": (T, H, W, 2), "grey": (T, H, W, 1)}
# Settings of the recipe that only resize the frames.
NOTHING = dict(crop_scale=(1.0, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0)

each_kind = pytest.mark.parametrize("kind", SHAPES)


def random_video(kind, seed=0):
    return jnp.asarray(np.random.default_rng(seed).random(SHAPES[kind], np.float32))


def video(**changes):
    return recipes.video(**{"size": SIZE, "frames": FRAMES, "blur_kernel": 3, **changes})


def keys(n, seed=2):
    return jax.random.split(jax.random.key(seed), n)


def views(sample, n=6, **changes):
    """Return the views of one video for several keys."""
    return jax.jit(jax.vmap(video(**changes), in_axes=(0, None)))(keys(n), sample)


def numbered(frames, h=SIZE, w=SIZE, c=1):
    """Return a video with the index of each frame as its value, in hundredths."""
    values = np.arange(frames, dtype=np.float32) / 100
    return jnp.asarray(np.broadcast_to(values[:, None, None, None], (frames, h, w, c)))


def numbers(views):
    """Return the indices [n, frames] that `numbered` wrote, from the last channel."""
    return np.round(np.asarray(views)[..., 0, 0, -1] * 100).astype(int)


# The video recipe


@each_kind
def test_video_views_have_shape_and_range_and_differ_between_keys(kind):
    actual = views(random_video(kind))
    assert actual.shape == (6, FRAMES, SIZE, SIZE, SHAPES[kind][3])
    assert actual.dtype == jnp.float32
    assert 0 <= actual.min() and actual.max() <= 1
    assert len(np.unique(np.asarray(actual)[:, 0, 0, 0, 0])) == 6


def frame_by_frame(box, u, frame):
    """Apply the operations of the default recipe to one RGB frame."""
    box = image_ops.random_crop_box(box, frame.shape, (0.2, 1.0))
    frame = image_ops.random_flip(u[2], image_ops.crop_resize(frame, box, SIZE), 0.5)
    image = jnp.moveaxis(frame, 2, 0)
    strengths = dict(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    image = colour.random_jitter(u[3:9], image, **strengths, probability=0.8)
    image = colour.random_grayscale(u[9], image, 0.2)
    image = colour.random_blur(u[10:12], image, 3, (0.1, 2.0), 0.5)
    return jnp.moveaxis(image, 0, 2)


def test_video_recipe_draws_image_operations_once_for_all_frames_of_a_clip():
    sample, of_frame = random_video("rgb"), jax.jit(frame_by_frame)
    flipped = set()
    for key, view in zip(keys(6), views(sample), strict=True):
        numbers = image_ops.CROP_NUMBERS
        box, u = jnp.split(jax.random.uniform(key, (numbers + 12,)), [numbers])
        start = int(u[0] * (T - FRAMES + 1))
        for actual, frame in zip(view, sample[start : start + FRAMES], strict=True):
            np.testing.assert_allclose(actual, of_frame(box, u, frame), atol=1e-5)
        flipped.add(bool(u[2] < 0.5))
    assert flipped == {False, True}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["grey", "flow"])
def test_random_frame_windows_have_the_stride_and_cover_all_start_frames(kind, stride):
    sample = numbered(9, c=SHAPES[kind][3])
    actual = numbers(views(sample, 40, stride=stride, **NOTHING))
    starts = actual[:, 0]
    np.testing.assert_array_equal(actual, starts[:, None] + stride * np.arange(FRAMES))
    assert set(starts) == set(range(9 - stride * (FRAMES - 1)))


def test_operations_with_probability_zero_are_not_compiled():
    def lines(**changes):
        lowered = jax.jit(video(**{**NOTHING, **changes})).lower(KEY, random_video("rgb"))
        return len(lowered.as_text().splitlines())

    plain = lines()
    parts = dict.fromkeys(("flip", "reverse", "jitter", "grayscale", "blur"), 0.5)
    for name, value in [*parts.items(), ("crop_scale", (0.5, 1.0))]:
        assert lines(**{name: value}) > plain


TOO_SHORT = "at least 7 frames for augment.frames={} and augment.stride={}, got 6"


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"flip": 1.5}, None, r"flip must be in \[0, 1\], got 1.5"),
        ({"reverse": -0.1}, None, r"reverse must be in \[0, 1\], got -0.1"),
        ({"frames": 0}, None, "augment.frames and augment.stride must be >= 1, got 0 and 1"),
        ({"stride": 0}, None, "augment.frames and augment.stride must be >= 1, got 4 and 0"),
        ({"frames": 7}, (6, 8, 8, 3), TOO_SHORT.format(7, 1)),
        ({"stride": 2}, (6, 8, 8, 3), TOO_SHORT.format(4, 2)),
        ({}, (6, 8, 8, 4), r"3 \(RGB\) channels, got 4"),
    ],
)
def test_error_names_an_invalid_video_recipe_setting_or_video_shape(settings, shape, message):
    with pytest.raises(ValueError, match=message):
        recipe = video(**settings)
        assert shape is not None
        jax.eval_shape(recipe, KEY, jax.ShapeDtypeStruct(shape, jnp.float32))


# Operations on clips


@each_kind
@pytest.mark.parametrize("name", ["flip", "reverse"])
def test_flip_and_reverse_mirror_frames_and_negate_flow(kind, name):
    sample = random_video(kind)
    expected = np.array(sample[:, :, ::-1] if name == "flip" else sample[::-1])
    if kind == "flow":
        # A flip negates the horizontal component of the flow, a reversal both components.
        components = np.s_[..., 0] if name == "flip" else np.s_[...]
        expected[components] = 1 - expected[components]
    operation = jax.jit(getattr(video_ops, name))
    np.testing.assert_array_equal(operation(sample, True), expected)
    np.testing.assert_array_equal(operation(sample, False), sample)


@pytest.mark.parametrize("name", ["flip", "reverse"])
def test_random_flip_and_reversal_happen_if_the_random_number_is_below_the_probability(name):
    sample = random_video("flow")
    for u, happens in ((0.2, True), (0.3, False)):
        actual = getattr(video_ops, f"random_{name}")(jnp.float32(u), sample, 0.3)
        np.testing.assert_array_equal(actual, getattr(video_ops, name)(sample, happens))


@pytest.mark.parametrize(
    ("t", "frames", "stride", "expected"),
    [
        (6, 6, 1, range(6)),
        (7, 3, 1, [2, 3, 4]),
        (6, 3, 1, [1, 2, 3]),
        (9, 3, 2, [2, 4, 6]),
        (4, 1, 3, [1]),
    ],
)
def test_centre_window_takes_the_middle_frames(t, frames, stride, expected):
    window = jax.jit(partial(video_ops.centre_window, frames=frames, stride=stride))
    np.testing.assert_array_equal(numbers(window(numbered(t))), expected)


def test_window_longer_than_the_video_is_rejected():
    for call in (
        lambda: video_ops.centre_window(numbered(3), 4),
        lambda: video_ops.window(numbered(3), 0, 2, stride=3),
        lambda: video_ops.random_window(jnp.float32(0.5), numbered(3), 4),
    ):
        with pytest.raises(ValueError, match="video must have at least 4 frames .* got 3"):
            call()


def test_ten_crops_equal_slices_of_the_resized_video():
    # The short side of 8 is resized to 8/7 of 14, which is 16.
    sample = random_video("flow")[:, :8, :8]
    actual = np.asarray(video_ops.ten_crops(sample, 14))
    large = np.asarray(jax.vmap(lambda frame: image_ops.resize(frame, 16))(sample))
    for crop, (y, x) in zip(actual, [(0, 0), (0, 2), (2, 0), (2, 2), (1, 1)], strict=False):
        np.testing.assert_allclose(crop, large[:, y : y + 14, x : x + 14], atol=1e-5)
    np.testing.assert_array_equal(actual[5:, ..., 0], 1 - actual[:5, :, :, ::-1, 0])
    np.testing.assert_array_equal(actual[5:, ..., 1], actual[:5, :, :, ::-1, 1])
