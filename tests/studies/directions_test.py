"""Verdicts and tables of studies on made-up results that support their claims, or refute them."""

import itertools

import numpy as np
import pytest
from study_cases import setting, study, with_accuracy

from jaxssl.evaluation.loss_inspection import SupportVectors
from jaxssl.studies import tuning
from jaxssl.studies.bias_estimate import BiasEstimate
from jaxssl.studies.cells import cell_config
from jaxssl.studies.compared_methods import METHODS

pytestmark = pytest.mark.fast


@pytest.fixture
def findings(accuracies, trained_cells, tmp_path):
    """Return a function that runs a study whose cells have accuracies by the end of their names."""

    def run(name, given):
        accuracies.update(given)
        return study(name).run(setting(tmp_path, "tiny", name))

    return run


def verdicts(found):
    return {claim: verdict.holds for claim, verdict in found.verdicts.items()}


@pytest.mark.parametrize(
    ("decl", "decl_above", "gap_grows"),
    [(60.0, True, True), (51.0, True, False), (40.0, False, False)],
)
def test_unnormalised_study_compares_leads_over_simclr(findings, decl, decl_above, gap_grows):
    given = {"simclr": 50.0, "decl": 53.0, "simclr_unnormalised": 50.0, "decl_unnormalised": decl}
    found = verdicts(findings("unnormalised", given))
    assert found == {"decl_above_unnormalised": decl_above, "gap_grows": gap_grows}


@pytest.mark.parametrize(("gain", "no_help"), [(0.3, True), (0.8, False)])
def test_slack_study_tolerates_a_gain_of_half_a_point_by_a_large_C(findings, gain, no_help):
    given = {0.01: 60.0, 0.1: 70.0, 1.0: 75.0, 10.0: 80.0, 100.0: 80.0 + gain}
    expected = {"small_c_is_poor": True, "large_c_no_help": no_help}
    assert verdicts(findings("slack", given)) == expected


def test_slack_study_tabulates_shares_of_support_vectors_and_of_those_at_C(findings):
    tables = findings("slack", dict.fromkeys((0.01, 0.1, 1.0, 10.0, 100.0), 70.0)).tables
    [table] = [table for table in tables if table.title.startswith("Share of the negatives")]
    assert [row[0] for row in table.rows] == ["support vectors", "at C"]
    for row, percent in zip(table.rows, ("30.0", "10.0"), strict=True):
        assert all(cell.startswith(percent) for cell in row[1:])


@pytest.mark.parametrize("scale", tuning.SPLITS)
def test_tuning_study_validates_on_images_outside_the_training_part(scale, trained_cells, tmp_path):
    tuning.run(setting(tmp_path, scale, methods=("simclr", "auc_cl")))

    def bounds(split):
        first, last = split.removeprefix("train[").removesuffix("]").split(":")
        return int(first.rstrip("%") or 0), int(last.rstrip("%") or 100)

    splits = {(cell["data.train_split"], cell["data.test_split"]) for cell in trained_cells}
    ((train, validation),) = splits
    assert bounds(train)[0] < bounds(train)[1] <= bounds(validation)[0] < bounds(validation)[1]


def test_tuning_study_has_no_validation_images_among_the_neighbours_of_k_nn(
    trained_cells, tmp_path
):
    on_stl10 = setting(tmp_path, "medium", methods=("simclr",))._replace(dataset="stl10")
    assert cell_config(on_stl10, {}).data.bank_split == "train"
    tuning.run(on_stl10)
    assert {cell_config(on_stl10, cell).data.bank_split for cell in trained_cells} == {""}


@pytest.mark.parametrize("method", tuning.CANDIDATES)
def test_tuning_study_has_twelve_distinct_candidates_for_every_method(method, tmp_path):
    candidates = tuning.CANDIDATES[method]
    with_candidates = {
        str(
            cell_config(
                setting(tmp_path, "small"),
                {**METHODS[method.removesuffix(tuning.OF_TRAINING)], **candidate},
            )
        )
        for candidate in candidates
    }
    assert len(candidates) == len(with_candidates) == 12


# By study, the arms that its claims favour, and the others.
FAVOURED = {
    "accuracy": (
        ("auc_cl", "auc_cl_sum", "auc_cl_released", "mmcl_inv"),
        ("simclr", "simclr_tuned", "moco_v3", "decl", "tcl"),
    ),
    "batch_size": (("auc_cl", "decl", "mmcl"), METHODS),
    "batch_size_mmcl": (("mmcl",), ("simclr",)),
    "batch_size_tcl": (("tcl",), ("sup_con",)),
    "convergence": (("auc_cl",), METHODS),
    "convergence_mmcl": (("mmcl_pgd", "mmcl_inv"), ("simclr",)),
    "kernels": (("rbf",), ("tanh", "linear")),
    "graphs": (("mmcl",), ("graphcl", "auc_cl", "decl")),
    "views": (("tcl",), ("simclr",)),
}
# Claims about changes and likeness, on which arms that differ alike everywhere tell nothing.
UNDECIDED = ("auc_cl_lead", "auc_cl_stable", "printed_stable", "variants_similar")


@pytest.mark.parametrize("name", FAVOURED)
@pytest.mark.parametrize("holds", [True, False])
def test_claims_hold_only_if_the_favoured_methods_are_more_accurate(name, holds, findings):
    favoured, others = FAVOURED[name]
    given = dict.fromkeys(others, 50.0) | dict.fromkeys(favoured, 60.0 if holds else 40.0)
    found = verdicts(findings(name, given))
    assert found == {key: None if key.startswith(UNDECIDED) else holds for key in found}
    assert holds in found.values()


@pytest.mark.parametrize(("number", "holds"), [(2, False), (3, True)])
def test_views_study_compares_three_views_of_tcl_with_two_of_simclr(number, holds, findings):
    given = {2: 50.0, 3: 50.0, number: 60.0}
    assert verdicts(findings("views", given)) == {"tcl_above_simclr": holds, "equal_views": None}


@pytest.mark.parametrize(("at_zero", "collapse"), [(11.9, True), (12.1, False)])
@pytest.mark.parametrize(("at_one", "robust"), [(81.5, True), (83.0, False)])
def test_alpha_study_compares_accuracies_with_chance_and_with_each_other(
    at_zero, collapse, at_one, robust, findings
):
    """A guess among ten digits is right with 10 %. The alphas above 0 are compared."""
    given = {0.0: at_zero, 0.1: 80.0, 0.5: 80.5, 0.7: 81.0, 1.0: at_one}
    expected = {"collapse": collapse, "shrinks": True, "robust": robust}
    expected |= {f"{key}_recommended": holds for key, holds in expected.items()}
    assert verdicts(findings("alpha", given)) == expected


@pytest.mark.parametrize("holds", [True, False])
def test_k1_study_claims_a_peak_at_5000(holds, findings):
    given = {0.0: 50.0, 1.0: 50.3, 100.0: 56.0, 1000.0: 57.0, 5000.0: 60.0, 50000.0: 52.0}
    given = {k1: x if holds else 100 - x for k1, x in given.items()}
    expected = dict.fromkeys(("rises", "drops", "above_sup_con", "any_below_5000"), holds)
    assert verdicts(findings("k1", given)) == {**expected, "small_like_sup_con": True}


def test_accuracy_study_judges_auc_cl_against_simclr_at_the_smallest_batch_size():
    def result(arm, size, seed):
        return with_accuracy(60.0 if (arm, size) == ("auc_cl", 16) else 50.0, seed)

    module, sizes = study("accuracy"), (16, 64)
    cells = itertools.product(module.ARMS, sizes)
    results = {cell: [result(*cell, seed) for seed in range(3)] for cell in cells}
    found = module._verdicts(results, sizes, 64)
    assert {key for key in found if found[key].holds} == {
        "auc_cl_smallest",
        "auc_cl_smallest_tuned",
    }


@pytest.mark.parametrize(("decl", "holds"), [(55.0, True), (40.0, False)])
@pytest.mark.parametrize("place", ["similarity", "score"])
def test_noise_study_compares_the_accuracy_that_noise_costs(place, decl, holds):
    """SimCLR loses 20 points, and DeCL 15 or 30. The other reading has no noise."""
    module = study("similarity_noise")
    accuracy = {"simclr": (80.0, 60.0), "decl": (70.0, decl)}
    results = {
        (arm, std): [
            with_accuracy(accuracy[arm.split(",")[0]][bool(std) and arm.endswith(place)], seed)
            for seed in range(3)
        ]
        for arm in module.ARMS
        for std in module.STDDEVS
    }
    found = {key: module._judge_loss(key, at, results) for key, at in module.READINGS.items()}
    assert {module.READINGS[key]: found[key].holds for key in found} == {
        "similarity": None,
        "score": None,
        place: holds,
    }


def test_gradients_study_judges_each_claim_in_its_direction():
    module = study("gradients")

    def of_arms(*values):
        arms = enumerate(zip(module.ARMS, values, strict=True))
        return {arm: [x + i * seed / 1e4 for seed in range(3)] for i, (arm, x) in arms}

    def judge(positive, negative, accuracies):
        means = dict(zip(module.SOURCES, (of_arms(*positive), of_arms(*negative)), strict=True))
        found = module._verdicts(means, of_arms(*accuracies))
        return {key: verdict.holds for key, verdict in found.items()}

    # The last negative gradient is 9.5 % below the first, which is 10.5 % above the last.
    held = judge((1, 2, 3, 4), (4, 3, 2, 3.62), (50, 50, 50, 60))
    assert set(held.values()) == {True}
    refuted = judge((4, 3, 2, 1), (2, 3, 4, 2), (50, 50, 60, 50))
    assert refuted.pop("k2_restores_negative") is None  # There is no gap to close.
    assert set(refuted.values()) == {False}


@pytest.mark.parametrize("better", ["decl", "direct"])
def test_toy_noise_study_judges_each_claim_in_its_direction(better):
    module, rng, ends = study("toy_noise"), np.random.default_rng(0), {}
    for arm in module.ARMS:
        is_better = arm == better
        for problem in (module.PLAIN, module.REGULARISED):
            last = (0.0 if is_better else 1.0) + 0.1 * rng.normal(size=(50, 2))
            steps = np.where(np.arange(50) % 2, 1.0 if is_better else 2 * module.JUMP, 1.0)
            ends[arm, problem] = module.Ends(last, steps)
    found = {key: verdict.holds for key, verdict in module._verdicts(ends, np.zeros(2)).items()}
    assert found.pop("printed_end") is False
    assert set(found.values()) == {better == "decl"}


@pytest.mark.parametrize("holds", [True, False])
def test_support_vectors_study_expects_more_images_of_the_same_class(
    holds, trained_cells, monkeypatch, tmp_path
):
    module, labels, seeds = study("support_vectors"), np.array([0, 0, 1, 1]), itertools.count()
    alpha = np.where((labels[:, None] == labels) == holds, module.BINDING_C, 0.5)

    def analyse(workdir):
        share = (0.9 if holds else 0.1) + next(seeds) / 100
        solved = SupportVectors(alpha, 1.0, 0.5, share, share, 0.5)
        return module.Analysis(100.0, solved, solved, labels, labels, "ab")

    monkeypatch.setattr(module, "_analyse", analyse)
    monkeypatch.setattr(module, "_picture", lambda run: None)
    found = verdicts(module.run(setting(tmp_path)))
    assert found == {"same_class": holds, "false_negatives": holds} and trained_cells


@pytest.mark.parametrize("name", ["decl", "sogclr"])
@pytest.mark.parametrize("shrinks", [True, False])
def test_gradient_bias_study_compares_the_bias_at_first_with_the_last(name, shrinks):
    module = study("gradient_bias")
    biases = (0.5, 0.3, 0.1) if shrinks else (0.1, 0.3, 0.5)
    by_visits = {
        visits: [BiasEstimate(x + seed * x / 100, 0.0, 1.0, 1.0, 1.0) for seed in range(3)]
        for visits, x in zip((0, 1, 60), biases, strict=True)
    }
    found = module._verdicts({name: {64: by_visits}})
    assert {key: verdict.holds for key, verdict in found.items()} == {f"{name}_shrinks": shrinks}


def test_gradient_bias_table_spans_the_intervals_of_all_seeds():
    estimates = [BiasEstimate(x, x - 0.1, x + 0.1, 1.0, 1.0) for x in (0.2, 0.4)]
    assert study("gradient_bias")._format(estimates) == "0.300 [0.100, 0.500]"
