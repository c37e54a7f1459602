"""Apply small defects to a copy of the package, one at a time, and run the tests that notice them.

    python tests/mutants.py                      # all defects
    python tests/mutants.py --list               # their names
    python tests/mutants.py 'losses/*' momentum  # these lists or names
    python tests/mutants.py --jobs 4             # four copies at once

Each file of `tests/mutants/` is a list of defects. A defect is a table with five keys:

    [[mutant]]
    name = "nt_xent_counts_the_anchor_itself"
    file = "jaxssl/losses/nt_xent.py"
    old = "log_sum_exp(logits, not_self(pairs))"  # occurs once in the file
    new = "log_sum_exp(logits, logits == logits)"
    tests = ["tests/losses/contract_test.py::test_value_equals_the_numpy_oracle -k nt_xent"]

A defect is killed if one of its tests fails, and survives if all of them pass. The exit status is 0
if all are killed, 1 if one survives, and 2 if a list does not fit the package.
"""

import argparse
import ast
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LISTS = ROOT / "tests" / "mutants"
LIMIT = 600  # seconds that the tests of one defect may take
NOT_COPIED = (".*", "__pycache__", "*.egg-info")
CACHE = Path(".cache") / "jax"
PASSED, FAILED, INTERRUPTED = 0, 1, 2  # exit statuses of pytest; an import error interrupts


class Mutant(NamedTuple):
    """A defect: ``new`` in place of ``old`` in a file, and the tests that should fail."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


class StaleError(ValueError):
    """A list does not fit the package or its tests."""


def load() -> dict[str, Mutant]:
    """Return the defects of all lists by ``list/name``."""
    mutants = {}
    for path in sorted(LISTS.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["mutant"]:
            if set(table) != set(Mutant._fields):
                raise StaleError(f"{path.name}: a mutant needs {Mutant._fields}, got {table}")
            name = f"{path.stem}/{table['name']}"
            if name in mutants:
                raise StaleError(f"{name} occurs twice; rename one")
            mutants[name] = Mutant(**table)
    return mutants


def mutate(mutant: Mutant, tree: Path = ROOT) -> str:
    """Return the text of the mutant's file in ``tree`` with the defect."""
    text = (tree / mutant.file).read_text()
    if (count := text.count(mutant.old)) != 1:
        raise StaleError(
            f"{mutant.name} is stale: `old` must occur once in {mutant.file}, got {count} times; "
            "update the list"
        )
    mutated = text.replace(mutant.old, mutant.new)
    if mutated == text:
        raise StaleError(f"{mutant.name} changes nothing; `new` must differ from `old`")
    try:
        compile(mutated, mutant.file, "exec")
    except SyntaxError as error:
        raise StaleError(f"{mutant.name} is not valid Python: {error}") from None
    return mutated


def check_tests(mutant: Mutant) -> None:
    """Raise `StaleError` if a test of a mutant does not exist."""
    for test in mutant.tests or [""]:
        target, *options = shlex.split(test) or [""]
        file, *names = target.split("::")
        if not file.endswith("_test.py") or not (ROOT / file).is_file():
            raise StaleError(f"{mutant.name}: {file!r} is not a file of tests")
        if missing := {name.partition("[")[0] for name in names} - functions(file):
            raise StaleError(f"{mutant.name}: {file} has no function {sorted(missing)}")
        expression = options[options.index("-k") + 1] if "-k" in options else ""
        words = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
        # Parameters of tests are written in the file or in the modules that tests share.
        text = (ROOT / file).read_text().lower() + shared_text()
        if missing := {word for word in words if word.lower() not in text}:
            raise StaleError(f"{mutant.name}: no test of {file} is named {sorted(missing)}")


@cache
def functions(file: str) -> set[str]:
    """Return the names of the functions of a file."""
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


@cache
def shared_text() -> str:
    """Return the text, in lower case, of the modules that tests share."""
    modules = set((ROOT / "tests").glob("*.py")) - set((ROOT / "tests").glob("*_test.py"))
    return "".join(path.read_text() for path in modules).lower()


def copy_tree(folder: Path) -> Path:
    """Copy the working tree, with a link to its compilation cache."""
    tree = folder / "tree"
    ignored = shutil.ignore_patterns(*NOT_COPIED)

    def ignore(folder: str, names: list[str]) -> set[str]:
        results = {"runs"} if Path(folder) == ROOT else set()  # unlike tests/runs
        return ignored(folder, names) | results

    shutil.copytree(ROOT, tree, ignore=ignore)
    (tree / CACHE.parent).mkdir()
    (ROOT / CACHE).mkdir(parents=True, exist_ok=True)
    (tree / CACHE).symlink_to((ROOT / CACHE).resolve())
    return tree


def run_tests(tree: Path, test: str, seconds: float) -> tuple[int | None, str]:
    """Return pytest's exit status, or None if time is up, and its output."""
    # Without cached bytecode, because it is compared by size and seconds alone.
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-n0", "-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
    command = [sys.executable, "-m", "pytest", *options, *shlex.split(test)]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def run_mutant(tree: Path, mutant: Mutant, seconds: float) -> str:
    """Return "survived", or "killed by" and the test that failed, or "stale" and the reason."""
    path, end = tree / mutant.file, time.monotonic() + seconds
    original = path.read_text()
    path.write_text(mutate(mutant, tree))
    try:
        for test in mutant.tests:
            status, output = run_tests(tree, test, max(end - time.monotonic(), 1))
            if status is None:
                return "killed by the time limit"
            if status in (FAILED, INTERRUPTED):
                failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
                return f"killed by {failed[1] if failed else test}"
            if status != PASSED:
                return f"stale: pytest {test} ended with {status}:\n{output}"
        return "survived"
    finally:
        path.write_text(original)


def select(mutants: dict[str, Mutant], patterns: list[str]) -> dict[str, Mutant]:
    """Return the mutants whose list, name or ``list/name`` matches one of the globs."""
    selected = {}
    for pattern in patterns or ["*"]:
        chosen = {
            name: mutant
            for name, mutant in mutants.items()
            if any(fnmatch(part, pattern) for part in (name, *name.split("/")))
        }
        if not chosen:
            raise StaleError(f"no mutant matches {pattern!r}; --list shows their names")
        selected |= chosen
    return selected


def run_all(mutants: dict[str, Mutant], jobs: int, seconds: float) -> dict[str, str]:
    """Run all mutants in ``jobs`` copies of the tree, and return their outcomes by name."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in range(jobs):
            trees.put(copy_tree(Path(folder) / str(job)))

        def run(item: tuple[str, Mutant]) -> tuple[str, str]:
            tree, start = trees.get(), time.monotonic()
            try:
                outcome = run_mutant(tree, item[1], seconds)
            finally:
                trees.put(tree)
            print(f"{time.monotonic() - start:4.0f} s  {item[0]} {outcome}", flush=True)
            return item[0], outcome

        return dict(pool.map(run, mutants.items()))


def main(argv: list[str] | None = None) -> int:
    """Run the chosen mutants and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patterns", nargs="*", help="lists, names or globs; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested at once")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each mutant")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    args = parser.parse_args(argv)
    try:
        mutants = select(load(), args.patterns)
        for mutant in mutants.values():
            mutate(mutant)
            check_tests(mutant)
        if args.list:
            print(*mutants, sep="\n")
            return 0
        outcomes = run_all(mutants, args.jobs, args.limit)
    except StaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    survivors = [name for name, outcome in outcomes.items() if outcome == "survived"]
    killed = sum(outcome.startswith("killed") for outcome in outcomes.values())
    print(f"killed {killed} of {len(outcomes)}")
    for name in survivors:
        print(f"survivor: {name}")
    if any(outcome.startswith("stale") for outcome in outcomes.values()):
        return 2
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
