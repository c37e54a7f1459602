"""Draw random defects in a folder of the package, and list those that its tests do not notice.

    make mutants FOLDER=losses SAMPLE=40 SEED=1

A defect is one of cosmic-ray's mutations: another number, operator or comparison, a loop that does
not run, a swapped constant. Places are drawn with equal probability, then a mutation of the place.
Each defect is applied alone to a copy of the checkout, with the tests that cover the folder. The
exit status is 1 if more than one defect in twenty survives. A surviving defect either changes
nothing that a user sees, or needs a sharper test.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]
LIMIT = 900  # seconds that the tests of one defect may take
MOST_SURVIVORS = 1 / 20
# Replacements by an operator of another kind raise a type error, which any test notices. "|" stands
# in type hints and for merged dicts.
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Div|Mod_Mul|Pow_Mul)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)"
    r"|ReplaceUnaryOperator_Delete_.*|AddNot|Replace(True|False|And|Or|Break|Continue)With.*"
    r"|ExceptionReplacer|NumberReplacer|ZeroIterationForLoop)"
)
# Folders whose behaviour is also tested elsewhere.
TESTS = {
    "losses": ("losses", "settings_test.py"),
    "solvers": ("solvers", "losses"),
    "models": ("models", "pretrained"),
    "methods": ("methods", "losses", "settings_test.py"),
    "training": ("training", "runs"),
    "data": ("data", "runs"),
    "evaluation": ("evaluation", "runs", "settings_test.py"),
}


def list_mutations(folder: Path) -> dict[tuple[Path, tuple[int, int]], list[MutationSpec]]:
    """Return the mutations of each place (file, position) in the code of a folder."""
    operators = filter(OPERATORS.fullmatch, plugins.operator_names())
    operators = {name: plugins.get_operator(name)() for name in operators}
    places = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        nodes = list(ast_nodes(get_ast_from_path(path)))
        for name, operator in operators.items():
            positions = [p for node in nodes for p in operator.mutation_positions(node)]
            for number, (start, end) in enumerate(positions):
                places[path, start].append(MutationSpec(path, name, number, start, end))
    return dict(places)


def main() -> int:
    """Test a random sample of defects, print the survivors, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="folder of jaxssl/, such as losses")
    parser.add_argument("--sample", type=int, default=40, help="number of defects")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not (ROOT / "jaxssl" / args.folder).is_dir():
        parser.error(f"jaxssl/{args.folder} is not a folder of the package")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "jaxssl"
        ignored = shutil.ignore_patterns(".venv", ".git", "runs", "__pycache__")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        (copy / ".venv").symlink_to(ROOT / ".venv")
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        folders = " ".join(f"tests/{name}" for name in TESTS.get(args.folder, (args.folder,)))
        command = f"{sys.executable} -m pytest -x -q --durations=0 {folders}"
        if subprocess.run(command.split(), stdout=subprocess.DEVNULL, check=False).returncode:
            sys.exit(f"the tests fail without a defect: {command}")
        places = list_mutations(Path("jaxssl") / args.folder)
        rng = random.Random(args.seed)
        chosen = rng.sample(sorted(places), min(args.sample, len(places)))
        survivors = 0
        for number, place in enumerate(chosen, 1):
            mutation = rng.choice(places[place])
            result = mutate_and_test([mutation], command, LIMIT)
            survived = result.test_outcome == TestOutcome.SURVIVED
            survivors += survived
            where = f"{mutation.module_path}:{mutation.start_pos[0]}"
            outcome = "SURVIVED" if survived else "killed"
            print(
                f"[{number}/{len(chosen)}] {outcome}: {where} {mutation.operator_name}", flush=True
            )
            if survived:
                print(result.diff, flush=True)
        print(f"{survivors} of {len(chosen)} defects in {len(places)} places survived")
        return int(survivors > MOST_SURVIVORS * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
