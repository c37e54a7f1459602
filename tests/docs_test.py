"""The tables of all pages fit the screen, and docs/losses.md agrees with the code."""

import re
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from loss_cases import EXPORTED
from safetensors.numpy import save_file
from tables import tables
from weights_cases import draw_weights

from jaxssl import losses
from jaxssl.losses.pairs import unit

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLE_WIDTH = 100
TEXT = (ROOT / "docs" / "losses.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = {TEXT.count("\n", 0, block.start(1)): block[1] for block in BLOCK.finditer(TEXT)}


def code(cell: str) -> str:
    """Return the text between backticks, empty if there are none."""
    return "".join(re.findall("`(.*?)`", cell))


def small_equinox() -> ModuleType:
    """Return a stand-in for Equinox, with what docs/extending.md takes from it."""

    class Module:
        def __init_subclass__(cls):
            jax.tree_util.register_pytree_node(
                cls, lambda self: (list(vars(self).values()), tuple(vars(self))), cls._unflatten
            )

        @classmethod
        def _unflatten(cls, names, values):
            module = object.__new__(cls)
            vars(module).update(zip(names, values, strict=True))
            return module

    def is_array(x):
        return isinstance(x, jax.Array)

    def select(tree, wanted):
        return jax.tree.map(lambda x: x if wanted(x) else None, tree)

    stand_in = ModuleType("equinox")
    vars(stand_in).update(
        Module=Module,
        is_array=is_array,
        filter=select,
        partition=lambda tree, test: (select(tree, test), select(tree, lambda x: not test(x))),
        combine=lambda one, other: jax.tree.map(
            lambda a, b: b if a is None else a, one, other, is_leaf=lambda x: x is None
        ),
    )
    return stand_in


@pytest.mark.long
@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize(
    "page",
    # losses.md is left out: each of its code blocks is complete and run alone by the next test.
    [page for page in PAGES if page.name != "losses.md" and BLOCK.search(page.read_text())],
    ids=lambda page: page.name,
)
def test_python_blocks_of_each_docs_page_run_in_order(page, tmp_path, monkeypatch):
    if find_spec("equinox") is None:
        monkeypatch.setitem(sys.modules, "equinox", small_equinox())
    monkeypatch.chdir(tmp_path)
    save_file(draw_weights("resnet", 8), tmp_path / "resnet50.safetensors")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.syspath_prepend(tmp_path)
    names = {"__name__": "__main__"}
    with jax.numpy_dtype_promotion("standard"):
        for block in BLOCK.finditer(page.read_text()):
            lines = page.read_text().count("\n", 0, block.start(1))
            if "class Generated" not in block[1]:  # This block is run by another test.
                exec(compile("\n" * lines + block[1], page.name, "exec"), names)
    if page.name == "README.md":
        rows = {(row["protocol"], row["features"]) for row in names["rows"]}
        assert rows == set(product(("knn", "linear"), ("raw", "untrained", "pretrained")))


@pytest.mark.long
def test_docs_example_of_a_stream_reads_few_of_its_million_items(tmp_path, monkeypatch):
    blocks = BLOCK.findall((ROOT / "docs" / "data.md").read_text())
    [code] = [code for code in blocks if "class Generated" in code]
    monkeypatch.chdir(tmp_path)
    getter = "def __getitem__(self, index):"
    code = code.replace(getter, f"{getter}\n        read.append(index)")
    with jax.numpy_dtype_promotion("standard"):
        exec(code, names := {"read": []})
    assert len(names["run"].splits.train) == 10**6 and names["run"].metrics[-1]["step"] == 3
    # Read are 66 items for the shape, 1 024 for the hash, 3 batches of 64, and batches read ahead.
    assert 66 + 1024 + 3 * 64 <= len(names["read"]) < 10_000


def test_python_code_in_docs_pages_is_inside_python_blocks():
    code = re.compile(
        r"^    (import \w+|from \w+ import |.*\bjaxssl\.\w+\(|config\.).*", re.MULTILINE
    )
    for page in PAGES:
        text = page.read_text()
        assert not code.findall(BLOCK.sub("", text)), page.name
        kinds = {"python", "text", "math", "{toctree}", "{eval-rst}"}
        assert set(re.findall("^```(.+)", text, re.MULTILINE)) <= kinds


def test_readme_has_at_most_120_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^]]+\]: (\S+)|src(?:set)?=\"([^\"]+)\"", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)", page.read_text(), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", text)).lower() for text in headings]
    return {text.replace(" ", "-") for text in words}


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_links_of_a_page_lead_to_files_and_headings_that_exist(page):
    text = re.sub(r"^```.*?^```|`[^`]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = {link for links in LINK.findall(text) for link in links if link}
    for link in sorted(links):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_table_of_contents_of_the_site_lists_every_page_and_notebook_once():
    text = (ROOT / "docs" / "index.md").read_text()
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    listed = [line for tree in trees for line in tree.splitlines() if line[0] != ":"]
    pages = [page.stem for page in PAGES[1:] if page.stem != "index"]
    notebooks = [f"tutorials/{path.stem}" for path in (ROOT / "examples").glob("*.ipynb")]
    assert sorted(listed) == sorted([*pages, *notebooks])


def load_leaderboard():
    spec = spec_from_file_location("leaderboard", ROOT / "docs" / "leaderboard.py")
    leaderboard = module_from_spec(spec)
    spec.loader.exec_module(leaderboard)
    return leaderboard


def test_leaderboard_page_and_readme_table_are_generated_from_the_study_documents():
    leaderboard = load_leaderboard()
    assert leaderboard.page() == (ROOT / "docs" / "leaderboard.md").read_text()
    board = leaderboard.read(next(iter(leaderboard.DOCUMENTS.values())))
    shown = leaderboard.complete(board, "knn_top1")
    assert leaderboard.table(board, "knn_top1", shown) in (ROOT / "README.md").read_text()


def accuracies_below_the_best(differences):
    """Return accuracies by loss and seed that lie d - 1, d and d + 1 below the best."""
    cells = {
        name: {seed: 50 - d + (seed - 1) for seed in range(3)} for name, d in differences.items()
    }
    return cells | {"best": dict.fromkeys(range(3), 50.0)}


def test_leaderboard_applies_the_holm_correction_for_multiple_comparisons():
    """With differences of d - 1, d and d + 1, the test gives 0.001 for d = 18 and 0.03 for 3.4."""
    winner = load_leaderboard().winner
    assert winner(accuracies_below_the_best({"mmcl": 18.0, "decl": 3.4, "tcl": 3.4})) is None
    assert winner(accuracies_below_the_best({"mmcl": 18.0, "decl": 3.4})) == "best"
    assert winner(accuracies_below_the_best({"decl": 2.4})) is None
    cells = accuracies_below_the_best({"mmcl": 18.0})
    assert winner(cells | {"tcl": {0: 60.0, 1: 60.0}}) == "best"  # TCL lacks a seed.


def test_leaderboard_names_the_losses_that_an_analysis_of_variance_does_not_place_below_the_best():
    """With two losses it equals the paired t-test. More losses of equal noise raise its power."""
    not_below = load_leaderboard().not_below
    assert not_below(accuracies_below_the_best({"decl": 3.4})) == (["best", "decl"], ["best"])
    assert not_below(accuracies_below_the_best({"decl": 2.4}))[1] == ["best", "decl"]
    # The residuals' mean square is (8/9 + 4/9) / 4 = 1/3. A difference has the standard error
    # sqrt(2/3 * 1/3) = 0.47, so that t is 7.2 (p = 0.002) and 2.1 (p = 0.10).
    cells = accuracies_below_the_best({"decl": 3.4, "dcl": 1.0, "tcl": 3.4})
    del cells["tcl"][2]
    cells["sogclr"] = {0: 46.0}
    tested, level = not_below(cells)
    assert tested == ["best", "dcl", "decl"]
    assert level == ["best", "dcl"]


def test_leaderboard_differences_are_paired_by_seed_with_an_interval():
    """The interval of the differences 2, 3 and 4 is 3 ± 4.303 / √3, that of 2 and 3 2.5 ± 6.35."""
    theirs = {0: 1.0, 1: 2.0, 2: 4.0}
    ours = {16: {2: 8.0, 0: 3.0, 1: 5.0}, 64: {0: 3.0, 1: 5.0}, 128: {2: 3.0}, 256: {}}
    ours[512] = {0: 2.5, 1: 3.5}  # equal differences, which give no interval
    cells = {"tcl": ours, "dcl": {size: theirs for size in ours}}
    actual = load_leaderboard().differences(cells, "dcl")["tcl"]
    expected = ["+3.0 [+0.5, +5.5]", "+2.5 [-3.9, +8.9], 2 seeds", "-1.0", "diverged"]
    expected.append("+1.5, 2 seeds")
    assert list(actual.values()) == expected


def test_leaderboard_tells_cells_whose_runs_diverged_from_cells_without_runs():
    leaderboard = load_leaderboard()
    cells = {16: {0: 50.0, 1: 51.0, 2: 52.0}, 64: {}}
    values = {"knn_top1": {"simclr": cells, "decl": {16: {}, 64: {}}, "tcl": {16: {}}}}
    raw = {name: {"knn_top1": 30.0} for name in ("raw", "untrained")}
    board = leaderboard.Board("", "", values, raw)
    rows = leaderboard.table(board, "knn_top1", list(values["knn_top1"]), note=True)
    assert [line.split("|")[2:4] for line in rows.splitlines()[2:5]] == [
        [" 51.0 ± 1.0 ", " diverged "],
        [" diverged ", " diverged "],
        [" diverged ", " not run "],
    ]


@pytest.mark.long
@pytest.mark.parametrize("line", EXAMPLES)
def test_code_example_of_the_losses_page_computes_finite_arrays(line):
    example, names = EXAMPLES[line], {}
    # Promote dtypes strictly, as in all tests, except in examples of optax, which needs promotion.
    with jax.numpy_dtype_promotion("standard" if "import optax" in example else "strict"):
        exec(compile("\n" * line + example, "docs/losses.md", "exec"), names)
    names.pop("memory", None)  # The memory of some losses starts at -inf.
    arrays = [x for x in jax.tree.leaves(list(names.values())) if isinstance(x, jax.Array)]
    numbers = [x for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact)]
    assert numbers and all(jnp.isfinite(x).all() for x in numbers)


def test_docs_examples_on_several_devices_give_value_and_gradient_of_one_device():
    names = ("NamedSharding(mesh, P())", "jax.shard_map(step")
    for example in [next(e for e in EXAMPLES.values() if name in e) for name in names]:
        scope = {}
        exec(example, scope)
        x1, x2 = (np.reshape(scope[name], (32, 64)) for name in ("x1", "x2"))
        loss = lambda w, x1=x1, x2=x2: losses.nt_xent(x1 @ w, x2 @ w)  # noqa: E731
        value, gradient = jax.jit(jax.value_and_grad(loss))(jax.device_get(scope["weights"]))
        np.testing.assert_allclose(scope["value"], value, rtol=1e-5)
        np.testing.assert_allclose(scope["gradient"], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_losses_page_states_the_loss_of_collapsed_random_and_separated_embeddings():
    rng = np.random.default_rng(0)
    draws = unit(jnp.asarray(rng.normal(size=(100, 2, 64, 128))[:40], jnp.float32))
    z1 = draws[0, 0]
    equal = jnp.broadcast_to(z1[:1], z1.shape)
    orthogonal = jnp.linalg.qr(z1.T)[0].T
    prototypes = {"swav": {"prototypes": jnp.asarray(rng.normal(size=(32, 128)), jnp.float32)}}
    text = TEXT.partition("## Reading the value")[2].partition("\n## ")[0]
    rows = tables(text)["loss"]  # each table row has two losses
    for row in [*(row[:4] for row in rows), *(row[4:] for row in rows if row[4])]:
        loss, options = getattr(losses, code(row[0])), prototypes.get(code(row[0]), {})
        pairs = jnp.stack([jnp.stack([z, z]) for z in (equal, orthogonal)])
        call = jax.jit(jax.vmap(lambda pair, loss=loss, options=options: loss(*pair, **options)))
        collapsed, *random, separated = call(jnp.concatenate([pairs[:1], draws, pairs[1:]]))
        values = [collapsed, np.mean(random), separated]
        np.testing.assert_allclose(np.array(row[1:], float), values, rtol=0.01, atol=0.01)


def test_losses_page_lists_every_loss_once_with_a_link_to_its_file():
    chooser = tables(TEXT.partition("## Reading the value")[0])["loss"]
    names = [re.fullmatch(r"\[(\w+)\]", row[0])[1] for row in chooser]
    assert sorted(names) == EXPORTED
    links = re.findall(r"^\[(\w+)\]: (\S+)$", TEXT, re.MULTILINE)
    assert links == [(name, f"../jaxssl/losses/{name}.py") for name in names]


def test_table_lines_of_readme_and_docs_have_at_most_100_characters():
    wide = [
        f"{page.relative_to(ROOT)}:{number} has {len(line)}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if line.lstrip().startswith("|") and len(line) > TABLE_WIDTH
    ]
    assert not wide, "\n".join(wide)


def test_github_workflows_run_existing_make_targets_and_files():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    steps = [x for file in workflows for x in re.findall(r"- run: (.+)", file.read_text())]
    assert len(workflows) == 3 and len(steps) >= 4
    for step in steps:
        if step.startswith("make "):
            assert set(step.split()[1:]) - {"PYTHON=python"} <= targets, step
        else:
            assert (ROOT / step).is_file(), step
