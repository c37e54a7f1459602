"""Estimated hours of training on a GPU."""

import pytest

from jaxssl.studies import gpu_hours
from jaxssl.studies.gpu_hours import estimate_hours
from jaxssl.training import config

MOMENTUM = [("method.name", "momentum"), ("method.momentum", "0.9")]
CROPS = [("crops.number", "4"), ("crops.size", "8")]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        ([], 2 * 3),
        ([("method.name", "momentum"), ("method.momentum", "0.0")], 2 * 3),
        (MOMENTUM, 2 * 4),
        ([*MOMENTUM, ("method.symmetric", "False")], 3 + 1),
        ([*MOMENTUM, *CROPS], 2 * 4 + 4 * 3 / 4),
        ([("epochs", "40")], 2 * 2 * 3),
        ([("total_steps", "80")], 2 * 3 / 5),
    ],
)
def test_hours_count_forward_and_backward_passes_of_queries_and_keys(overrides, passes):
    """Passes of an example, relative to twenty epochs. Crops have a quarter of the area."""
    settings = config.load("digits", [("batch_size", "64"), ("epochs", "20"), *overrides])
    reference = config.load("digits", [("batch_size", "64"), ("epochs", "20")])
    assert estimate_hours(settings) / estimate_hours(reference) == pytest.approx(passes / 6)


@pytest.mark.fast
@pytest.mark.parametrize(("net", "share"), [("vit", "VIT_SHARE"), ("convnet", "SHARE")])
def test_hours_of_a_vit_and_of_other_networks_have_their_own_share_of_the_peak(
    net, share, monkeypatch
):
    settings = config.load("digits", [("net.name", net)])
    hours, before = estimate_hours(settings), getattr(gpu_hours, share)
    monkeypatch.setattr(gpu_hours, share, 0.1)
    assert estimate_hours(settings) / hours == pytest.approx(before / 0.1)
