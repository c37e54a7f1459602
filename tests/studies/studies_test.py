"""Every study on made-up results, on every scale, and the parts of single studies."""

import itertools
import json
import math
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from marks import long_except
from study_cases import EPOCHS, NAMES, setting, study, with_accuracy

from jaxssl.errors import UserError
from jaxssl.losses.pairs import pair_views
from jaxssl.studies import claims, documents, grid
from jaxssl.studies.bias_estimate import BiasEstimate
from jaxssl.studies.cells import batch_size_values, cell_config
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR
from jaxssl.studies.run_results import RunResult
from jaxssl.studies.study import (
    HOLDS,
    UNDECIDED,
    Verdict,
    claims_file,
    published_tables,
    select_methods,
)
from jaxssl.training import collapse
from jaxssl.training.config import arguments, factory

SCALES = ("tiny", "small", "paper", "paper_simclr")
# Studies that do not train a grid have their own tests.
MEASURE = {"gradient_bias", "solver_time", "toy_noise", "support_vectors"}
# Claims about methods that a study trains only if --methods names them.
ON_REQUEST = {"batch_size": {"printed_above_simclr", "printed_stable", "mmcl_inv_above_simclr"}}


# "tuning" takes seconds, and tests of directions_test.py run it too.
TRAINED = sorted(set(NAMES) - MEASURE)
each_trained = pytest.mark.parametrize("name", long_except({*TRAINED} - {"tuning"}, TRAINED))


@pytest.mark.parametrize("scale", long_except(("small", "paper_simclr"), SCALES))
@each_trained
def test_study_gives_a_verdict_for_each_of_its_claims(name, scale, trained_cells, tmp_path):
    if scale == "paper_simclr" and getattr(study(name), "PAPER", "simclr") != "simclr":
        with pytest.raises(UserError, match="paper_simclr is not for this study of .*take paper$"):
            setting(tmp_path, scale, name)
        return
    findings = study(name).run(setting(tmp_path, scale, name))
    assert set(findings.verdicts) == set(study(name).CLAIMS) - ON_REQUEST.get(name, set())
    assert trained_cells
    for table in findings.tables:
        assert {len(row) for row in table.rows} == {len(table.heading)}
    json.dumps(documents.to_json(findings.data), allow_nan=False)


@pytest.mark.parametrize("seeds", long_except([[1]], [[1], [0, 1, 2]]))
@each_trained
def test_study_tables_count_diverged_runs(name, seeds, diverged, trained_cells, tmp_path):
    diverged += seeds
    findings = study(name).run(setting(tmp_path))
    cells = [cell for table in findings.tables for row in table.rows for cell in row]
    assert any("1 of 3 not finite" in cell for cell in cells) or len(seeds) == 3
    if len(seeds) == 3:
        assert not any(verdict.holds for verdict in findings.verdicts.values())


@each_trained
def test_verdict_with_a_single_seed_is_undecided(name, trained_cells, tmp_path):
    findings = study(name).run(setting(tmp_path)._replace(seeds=1))
    assert {verdict.holds for verdict in findings.verdicts.values()} <= {None}


@pytest.mark.parametrize("name", NAMES)
def test_every_study_has_a_summary_and_a_source_for_each_claim(name):
    module = study(name)
    assert len(str(module.__doc__).splitlines()[0]) <= 100
    papers = {*claims.PAPERS, "ours"}
    for claim in module.CLAIMS.values():
        assert claim.source.split(",")[0] in papers, claim
        assert claim.quote or claim.published or claim.source == "ours, no paper", claim
    for table in published_tables(name):
        assert {len(row) for row in table.rows} == {len(table.heading)}


def test_every_stored_table_of_a_paper_belongs_to_a_study():
    assert claims_file()["published"].keys() <= set(NAMES)


@pytest.mark.parametrize(
    ("name", "claim", "threshold"),
    [
        ("alpha", "collapse", study("alpha").CHANCE),
        ("alpha", "shrinks", collapse.COLLAPSED_STD),
        ("alpha", "robust", study("alpha").NOMINAL),
        ("gradient_bias", "auc_cl_unbiased", study("gradient_bias").SMALL),
        ("toy_noise", "direct_diverges", study("toy_noise").JUMP),
        ("similarity_noise", "decl_robust", study("similarity_noise").STDDEVS[-1]),
    ],
)
def test_claim_texts_state_the_threshold_that_the_study_uses(name, claim, threshold):
    assert f" {threshold:g}" in study(name).CLAIMS[claim].text


def test_methods_on_request_are_judged_by_the_claims_of_another_study(trained_cells, tmp_path):
    some = setting(tmp_path, methods=("simclr", "auc_cl_sum", "mmcl_inv"), batch_sizes=(8, 16))
    findings = study("batch_size").run(some)
    assert set(findings.verdicts) == ON_REQUEST["batch_size"] and trained_cells
    claims = study("accuracy").CLAIMS
    assert all(study("batch_size").CLAIMS[key] == claims[key] for key in findings.verdicts)


def test_claims_about_methods_left_out_of_a_study_have_no_verdict(trained_cells, tmp_path):
    some = setting(tmp_path, methods=("auc_cl", "dcl"), batch_sizes=(8,))
    findings = study("batch_size").run(some)
    assert set(findings.verdicts) == {"auc_cl_above_dcl"}
    assert {cell["batch_size"] for cell in trained_cells} == {8}
    with pytest.raises(UserError, match="'auc' is not in this study; did you mean 'auc_cl'"):
        study("batch_size").run(setting(tmp_path, methods=("auc",)))
    assert select_methods(("dcl", "auc_cl", "dcl"), ("auc_cl", "dcl")) == ("dcl", "auc_cl")


@pytest.mark.parametrize(
    ("sizes", "finished", "verdict"),
    [
        ("8", {}, UNDECIDED),
        ("8,8", {}, UNDECIDED),
        ("8,16", {}, HOLDS),
        ("8,16", {("dcl", 16): ()}, UNDECIDED),
        # No seed is finished by both methods at batch size 16.
        ("8,16", {("auc_cl", 16): (0,), ("dcl", 16): (1, 2)}, UNDECIDED),
    ],
)
def test_claim_about_every_batch_size_is_undecided_if_some_are_missing(
    sizes, finished, verdict, trained_cells, monkeypatch, run_command, tmp_path
):
    def run_grid(setting, cells):
        best = {"auc_cl": 80.0, "dcl": 70.0}
        return {
            name: [with_accuracy(best[name[0]], seed) for seed in finished.get(name, range(3))]
            for name in cells
        }

    monkeypatch.setattr(grid, "run_grid", run_grid)
    flags = [f"--batch_sizes={sizes}", "--methods=auc_cl,dcl", f"--out={tmp_path}"]
    run_command("study", "batch_size", *flags)
    (document,) = tmp_path.glob("*.json")
    assert json.loads(document.read_text())["claims"]["auc_cl_above_dcl"]["verdict"] == verdict


@pytest.mark.parametrize("name", ["batch_size", "convergence"])
def test_auc_cl_sum_variant_is_trained_only_on_request(name, trained_cells, tmp_path):
    study(name).run(setting(tmp_path))
    presets = [cell.get("loss.preset") for cell in trained_cells]
    assert "recommended" in presets and "paper" not in presets
    trained_cells.clear()
    study(name).run(setting(tmp_path, methods=("auc_cl_sum",)))
    assert {cell["loss.preset"] for cell in trained_cells} == {"paper"}


@pytest.mark.parametrize("name", ["batch_size", "batch_size_tcl", "accuracy", "unnormalised"])
def test_equal_steps_option_gives_all_batch_sizes_equally_many_steps(name, trained_cells, tmp_path):
    study(name).run(setting(tmp_path, batch_sizes=(16, 64, 128), equal_steps=True))
    assert {cell["batch_size"] for cell in trained_cells} == {16, 64, 128}
    # as many as 20 epochs of the 1297 digits at batch size 64
    assert {cell["total_steps"] for cell in trained_cells} == {20 * (1297 // 64)}
    for cell in trained_cells:  # The warm-up of an epoch at batch size 64 is as many steps.
        assert cell["schedule.warmup_epochs"] * (1297 // cell["batch_size"]) == 1297 // 64


def test_equal_steps_keep_the_steps_of_warmup_milestones_and_schedules(tmp_path):
    given = ("total_steps", "300"), ("schedule.name", "step"), ("schedule.milestones", "(5,10)")
    made = setting(tmp_path, equal_steps=True, overrides=given)
    steps = 1297 // 64  # of an epoch of the scale's batch size
    for size in (16, 64, 128):
        cell = batch_size_values(made, size)
        assert (cell["batch_size"], cell["total_steps"]) == (size, 300)
        times = (cell["schedule.warmup_epochs"], *cell["schedule.milestones"])
        np.testing.assert_allclose(np.multiply(times, 1297 // size), [steps, 5 * steps, 10 * steps])
    spec = '{"schedule": "linear", "start": 1.0, "end": 0.5, "until": 3, "unit": "epochs"}'
    late = setting(tmp_path, equal_steps=True, overrides=(("loss.temperature", spec),))
    with pytest.raises(UserError, match="'loss.temperature' has times in epochs; give them in"):
        batch_size_values(late, 16)
    few = setting(tmp_path, equal_steps=True, overrides=(("data.train_split", "train[:50]"),))
    with pytest.raises(UserError, match="steps of batch_size=64, and the training set has 50 exa"):
        batch_size_values(few, 16)


def test_simclr_without_normalisation_and_under_noise_is_nt_xent_by_the_code_of_decl(tmp_path):
    z = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 4)), jnp.float32)
    pairs, key, values = pair_views(z, jnp.arange(8, dtype=jnp.int32)), jax.random.key(0), []
    for cell in (METHODS["simclr"], study("similarity_noise").LOSSES["simclr"]):
        loss = cell_config(setting(tmp_path), cell).loss
        objective = factory("loss", loss.name)(**arguments(loss))
        compute = jax.jit(partial(objective.loss, step=0, key=key))
        values.append(float(compute(pairs, *objective.init(key, 8, 4))[0]))
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_accuracy_study_refuses_batch_sizes_for_methods_with_one(trained_cells, tmp_path):
    with pytest.raises(UserError, match="--batch_sizes is for simclr, .*; add one of them"):
        study("accuracy").run(setting(tmp_path, methods=("decl",), batch_sizes=(16, 32)))


def test_studies_at_scale_paper_use_the_settings_of_the_papers(trained_cells, tmp_path):
    def config(name, **cell):
        return cell_config(setting(tmp_path, "paper", name), cell)

    tcl = config("k1", **METHODS["tcl_labels"])
    assert (tcl.data.name, tcl.net.depth, tcl.batch_size) == ("cifar100", 50, 64)
    assert (tcl.optim.name, tcl.optim.lr, tcl.loss.k1) == ("sgd", 0.1, 5000)
    assert tcl.augment.policy == "autoaugment_cifar" and tcl.epochs == 100
    views = config("views", **study("views").ARMS["tcl"])
    assert (views.data.name, views.net.depth, views.optim.name) == ("cifar10", 18, "larc")
    mmcl = config("kernels", **METHODS["mmcl"])
    assert (mmcl.data.name, mmcl.net.depth, mmcl.batch_size) == ("stl10", 50, 256)
    assert (mmcl.optim.name, mmcl.epochs, mmcl.loss.gamma) == ("adam", 200, 0.5)
    assert config("slack", **METHODS["mmcl"]).epochs == 400  # tables of k-NN use fewer epochs
    time = config("solver_time")  # Fig. 3b
    assert (time.net.depth, time.net.stem, time.augment.size) == (50, "imagenet", 224)
    on_cifar100 = setting(tmp_path, "paper", "kernels")._replace(dataset="cifar100")
    complete = cell_config(on_cifar100, study("kernels").mmcl(on_cifar100))
    gamma = complete.loss.gamma
    assert (complete.data.train_split, complete.data.bank_split) == ("train", "")
    on_few = setting(tmp_path, "small", "kernels")._replace(dataset="cifar100")
    times = study("kernels").mmcl(on_few)["loss.gamma"]["values"]
    assert list(times) == ["0", "4", "6"]  # of 20 epochs
    few = cell_config(on_few, study("kernels").mmcl(on_few)).loss.gamma
    assert few["values"].to_dict() == {"0": 0.02, "4": 0.2, "6": 2.0}
    of_two = on_few._replace(overrides=(("epochs", "2"),))
    assert study("kernels").mmcl(of_two)["loss.gamma"]["values"] == {"0": 0.02, "1": 2.0}
    of_steps = on_few._replace(overrides=(("total_steps", "800"),))
    in_steps = study("kernels").mmcl(of_steps)["loss.gamma"]
    assert in_steps["unit"] == "steps" and list(in_steps["values"]) == ["0", "150", "250"]
    assert gamma.unit == "epochs"
    assert gamma["values"].to_dict() == {"0": 0.02, "75": 0.2, "125": 2.0}  # MMCL's code
    auc_cl = config("batch_size", **METHODS["auc_cl"])
    assert (auc_cl.optim.name, auc_cl.optim.lr_scaling) == ("adamw", "linear")  # Table 10
    assert (auc_cl.schedule.name, auc_cl.schedule.warmup_epochs) == ("cosine", 40.0)
    assert (auc_cl.net.depth, auc_cl.epochs, auc_cl.batch_size) == (18, 200, 128)
    alpha, convergence = config("alpha"), config("convergence")  # Table 11 and Fig. 3
    for at_table_9, depth, epochs in ((alpha, 50, 250), (convergence, 18, 500)):
        assert (at_table_9.net.depth, at_table_9.epochs) == (depth, epochs)
        assert (at_table_9.optim.name, at_table_9.schedule.name) == ("adamw", "constant")
    decl = config("unnormalised", **METHODS["decl"])  # Table 1
    assert (decl.net.depth, decl.optim.name, decl.schedule.name) == (50, "adam", "constant")
    study("batch_size_tcl").run(setting(tmp_path, "paper", "batch_size_tcl"))
    trained = [cell for cell in trained_cells if cell["loss.name"] == "tcl"]
    # Batch sizes in appendix A.2.2 of the TCL thesis count views, two for each image.
    rates, k1 = (8e-3, 9e-3, 0.1, 0.2, 0.5, 1.0), (5000, 7500, 5000, 4000, 4000, 4000)
    expected = set(zip((32, 64, 128, 256, 512, 1024), rates, k1, strict=True))
    assert {(2 * c["batch_size"], c["optim.lr"], c["loss.k1"]) for c in trained} == expected


def test_graphs_study_trains_graph_configs_on_named_data_sets(trained_cells, monkeypatch, tmp_path):
    made, seen = grid.run_grid, []

    def run_grid(setting, cells, protocols):
        seen.append((setting.config, dict(setting.overrides)["data.path"], *protocols))
        return made(setting, cells, protocols)

    monkeypatch.setattr(grid, "run_grid", run_grid)
    options = setting(tmp_path, methods=("mmcl", "graphcl"), overrides=(("data.path", "tu"),))
    findings = study("graphs").run(options._replace(dataset="MUTAG.zip,NCI1"))
    assert seen == [
        (f"graphs/tu:{loss}", f"tu/{name}", "svm")
        for name in ("MUTAG.zip", "NCI1")
        for loss in ("mmcl", "graphcl")
    ]
    assert set(findings.verdicts) == {"MUTAG"}  # The paper has no figure for NCI1.
    assert findings.where.startswith("MUTAG, NCI1, ")
    for names in ("old/MUTAG.zip,MUTAG.zip", "MUTAG,"):
        with pytest.raises(UserError, match="has an empty name, or a name twice"):
            study("graphs").run(options._replace(dataset=names))
    [table] = findings.tables
    assert tuple(table.heading) == ("", "MUTAG", "NCI1")
    assert [row[0] for row in table.rows] == ["mmcl", "graphcl", "raw", "untrained"]


def test_tuning_table_has_the_candidates_by_descending_knn_accuracy():
    scores = {"t 0.1": (70.0, 95.0), "t 0.2": (90.0, 80.0), "t 0.3": (80.0, 99.0)}
    results = {
        ("simclr", text): [RunResult(0, Path("x"), {KNN: a, LINEAR: b}, [], 1.0)]
        for text, (a, b) in scores.items()
    }
    results |= {("mmcl", "C 1"): results["simclr", "t 0.1"]}
    table = study("tuning")._table("simclr", results)
    assert tuple(table.heading) == ("constants", "k-NN", "linear")
    assert [tuple(row) for row in table.rows] == [
        ("t 0.2", "90.00", "80.00"),
        ("t 0.3", "80.00", "99.00"),
        ("t 0.1", "70.00", "95.00"),
    ]


def test_tuning_table_has_diverged_candidates_last():
    accuracies = {"t 0.1": 70.0, "t 0.2": math.nan, "t 0.3": 90.0, "t 0.4": 80.0}
    results = {
        ("simclr", text): [RunResult(0, Path("x"), {KNN: x, LINEAR: x}, [], 1.0)]
        for text, x in accuracies.items()
    }
    rows = study("tuning")._table("simclr", results).rows
    assert [row[0] for row in rows] == ["t 0.3", "t 0.4", "t 0.1", "t 0.2"]


def test_study_table_of_runs_has_the_metrics_of_each_run():
    run = RunResult(2, Path("out/folder"), {KNN: 70.0, LINEAR: 95.0}, [], 90.0, "abc")
    table = study("accuracy")._run_table({("tcl", 64): [run]})
    names = grid.METRIC_NAMES[KNN], grid.METRIC_NAMES[LINEAR]
    assert tuple(table.heading) == ("run", *names, "minutes", "commit", "folder")
    row = "tcl, batch 64, seed 2", "70.00", "95.00", "1.5", "abc", "folder"
    assert [tuple(row) for row in table.rows] == [row]


@pytest.mark.parametrize(("epochs", "index"), [(EPOCHS, 0), ((1.0, 2.0, 3.0, 8.0, 10.0), 1)])
def test_early_epoch_of_convergence_study_is_nearest_to_a_fifth_of_the_run(epochs, index):
    assert study("convergence").early_index({"x": (list(epochs), [])}) == index


def collapse_run(std, b, knn):
    rows = [{"step": 1000, "feature_std": std, "b": b}]
    return RunResult(0, Path("nowhere"), {KNN: knn, LINEAR: 10.0}, rows, 1.0)


@pytest.mark.parametrize(
    ("runs", "shrinks", "collapse"),
    [
        ([(0.1, 0.97, 10.0), (0.05, 0.95, 11.0)], True, True),
        ([(0.1, 0.97, 89.0), (0.1, 0.97, 90.0)], True, False),
        ([(0.9, 0.17, 10.0), (0.9, 0.2, 10.0)], None, True),  # b has not converged
        ([(0.9, 0.97, 10.0), (0.9, 0.95, 10.0)], False, True),
        ([(0.1, 0.97, 10.0), (0.9, 0.95, 10.0)], None, True),
        ([(0.1, 0.97, 10.0)], None, None),
        ([(0.1, 0.97, 10.0), (math.nan, math.nan, 10.0)], None, None),
        ([(0.1, 0.97, 10.0), (0.1, 0.97, math.nan)], None, None),
    ],
)
def test_alpha_study_denies_collapse_only_if_b_has_converged(runs, shrinks, collapse):
    """The papers' collapse is judged by the k-NN accuracy."""
    verdicts = study("alpha")._judge_collapse([collapse_run(*run) for run in runs], 12.0)
    assert (verdicts["shrinks"].holds, verdicts["collapse"].holds) == (shrinks, collapse)


def test_accuracy_far_above_chance_of_many_classes_is_no_collapse():
    runs = [collapse_run(0.9, 0.97, 10.0)] * 2
    assert study("alpha")._judge_collapse(runs, 1.2)["collapse"].holds is False


def test_alpha_study_decides_nothing_if_a_run_diverged_before_its_first_row():
    lost = RunResult(0, Path("nowhere"), {KNN: math.nan, LINEAR: math.nan}, [], 1.0)
    verdicts = study("alpha")._judge_collapse([lost, collapse_run(0.1, 0.97, 10.0)], 12.0)
    assert {verdict.holds for verdict in verdicts.values()} == {None}


def test_convergence_curves_are_aligned_by_epoch():
    def runs(*values):
        history = [{"epoch": epoch, "knn_top1": value} for epoch, value in values]
        return [RunResult(0, Path("run"), {}, history, 1.0)]

    results = {"a": runs((1, 10.0), (2, 20.0), (3, 30.0)), "b": runs((2, 21.0), (3, 31.0))}
    epochs, values = study("convergence").read_series(results)["b"]
    np.testing.assert_array_equal(epochs, [1, 2, 3])
    np.testing.assert_array_equal(values, [[np.nan], [21.0], [31.0]])


@pytest.mark.parametrize("name", ["convergence", "convergence_mmcl"])
@pytest.mark.parametrize("seeds", [[2], [0, 1, 2]])
def test_convergence_studies_report_a_method_that_diverges_late(
    name, seeds, trained_cells, monkeypatch, tmp_path
):
    made = grid.run_grid

    def run_grid(setting, cells):
        results = made(setting, cells)
        for seed in seeds:
            run = results["simclr"][seed]
            results["simclr"][seed] = run._replace(history=run.history[:2])
        return results

    monkeypatch.setattr(grid, "run_grid", run_grid)
    findings = study(name).run(setting(tmp_path))
    [table] = findings.tables
    cells = {row[0]: row[1:] for row in table.rows}
    diverged = cells["simclr"]
    finite, *lost = (re.fullmatch(r"\d\d\.\d\d ± \d\.\d\d", cell) for cell in diverged)
    assert finite and not any(lost)
    assert all("1 of 3 not finite" in cell for cell in diverged[1:]) == (len(seeds) == 1)
    assert (diverged[1:] == ("–", "–")) == (len(seeds) == 3)
    assert all(
        "finite" not in cell for cell in cells["auc_cl" if "auc_cl" in cells else "mmcl_inv"]
    )
    assert {len(x["epochs"]) for x in findings.data.values()} == {len(EPOCHS)}


def test_batch_size_study_pairs_the_leads_of_the_same_seed():
    module = study("batch_size")
    # AUC-CL's lead is its seed at batch size 64, and its seed plus 1 at 16.
    values = {
        ("simclr", 16): 70.0,
        ("auc_cl", 16): 71.0,
        ("simclr", 64): 70.0,
        ("auc_cl", 64): 70.0,
    }
    seeds = {16: (0, 1, 2), 64: (1, 2, 3)}
    results = {
        (arm, size): [
            RunResult(s, Path("x"), {KNN: x + s * (arm == "auc_cl")}, [], 1.0) for s in seeds[size]
        ]
        for (arm, size), x in values.items()
    }
    verdict = module._judge_lead(results, (16, 64))["auc_cl_lead"]
    assert verdict.measured.startswith("lead at B=16 2.50 ± 0.71, lead at B=64 1.50 ± 0.71: +1.00 ")


def test_batch_size_study_judges_stability_by_the_change_in_accuracy():
    module = study("batch_size")

    def runs_by_size(*means):  # Three seeds have nearly the same noise at every size.
        return {
            size: [
                RunResult(s, Path("x"), dict.fromkeys((KNN, LINEAR), m * (1 + s / 9999)), [], 1.0)
                for s in range(3)
            ]
            for size, m in zip((16, 64, 256), means, strict=True)
        }

    # AUC-CL is better than SimCLR at batch size 16 and worse at 256.
    arms = {"simclr": runs_by_size(80, 82, 84), "auc_cl": runs_by_size(85, 84, 78)}
    results = {(arm, size): runs for arm, by in arms.items() for size, runs in by.items()}
    verdicts = module.judge_changes(results, (16, 64, 256), module.CHANGES, module.CLAIMS)
    assert verdicts["auc_cl_stable"].holds is False
    assert verdicts["auc_cl_stable"].measured.startswith("simclr changes by 4.00 ± 0.00, auc_cl")
    arms["auc_cl"] = runs_by_size(85, 85.2, 85)
    results |= {("auc_cl", size): runs for size, runs in arms["auc_cl"].items()}
    verdicts = module.judge_changes(results, (16, 64, 256), module.CHANGES, module.CLAIMS)
    assert verdicts["auc_cl_stable"].holds is True


@pytest.mark.parametrize(
    ("biases", "unbiased", "root"),
    [
        ({8: 0.0, 16: 0.0, 32: 0.0}, True, None),
        ({8: 0.99, 16: 0.95, 32: 0.88}, False, True),  # bias falls slower than 1 / sqrt(B)
        ({8: 0.9, 16: 0.3, 32: 0.1}, False, False),
    ],
)
def test_gradient_bias_study_gives_the_expected_verdicts(biases, unbiased, root):
    module = study("gradient_bias")
    factors = (0.99, 1.0, 1.01)  # Estimates of three seeds differ, less so at larger batch sizes.
    estimates = {b: {0: [estimate(f ** (8 / b) * x) for f in factors]} for b, x in biases.items()}
    verdicts = module._verdicts({"auc_cl": estimates, "simclr": estimates})
    assert verdicts["auc_cl_unbiased"].holds is unbiased
    assert verdicts.get("simclr_root", Verdict("", None)).holds is root
    assert verdicts["simclr_biased"].holds is (None if unbiased else True)
    wide = {size: {0: 3 * [BiasEstimate(0.1, 0.0, 0.3, 1.0, 1.0)]} for size in biases}
    assert module._verdicts({"auc_cl": wide})["auc_cl_unbiased"].holds is None
    single = {size: {0: by[0][:1]} for size, by in estimates.items()}
    verdicts = module._verdicts({"auc_cl": single, "simclr": single})
    assert {verdict.holds for verdict in verdicts.values()} == {None if unbiased else False, None}


@pytest.mark.parametrize(
    ("size", "ratio", "holds"),
    [(0, 1.5, True), (0, 7.0, None), (8, 7.0, None), (224, 7.0, False), (224, 1.1, True)],
)
def test_solver_time_is_undecided_for_a_small_network_or_small_images(
    size, ratio, holds, monkeypatch, tmp_path
):
    module = study("solver_time")
    times = {"simclr": 1.0, "mmcl_pgd": 1.0, "mmcl_inv": 1.0, "decl": 1.0}
    # The second batch size, 64, is slow.
    by_batch = itertools.cycle([times, {**times, "mmcl_pgd": ratio}])
    monkeypatch.setattr(module, "_median_seconds", lambda calls: next(by_batch))
    for name in ("_loss", "_step"):
        monkeypatch.setattr(module, name, lambda *arguments: None)
    net = (("net.name", "resnet"), ("net.depth", "50"), ("augment.size", str(size)))
    overrides = net if size else ()
    findings = module.run(setting(tmp_path, batch_sizes=(32, 64), overrides=overrides))
    assert findings.verdicts["mmcl_pgd"].holds is holds
    assert findings.verdicts["decl"].holds is True


def test_toy_noise_study_without_noise_converges_to_the_optimum(tmp_path):
    module = study("toy_noise")
    s1, s2 = module._optimum()
    assert s1 == pytest.approx(0.82, abs=0.005) and s2 == -s1
    slope = 1 / (1 + math.exp(2 * s1))
    assert 2 * module.REGULARISER * s1 == pytest.approx(slope)
    findings = module.run(setting(tmp_path))
    assert set(findings.verdicts) == set(module.CLAIMS)
    [picture] = findings.pictures
    assert all(dashes in picture.alt for dashes in ("dotted", "solid", "dashed"))
    assert "clipped to ±8" in picture.caption
    quiet = np.asarray(module._descend("decl_mean", 0.0, module.REGULARISER))[:, -1]
    np.testing.assert_allclose(quiet, np.tile([s1, s2], (module.RUNS, 1)), atol=1e-3)


@pytest.mark.parametrize(("name", "weight"), [("direct", 1.0), ("decl_mean", 0.1)])
def test_noise_of_the_toy_study_has_the_variance_of_the_problem(name, weight):
    """The first step tells the denominator, of which DeCL averages a tenth."""
    module, variance = study("toy_noise"), 0.04
    path = np.asarray(module._descend(name, variance, 0.0), np.float64)
    first, second = path[:, 0], path[:, 1]
    pull = (first - second) / module.RATE + [1.0, 0.0]
    noise = (np.exp(first) / pull)[:, 1] - np.exp(first).sum(axis=1)
    assert np.std(noise) == pytest.approx(weight * math.sqrt(variance), rel=0.1)


def test_solver_time_study_interleaves_timings_of_the_losses(monkeypatch):
    module, order = study("solver_time"), []
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "process_time", lambda: next(clock))
    times = module._median_seconds({name: lambda name=name: order.append(name) for name in "ab"})
    assert order == list("ab") * (module.ROUNDS + 1)
    assert times == {"a": 1, "b": 1}


def test_solver_time_study_times_gradients_and_training_steps_of_losses(monkeypatch, tmp_path):
    """The parts that train are replaced by functions that return what they are given."""
    module, settings = study("solver_time"), setting(tmp_path)
    losses = {"simclr": ("nt_xent", None), "decl": ("decl", None)}
    losses |= {f"mmcl_{solver}": ("mmcl", solver) for solver in ("pgd", "inv")}
    made = []

    def factory(group, name):
        def objective(**hyper):
            made.append((name, hyper.get("solver")))
            loss = lambda pairs, *args, **kwargs: (jnp.sum(pairs.anchor**2), (), {})  # noqa: E731
            return SimpleNamespace(init=lambda *args: ((), ()), loss=loss)

        return objective

    monkeypatch.setattr(module, "factory", factory)
    for name in losses:
        value, gradient = module._loss(settings, name, 4)()
        assert gradient.shape == (2, 4, module.EMBEDDING_DIM)
        np.testing.assert_allclose(value, np.sum(gradient**2) / 4, rtol=1e-5)
    assert made == list(losses.values())

    def build(config, batch, devices):
        loss = (config.loss.name, config.loss.get("solver"))
        return SimpleNamespace(method=loss, optimiser=None, augment=None)

    def make_train_step(method, optimiser, augment, mesh):
        return lambda state, examples: (state + 1, (method, len(examples["input"]), state), None)

    monkeypatch.setattr(module, "build", build)
    monkeypatch.setattr(module, "make_init", lambda *args: lambda seed: 0)
    monkeypatch.setattr(module, "make_train_step", make_train_step)
    for name, loss in losses.items():
        call = module._step(settings, name, 8)
        assert [call(), call()] == [(loss, 8, state) for state in (0, 1)]


def test_solver_time_study_reports_each_time_in_the_right_table_cell(monkeypatch, tmp_path):
    module, times = study("solver_time"), itertools.count(1)
    timed = {}
    monkeypatch.setattr(module, "_loss", lambda setting, name, batch: ("loss", batch, name))
    monkeypatch.setattr(module, "_step", lambda setting, name, batch: ("step", batch, name))

    def median_seconds(calls):
        timed.update({call: float(next(times)) for call in calls.values()})
        return {name: timed[call] for name, call in calls.items()}

    monkeypatch.setattr(module, "_median_seconds", median_seconds)
    findings = module.run(setting(tmp_path, batch_sizes=(32, 64)))
    expected = {kind: {32: {}, 64: {}} for kind in ("loss", "step")}
    for (kind, batch, name), seconds in timed.items():
        expected[kind][batch][name] = seconds
    assert findings.data == expected and len(timed) == 4 * len(module.LOSSES)
    for table, kind in zip(findings.tables, expected, strict=True):
        for name, *cells in table.rows[: len(module.LOSSES)]:
            assert cells == [f"{1e3 * expected[kind][b][name]:.2f}" for b in (32, 64)]


def estimate(value, width=0.01):
    return BiasEstimate(value, max(value - width, 0.0), value + width, 1.0, 1.0)


def test_intervals_of_the_gradient_bias_of_a_loss_hold_together(monkeypatch, tmp_path):
    """Two batch sizes and three linear maps make six intervals, each map with its own draws."""
    module, seen = study("gradient_bias"), []

    def measure(*_, level, seed, **__):
        seen.append((level, seed))
        return [estimate(0.1)]

    monkeypatch.setattr(module, "estimate_gradient_bias", measure)
    module.run(setting(tmp_path, methods=("simclr",), batch_sizes=(8, 16)))
    assert seen == 2 * [(pytest.approx(1 - 0.05 / 6), seed) for seed in range(3)]


def test_gradient_bias_study_recovers_the_exponent_of_a_power_law():
    slopes = study("gradient_bias")._slopes
    law = {size: [3 * size**-0.7, size**-0.5] for size in (8, 16, 32, 64)}
    assert slopes(law) == pytest.approx([-0.7, -0.5])
    assert slopes({**law, 64: [0.1, 0.0]}) == slopes({8: [1.0], 16: [0.5]}) == []


@pytest.mark.long
def test_gradient_bias_study_runs_end_to_end_at_small_size(tmp_path, monkeypatch):
    module = study("gradient_bias")
    for name, value in {"EXAMPLES": 24, "DRAWS": 256, "VISITS": (0, 1, 2)}.items():
        monkeypatch.setattr(module, name, value)
    methods = ("simclr", "simclr_weighted", "auc_cl", "auc_cl_sum")
    findings = module.run(setting(tmp_path, methods=methods, batch_sizes=(3, 6, 9)))
    assert set(findings.verdicts) == {claim for claim in module.CLAIMS if "shrinks" not in claim}
    # The loss with a sum over negatives depends on the batch size.
    assert not findings.verdicts["auc_cl_sum_unbiased"].holds
    first = [findings.data[name][3][0] for name in methods]
    for whole, weighted, mean, summed in zip(*first, strict=True):
        assert weighted["bias"] < whole["bias"]
        assert mean["low"] == 0 < summed["low"]
    assert len(findings.pictures) == 1 and "24 fixed embeddings" in findings.where
    findings = module.run(setting(tmp_path, methods=("decl", "dclw"), batch_sizes=(3,)))
    assert set(findings.verdicts) == {"decl_shrinks"} and len(findings.pictures) == 2
    with pytest.raises(UserError, match="--batch_sizes must be at least 2 and below 24, .* got 24"):
        module.run(setting(tmp_path, batch_sizes=(24,)))
    with pytest.raises(UserError, match="'nt_xnt' is not in this study; did you mean 'nt_xent'"):
        module.run(setting(tmp_path, methods=("nt_xnt",), batch_sizes=(3,)))


@pytest.mark.parametrize(
    ("methods", "key", "message"),
    [
        ("simclr_weigthed", "", "--methods: 'simclr_weigthed' is not in this study; did you mean"),
        ("cross_entropy", "", "--methods: 'cross_entropy' needs labels, which this study lacks"),
        ("auc_cl", "epochs", "--config.epochs does not change the losses of this study; leave it"),
        ("simclr", "loss.temperature", "--config.loss.temperature does not change the losses"),
        ("decl,decl_mean", "loss.weight", "--config.loss.weight does not change the losses"),
        ("decl_mean", "loss.u", "--config.loss.u does not change the losses of this study"),
        ("auc_cl,dclw", "loss.temperature", "--config.loss.temperature does not change the losses"),
    ],
)
def test_gradient_bias_study_refuses_losses_and_settings_that_it_would_not_measure(
    methods, key, message, tmp_path
):
    overrides = ((key, "0.3"),) if key else ()
    options = setting(tmp_path, methods=tuple(methods.split(",")), overrides=overrides)
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        study("gradient_bias").run(options)


def test_gradient_bias_study_measures_losses_with_the_settings_of_the_command(
    tmp_path, monkeypatch
):
    module, made = study("gradient_bias"), []
    loss = SimpleNamespace(needs_labels=False)
    monkeypatch.setattr(module, "factory", lambda *of: lambda **how: made.append(how) or loss)
    options = setting(tmp_path, overrides=(("loss.momentum", "0.3"),))
    module._check_overrides(options, ("decl", "decl_mean"))
    module._losses(options, "decl_mean", 64, 8)
    measured, exact = made
    assert measured["momentum"] == 0.3 and measured["temperature"] == 0.5
    assert (measured["weight"], measured["u"], measured["rate"]) == (1.0, "mean", "buffer")
    assert exact == {**measured, "rate": "batch"}


@pytest.mark.parametrize(
    ("examples", "views", "path"),
    [
        ("image", 1, "run"),
        ("image_text", 1, "run"),
        ("video", 2, "run"),
        ("image", 2, "net.safetensors"),
    ],
)
def test_gradient_bias_study_refuses_all_but_runs_with_two_views_of_images(
    examples, views, path, monkeypatch, tmp_path
):
    module = study("gradient_bias")
    metadata = {"config": {"views": views}} if path == "run" else {}
    network = SimpleNamespace(inputs=SimpleNamespace(kind=examples), metadata=metadata)
    monkeypatch.setattr(module, "load_pretrained", lambda workdir: network)
    with pytest.raises(UserError, match="^--workdir must be a run with two views of images, got "):
        module.run(setting(tmp_path, workdir=tmp_path / path))
