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

from jaxssl import claims, findings, grid, stability
from jaxssl.errors import UserError
from jaxssl.grid import KNN, LINEAR, Outcome
from jaxssl.study import Findings, Picture, Setting, Table

ROOT = Path(__file__).parents[1]
SCALES = sorted(path.stem for path in (ROOT / "configs" / "studies").glob("*.py"))
NAMES = claims.names()
ABOUT = {"command": "python -m jaxssl.studies x", "seconds": "1"}
EPOCHS = (4.0, 8.0, 12.0, 16.0, 20.0)
# Studies that measure, not train: they have tests of their own.
MEASURE = {"gradient_bias", "solver_time", "toy_noise", "support_vectors"}


def study(name):
    return importlib.import_module(f"jaxssl.studies.{name}")


def setting(tmp_path, scale="tiny", **changes):
    config = ROOT / "configs" / "studies" / f"{scale}.py"
    return Setting(scale, config, "", 3, tmp_path, **changes)


def made_up(cell, seed):
    """An outcome whose figures depend on the run alone."""
    rng = np.random.default_rng(zlib.crc32(str((sorted(map(str, cell.items())), seed)).encode()))
    keys = ("feature_std", "support", "at_bound", "positive_gradient", "negative_gradient")
    history = [
        {"step": i, "epoch": epoch, KNN: 60 + i + rng.normal(), **dict.fromkeys(keys, rng.random())}
        for i, epoch in enumerate(EPOCHS)
    ]
    figures = {KNN: 80 + rng.normal(), LINEAR: 90 + rng.normal()}
    return Outcome(seed, Path("nowhere"), figures, history, 1.0)


@pytest.fixture
def without_training(monkeypatch):
    """Grids are made up; returns the cells that were asked for."""
    asked = []

    def run_grid(setting, cells, *, seeds=None):
        for cell in cells.values():
            grid.settings_of(setting, cell)  # a run would refuse a bad one
        asked.extend(cells.values())
        count = setting.seeds if seeds is None else seeds
        return {name: [made_up(cell, s) for s in range(count)] for name, cell in cells.items()}

    base = {"raw": {KNN: 50.0, LINEAR: 60.0}, "untrained": {KNN: 40.0, LINEAR: 55.0}}
    for module in (stability, *(study(name) for name in NAMES)):
        for name, stub in (
            ("run_grid", run_grid),
            ("baselines", lambda setting, outcome: base),
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


def test_the_tuned_temperature_is_chosen_on_images_set_aside(without_training, tmp_path):
    found = study("batch_size").run(setting(tmp_path, methods=("simclr_tuned",), batch_sizes=(8,)))
    searched = [cell for cell in without_training if "data.test_split" in cell]
    assert {cell["data.train_split"] for cell in searched} == {"train[:80%]"}
    assert {cell["data.test_split"] for cell in searched} == {"train[80%:100%]"}
    scores = {cell["loss.temperature"]: made_up(cell, 0).figures[KNN] for cell in searched}
    assert found.data["temperatures"][8] == max(scores, key=scores.get)


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
    verdicts = {"collapse": stability.larger([1.0, 2.0], [0.5, 1.4])}
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
    assert document["claims"]["collapse"]["verdict"] == findings.HOLDS
    assert document["claims"]["robust"]["verdict"] is None


def test_claims_are_written_from_documents_alone(tmp_path):
    from matplotlib.figure import Figure

    with pytest.raises(UserError, match="holds no document of a study"):
        claims.write_claims(tmp_path)
    module, own = study("alpha"), setting(tmp_path / "tiny")
    own.out.mkdir()
    findings.write("alpha", "Alpha", own, module.CLAIMS, some_findings(Figure()), ABOUT)
    lines = claims.write_claims(tmp_path).read_text().splitlines()
    [row] = [line for line in lines if module.CLAIMS["collapse"].text in line]
    assert "tiny, here: +0.55 ± 0.05" in row and "**holds**" in row and ABOUT["command"] in row
    [row] = [line for line in lines if module.CLAIMS["robust"].text in line]
    assert row.endswith("| – | **not yet run** |")
    number = sum(len(study(name).CLAIMS) for name in NAMES) + len(claims.ELSEWHERE)
    assert sum(line.startswith("| ") for line in lines) == number + len(claims.PAPERS) + 1
    for *_, config in claims.ELSEWHERE:
        assert not config or (ROOT / "configs" / f"{config}.py").exists()
    (tmp_path / "tiny" / "alpha.json").write_text("{")
    with pytest.raises(UserError, match=r"alpha.json is damaged"):
        claims.write_claims(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gradient_bais"], "study 'gradient_bais' is unknown; did you mean 'gradient_bias'"),
        (["alpha", "--scale", "huge"], "--scale 'huge' is unknown; valid: paper, small, tiny"),
        (["alpha", "--batch_sizes", "8,x"], "--batch_sizes expects numbers > 0, got 8,x"),
        (["alpha", "--seeds", "0"], "flag --seeds=0"),
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
