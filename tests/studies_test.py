"""Every study on made-up figures, on every scale; and the command as users meet it."""

import importlib
import json
import math
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from jaxssl import claims, findings, grid, record, stability
from jaxssl.bias import Bias
from jaxssl.errors import UserError
from jaxssl.grid import KNN, LINEAR, Outcome
from jaxssl.studies import names
from jaxssl.study import Findings, Picture, Setting, Table

ROOT = Path(__file__).parents[1]
SCALES = sorted(path.stem for path in (ROOT / "configs" / "studies").glob("*.py"))
NAMES = names()
ABOUT = {"command": "python -m jaxssl.studies x", "seconds": "1"}
EPOCHS = (4.0, 8.0, 12.0, 16.0, 20.0)
# Studies that measure, not train: they have tests of their own.
MEASURE = {"gradient_bias", "solver_time", "toy_noise", "support_vectors"}


def study(name):
    return importlib.import_module(f"jaxssl.studies.{name}")


def setting(tmp_path, scale="tiny", **changes):
    config = ROOT / "configs" / "studies" / f"{scale}.py"
    return Setting(scale, config, "", 3, tmp_path, **changes)


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
    return Outcome(seed, Path("nowhere"), figures, history, 1.0, "abc")


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
            grid.settings_of(setting, cell)  # a run would refuse a bad one
        asked.extend(cells.values())
        count = setting.seeds if seeds is None else seeds
        return {
            name: [made_up(cell, s, lost) for s in range(count)] for name, cell in cells.items()
        }

    base = {"raw": {KNN: 50.0, LINEAR: 60.0}, "untrained": {KNN: 40.0, LINEAR: 55.0}}
    for module in (grid, stability, *(study(name) for name in NAMES)):
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
    found = study(name).run(setting(tmp_path, scale))
    assert set(found.verdicts) == set(study(name).CLAIMS)
    assert without_training
    for table in found.tables:
        assert {len(row) for row in table.rows} == {len(table.heading)}
    json.dumps(findings._plain(found.data), allow_nan=False)


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
        assert verdict.holds is None or "one pair" not in verdict.figure


@pytest.mark.parametrize("name", NAMES)
def test_a_study_says_what_it_is(name):
    module = study(name)
    assert len(module.__doc__.splitlines()[0]) <= 100
    papers = {*claims.PAPERS, "ours"}
    for claim in module.CLAIMS.values():
        assert claim.source.split(",")[0] in papers, claim


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
    verdicts = {"collapse": stability.larger([1.0, 2.1, 3.0], [0.5, 1.4, 2.4])}
    return Findings(
        [table], [Picture("x", figure, "alt", "cap")], verdicts, {("a", 8): [1.0, math.nan]}, "here"
    )


def test_what_was_found_is_written(tmp_path):
    from matplotlib.figure import Figure

    module = study("alpha")
    path = findings.write(
        "alpha", "Alpha & more", setting(tmp_path), module.CLAIMS, some_findings(Figure()), ABOUT
    )
    text = path.read_text()
    for piece in ("Alpha &amp; more", "a &amp; b", "of &lt;nothing&gt;", "holds", 'alt="alt"'):
        assert piece in text
    assert (tmp_path / "alpha_x.png").read_bytes().startswith(b"\x89PNG")
    document = findings.read(tmp_path / "alpha.json")
    assert document["data"] == {"a 8": [1.0, None]}
    assert document["claims"]["collapse"]["verdict"] == findings.WORDS[True]
    assert document["claims"]["robust"]["verdict"] is None


def test_a_page_of_markdown_stands_beside_its_document(without_training, tmp_path):
    module, own = study("accuracy"), setting(tmp_path)
    found = module.run(own)
    about = {**ABOUT, "commit": "abc", "devices": "1 cpu"}
    path = findings.write("accuracy", "Of a | b", own, module.CLAIMS, found, about)
    page = tmp_path / "docs.md"
    findings.write_markdown(page, path.with_suffix(".json"))
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

    monkeypatch.setattr(record, "__file__", str(tmp_path / "jaxssl" / "record.py"))
    commit = record.commit.__wrapped__
    assert commit() == ""
    run("init", "--quiet")
    (tmp_path / "a").write_text("1")
    run("add", "a")
    run("commit", "--quiet", "--message=a")
    clean = commit()
    assert len(clean) >= 7 and set(clean) <= set("0123456789abcdef")
    (tmp_path / "a").write_text("2")
    assert commit() == f"{clean}-dirty"


def test_claims_are_written_from_documents_alone(tmp_path):
    from matplotlib.figure import Figure

    with pytest.raises(UserError, match="holds no document of a study"):
        claims.write_claims(tmp_path, tmp_path / "c.md")
    module, own = study("alpha"), setting(tmp_path / "tiny")
    own.out.mkdir()
    findings.write("alpha", "Alpha", own, module.CLAIMS, some_findings(Figure()), ABOUT)
    run = own.out / "runs" / "seed=0"  # whose files are no documents of studies
    run.mkdir(parents=True)
    for name in ("cell", "config", "results", "baselines"):
        (run / f"{name}.json").write_text("[]")
    lines = claims.write_claims(tmp_path, tmp_path / "c.md").read_text().splitlines()
    [row] = [line for line in lines if module.CLAIMS["collapse"].text in line]
    assert "tiny, here: +0.60 ± 0.06" in row and "**holds**" in row and ABOUT["command"] in row
    [row] = [line for line in lines if module.CLAIMS["robust"].text in line]
    assert row.endswith("| – | **not yet run** |")
    number = sum(len(study(name).CLAIMS) for name in NAMES) + len(claims.ELSEWHERE)
    assert sum(line.startswith("| ") for line in lines) == number + len(claims.PAPERS) + 1
    for *_, config in claims.ELSEWHERE:
        assert not config or (ROOT / "configs" / f"{config}.py").exists()
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
        (["alpha", "--methods", "simclr"], "--methods: the study 'alpha' has no use for it"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, tmp_path):
    command = [sys.executable, "-m", "jaxssl.studies", *arguments, "--out", str(tmp_path / "out")]
    out = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 2 and out.stderr.startswith("error: ") and message in out.stderr
    assert out.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_without_a_name_the_studies_are_listed():
    command = [sys.executable, "-m", "jaxssl.studies"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in out.stdout.splitlines()] == NAMES


def bias(value, width=0.01):
    return Bias(value, max(value - width, 0.0), value + width, 1.0, 1.0)


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
