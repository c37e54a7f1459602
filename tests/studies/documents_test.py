"""The documents and pages of studies, and the page of all claims."""

import json
import math
import re
import subprocess
from typing import Any

import numpy as np
import page_cases
import pytest
import tables
from matplotlib.figure import Figure
from study_cases import EPOCHS, NAMES, claim, setting, study

from jaxssl.errors import UserError
from jaxssl.report import markdown
from jaxssl.studies import claims, documents, verdicts
from jaxssl.studies.study import (
    Claim,
    Findings,
    Picture,
    Table,
    Verdict,
    claims_file,
    read_claims,
)
from jaxssl.training.output import console, git

ABOUT = {"command": "jaxssl study x", "seconds": "1", "version": "0.2.0", "commit": "0a1b2c3d"}
WORDS = ["holds", "smaller than claimed", "opposite", "does not hold", "cannot be told"]
WORDS += ["not measured"]
PLACES = {  # all tables, figures and algorithms of the papers
    "AUC-CL": ["Algorithm 1", "Fig. 1", "Fig. 2", "Fig. 3", *(f"Table {n}:" for n in range(1, 12))],
    "MMCL": ["Algorithm 1", *(f"Fig. {n}" for n in ("1", "2", "3a", "3b", "3c", "4"))]
    + [f"Table {n}" for n in range(1, 9)],
    "DeCL": ["Algorithm 1", "Fig. 1", "Fig. 2", *(f"Table {n}" for n in range(1, 7))],
    "TCL": ["Fig. 1.1", *(f"Fig. 5.{n}" for n in range(1, 9))]
    + ["Table 5.1", "Table 5.2", "Table A.1"],
}


def some_findings(figure):
    table = Table("Numbers", ("", "x"), [("a & b", "1.00 ± 0.10")], "of <nothing>")
    judged = {"collapse": verdicts.judge(claim(), [1.0, 2.1, 3.0], [0.5, 1.4, 2.4])}
    data: Any = {("a", 8): [1.0, math.nan]}
    return Findings([table], [Picture("x", figure, "alt", "cap")], judged, data, "here")


def test_study_writes_an_html_page_pictures_and_a_json_document(tmp_path):
    module = study("alpha")
    rest = setting(tmp_path), module.CLAIMS, some_findings(Figure()), ABOUT
    path = documents.write_study("alpha", "Alpha & more", *rest)
    text = path.read_text()
    for piece in ("Alpha &amp; more", "a &amp; b", "of &lt;nothing&gt;", "holds", 'alt="alt"'):
        assert piece in text
    assert (tmp_path / "alpha_x.png").read_bytes().startswith(b"\x89PNG")
    document = documents.read_document(tmp_path / "alpha.json")
    assert document["data"] == {"a 8": [1.0, None]}
    collapse = document["claims"]["collapse"]
    assert collapse["verdict"] == "holds"
    assert {key: collapse[key] for key in Claim._fields} == module.CLAIMS["collapse"]._asdict()
    assert document["claims"]["robust"]["verdict"] is None


TWO_CLAIMS = {
    "first": Claim("a is above b", "MMCL, Table 1", "far above", "3.0"),
    "second": Claim("c is above d", "DeCL, Table 2"),
    "third": Claim("e is above f", "ours, no paper"),
}
CELLS = [
    ["a is above b", "“far above” 3.0", "MMCL, Table 1", "+1.00", "holds"],
    ["c is above d", "–", "DeCL, Table 2", "-2.00", "does not hold"],
    ["e is above f", "–", "ours, no paper", "+0.10", "cannot be told"],
]
NUMBERS = Table("Numbers", ("", "x 1", "x 2"), [("a", "1.00", "2.00"), ("b", "3.00", "–")], "note")


@pytest.fixture
def judged():
    """Return findings in which each claim has another verdict."""
    holds = {"first": (True, "+1.00"), "second": (False, "-2.00"), "third": (None, "+0.10")}
    judged = {key: Verdict(text, value) for key, (value, text) in holds.items()}
    return Findings([NUMBERS], (), judged, {}, "here")


def test_study_page_tables_have_every_cell_below_its_heading(judged, tmp_path):
    page = documents.write_study("x", "X", setting(tmp_path), TWO_CLAIMS, judged, ABOUT)
    heading = ["claim", "the paper", "source", "measured", "verdict"]
    assert page_cases.tables(page, "claims") == [[heading, *CELLS]]
    numbers = [list(NUMBERS.heading), *map(list, NUMBERS.rows)]
    assert page_cases.tables(page, "results") == [numbers]
    documents.write_markdown(tmp_path / "x.md", page.with_suffix(".json"))
    written = (tmp_path / "x.md").read_text()
    assert tables.tables(written) == {"": numbers[1:]} and "|  | x 1 | x 2 |" in written
    for row in CELLS:
        assert claim_section(row, row[3]) in written


def claim_section(row, measured):
    """Return the beginning of a claim's section in Markdown."""
    text, paper, source, _, verdict = row
    quote = f"{paper} ({source})\n\n" if paper != "–" else ""
    return f"### {text}\n\n{quote}- **{verdict}**: {measured}"


def test_printed_study_tables_have_every_cell_below_its_heading(judged, monkeypatch, capsys):
    monkeypatch.setattr(console.screen, "_width", 200)
    documents.print_findings(TWO_CLAIMS, judged)
    text = capsys.readouterr().out
    assert tables.printed(text) == [list(NUMBERS.heading), *map(list, NUMBERS.rows)]
    lines = [line for line in text.splitlines() if " is above " in line]
    assert lines == [f"{row[4]}: {row[0]} ({row[2]}): {row[3]}" for row in CELLS]


@pytest.mark.long
def test_claims_page_lists_measured_claims_first_below_each_paper(judged, tmp_path):
    documents.write_study("alpha", "X", setting(tmp_path), TWO_CLAIMS, judged, ABOUT)
    text = claims.write_claims(tmp_path, tmp_path / "c.md").read_text()
    for paper, row in zip(("MMCL (", "DeCL (", "Our own "), CELLS, strict=True):
        [section] = [part for part in text.split("\n## ") if part.startswith(paper)]
        expected = claim_section(row, f"tiny [1]: {row[3]}")
        assert section.partition("\n")[2].lstrip().startswith(expected)
    rows = {name: cells for cells in tables.tables(text)["paper"] for name in [cells[0].split()[0]]}
    assert [int(rows["MMCL"][1]), int(rows["DeCL"][4]), int(rows["Our"][5])] == [1, 1, 1]
    assert f"| paper | {' | '.join(WORDS)} |" in text
    for cells in rows.values():
        sections = [part for part in text.split("\n## ") if part.startswith(f"{cells[0]}\n")]
        counts = ["".join(sections).count(f"- **{verdict}**") for verdict in WORDS[:-1]]
        assert counts == list(map(int, cells[1:-1]))


def test_document_is_not_replaced_by_one_that_lacks_its_runs(judged, tmp_path):
    runs = [{"cell": ["a", 8], "seed": seed, "config": {}} for seed in range(3)]
    of = lambda some: judged._replace(data={"config": {}, "runs": some})  # noqa: E731
    write = lambda found: documents.write_study(  # noqa: E731
        "alpha", "X", setting(tmp_path), TWO_CLAIMS, found, ABOUT
    )
    write(of(runs[:2]))
    write(of(runs))
    with pytest.raises(UserError, match="alpha.json has 2 runs that this command lacks"):
        write(of(runs[:1]))
    documents.write_study("beta", "X", setting(tmp_path), TWO_CLAIMS, of(runs[:1]), ABOUT)
    with pytest.raises(UserError, match="alpha.json has 2 runs that this command lacks"):
        documents.write_markdown(tmp_path / "alpha.md", tmp_path / "beta.json")
    with pytest.raises(UserError, match="alpha.json is of the study 'alpha'; write elsewhere"):
        documents.check_replaceable(tmp_path / "alpha.json", setting(tmp_path), "beta")


def test_equal_verdicts_of_two_studies_count_once(judged, tmp_path):
    for name in ("alpha", "beta"):
        documents.write_study(name, "X", setting(tmp_path), TWO_CLAIMS, judged, ABOUT)
    text = claims.write_claims(tmp_path, tmp_path / "c.md").read_text()
    assert "tiny [1]" in text and "tiny [2]" not in text


def test_claims_page_leaves_out_documents_of_a_part_of_the_runs_of_another(judged, tmp_path):
    runs = [{"cell": ["a", 8], "seed": seed, "config": {"seed": seed}} for seed in range(4)]
    selected = {
        "alpha": ({"epochs": 3}, runs[:3]),
        "alpha-part": ({"epochs": 3}, runs[:2]),
        "alpha-others": ({"epochs": 3}, runs[3:]),
        # Keys with one value in all runs are in the document's own config.
        "alpha-seed": ({"epochs": 3, "seed": 1}, [{**runs[1], "config": {}}]),
        "alpha-same": ({}, [{**run, "config": {"epochs": 3, **run["config"]}} for run in runs[:3]]),
        "alpha-longer": ({"epochs": 4}, runs[:2]),
    }
    for name, (shared, some) in selected.items():
        found = judged._replace(data={"config": shared, "runs": some}, where=name)
        documents.write_study(name, "X", setting(tmp_path), TWO_CLAIMS, found, ABOUT)
    text = claims.write_claims(tmp_path, tmp_path / "c.md").read_text()
    shown = [name for name in selected if f"tiny, {name}, 0.2.0" in text]
    # Of the same runs, the document whose path comes first is kept.
    assert shown == ["alpha-others", "alpha-same", "alpha-longer"]


def test_claim_that_any_study_measured_does_not_count_as_not_measured(judged, tmp_path):
    measured = {"first": read_claims("accuracy")["printed_above_simclr"]}
    found = judged._replace(verdicts={"first": judged.verdicts["first"]})
    documents.write_study("batch_size", "X", setting(tmp_path), measured, found, ABOUT)
    page = claims.write_claims(tmp_path, tmp_path / "c.md").read_text()
    rows = {row[0].split()[0]: row[1:] for row in tables.tables(page)["paper"]}
    expected = [claim for claim in ALL_CLAIMS if claim.source.startswith("AUC-CL, ")]
    assert [int(number) for number in rows["AUC-CL"]] == [1, 0, 0, 0, 0, len(expected) - 1]


def test_study_documents_have_null_for_numbers_that_are_not_finite():
    data = {"a": np.float32("nan"), "b": [np.float64("inf"), np.int32(2), True], "c": (math.nan,)}
    assert documents.to_json(data) == {"a": None, "b": [None, 2, True], "c": [None]}


def test_pipe_characters_in_markdown_table_cells_are_escaped():
    text = markdown.markdown_table(("a", "b"), [("x|y", "z")])
    assert text == "| a | b |\n|---|---|\n| x\\|y | z |\n"


def test_markdown_page_is_written_beside_its_document(trained_cells, tmp_path):
    module, options = study("accuracy"), setting(tmp_path)
    result = module.run(options)
    about = {**ABOUT, "commit": "abc", "devices": "1 cpu"}
    path = documents.write_study("accuracy", "Of a | b", options, module.CLAIMS, result, about)
    page = tmp_path / "docs.md"
    documents.write_markdown(page, path.with_suffix(".json"))
    text = page.read_text()
    assert text.startswith("# Of a | b\n") and f"    {ABOUT['command']}\n" in text
    assert "scale tiny · on made up · devices 1 cpu · commit abc" in text
    [row] = [line for line in text.splitlines() if line.startswith("| tcl, batch 64, seed 2 |")]
    [tcl] = [run for run in result.tables[-1].rows if run[0] == "tcl, batch 64, seed 2"]
    assert row == f"| {' | '.join(tcl)} |" and tcl[-2:] == ("abc", "nowhere")
    runs = json.loads(page.with_suffix(".json").read_text())["data"]["runs"]
    [log] = [run for run in runs if run["cell"] == ["tcl", 64] and run["seed"] == 2]
    assert [line["epoch"] for line in log["history"]] == list(EPOCHS)


def test_study_document_has_the_commit_of_the_checkout(monkeypatch, tmp_path):
    def run(*command):
        config = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *config, *command], check=True)

    monkeypatch.setattr(git, "__file__", f"{tmp_path}/jaxssl/training/output/git.py")
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


ALL_CLAIMS = [claim for name in NAMES for claim in read_claims(name).values()]
ALL_CLAIMS += [claim for claim, _ in claims.read_unstudied_claims()]


def test_claims_page_is_written_from_documents_alone(tmp_path):
    claims.write_claims(tmp_path, tmp_path / "none.md")
    papers = " ".join((tmp_path / "papers.md").read_text().split())
    words = ("**not measured**", "**needs a GPU: ", "**needs a trained run**")
    assert sum(map(papers.count, words)) == len(ALL_CLAIMS)
    first = "Table 3: Linear, CIFAR-10, ResNet-18, batch 128, 500 epochs. **needs a GPU: 0.3"
    assert first in papers
    for paper, places in PLACES.items():
        section = papers.partition(f"## {paper} (")[2].partition(" ## ")[0]
        assert not [place for place in places if f"- {place}" not in section], paper
    assert "`jaxssl train --config mmcl:cifar100_pgd`, cifar100, `linear:hcl_quirks`" in papers
    module, options = study("alpha"), setting(tmp_path / "tiny")
    options.out.mkdir()
    documents.write_study("alpha", "Alpha", options, module.CLAIMS, some_findings(Figure()), ABOUT)
    run = options.out / "runs" / "seed=0"  # JSON files of runs are no documents
    run.mkdir(parents=True)
    for name in ("cell", "config", "results", "baselines"):
        (run / f"{name}.json").write_text("[]")
    page = claims.write_claims(tmp_path, tmp_path / "c.md").read_text()
    assert max(map(len, re.findall(r"^[^#\n].*", page, re.MULTILINE))) <= 100
    sections = {section.partition("\n")[0]: section for section in page.split("\n### ")[1:]}
    section = " ".join(sections[module.CLAIMS["collapse"].text].split())
    assert "- **holds**: tiny [1]: +0.60 [+0.35, +0.85]" in section
    listed = "- **[1]** tiny, here, 0.2.0 at 0a1b2c3d ([document](tiny/alpha.json)):"
    listed += f" `{ABOUT['command']}`"
    assert listed in section and f"“{module.CLAIMS['collapse'].quote}”" in section
    assert module.CLAIMS["robust"].text not in sections
    assert page.count("\n- **") == 2 + len(WORDS)
    papers = (tmp_path / "papers.md").read_text()
    assert papers.count("\n- ") == len(ALL_CLAIMS) + len(claims_file()["elements"])
    assert "Table 11: " + module.CLAIMS["robust"].text[:40] in papers
    counts = [row[1:] for row in tables.tables(page)["paper"]]
    assert sum(int(number) for row in counts for number in row) == len(ALL_CLAIMS)
    assert "1 claims are tested, with 1 verdicts." in page
    for text, reason in (("{", "Expecting property name"), ("[]", "is not the document of a st")):
        (tmp_path / "tiny" / "alpha.json").write_text(text)
        with pytest.raises(UserError, match=rf"alpha.json is damaged \(.*{reason}"):
            claims.write_claims(tmp_path, tmp_path / "c.md")


@pytest.mark.parametrize(
    ("folder", "page", "message"),
    [
        ("missing", "c.md", "missing is no folder; name the folder .* with --out"),
        ("", "papers.md", "papers.md will hold all claims; give --page another name"),
    ],
)
def test_claims_page_of_no_folder_or_named_papers_is_not_written(tmp_path, folder, page, message):
    with pytest.raises(UserError, match=message):
        claims.write_claims(tmp_path / folder, tmp_path / page)
    assert not any(tmp_path.iterdir())


def test_claims_page_does_not_replace_another_page_named_papers(tmp_path):
    (tmp_path / "papers.md").write_text("my notes")
    with pytest.raises(UserError, match=r"papers.md would be replaced, and is another page"):
        claims.write_claims(tmp_path, tmp_path / "c.md")
    assert [path.name for path in tmp_path.iterdir()] == ["papers.md"]
