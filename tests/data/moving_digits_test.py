"""Clips that are made: what moves how, and what a single frame tells of it."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxssl.data.toy.moving_digits import FRAMES, MOTIONS, SIDE, SIZES, SPEED, Builder, draw_video

pytestmark = pytest.mark.fast

each_motion = pytest.mark.parametrize("motion", MOTIONS)
IMAGE = np.random.default_rng(0).integers(1, 256, (7, 5), np.uint8)


def rng_of(seed):
    return np.random.default_rng(seed)


def steps_of(found):
    """[t - 1, 2] pixels down and to the right, by the place of the brightest pixels' angles."""
    angles = 2 * np.pi * np.arange(SIDE) / SIDE
    weights = found[..., 0].astype(float)
    # Sums over columns give the vertical place, sums over rows the horizontal place.
    along = [weights.sum(axis) @ np.exp(1j * angles) for axis in (2, 1)]
    indices = np.stack([np.angle(z) for z in along], 1)
    turns = np.diff(indices, axis=0) / (2 * np.pi) * SIDE
    return (turns + SIDE / 2) % SIDE - SIDE / 2


@each_motion
def test_moving_digit_depends_on_the_seed(motion):
    actual = draw_video(rng_of(3), motion, IMAGE)
    assert actual.shape == (FRAMES, SIDE, SIDE, 1) and actual.dtype == np.uint8
    np.testing.assert_array_equal(actual, draw_video(rng_of(3), motion, IMAGE))
    assert (actual != draw_video(rng_of(4), motion, IMAGE)).any()
    for frame in actual:  # The whole digit is visible in each frame.
        np.testing.assert_array_equal(np.sort(frame[frame > 0]), np.sort(IMAGE.ravel()))


@pytest.mark.parametrize(
    ("motion", "way"), [("right", (0, 1)), ("left", (0, -1)), ("down", (1, 0)), ("up", (-1, 0))]
)
def test_straight_motion_has_constant_speed(motion, way):
    for seed in range(20):
        steps = steps_of(draw_video(rng_of(seed), motion, IMAGE))
        along = steps @ np.array(way, float)
        np.testing.assert_allclose(steps, along[:, None] * way, atol=1e-6)
        assert along.min() > SPEED[0] - 1 and along.max() < SPEED[1] + 1
        assert SPEED[0] * (FRAMES - 1) - 1 < along.sum() < SPEED[1] * (FRAMES - 1) + 1


@pytest.mark.parametrize(("motion", "sense"), [("clockwise", 1), ("anticlockwise", -1)])
def test_circular_motion_turns_clockwise_or_anticlockwise_as_its_class_says(motion, sense):
    """On the screen, down is larger, so a step right followed by one down is clockwise."""
    for seed in range(20):
        down, right = steps_of(draw_video(rng_of(seed), motion, IMAGE)).T
        turned = right[:-1] * down[1:] - down[:-1] * right[1:]
        assert sense * turned.sum() > 0 and np.median(sense * turned) > 0
        indices = np.cumsum(np.stack([down, right], 1), 0)
        assert 4 < np.ptp(indices, 0).min() and np.ptp(indices, 0).max() < 10


@pytest.mark.parametrize(("motion", "axis"), [("to and fro", 1), ("up and down", 0)])
def test_oscillating_digits_change_direction_within_eight_frames(motion, axis):
    for seed in range(20):
        steps = steps_of(draw_video(rng_of(seed), motion, IMAGE))
        np.testing.assert_allclose(steps[:, 1 - axis], 0, atol=1e-6)
        for first in range(FRAMES - 8):
            window = steps[first : first + 8, axis]
            assert window.min() < -0.5 and window.max() > 0.5


def test_first_frame_does_not_depend_on_the_motion_class():
    for seed in range(10):
        first = draw_video(rng_of(seed), "right", IMAGE)[0]
        for motion in MOTIONS:
            np.testing.assert_array_equal(draw_video(rng_of(seed), motion, IMAGE)[0], first)


class From:
    """A random generator, of which the start is given."""

    def __init__(self, seed, start):
        self.rng, self.start = rng_of(seed), start

    def integers(self, high, size):
        assert (high, size) == (SIDE, 2)
        return np.array(self.start)

    def uniform(self, *limits):
        return self.rng.uniform(*limits)


@each_motion
def test_position_of_the_digit_in_each_frame_is_uniform_for_every_motion_class(motion):
    """The start, which is uniform, shifts all frames round the canvas by itself.

    So each frame is the picture at a uniform place, whatever the motion and the other draws.
    """
    at_zero = draw_video(From(1, (0, 0)), motion, IMAGE)
    for start in ((0, 1), (5, 0), (31, 17)):
        np.testing.assert_array_equal(
            draw_video(From(1, start), motion, IMAGE), np.roll(at_zero, start, (1, 2))
        )
    canvas = np.pad(IMAGE, [(0, SIDE - n) for n in IMAGE.shape])
    shifts = {np.roll(canvas, (i, j), (0, 1)).tobytes() for i, j in np.ndindex(SIDE, SIDE)}
    assert all(frame.tobytes() in shifts for frame in at_zero)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The prepared set, as sources open one."""
    tfds.disable_progress_bar()
    builder = Builder(data_dir=tmp_path_factory.mktemp("data"))
    builder.download_and_prepare(file_format="array_record")
    return tfds.builder_from_directory(builder.data_dir)


def records_of(opened, split):
    records = opened.as_data_source(split, file_format="array_record")
    return list(records.__getitems__(list(range(len(records)))))


def test_prepared_moving_digits_has_metadata_and_classes(opened):
    assert dict(opened.info.metadata) == {"kind": "video", "shape": [FRAMES, SIDE, SIDE, 1]}
    assert opened.info.features["label"].names == list(MOTIONS)
    assert {s: i.num_examples for s, i in opened.info.splits.items()} == SIZES
    for split, size in SIZES.items():
        labels = [record["label"] for record in records_of(opened, split)]
        np.testing.assert_array_equal(np.bincount(labels), size // len(MOTIONS))


def test_prepared_moving_digits_equal_the_videos_of_draw_video(opened, tmp_path):
    made = Builder(data_dir=tmp_path)._split_generators(None)
    for split in SIZES:
        expected = {x["clip"].tobytes(): x["label"] for _, x in made[split]}
        records = records_of(opened, split)
        actual = {r["clip"].tobytes(): list(MOTIONS)[r["label"]] for r in records}
        assert actual == expected and len(actual) == SIZES[split]
    assert records[0]["clip"].shape == (FRAMES, SIDE, SIDE, 1)
    assert records[0]["clip"].dtype == np.uint8


def test_moving_digits_of_the_test_split_are_not_in_the_train_split(opened):
    def digits(split):  # Sorted pixel values identify a digit at any position.
        records = records_of(opened, split)
        return {np.sort(record["clip"][0], axis=None).tobytes() for record in records}

    assert not digits("train") & digits("test")
