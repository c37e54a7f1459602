"""Times of collectives in the model of a pod, and what its collectives belong to."""

import pytest
from pod_model import PODS, part, predict, torus

pytestmark = pytest.mark.fast
LARGE = 1e12  # bytes, for which latency is negligible


def test_predicted_time_of_a_large_all_reduce_is_bound_by_the_slowest_links():
    """Each GPU sends 7/8 of the bytes in its host, twice, and its eighth between hosts, twice."""
    pod = PODS["H100"]
    inside, between = 2 * 7 / 8 * LARGE / 450e9, 2 * 63 / 64 * LARGE / 8 / 50e9
    assert pod.seconds("all-reduce", LARGE, 8) == pytest.approx(inside, rel=1e-3)
    assert pod.seconds("all-reduce", LARGE, 512) == pytest.approx(inside + between, rel=1e-3)
    assert pod.seconds("all-gather", LARGE, 8) == pytest.approx(inside / 2, rel=1e-3)


def test_predicted_latency_is_of_a_tree_for_all_reduce_and_a_ring_for_all_gather():
    pod = PODS["H100"]
    hops = pod.seconds("all-reduce", 0, 512) - pod.start, pod.seconds("all-gather", 0, 512)
    assert hops[0] == pytest.approx(2 * (7 * 0.9e-6 + 6 * 5e-6))
    assert hops[1] - pod.start == pytest.approx(7 * 0.9e-6 + 63 * 5e-6)


@pytest.mark.parametrize(
    ("chips", "hops", "links"), [(256, 16, 4), (64, 14, 2), (8, 4, 2), (2, 1, 1), (1, 0, 1)]
)
def test_predicted_all_reduce_on_a_torus_uses_both_directions_along_closed_axes(chips, hops, links):
    network = torus(1.0, 2, 16)(chips)
    assert (network.reduce_hops(chips), network.bandwidth) == (hops, links)


def test_model_assigns_collectives_to_parts_of_a_step_and_scales_gathers_with_the_batch():
    sums = {512, 1024}
    gradient, norm = ("all-reduce", (2**21, 512)), ("all-reduce", (512, 1024))
    gathered, moments = ("all-gather", (512,)), ("all-reduce", (65536, 512))
    parts = {"gradient": gradient, "BatchNorm": norm, "loss": gathered}
    assert [part(collective, sums) for collective in parts.values()] == list(parts)
    assert part(moments, sums) == "loss"
    counts = {name: {collective: 1} for name, collective in parts.items()}
    one, two = (predict(counts, PODS["v5p"], 64, batch, 1e3) for batch in (2**18, 2**19))
    assert two.compute == 2 * one.compute and two[1:3] == one[1:3]
    assert two.loss > one.loss
    grouped = predict(counts, PODS["v5p"], 64, 2**18, 1e3, norm_group=8)
    assert grouped.batch_norm < one.batch_norm and grouped.loss == one.loss
