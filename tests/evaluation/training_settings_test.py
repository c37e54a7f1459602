"""Settings of a classifier's training: sizes and rates."""

import numpy as np
import pytest

from jaxssl.evaluation import finetuning
from jaxssl.evaluation.finetuning import Training

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "step", "milestones": (1, 2.5)}, [3.0] * 4 + [0.3] * 6 + [0.03] * 2),
        ({"schedule": "constant", "warmup": 1.5}, [0, 0.5, 1, 1.5, 2, 2.5] + [3.0] * 6),
        # A warm-up that is longer than the training ends with its last step.
        ({"schedule": "constant", "warmup": 9}, 3 / 11 * np.arange(12)),
    ],
)
def test_fine_tuning_rate_falls_at_milestones_and_rises_in_the_warmup(settings, expected):
    resolved = finetuning.resolve(Training(**settings, epochs=3, batch_size=10), 40, 1)
    rates = finetuning.learning_rates(resolved, 3.0, 40)  # an epoch has four steps
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("n", "devices", "batch", "steps"), [(100, 1, 64, 3), (50, 8, 48, 3), (50, 1, 50, 3)]
)
def test_fine_tuning_batch_size_is_at_most_the_training_set_size(n, devices, batch, steps):
    training = Training(batch_size=64, epochs=3.0, lr_batch=256)
    settled = finetuning.resolve(training, n, devices)
    assert (settled.batch_size, settled.steps) == (batch, steps)
    details = finetuning.summarise(training, 0.1, 0, n, devices)
    assert details["peak_lr"] == pytest.approx(0.1 * batch / 256)
    assert details.get("batch_size_asked", batch) == 64
