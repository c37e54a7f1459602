"""The benchmark record's pages: merging of outputs, tables, and summaries of traces."""

import pytest
import record as book
import record_tables
import record_trace
from record_cases import a_record, a_run, figure
from record_plan import make_plan

from jaxssl.errors import UserError

pytestmark = pytest.mark.fast

# ---- Merging measurements into docs/record.json


@pytest.fixture
def out(tmp_path):
    """Return an output folder of a call."""
    folder = tmp_path / "out"
    folder.mkdir()
    runs = {f"run/simclr-b64-s{seed}": a_run(80.0 + 2 * seed) for seed in (0, 1)}
    lost = {"run/byol-b64-s0": a_run(80.0, last=None, best=None)}
    check = {"cases": 3, "beyond": ["tcl"], "largest": 0.1, "bound": 1e-3}
    row = {"network": "tiny", "batch": 16, "precision": "bf16", "host": [0.001]}
    row |= {"seconds": {"step": [0.004, 0.002, 0.003], "matrix product": [1.0]}}
    row |= {"images_per_second": [4e3], "share_of_peak": [0.25]}
    row |= {"torch_ratio": [1.5], "graph_ratio": [1.25]}
    shares = {**dict.fromkeys(record_trace.SHOWN, 0.2), "kernels": 12.0, "ms": 3.0}
    layer = {"layer": {"ours": [0.002]}, "step": {"ours": [0.5]}, "refused": {"cudnn": "odd"}}
    speed = {
        "check/losses-1": figure({"values": check}),
        "speed/tiny-16-bf16": figure(row),
        "trace/tiny-16-bf16": figure(shares),
        "attention/vit": figure(layer),
    }
    failed = {"run/tcl-b64-s0": {"commit": "abc", "reason": "error: no such thing"}}
    book.write_record(folder / "figures.json", a_record(runs | lost | speed, failed=failed))
    return folder


def texts(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_merging_a_benchmark_record_twice_changes_nothing(out, tmp_path, capsys):
    pages = tmp_path / "pages"
    book.merge(out, pages, "tiny")
    said = capsys.readouterr().out
    assert "7 new results" in said and "failed run/tcl-b64-s0: error: no such thing" in said
    first = texts(pages)
    assert set(first) == {"record.json", "performance.md", "measurements.md"}
    book.merge(out, pages, "tiny")
    assert texts(pages) == first and "0 new results" in capsys.readouterr().out
    merged = book.read_record(pages / "record.json", "tiny")
    order = [p.name for p in make_plan("tiny") if p.name in merged["figures"]]
    assert [name for name in merged["figures"] if name in order] == order


def test_merging_keeps_the_recorded_result_over_one_of_another_commit(out, tmp_path, capsys):
    pages = tmp_path / "pages"
    book.merge(out, pages, "tiny")
    first = texts(pages)
    name = "run/simclr-b64-s0"
    book.write_record(out / "figures.json", a_record({name: {**a_run(99.0), "commit": "def"}}))
    book.merge(out, pages, "tiny")
    assert texts(pages) == first
    message = f"{name}: record.json keeps the result of commit abc, not that of def"
    assert message in capsys.readouterr().out


def test_runs_on_different_data_are_not_merged(out, tmp_path):
    pages, name = tmp_path / "pages", "run/tcl-b64-s1"
    book.merge(out, pages, "tiny")
    first = texts(pages)
    book.write_record(out / "figures.json", a_record({name: a_run(80.0, data="cifar10")}))
    with pytest.raises(UserError, match="one data set and length, got cifar10, 4 .*; digits, 4 ep"):
        book.merge(out, pages, "tiny")
    assert texts(pages) == first


def test_record_without_a_speed_or_with_a_refused_attention_has_one_row_for_each(out, tmp_path):
    layer = {"layer": {"cudnn": [0.002]}, "step": {}, "refused": {"cudnn": "odd"}}
    run = a_run(80.0, images_per_second=None)
    pages = record_tables.pages(a_record({"attention/vit": figure(layer), "run/tcl-b64-s0": run}))
    assert pages["performance.md"].count("| cudnn") == 1
    assert "| 3.0 | – | abc |" in pages["measurements.md"]


def test_unfinished_benchmark_run_is_recorded_until_it_is_finished(out, tmp_path):
    pages, name = tmp_path / "pages", "run/tcl-b64-s1"
    stopped = {name: {**figure(), "share": 0.5}}
    book.write_record(out / "figures.json", a_record(unfinished=stopped))
    book.merge(out, pages, "tiny")
    assert book.read_record(pages / "record.json", "tiny")["unfinished"] == stopped
    book.write_record(out / "figures.json", a_record({name: a_run(80.0)}))
    book.merge(out, pages, "tiny")
    assert book.read_record(pages / "record.json", "tiny")["unfinished"] == {}


def test_merging_a_record_changes_only_the_marked_part_of_a_docs_page(tmp_path):
    path = tmp_path / "measurements.md"
    path.write_text("# Methods\n\nBefore.\n")
    record_tables.insert(path, r"one \1" + "\n")
    assert path.read_text().startswith("# Methods\n\nBefore.\n\n## On an accelerator")
    path.write_text(path.read_text() + "\nAfter.\n")
    before, after = path.read_text().split(r"one \1")
    record_tables.insert(path, "two\n")
    assert path.read_text() == f"{before}two{after}"
    record_tables.insert(path, "")
    assert "Nothing has been measured yet." in path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
        ('{"figures": {"a": {}}}', "the result a of record.json lacks the field 'commit'"),
        ('{"figures": {"a": 1}}', "is damaged"),
        ('{"scale": "paper", "figures": {}}', "must be a record of scale 'tiny', got 'paper'"),
    ],
)
def test_file_that_is_no_benchmark_record_is_rejected(text, message, out, tmp_path):
    (out / "figures.json").write_text(text)
    with pytest.raises(UserError, match=message):
        book.merge(out, tmp_path / "pages", "tiny")
    assert not (tmp_path / "pages").exists()


# ---- Tables of the documentation pages


def row_of(text, first):
    [row] = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in row.split("|")[2:-1]]


def test_record_pages_have_tables_of_the_measurements(out):
    pages = record_tables.pages(book.read_record(out / "figures.json", "tiny"))
    results, speed = pages["measurements.md"], pages["performance.md"]
    methods, batches = results.split("**Runs**")
    last = ["81.00 ± 1.41", "80.00 ± 1.41", "95.00 ± 0.00"]
    assert row_of(methods, "SimCLR") == [*last, "82.00 ± 1.41", "2"]
    assert row_of(batches, "simclr-b64-s1")[0] == "82.00"
    assert row_of(batches, "byol-b64-s0")[:3] == ["–"] * 3  # byol's loss was not finite
    assert row_of(speed, "losses") == ["values", "3", "1.0e-01", "1.0e-03", "tcl"]
    tables = speed.split("Milliseconds of the parts")
    images = ["4000 [4000-4000]", "25.0 [25.0-25.0]", "1.50 [1.50-1.50]"]
    assert row_of(tables[0], "tiny, 16, bf16") == images
    assert "PyTorch with CUDA graphs / ours:\n\n- tiny, 16, bf16: 1.25 [1.25-1.25]" in tables[0]
    parts = tables[1].split("**Where the time goes.**")[0]
    assert row_of(parts, "tiny, 16, bf16") == ["3.00", "1.00"]  # median times in ms
    assert row_of(speed, "ours") == ["2.00", "500.00", ""]
    assert row_of(speed, "cudnn") == ["–", "–", "odd"]
    for page in pages.values():
        assert "- some GPU, 16 cores; jax 1.2; commit abc" in page
        assert max(map(len, page.splitlines())) <= 100


def test_empty_benchmark_record_gives_empty_pages():
    assert set(record_tables.pages(a_record()).values()) == {""}


# ---- Summaries of profiler traces

PROGRAM = """
ENTRY %main (x: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0), metadata={op_name="x"}
  %cudnn-conv.5 = f32[8]{0} custom-call(%x.1), metadata={op_name="jit(f)/conv_general_dilated"}
  %loop_fusion.2 = f32[8]{0} fusion(%cudnn-conv.5), metadata={op_name="jit(f)/BatchNorm_0/mul"}
  ROOT %copy.3 = f32[8]{0} copy(%loop_fusion.2)
}
"""


def events(process, lane, kernels):
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": process}}
    yield {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": lane}}
    for name, start, duration, *args in kernels:
        event = {"ph": "X", "pid": 1, "tid": 7, "name": name, "ts": start, "dur": duration}
        yield {**event, "args": {"hlo_op": args[0]}} if args else event


def test_gpu_profiler_trace_is_summarised_by_groups_of_kernels():
    kernels = [
        ("sm90_xmma_fprop", 0.0, 40.0, "cudnn-conv.5"),
        ("loop_fusion_2", 50.0, 20.0),  # kernel named after its HLO instruction
        ("loop_fusion_2", 60.0, 20.0),  # overlaps the previous kernel by half
        ("cutlass_gemm", 80.0, 10.0),  # from a CUDA graph, which hides its operation
        ("MemcpyD2D", 95.0, 5.0),
    ]
    stream = list(events("/device:GPU:0", "Stream #13(Compute)", kernels))
    others = [{"ph": "X", "pid": 1, "tid": 8, "name": "loop_fusion.2", "ts": 0.0, "dur": 100.0}]
    # The kernels are busy for 85 of 100 us. Without the profiler, five steps take 90 us.
    result = record_trace.summarise([*stream, *others], PROGRAM, steps=5, ms=0.018)
    top = result.pop("top")
    assert result == {
        "convolutions": pytest.approx(40 / 90),
        "matrix products": pytest.approx(10 / 90),
        "BatchNorm": pytest.approx(30 / 90),
        "other kernels": pytest.approx(5 / 90),
        "gaps": pytest.approx(5 / 90),
        "kernels": 1.0,
        "ms": 0.018,
    }
    assert top[:2] == [
        ["convolutions", "sm90_xmma_fprop jit(f)/conv_general_dilated", 0.008],
        ["BatchNorm", "loop_fusion_2 jit(f)/BatchNorm_0/mul", 0.006],
    ]


def test_cpu_profiler_trace_is_summarised_by_groups_of_kernels():
    named = [("cudnn-conv.5", 0.0, 30.0), ("end: cudnn-conv.5", 30.0, 1.0), ("copy.3", 30.0, 10.0)]
    lanes = events("/host:CPU", "tf_XLAEigen", named)
    result = record_trace.summarise(lanes, PROGRAM, steps=1, ms=0.04)
    assert result["convolutions"] == 0.75 and result["other kernels"] == 0.25
    with pytest.raises(ValueError, match="must hold kernels"):
        record_trace.summarise([], PROGRAM, steps=1, ms=1.0)
