"""The pages in a headless Chromium, at the width of a desktop and of a phone."""

import itertools
import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

import axe_core_python
import pytest
from workdir_cases import CONFIG, METRICS, ROW, changed, gallery_of, write

from jaxssl.report import run_report
from jaxssl.report.comparison import write_comparison
from jaxssl.studies import documents
from jaxssl.studies.plots import plot_lines
from jaxssl.studies.study import Claim, Findings, Picture, Setting, Table, Verdict

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = 1280, 360
LONG = "a_long_name_of_a_class_that_nobody_would_break_{}"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

AXE = Path(axe_core_python.__file__).with_name("axe.min.js")
# `prefers-color-scheme` of each colour scheme, in the order of Chromium's PreferredColorScheme.
SCHEMES = "dark", "light"
# A frame reports to its parent its width, the width of its content, and accessibility problems.
MEASURE = """<script>
const all = [...document.querySelectorAll('*')];
const count = (items, holds) => [...items].filter(holds).length;
const scrolls = (e) => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
for (const e of document.querySelectorAll('details')) e.open = true;
const measures = {
  width: window.innerWidth,
  content: document.documentElement.scrollWidth,
  regions: document.querySelectorAll('.scroll').length,
  scrolling: count(all, (e) => scrolls(e) && e.scrollWidth > e.clientWidth),
  unreachable: count(all, (e) => scrolls(e) && e.tabIndex !== 0),
  unnamed: count(document.images, (e) => !e.alt)
    + document.querySelectorAll('.scroll:not([aria-label])').length,
  broken: count(document.images, (e) => !e.complete || !e.naturalWidth),
  outside: count(performance.getEntriesByType('resource'), (e) => !e.name.startsWith('data:')),
};
axe.run({resultTypes: ['violations']}).then(({violations}) => {
  measures.violations = violations.flatMap(
    ({id, nodes}) => nodes.map((x) => `${id}: ${x.html.slice(0, 80)} ${x.any[0]?.message}`));
  measures.dark = matchMedia('(prefers-color-scheme: dark)').matches;
  parent.document.body.append(Object.assign(document.createElement('pre'),
    {textContent: JSON.stringify(measures)}));
});
</script>"""


def measure(html: str, tmp_path, scheme: str) -> list[dict]:
    """Measure a page at `WIDTHS`, in frames, as a Chromium window is at least 500 pixels wide."""
    assert "<script" not in html
    scripts = f"<script>{AXE.read_text(encoding='utf-8')}</script>{MEASURE}"
    inside = escape(html.replace("</body>", f"{scripts}</body>"))
    frames = (f'<iframe width="{w}" height="900" srcdoc="{inside}"></iframe>' for w in WIDTHS)
    (tmp_path / "frames.html").write_text(f"<!DOCTYPE html><body>{''.join(frames)}</body>")
    options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1400,1000"
    options += f" --blink-settings=preferredColorScheme={SCHEMES.index(scheme)}"
    options += " --virtual-time-budget=60000"  # virtual time for all frames to finish
    command = [CHROMIUM, *options.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command.append((tmp_path / "frames.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    texts = re.findall(r"<pre>(.*?)</pre>", done.stdout)
    assert len(texts) == len(WIDTHS), done.stderr
    return sorted((json.loads(unescape(text)) for text in texts), key=lambda x: -x["width"])


def comparison(folder, count):
    """Write a comparison of many runs with long names and settings."""
    runs = []
    for i in range(count):
        row = changed(ROW, value=90.0 + i, loss=LONG.format(i), dataset=LONG.format(i % 2))
        config = changed(CONFIG, batch_size=i, loss={"name": LONG.format(i), "list": [0.5] * 30})
        runs.append(write(folder / LONG.format(i), config, [row, changed(row, metric=LONG)]))
    return write_comparison(runs, folder / "compare.html")


def run_page(folder, classes):
    """Write the report of a run with all sections."""
    rows = [changed(ROW, features=kind, value=90.0) for kind in ("raw", "untrained", "pretrained")]
    config = changed(CONFIG, loss={"name": "mmcl", "gamma": list(range(50))})
    arrays = gallery_of(classes, LONG, side=32)
    return run_report.write_report(write(folder / "run", config, rows, METRICS, gallery=arrays))


def study_page(folder):
    """Write the page of a study with a wide table and a long command."""
    claims = {"x": Claim(LONG, "no paper"), "y": Claim("untold", "no paper")}
    row = [LONG, *["90.00 ± 1.00"] * 12]
    tables = [Table(LONG.format(i), ("", *map(str, range(12))), [row], "note") for i in range(3)]
    picture = Picture("x", plot_lines({"a": ((1, 2), [[1.0], [2.0]])}, "x", "y"), "alt", "caption")
    study = Findings(tables, [picture], {"x": Verdict(LONG, True)}, {}, "here")
    setting = Setting("tiny", folder, "", 3, folder)
    return documents.write_study("x", LONG, setting, claims, study, {"command": f"{LONG} " * 9})


CASES = list(itertools.product(["10 classes", "30 classes", "comparison", "study"], SCHEMES))


@pytest.mark.parametrize(
    ("page", "scheme"), [CASES[0], *(pytest.param(*x, marks=pytest.mark.long) for x in CASES[1:])]
)
def test_report_page_fits_the_screen_and_is_accessible(page, scheme, tmp_path):
    number = int(page.split()[0]) if "classes" in page else 0
    if page == "study":
        path = study_page(tmp_path)
    else:
        path = run_page(tmp_path, number) if number else comparison(tmp_path, 7)
    desktop, phone = measure(path.read_text(encoding="utf-8"), tmp_path, scheme)
    for measures, width in ((desktop, WIDTHS[0]), (phone, WIDTHS[1])):
        assert measures["width"] == width and measures["content"] <= width, measures
        assert measures["unreachable"] == 0 and measures["regions"] >= 4, measures
        assert measures["unnamed"] == measures["broken"] == measures["outside"] == 0, measures
        assert measures["dark"] == (scheme == "dark"), measures
        assert not measures["violations"], "\n".join(measures["violations"])
    assert phone["scrolling"] > 0  # wide tables scroll in their own regions
