"""Clips: one draw for all frames, windows that follow one another, and flow that turns around."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl.augment import colour, recipes
from jaxssl.augment import image as ops
from jaxssl.augment import video as clips

KEY = jax.random.key(0)
T, H, W, SIZE, FRAMES = 6, 9, 12, 8, 4
SHAPES = {"rgb": (T, H, W, 3), "flow": (T, H, W, 2), "grey": (T, H, W, 1)}
# Of `video`, where nothing happens but a crop of everything.
NOTHING = dict(crop_scale=(1.0, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0)

each_kind = pytest.mark.parametrize("kind", SHAPES)


def made(kind, seed=0):
    return jnp.asarray(np.random.default_rng(seed).random(SHAPES[kind], np.float32))


def video(**changes):
    return recipes.video(**{"size": SIZE, "frames": FRAMES, "blur_kernel": 3, **changes})


def keys(n, seed=1):
    return jax.random.split(jax.random.key(seed), n)


def views(clip, n=6, **changes):
    """Views of one clip under several keys, float32."""
    return jax.jit(jax.vmap(video(**changes), in_axes=(0, None)))(keys(n), clip)


def numbered(frames, h=SIZE, w=SIZE, c=1):
    """A clip that has its frames' numbers in it, in hundredths."""
    values = np.arange(frames, dtype=np.float32) / 100
    return jnp.asarray(np.broadcast_to(values[:, None, None, None], (frames, h, w, c)))


def numbers(views):
    """[n, frames] the numbers, of flow's y."""
    return np.round(np.asarray(views)[..., 0, 0, -1] * 100).astype(int)


# The recipe


@each_kind
def test_views_have_their_shape_and_range_and_differ_between_keys(kind):
    found = views(made(kind))
    assert found.shape == (6, FRAMES, SIZE, SIZE, SHAPES[kind][3])
    assert found.dtype == jnp.float32
    assert 0 <= found.min() and found.max() <= 1
    assert len(np.unique(np.asarray(found)[:, 0, 0, 0, 0])) == 6


def test_a_view_depends_on_its_key_alone():
    clip, recipe = made("rgb"), jax.jit(video())
    both = views(clip)
    for i, key in enumerate(keys(6)[:2]):
        np.testing.assert_array_equal(recipe(key, clip), recipe(key, clip))
        np.testing.assert_allclose(recipe(key, clip), both[i], atol=1e-6)


@each_kind
def test_equal_frames_stay_equal(kind):
    frame = made(kind)[:1]
    found = np.asarray(views(jnp.broadcast_to(frame, SHAPES[kind]), flip=0.5, reverse=0.0))
    np.testing.assert_array_equal(found, np.broadcast_to(found[:, :1], found.shape))
    # They were changed, all the same way.
    assert len(np.unique(found[:, 0].reshape(6, -1), axis=0)) == 6


def frame_by_frame(u, frame):
    """What the recipe's default does to one frame of RGB."""
    box = ops.random_crop_box(u[2:6], frame.shape, (0.2, 1.0))
    frame = ops.random_flip(u[6], ops.crop_resize(frame, box, SIZE), 0.5)
    image = jnp.moveaxis(frame, 2, 0)
    strengths = dict(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    image = colour.random_jitter(u[7:13], image, **strengths, probability=0.8)
    image = colour.random_grayscale(u[13], image, 0.2)
    image = colour.random_blur(u[14:16], image, 3, (0.1, 2.0), 0.5)
    return jnp.moveaxis(image, 0, 2)


def test_each_frame_is_the_image_operations_with_the_same_draw():
    clip, of_frame = made("rgb"), jax.jit(frame_by_frame)
    flipped = set()
    for key, view in zip(keys(6), views(clip), strict=True):
        u = jax.random.uniform(key, (16,))
        start = int(u[0] * (T - FRAMES + 1))
        for found, frame in zip(view, clip[start : start + FRAMES], strict=True):
            np.testing.assert_allclose(found, of_frame(u, frame), atol=1e-5)
        flipped.add(bool(u[6] < 0.5))
    assert flipped == {False, True}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["grey", "flow"])
def test_windows_follow_one_another_from_every_place(kind, stride):
    clip = numbered(9, c=SHAPES[kind][3])
    found = numbers(views(clip, 40, stride=stride, **NOTHING))
    starts = found[:, 0]
    np.testing.assert_array_equal(found, starts[:, None] + stride * np.arange(FRAMES))
    assert set(starts) == set(range(9 - stride * (FRAMES - 1)))


def test_a_clip_of_as_many_frames_is_kept_whole():
    found = numbers(views(numbered(FRAMES), 3, **NOTHING))
    np.testing.assert_array_equal(found, [range(FRAMES)] * 3)


def test_what_never_happens_is_not_compiled():
    def lines(**changes):
        lowered = jax.jit(video(**{**NOTHING, **changes})).lower(KEY, made("rgb"))
        return len(lowered.as_text().splitlines())

    plain = lines()
    parts = {"flip": 0.5, "reverse": 0.5, "jitter": 0.5, "grayscale": 0.5, "blur": 0.5}
    parts["crop_scale"] = (0.5, 1.0)
    assert all(lines(**{name: value}) > plain for name, value in parts.items())


def test_flow_has_no_colours():
    clip, without = made("flow"), {"jitter": 0.0, "grayscale": 0.0, "blur": 0.0}
    everything = {"jitter": 1.0, "grayscale": 1.0, "blur": 1.0}
    np.testing.assert_array_equal(views(clip, **everything), views(clip, **without))


def test_grey_clips_get_brightness_and_contrast_only():
    clip, some = made("grey"), {**NOTHING, "jitter": 1.0}
    found = views(clip, **some, saturation=0.9, hue=0.5)
    np.testing.assert_array_equal(found, views(clip, **some, saturation=0.0, hue=0.0))
    gray = views(clip, **{**some, "grayscale": 1.0})
    np.testing.assert_array_equal(gray, views(clip, **some))
    still = views(clip, **some, brightness=0.0, contrast=0.0)
    np.testing.assert_array_equal(still, views(clip, **NOTHING))
    assert np.abs(found - still).max() > 0.1


@pytest.mark.parametrize(
    ("settings", "clip", "message"),
    [
        ({"flip": 1.5}, None, "flip is 1.5; expected a probability"),
        ({"reverse": -0.1}, None, "reverse is -0.1; expected a probability"),
        ({"frames": 0}, None, "frames is 0, stride 1; expected at least 1"),
        ({"stride": 0}, None, "frames is 4, stride 0; expected at least 1"),
        ({"frames": 7}, (6, 8, 8, 3), "clip of 6 frames is too short for 7 of them, stride 1"),
        ({"stride": 2}, (6, 8, 8, 3), "clip of 6 frames is too short for 4 of them, stride 2"),
        ({}, (6, 8, 8, 4), "1, 2 or 3 channels, not 4"),
    ],
)
def test_wrong_settings_and_clips_are_named(settings, clip, message):
    with pytest.raises(ValueError, match=message):
        recipe = video(**settings)
        assert clip is not None
        jax.eval_shape(recipe, KEY, jax.ShapeDtypeStruct(clip, jnp.float32))


# Operations


@each_kind
def test_a_flip_mirrors_each_frame_and_negates_the_flow_along_x(kind):
    clip = made(kind)
    expected = np.asarray(clip)[:, :, ::-1].copy()
    if kind == "flow":
        expected[..., 0] = 1 - expected[..., 0]
    flip = jax.jit(clips.flip)
    np.testing.assert_array_equal(flip(clip, True), expected)
    np.testing.assert_array_equal(flip(clip, False), clip)


@each_kind
def test_a_clip_played_backwards_moves_the_other_way(kind):
    clip = made(kind)
    expected = np.asarray(clip)[::-1]
    reverse = jax.jit(clips.reverse)
    np.testing.assert_array_equal(reverse(clip, True), 1 - expected if kind == "flow" else expected)
    np.testing.assert_array_equal(reverse(clip, False), clip)


@pytest.mark.parametrize("operation", [clips.random_flip, clips.random_reverse])
@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_flips_and_reversals_have_their_probability(operation, probability):
    u = np.random.default_rng(0).random(2000, np.float32)
    clip = jnp.array([0.0, 0.1, 0.2, 0.3]).reshape(2, 1, 2, 1)
    found = jax.jit(jax.vmap(lambda u: operation(u, clip, probability)))(u)
    share = np.mean(np.asarray(found)[:, 0, 0, 0, 0] > 0)
    np.testing.assert_allclose(share, probability, atol=0.03 * (0 < probability < 1))


def test_motion_seen_in_a_mirror_is_mirrored_flow():
    # A bright column that moves right by one pixel a frame, and its flow; in the mirror both turn.
    rgb, flow = np.zeros((3, 4, 6, 3), np.float32), np.full((3, 4, 6, 2), 0.5, np.float32)
    for t in range(3):
        rgb[t, :, 1 + t] = 1
        flow[t, :, 1 + t, 0] = 0.5 + 1 / 16
    rgb, flow = (np.asarray(clips.flip(jnp.asarray(x), True)) for x in (rgb, flow))
    places = rgb[:, 0, :, 0].argmax(axis=1)
    step = np.round((flow[range(3), 0, places, 0] - 0.5) * 16)
    np.testing.assert_array_equal(np.diff(places), step[:-1])
    np.testing.assert_array_equal(step, -1)


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
def test_the_centre_window_is_in_the_middle(t, frames, stride, expected):
    window = jax.jit(partial(clips.centre_window, frames=frames, stride=stride))
    np.testing.assert_array_equal(numbers(window(numbered(t))), expected)


def test_a_window_longer_than_the_clip_is_refused():
    for call in (
        lambda: clips.centre_window(numbered(3), 4),
        lambda: clips.window(numbered(3), 0, 2, stride=3),
        lambda: clips.random_window(jnp.float32(0.5), numbered(3), 4),
    ):
        with pytest.raises(ValueError, match="clip of 3 frames is too short"):
            call()


@pytest.mark.parametrize("h, w", [(16, 24), (24, 16), (16, 16)])
def test_ten_crops_at_the_clips_own_scale_are_cut_out(h, w):
    # 8/7 of 14 are 16, the short side: nothing is resized.
    clip = np.random.default_rng(0).random((2, h, w, 3), np.float32)
    found = jax.jit(clips.ten_crops, static_argnums=1)(clip, 14)
    corners = [(0, 0), (0, w - 14), (h - 14, 0), (h - 14, w - 14), ((h - 14) // 2, (w - 14) // 2)]
    expected = [clip[:, y : y + 14, x : x + 14] for y, x in corners]
    assert found.shape == (10, 2, 14, 14, 3)
    np.testing.assert_allclose(found[:5], expected, atol=1e-6)
    np.testing.assert_array_equal(found[5:], np.asarray(found)[:5, :, :, ::-1])


def test_ten_crops_are_resized_like_the_whole_clip():
    # To twice the size: what is cut out of the resized square clip.
    clip = made("flow")[:, :8, :8]
    found = np.asarray(clips.ten_crops(clip, 14))
    large = np.asarray(jax.vmap(lambda frame: ops.resize(frame, 16))(clip))
    np.testing.assert_allclose(found[0], large[:, :14, :14], atol=1e-5)
    np.testing.assert_allclose(found[3], large[:, 2:, 2:], atol=1e-5)
    np.testing.assert_allclose(found[4], large[:, 1:15, 1:15], atol=1e-5)
    np.testing.assert_array_equal(found[5:, ..., 0], 1 - found[:5, :, :, ::-1, 0])
    np.testing.assert_array_equal(found[5:, ..., 1], found[:5, :, :, ::-1, 1])
