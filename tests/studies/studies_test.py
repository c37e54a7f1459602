"""Every study on made-up figures, on every scale; and the command as users meet it."""

import importlib
import json
import math
import re
import shlex
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from jaxssl import components
from jaxssl.errors import UserError
from jaxssl.studies import claims, documents, grid, tcl_comparison
from jaxssl.studies import study as judging
from jaxssl.studies.bias_estimate import BiasEstimate
from jaxssl.studies.grid import KNN, LINEAR, RunResult
from jaxssl.studies.study import (
    Claim,
    Findings,
    Picture,
    Setting,
    Summary,
    Table,
    Verdict,
    scale_config,
)
from jaxssl.training import config, git

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "studies"
SCALES = ("tiny", "small", "paper")
NAMES = components.names("study")
ABOUT = {"command": "jaxssl study x", "seconds": "1"}
EPOCHS = (4.0, 8.0, 12.0, 16.0, 20.0)
# Studies that measure, not train: they have tests of their own.
MEASURE = {"gradient_bias", "solver_time", "toy_noise", "support_vectors"}


def study(name):
    return importlib.import_module(f"jaxssl.studies.{name}")


def setting(tmp_path, scale="tiny", name="", **changes):
    paper = getattr(study(name), "PAPER", "") if name else ""
    return Setting(scale, scale_config(CONFIGS, scale, paper), "", 3, tmp_path, **changes)


def made_up(cell, seed, lost=()):
    """An outcome whose figures depend on the run alone."""
    rng = np.random.default_rng(zlib.crc32(str((sorted(map(str, cell.items())), seed)).encode()))
    keys = ("b", "feature_std", "support", "at_bound", "positive_gradient", "negative_gradient")
    history = [
        {"step": i, "epoch": epoch, KNN: 60 + i + rng.normal(), **dict.fromkeys(keys, rng.random())}
        for i, epoch in enumerate(EPOCHS)
    ]
    figures = {KNN: 80 + rng.normal(), LINEAR: 90 + rng.normal()}
    if seed in lost:  # a run that was not finite
        figures, history = dict.fromkeys(figures, math.nan), history[:1]
        history[0] = {key: math.nan for key in history[0] if key != KNN} | {"step": 1}
    return RunResult(seed, Path("nowhere"), figures, history, 1.0, "abc")


@pytest.fixture
def lost():
    """Seeds whose runs are not finite."""
    return []


@pytest.fixture
def without_training(monkeypatch, lost):
    """Grids are made up; returns the cells that were asked for."""
    asked = []

    def run_grid(setting, cells, *, seeds=None):
        for cell in cells.values():
            grid.cell_config(setting, cell)  # a run would refuse a bad one
        asked.extend(cells.values())
        count = setting.seeds if seeds is None else seeds
        return {
            name: [made_up(cell, s, lost) for s in range(count)] for name, cell in cells.items()
        }

    base = {"raw": {KNN: 50.0, LINEAR: 60.0}, "untrained": {KNN: 40.0, LINEAR: 55.0}}
    for module in (grid, tcl_comparison, *(study(name) for name in NAMES)):
        for name, stub in (
            ("run_grid", run_grid),
            ("baselines", lambda outcome: base),
            ("where", lambda found: "made up"),
        ):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stub)
    return asked


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", sorted(set(NAMES) - MEASURE))
def test_a_study_tells_all_its_claims(name, scale, without_training, tmp_path):
    found = study(name).run(setting(tmp_path, scale, name))
    # A figure of the papers' is decided with their network alone.
    absolute = {"accuracy": {"simclr_512"} if scale == "paper" else {"simclr_512", "auc_cl_128"}}
    assert set(found.verdicts) == set(study(name).CLAIMS) - absolute.get(name, set())
    assert without_training
    for table in found.tables:
        assert {len(row) for row in table.rows} == {len(table.heading)}
    json.dumps(documents.to_json(found.data), allow_nan=False)


@pytest.mark.parametrize("seeds", [[1], [0, 1, 2]])
@pytest.mark.parametrize("name", sorted(set(NAMES) - MEASURE))
def test_runs_that_are_not_finite_are_told(name, seeds, lost, without_training, tmp_path):
    lost += seeds
    found = study(name).run(setting(tmp_path))
    cells = [cell for table in found.tables for row in table.rows for cell in row]
    assert any("1 of 3 not finite" in cell for cell in cells) or len(seeds) == 3
    if len(seeds) == 3:
        assert not any(verdict.holds for verdict in found.verdicts.values())


@pytest.mark.parametrize("name", sorted(set(NAMES) - MEASURE))
def test_a_single_seed_decides_no_difference(name, without_training, tmp_path):
    found = study(name).run(setting(tmp_path)._replace(seeds=1))
    for verdict in found.verdicts.values():
        assert verdict.holds is None or "one pair" not in verdict.measured


@pytest.mark.parametrize("name", NAMES)
def test_a_study_says_what_it_is(name):
    module = study(name)
    assert len(module.__doc__.splitlines()[0]) <= 100
    papers = {*claims.PAPERS, "ours"}
    for claim in module.CLAIMS.values():
        assert claim.source.split(",")[0] in papers, claim
        assert claim.quote or claim.published or claim.source == "ours, no paper", claim


def test_a_study_of_one_method_leaves_other_claims_untold(without_training, tmp_path):
    found = study("batch_size").run(setting(tmp_path, methods=("auc_cl", "dcl"), batch_sizes=(8,)))
    assert set(found.verdicts) == {"auc_cl_above_dcl"}
    assert {cell["batch_size"] for cell in without_training} == {8}
    with pytest.raises(UserError, match="'auc' is none of this study; did you mean 'auc_cl'"):
        study("batch_size").run(setting(tmp_path, methods=("auc",)))


@pytest.mark.parametrize("name", ["batch_size", "convergence"])
def test_the_sum_over_negatives_is_trained_on_request(name, without_training, tmp_path):
    study(name).run(setting(tmp_path))
    presets = [cell.get("loss.preset") for cell in without_training]
    assert "recommended" in presets and "paper" not in presets
    without_training.clear()
    study(name).run(setting(tmp_path, methods=("auc_cl_sum",)))
    assert {cell["loss.preset"] for cell in without_training} == {"paper"}


@pytest.mark.parametrize("name", ["batch_size", "batch_size_tcl", "accuracy", "unnormalised"])
def test_batch_sizes_may_have_equal_steps(name, without_training, tmp_path):
    study(name).run(setting(tmp_path, batch_sizes=(16, 64, 128), equal_steps=True))
    assert {cell["batch_size"] for cell in without_training} == {16, 64, 128}
    # 20 epochs of the 1297 digits at the scale's 64
    assert {cell["total_steps"] for cell in without_training} == {20 * (1297 // 64)}
    own = setting(tmp_path, equal_steps=True, overrides=(("total_steps", "30"),))
    assert grid.batch_size_values(own, 16) == {"batch_size": 16}


def test_a_paper_has_settings_of_its_own_at_its_scale(without_training, tmp_path):
    def of(name, **cell):
        return grid.cell_config(setting(tmp_path, "paper", name), cell)

    tcl = of("k1", **grid.METHODS["tcl_labels"])
    assert (tcl.data.name, tcl.net.depth, tcl.batch_size) == ("cifar100", 50, 64)
    assert (tcl.optim.name, tcl.optim.lr, tcl.loss.k1) == ("sgd", 0.1, 5000)
    assert tcl.augment.policy == "autoaugment_cifar" and tcl.epochs == 100
    views = of("views", **study("views").ARMS["tcl"])
    assert (views.data.name, views.net.depth, views.optim.name) == ("cifar10", 18, "larc")
    mmcl = of("kernels", **grid.METHODS["mmcl"])
    assert (mmcl.data.name, mmcl.net.depth, mmcl.batch_size) == ("stl10", 50, 256)
    assert (mmcl.optim.name, mmcl.epochs, mmcl.loss.gamma) == ("adam", 400, 0.5)
    on_cifar100 = setting(tmp_path, "paper", "kernels")._replace(dataset="cifar100")
    gamma = grid.cell_config(on_cifar100, study("kernels").mmcl(on_cifar100)).loss.gamma
    assert gamma.to_dict() == study("kernels").CIFAR100_GAMMA
    assert of("batch_size").data.name == "cifar10"
    study("batch_size_tcl").run(setting(tmp_path, "paper", "batch_size_tcl"))
    asked = [cell for cell in without_training if cell["loss.name"] == "tcl"]
    # Thesis, Appendix A.2.2, which counts views.
    assert {(2 * c["batch_size"], c["optim.lr"], c["loss.k1"]) for c in asked} == {
        (32, 8e-3, 5000),
        (64, 9e-3, 7500),
        (128, 0.1, 5000),
        (256, 0.2, 4000),
        (512, 0.5, 4000),
        (1024, 1.0, 4000),
    }


def claim(difference=None):
    return Claim("a is above b", "AUC-CL, Table 0", difference=difference)


# Five pairs whose differences have mean 2 and deviation sqrt(2.5): t is 2.776, half is 1.963.
THEIRS = [60.0, 61.0, 59.0, 60.5, 62.0]
OURS = [b + d for b, d in zip(THEIRS, [0.0, 1.0, 2.0, 3.0, 4.0], strict=True)]


@pytest.mark.parametrize(
    ("shift", "difference", "holds"),
    [
        (0.0, None, True),  # [0.04, 3.96]
        (0.0, 5.0, True),  # less than the paper's, but above zero
        (-0.1, 3.0, None),  # [-0.06, 3.86] has both
        (-0.1, None, None),  # no difference of the paper's to be excluded
        (-0.1, 4.0, False),  # zero alone
        (-4.1, 3.0, False),  # [-4.06, -0.14] is below zero
        (-4.1, None, False),
    ],
)
def test_a_difference_is_judged_by_its_interval(shift, difference, holds):
    ours = [value + shift for value in OURS]
    verdict = judging.judge(claim(difference), ours, THEIRS)
    assert verdict.holds is holds
    low, high = judging.interval([a - b for a, b in zip(ours, THEIRS, strict=True)])
    assert (high - low) / 2 == pytest.approx(2.776 * math.sqrt(2.5 / 5), abs=1e-3)
    assert verdict.measured == f"{2 + shift:+.2f} [{low:+.2f}, {high:+.2f}]"
    assert judging.judge(claim(difference), THEIRS, ours).holds is not True or shift < -2


def test_a_probe_at_its_ceiling_decides_nothing():
    ours, theirs = [99.8, 99.9, 99.7], [98.9, 99.0, 98.8]
    assert judging.judge(claim(2.0), ours, theirs).holds is True
    at_top = judging.judge(claim(2.0), ours, theirs, top=100.0)
    assert at_top.holds is None and "the probe is at its ceiling: 1.10 are left" in at_top.measured
    assert judging.judge(claim(2.0), theirs, ours, top=100.0).holds is None
    assert judging.judge(claim(1.0), ours, theirs, top=100.0).holds is True


def test_one_pair_tells_nothing_and_what_is_not_finite_is_left_out():
    assert judging.judge(claim(1.0), [70.0], [60.0]) == Verdict("+10.00 (one pair)", None)
    assert judging.judge(claim(1.0), [math.nan, 70.0], [60.0, math.nan]).holds is None
    assert judging.judge(claim(1.0), [math.nan, 70.0], [60.0, 60.0]).measured.endswith(
        "+10.00 (one pair)"
    )
    assert judging.judge(claim(1.0), [None], [60.0]) == Verdict("not finite", None)
    with_lost = judging.judge(claim(), [*OURS, math.nan], [*THEIRS, 60.0])
    assert with_lost.holds is True and "1 of 6 pairs not finite" in with_lost.measured


def test_many_comparisons_are_corrected():
    pair = OURS, THEIRS
    assert judging.judge_all(claim(), {"B=16": pair}).holds is True
    # With three, each interval has 1 - 0.05 / 3: t is 3.961, and [-0.80, 4.80] has zero.
    three = judging.judge_all(claim(), dict.fromkeys(("16", "64", "256"), pair))
    assert three.holds is None and "16: +2.00 [-0.80, +4.80]" in three.measured
    clear = [b + 10 + i / 10 for i, b in enumerate(THEIRS)], THEIRS
    assert judging.judge_all(claim(), {"16": clear, "64": clear}).holds is True
    assert judging.judge_all(claim(), {"16": clear, "64": clear[::-1]}).holds is False
    assert judging.judge_all(claim(), {"16": clear, "64": pair}).holds is None


def test_what_is_similar_differs_by_little_within_the_interval():
    assert judging.similar({"x": (OURS, THEIRS)}, 4.0).holds is True
    assert judging.similar({"x": (OURS, THEIRS)}, 3.0).holds is None
    assert (
        judging.similar({"x": ([b + 9 + i / 9 for i, b in enumerate(THEIRS)], THEIRS)}, 3.0).holds
        is False
    )
    assert judging.similar({"x": ([1.0], [1.0])}, 3.0) == Verdict("x: one pair", None)


def test_summaries_are_judged_by_welchs_interval():
    ours, theirs = Summary(87.33, 1.38, 5), Summary(85.87, 1.41, 5)
    verdict = judging.judge_summaries(claim(1.62), ours, theirs)
    made = [stats.norm.ppf((np.arange(5) + 0.5) / 5) for _ in range(2)]
    made = [
        x.mean + x.deviation * v / v.std(ddof=1) for v, x in zip(made, (ours, theirs), strict=True)
    ]
    expected = stats.ttest_ind(*made, equal_var=False).confidence_interval()
    assert f"[{expected.low:+.2f}, {expected.high:+.2f}]" in verdict.measured
    assert verdict.holds is None
    assert judging.judge_summaries(claim(4.0), ours, theirs).holds is False
    assert judging.judge_summaries(claim(), ours._replace(mean=90.0), theirs).holds is True


def outcome(std, b):
    rows = [{"step": 1000, "feature_std": std, "b": b}]
    return RunResult(0, Path("nowhere"), {KNN: 10.0, LINEAR: 10.0}, rows, 1.0)


@pytest.mark.parametrize(
    ("runs", "holds"),
    [
        ([(0.1, 0.97), (0.05, 0.95)], True),
        ([(0.9, 0.17), (0.9, 0.2)], None),  # b has not arrived
        ([(0.9, 0.97), (0.9, 0.95)], False),
        ([(0.1, 0.97), (0.9, 0.95)], None),
        ([(0.1, 0.97)], None),
        ([(0.1, 0.97), (math.nan, math.nan)], None),
    ],
)
def test_a_collapse_needs_time(runs, holds):
    assert study("alpha")._collapse([outcome(*run) for run in runs]).holds is holds


def test_absolute_changes_over_batch_sizes_are_compared(tmp_path):
    module = study("batch_size")

    def seeds(*means):  # three seeds, of which the noise is the same at every size
        return {
            size: [RunResult(s, Path("x"), {KNN: m + s / 10, LINEAR: m}, [], 1.0) for s in range(3)]
            for size, m in zip((16, 64, 256), means, strict=True)
        }

    arms = {"simclr": seeds(80, 82, 84), "auc_cl": seeds(85, 84, 78)}  # good when small, bad at 256
    found = {(arm, size): runs for arm, by in arms.items() for size, runs in by.items()}
    verdicts = module._verdicts(found, tuple(arms), (16, 64, 256))
    assert verdicts["auc_cl_stable"].holds is False
    assert verdicts["auc_cl_stable"].measured.startswith("simclr changes by 4.00 ± 0.00, auc_cl")
    arms["auc_cl"] = seeds(85, 85.2, 85)
    found |= {("auc_cl", size): runs for size, runs in arms["auc_cl"].items()}
    assert module._verdicts(found, tuple(arms), (16, 64, 256))["auc_cl_stable"].holds is True


@pytest.mark.parametrize(
    ("biases", "unbiased", "root"),
    [
        ({8: 0.0, 16: 0.0, 32: 0.0}, True, None),
        ({8: 0.99, 16: 0.95, 32: 0.88}, False, True),  # falls slower than 1 / sqrt(B)
        ({8: 0.9, 16: 0.3, 32: 0.1}, False, False),
    ],
)
def test_biases_are_judged_as_measured(biases, unbiased, root):
    module = study("gradient_bias")
    of = {size: {0: bias(value, 0.01)} for size, value in biases.items()}
    verdicts = module._verdicts({"auc_cl": of, "simclr": of})
    assert verdicts["auc_cl_unbiased"].holds is unbiased
    assert verdicts.get("simclr_root", Verdict("", None)).holds is root
    assert verdicts["simclr_biased"].holds is (None if unbiased else True)
    wide = {size: {0: BiasEstimate(0.1, 0.0, 0.3, 1.0, 1.0)} for size in biases}
    assert module._verdicts({"auc_cl": wide})["auc_cl_unbiased"].holds is None


@pytest.mark.parametrize(
    ("depth", "ratio", "holds"), [(0, 1.5, True), (0, 7.0, None), (50, 7.0, False), (50, 1.1, True)]
)
def test_a_small_network_refutes_no_claim_about_time(depth, ratio, holds, monkeypatch, tmp_path):
    module = study("solver_time")
    times = {"simclr": 1.0, "mmcl_pgd": ratio, "mmcl_inv": 1.0, "decl": 1.0}
    monkeypatch.setattr(module, "_times", lambda calls: times)
    for name in ("_loss", "_step"):
        monkeypatch.setattr(module, name, lambda *arguments: None)
    net = (("net.name", "resnet"), ("net.depth", "50")) if depth else ()
    found = module.run(setting(tmp_path, batch_sizes=(32, 64), overrides=net))
    assert found.verdicts["mmcl_pgd"].holds is holds
    assert found.verdicts["decl"].holds is True


def test_toy_noise_knows_the_optimum(tmp_path):
    module = study("toy_noise")
    s1, s2 = module._optimum()
    assert s1 == pytest.approx(0.82, abs=0.005) and s2 == -s1
    slope = 1 / (1 + math.exp(2 * s1))
    assert 2 * module.REGULARISER * s1 == pytest.approx(slope)
    found = module.run(setting(tmp_path))
    assert set(found.verdicts) == set(module.CLAIMS)
    quiet = np.asarray(module._descend("decl_mean", 0.0, module.REGULARISER))[:, -1]
    np.testing.assert_allclose(quiet, np.tile([s1, s2], (module.RUNS, 1)), atol=1e-3)


def test_losses_take_turns_when_they_are_timed(monkeypatch):
    module, order = study("solver_time"), []
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    times = module._times({name: lambda name=name: order.append(name) for name in "ab"})
    assert order == list("ab") * (module.ROUNDS + 1)
    assert times == {"a": 1, "b": 1}


def some_findings(figure):
    table = Table("Numbers", ("", "x"), [("a & b", "1.00 ± 0.10")], "of <nothing>")
    verdicts = {"collapse": judging.judge(claim(), [1.0, 2.1, 3.0], [0.5, 1.4, 2.4])}
    return Findings(
        [table], [Picture("x", figure, "alt", "cap")], verdicts, {("a", 8): [1.0, math.nan]}, "here"
    )


def test_what_was_found_is_written(tmp_path):
    from matplotlib.figure import Figure

    module = study("alpha")
    path = documents.write_study(
        "alpha", "Alpha & more", setting(tmp_path), module.CLAIMS, some_findings(Figure()), ABOUT
    )
    text = path.read_text()
    for piece in ("Alpha &amp; more", "a &amp; b", "of &lt;nothing&gt;", "holds", 'alt="alt"'):
        assert piece in text
    assert (tmp_path / "alpha_x.png").read_bytes().startswith(b"\x89PNG")
    document = documents.read_document(tmp_path / "alpha.json")
    assert document["data"] == {"a 8": [1.0, None]}
    collapse = document["claims"]["collapse"]
    assert collapse["verdict"] == documents.VERDICTS[True]
    assert {key: collapse[key] for key in Claim._fields} == module.CLAIMS["collapse"]._asdict()
    assert document["claims"]["robust"]["verdict"] is None


def test_a_page_of_markdown_stands_beside_its_document(without_training, tmp_path):
    module, own = study("accuracy"), setting(tmp_path)
    found = module.run(own)
    about = {**ABOUT, "commit": "abc", "devices": "1 cpu"}
    path = documents.write_study("accuracy", "Of a | b", own, module.CLAIMS, found, about)
    page = tmp_path / "docs.md"
    documents.write_markdown(page, path.with_suffix(".json"))
    text = page.read_text()
    assert text.startswith("# Of a | b\n") and f"    {ABOUT['command']}\n" in text
    assert "scale tiny · on made up · devices 1 cpu · commit abc" in text
    [row] = [line for line in text.splitlines() if line.startswith("| tcl, batch 64, seed 2 |")]
    [tcl] = [run for run in found.tables[-1].rows if run[0] == "tcl, batch 64, seed 2"]
    assert row == f"| {' | '.join(tcl)} |" and tcl[-2:] == ("abc", "nowhere")
    logs = json.loads(page.with_suffix(".json").read_text())["data"]["logs"]
    assert [line[0] for line in logs["tcl, batch 64, seed 2"]] == list(EPOCHS)


def test_the_commit_is_that_of_a_checkout(monkeypatch, tmp_path):
    def run(*command):
        config = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *config, *command], check=True)

    monkeypatch.setattr(git, "__file__", str(tmp_path / "jaxssl" / "training" / "git.py"))
    commit = git.current_commit.__wrapped__
    assert commit() == ""
    run("init", "--quiet")
    (tmp_path / "a").write_text("1")
    run("add", "a")
    run("commit", "--quiet", "--message=a")
    clean = commit()
    assert len(clean) >= 7 and set(clean) <= set("0123456789abcdef")
    (tmp_path / "a").write_text("2")
    assert commit() == f"{clean}-dirty"


def number():
    """Of all claims."""
    return sum(len(study(name).CLAIMS) for name in NAMES) + len(UNSTUDIED_CLAIMS)


@pytest.mark.parametrize("row", UNSTUDIED_CLAIMS, ids=lambda row: row.claim.text)
def test_commands_of_claims_are_commands(row):
    words = shlex.split(row.command)
    if words[:2] == ["python", "train.py"]:
        given = [word[len("--config.") :].split("=") for word in words if word[:9] == "--config."]
        config.load(ROOT / words[words.index("--config") + 1], [tuple(pair) for pair in given])
    elif "--suite" in words:
        assert (ROOT / words[words.index("--suite") + 1]).exists()
    elif words:
        protocol, preset = words[words.index("--protocols") + 1].split(":")
        assert preset in importlib.import_module(f"jaxssl.evaluation.protocols.{protocol}").PRESETS


def test_figures_of_pages_stand_there():
    """What claims.md has of graphs.md is there, in the columns of mmcl and graphcl."""
    text = (ROOT / "docs" / "graphs.md").read_text()
    rows = [row for row in UNSTUDIED_CLAIMS if row.verdict]
    assert len(rows) == 2
    for row in rows:
        ours, theirs = re.findall(r"\d+\.\d+ ± \d+\.\d+", row.verdict.measured)
        name = re.search("on ([A-Z-]+) ", row.claim.text)[1]
        [line] = re.findall(rf"^\| {name} \|.*\d.*\|$", text, re.MULTILINE)
        assert line.index(theirs) < line.index(ours) and "(graphs.md)" in row.verdict.measured


def test_claims_are_written_from_documents_alone(tmp_path):
    from matplotlib.figure import Figure

    none = claims.write_claims(tmp_path, tmp_path / "none.md").read_text()
    measured = [row.verdict for row in UNSTUDIED_CLAIMS if row.verdict]
    assert none.count("**not yet run** |") == number() - len(measured)
    module, own = study("alpha"), setting(tmp_path / "tiny")
    own.out.mkdir()
    documents.write_study("alpha", "Alpha", own, module.CLAIMS, some_findings(Figure()), ABOUT)
    run = own.out / "runs" / "seed=0"  # whose files are no documents of studies
    run.mkdir(parents=True)
    for name in ("cell", "config", "results", "baselines"):
        (run / f"{name}.json").write_text("[]")
    lines = claims.write_claims(tmp_path, tmp_path / "c.md").read_text().splitlines()
    [row] = [line for line in lines if module.CLAIMS["collapse"].text in line]
    assert "tiny, here: +0.60 [+0.35, +0.85]" in row and "**holds**" in row
    assert ABOUT["command"] in row and f"“{module.CLAIMS['collapse'].quote}”" in row
    [row] = [line for line in lines if module.CLAIMS["robust"].text in line]
    assert row.endswith("| – | **not yet run** |")
    assert sum(line.startswith("| ") for line in lines) == number() + len(claims.PAPERS) + 1
    (tmp_path / "tiny" / "alpha.json").write_text("{")
    with pytest.raises(UserError, match=r"alpha.json is damaged"):
        claims.write_claims(tmp_path, tmp_path / "c.md")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gradient_bais"], "study 'gradient_bais' is unknown; did you mean 'gradient_bias'"),
        (["alpha", "--scale", "huge"], "--scale 'huge' is unknown; valid: paper, small, tiny"),
        (["alpha", "--batch_sizes", "8,x"], "--batch_sizes expects numbers > 0, got 8,x"),
        (["alpha", "--seeds", "0"], "flag --seeds=0"),
        (["alpha", "--methods", "simclr"], "--methods is not used by the study 'alpha'"),
        (["alpha", "--equal_steps"], "--equal_steps is not used by the study 'alpha'"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, tmp_path):
    command = [sys.executable, "-m", "jaxssl", "study", *arguments, "--out", str(tmp_path / "out")]
    out = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 2 and out.stderr.startswith("error: ") and message in out.stderr
    assert out.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_without_a_name_the_studies_are_listed():
    command = [sys.executable, "-m", "jaxssl", "study"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in out.stdout.splitlines()] == list(NAMES)


def bias(value, width=0.01):
    return BiasEstimate(value, max(value - width, 0.0), value + width, 1.0, 1.0)


def test_the_exponent_is_that_of_a_power_law():
    module = study("gradient_bias")
    law = {size: bias(3 * size**-0.7, 0.1 * size**-0.7) for size in (8, 16, 32, 64)}
    slope, half = module._exponent(law)
    assert slope == pytest.approx(-0.7) and 0 < half < 0.1
    bent = {size: bias(b.bias * (2 if size == 16 else 1), 0.01) for size, b in law.items()}
    assert module._exponent(bent)[1] > 0.3
    assert module._exponent({8: bias(0.1), 16: bias(0.05), 32: bias(0.0)}) is None


def test_gradient_bias_from_end_to_end(tmp_path, monkeypatch):
    module = study("gradient_bias")
    for name, value in {"EXAMPLES": 24, "DRAWS": 256, "VISITS": (0, 1, 2)}.items():
        monkeypatch.setattr(module, name, value)
    asked = ("simclr", "simclr_weighted", "auc_cl", "auc_cl_sum")
    found = module.run(setting(tmp_path, methods=asked, batch_sizes=(3, 6, 9)))
    assert set(found.verdicts) == {claim for claim in module.CLAIMS if "shrinks" not in claim}
    assert not found.verdicts["auc_cl_sum_unbiased"].holds  # another batch, another loss
    whole = found.data["simclr"][3][0]["bias"]
    assert found.data["simclr_weighted"][3][0]["bias"] < whole
    assert found.data["auc_cl"][3][0]["low"] == 0 < found.data["auc_cl_sum"][3][0]["low"]
    assert len(found.pictures) == 1 and "24 fixed embeddings" in found.where
    found = module.run(setting(tmp_path, methods=("decl", "dclw"), batch_sizes=(3,)))
    assert set(found.verdicts) == {"decl_shrinks"} and len(found.pictures) == 2
    with pytest.raises(UserError, match="--batch_sizes must be in 2 to 24, .* got 1"):
        module.run(setting(tmp_path, batch_sizes=(1,)))
    with pytest.raises(UserError, match="'nt_xnt' is unknown; did you mean 'nt_xent'"):
        module.run(setting(tmp_path, methods=("nt_xnt",)))
