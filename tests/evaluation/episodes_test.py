"""Episodes against a float64 loop, and the promises that make their figures comparable."""

import numpy as np
import pytest

from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.evaluation.protocols import episodes

pytestmark = pytest.mark.fast

# Most tests use features of this shape, so that they share one compiled program.
SETTINGS = {"ways": 3, "shots": 2, "queries": 4, "episodes": 45}


def classes(each, f=6, spread=1.0, seed=0):
    """[m, f] Gaussian classes of as many examples as `each` says, in mixed order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(each)), each))
    centres = rng.normal(size=(len(each), f))
    rows = centres[labels] + spread * rng.normal(size=(len(labels), f))
    return rows.astype(np.float32), labels


FEATURES, LABELS = classes([9, 6, 12, 8, 7])


def oracle(features, places, shots, distance):
    """Accuracy of each episode, query by query."""
    h, accuracy = features.astype(np.float64), []
    for episode in places:
        prototypes = [h[row[:shots]].mean(axis=0) for row in episode]
        right = []
        for way, row in enumerate(episode):
            for q in h[row[shots:]]:
                if distance == "euclidean":
                    far = [((q - p) ** 2).sum() for p in prototypes]
                else:
                    norm = np.linalg.norm
                    far = [1 - q @ p / norm(q) / norm(p) for p in prototypes]
                right.append(np.argmin(far) == way)
        accuracy.append(100 * np.mean(right))
    return np.array(accuracy)


@pytest.mark.parametrize("distance", episodes.DISTANCES)
@pytest.mark.parametrize("number", [45, 20, 1], ids=["blocks", "one block", "one"])
def test_prototype_predictions_match_a_loop(distance, number):
    settings = {**SETTINGS, "episodes": number}
    assert 45 % episodes.BLOCK and not 20 % episodes.BLOCK
    result = episodes.evaluate(FEATURES, LABELS, **settings, distance=distance, seed=3)
    indices = episodes.draw(LABELS, 3, 6, number, 3)
    expected = oracle(FEATURES, indices, 2, distance)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert number == 1 or 40 < result.mean() < 95


def test_episode_has_distinct_classes_and_examples():
    indices = episodes.draw(LABELS, 3, 6, 200, 0)
    assert indices.shape == (200, 3, 6)
    for episode in indices:
        assert len(set(episode.ravel())) == 18
        labels = LABELS[episode]
        assert (labels == labels[:, :1]).all()
        assert len(set(labels[:, 0])) == 3
    assert set(indices.ravel()) == set(range(len(LABELS)))  # every example is drawn
    assert set(indices[:, :, 0].ravel()) == set(range(len(LABELS)))  # each is also drawn as a shot


def test_features_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="features must be finite"):
        episodes.evaluate(np.full_like(FEATURES, np.nan), LABELS, **SETTINGS, seed=0)


def test_classes_with_too_few_examples_are_not_drawn_for_episodes():
    indices = episodes.draw(LABELS, 3, 8, 60, 0)
    assert set(LABELS[indices].ravel()) == {0, 2, 3}
    message = (
        "episodes need 4 classes with 8 examples or more; only 3 of 5 classes have that many, "
        "the largest has 12"
    )
    with pytest.raises(ValueError, match=message):
        episodes.draw(LABELS, 4, 8, 60, 0)


def test_episodes_depend_only_on_labels_and_seed():
    """An isometry to another width changes no distance, so equal figures mean equal draws."""
    basis, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(9, 6)))
    wider = (5 + 3 * FEATURES @ basis.T).astype(np.float32)
    first = episodes.evaluate(FEATURES, LABELS, **SETTINGS, seed=0)
    np.testing.assert_array_equal(episodes.evaluate(wider, LABELS, **SETTINGS, seed=0), first)
    again = episodes.evaluate(FEATURES, LABELS, **SETTINGS, seed=0)
    np.testing.assert_array_equal(again, first)
    assert not np.array_equal(episodes.evaluate(FEATURES, LABELS, **SETTINGS, seed=1), first)


def test_few_shot_prototype_distances_are_precise_far_from_the_origin():
    """Where |q|^2 - 2 q p + |p|^2 in float32 would have none left."""
    features, labels = classes([9, 6, 12, 8, 7], spread=0.05)
    far = (features / 64).round(4) + 1000
    far = far.astype(np.float32)
    result = episodes.evaluate(far, labels, **SETTINGS, seed=0)
    expected = oracle(far, episodes.draw(labels, 3, 6, 45, 0), 2, "euclidean")
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert result.mean() > 99


@pytest.mark.parametrize("distance", episodes.DISTANCES)
def test_episodes_with_equal_or_zero_features_give_chance_accuracy(distance):
    zero = np.zeros_like(FEATURES)
    result = episodes.evaluate(zero, LABELS, **SETTINGS, distance=distance, seed=0)
    np.testing.assert_allclose(result, 100 / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": 1}, "ways must be >= 2, got 1"),
        ({"shots": 0}, "shots must be >= 1, got 0"),
        ({"queries": 0}, "queries must be >= 1, got 0"),
        ({"episodes": 0}, "episodes must be >= 1, got 0"),
        ({"distance": "manhattan"}, "distance must be one of .* got 'manhattan'"),
        ({"shots": 9}, "3 classes with 13 examples or more; only 0 of 5 classes"),
    ],
)
def test_episodes_with_more_ways_or_shots_than_available_are_rejected(change, message):
    with pytest.raises(ValueError, match=message):
        episodes.evaluate(FEATURES, LABELS, **{**SETTINGS, **change}, seed=0)


@pytest.mark.parametrize("preset", ["cdfsl_5way_1shot", "cosine_5way_20shot"])
def test_episode_preset_reports_mean_std_and_confidence_interval(preset):
    test, labels = classes([40] * 6, f=3)
    features = Features(np.zeros((0, 3), np.float32), np.zeros(0, int), test, labels)
    (row,) = episodes.run(EvalContext(features), seed=4, preset=preset)
    settings = episodes.PRESETS[preset]
    accuracy = episodes.evaluate(test, labels, **settings, seed=4)
    assert len(accuracy) == 600
    assert row.metric == f"episodes_5way_{settings['shots']}shot_top1"
    assert row.value == pytest.approx(accuracy.mean())
    assert row.std == pytest.approx(accuracy.std())
    ci95 = pytest.approx(1.96 * accuracy.std() / 600**0.5)
    assert row.details == {"preset": preset, **settings, "from": "test", "ci95": ci95}
