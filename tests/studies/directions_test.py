"""Verdicts and tables of studies on made-up results that support their claims, or refute them."""

import pytest
from study_cases import setting, study

from jaxssl.studies import tuning
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


@pytest.mark.parametrize("holds", [True, False])
def test_kernels_study_claims_hold_only_if_rbf_beats_tanh_and_linear(findings, holds):
    given = {"rbf": 60.0 if holds else 40.0, "tanh": 50.0, "linear": 40.0 if holds else 60.0}
    expected = {"rbf_above_tanh": holds, "rbf_above_linear": holds}
    assert verdicts(findings("kernels", given)) == expected


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
