"""Draw random defects in a folder of the package, and list those that its tests do not notice.

    make mutants FOLDER=losses SAMPLE=40 SEED=1

A defect is one of cosmic-ray's mutations: another number, operator or comparison, a loop that does
not run, a swapped constant. Places are drawn with equal probability, then a mutation of the place.
Coverage records once which tests execute each line of the folder. Each defect is applied alone to
a copy of the checkout, with the tests that execute its line, fast ones first. The exit status is 1
if more than one defect in twenty survives. A surviving defect either changes nothing that a user
sees, or needs a sharper test.
"""

import argparse
import ast
import difflib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import use_mutation
from coverage import Coverage, CoverageData

ROOT = Path(__file__).parents[1]
SECONDS = 30  # most seconds of processor time of the tests of a defect, measured without defects
LIMIT = 900  # seconds after which the tests of a defect count as failed
# Replacements by an operator of another kind raise a type error, which any test notices. "|" stands
# in type hints and for merged dicts.
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Div|Mod_Mul|Pow_Mul)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)"
    r"|ReplaceUnaryOperator_Delete_.*|AddNot|Replace(True|False|And|Or|Break|Continue)With.*"
    r"|ExceptionReplacer|NumberReplacer|ZeroIterationForLoop)"
)
# Folders of the package, with the test folders and files that also test them.
TESTS = {
    "api": "api_test.py",
    "cli": "cli_test.py completion_test.py",
    "kinds": "data augment/graph_views_test.py augment/video_views_test.py",
    "losses": "losses settings_test.py",
    "models": "models pretrained",
    "methods": "methods training/whole_step_test.py settings_test.py",
    "evaluation": "evaluation augment/corruptions_test.py training/online_metrics_test.py "
    "settings_test.py",
    "training": "training methods api_test.py cli_test.py cluster_test.py collectives_test.py "
    "plugins_test.py processes_test.py settings_test.py evaluation/diagnostics_test.py "
    "evaluation/gallery_test.py evaluation/protocols_test.py pretrained/foreign_runs_test.py "
    "report/foreign_files_test.py",
}
# Modules that are imported once, not for each defect, after conftest.py has configured JAX.
IMPORTS = ("jax", "flax.linen", "optax", "orbax.checkpoint", "tensorflow_datasets", "sklearn.svm")


class Recorder:
    """Pytest plugin that records which lines each test executes, and its processor time."""

    def __init__(self, folder: str, data: Path):
        self.folder, self.data, self.seconds = folder, data, {}

    def pytest_configure(self):
        self.coverage = Coverage(self.data, source=[f"jaxssl/{self.folder}"], config_file=False)
        self.coverage.set_option("run:relative_files", True)
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)
        self.seconds[nodeid] = -time.process_time()

    def pytest_runtest_logfinish(self, nodeid):
        self.seconds[nodeid] += time.process_time()

    def pytest_sessionfinish(self):
        self.coverage.stop()
        self.coverage.save()
        self.data.with_suffix(".json").write_text(json.dumps(self.seconds))


class Selection:
    """Pytest plugin that runs the tests of a list in its order, then tests without a record."""

    def __init__(self, chosen: list[str], recorded: dict[str, float]):
        self.ranks = dict.fromkeys(recorded, -1) | {name: n for n, name in enumerate(chosen)}

    def pytest_configure(self):
        sys.stdout = open(os.devnull, "w")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        # A defect may change the name of a parameter, and with it the name of a test.
        rank = lambda item: self.ranks.get(item.nodeid, len(self.ranks))  # noqa: E731
        items[:] = sorted((item for item in items if rank(item) >= 0), key=rank)


def run_tests(tests: Iterable[str], plugin: Recorder | Selection, limit: int | None = None) -> bool:
    """Return True if the tests pass within a time limit, in a process of their own."""
    process = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(pytest.main(["-x", "-n0", *tests], [plugin]))
    )
    process.start()
    process.join(limit)
    process.kill()
    return process.exitcode == 0


def choose_tests(data: CoverageData, seconds: dict[str, float], path: Path, line: int) -> list[str]:
    """Return the tests that execute a line, then others of their files, up to a total time."""
    contexts = data.contexts_by_lineno(str(path))

    def executing(first: int, last: int) -> set[str]:
        return {name for n in range(first, last + 1) for name in contexts.get(n, ())}

    kinds = (ast.stmt, ast.ExceptHandler)
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    # AST nodes that contain the line, outermost first.
    around = [n for n in nodes if n.lineno <= line <= (n.end_lineno or line)]
    spans = [(1, max(contexts, default=1)), *((n.lineno, n.end_lineno or line) for n in around)]
    body = getattr(around[-1], "body", None)
    tests = executing(spans[-1][0], max(line, body[0].lineno - 1) if body else spans[-1][1])
    if "" in tests:  # The line runs at import: take the tests that execute the code around it.
        tests = next((found for span in spans[::-1] if (found := executing(*span) - {""})), set())
    # Other tests of these files may reuse what these tests traced or cached, and find the defect.
    files = {name.split("::")[0] for name in tests}
    names = [name for name in seconds if name.split("::")[0] in files]
    names.sort(key=lambda name: (name not in tests, seconds[name]))
    total = accumulate(seconds[name] for name in names)
    chosen = [name for name, used in zip(names, total, strict=True) if used < SECONDS]
    return sorted(chosen, key=lambda name: (name not in tests, name.split("::")[0]))


def list_mutations(folder: Path) -> dict[tuple[Path, tuple[int, int]], list]:
    """Return the mutations (operator, number) of each place (file, position) in a folder."""
    operators = filter(OPERATORS.fullmatch, plugins.operator_names())
    operators = [plugins.get_operator(name)() for name in operators]
    places = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        nodes = list(ast_nodes(get_ast_from_path(path)))
        for operator in operators:
            positions = [p for node in nodes for p in operator.mutation_positions(node)]
            for number, (start, _) in enumerate(positions):
                places[path, start].append((operator, number))
    return dict(places)


def sample(folder: str, size: int, seed: int) -> int:
    """Test a random sample of defects, print the survivors, and return the exit status."""
    data = Path(".cache", "mutants", folder)
    if not data.with_suffix(".json").exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        tests = [f"tests/{name}" for name in TESTS.get(folder, folder).split()]
        if not run_tests(tests, Recorder(folder, data)):
            sys.exit("the tests fail without a defect")
    print(f"The tests of each line are in {data}; delete it with {data}.json to record them again.")
    seconds, lines = json.loads(data.with_suffix(".json").read_text()), CoverageData(data)
    lines.read()
    places = list_mutations(Path("jaxssl", folder))
    rng = random.Random(seed)
    chosen = rng.sample(sorted(places), min(size, len(places)))
    survivors = 0
    for number, (path, start) in enumerate(chosen, 1):
        tests = choose_tests(lines, seconds, path, start[0])
        with use_mutation(path, *rng.choice(places[path, start])) as (before, after):
            files = dict.fromkeys(name.split("::")[0] for name in tests)
            survived = not files or run_tests(files, Selection(tests, seconds), LIMIT)
        survivors += survived
        outcome = f"SURVIVED {len(tests)} tests" if survived else "killed"
        diff = difflib.unified_diff(before.splitlines(), str(after).splitlines(), n=0, lineterm="")
        where = f"[{number}/{len(chosen)}] {outcome}: {path}:{start[0]}"
        print(where, *list(diff)[3:], sep="\n", flush=True)
    print(f"{survivors} of {len(chosen)} defects in {len(places)} places survived")
    return int(survivors > len(chosen) / 20)


def main() -> int:
    """Sample in a copy of the checkout."""
    parser = argparse.ArgumentParser(description="Test the tests of a folder with random defects.")
    folders = [path.parent.name for path in sorted(ROOT.glob("jaxssl/*/__init__.py"))]
    parser.add_argument("folder", choices=folders, metavar="folder", help="folder of jaxssl/")
    parser.add_argument("--sample", type=int, default=40, help="number of defects")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    (ROOT / ".cache").mkdir(exist_ok=True)  # keeps the records
    with tempfile.TemporaryDirectory() as temporary:
        for path in ROOT.iterdir():
            if path.name in ("benchmarks", "configs", "jaxssl", "tests"):
                shutil.copytree(path, Path(temporary, path.name), symlinks=True)
            else:
                Path(temporary, path.name).symlink_to(path)
        os.chdir(temporary)
        os.environ["PYTHONPATH"] = temporary
        sys.path[0] = f"{temporary}/tests"
        for name in ("conftest", *IMPORTS):
            importlib.import_module(name)
        del sys.modules["conftest"]
        return sample(args.folder, args.sample, args.seed)


if __name__ == "__main__":
    sys.exit(main())
