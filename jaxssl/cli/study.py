"""Test a claim of the papers: jaxssl study NAME [--scale tiny|small|paper] [...].

A study trains a grid of runs, or measures, prints a table beside the published figures, and writes
PNG figures, an HTML page and a JSON document into --out. Finished runs are not repeated: the same
command goes on where it was stopped. Without NAME the studies are listed; `claims` writes claims.md
from all that was measured below --out. --config.KEY=VALUE changes all runs of a grid.
"""

import ast
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from absl import flags

import jaxssl
from jaxssl import components
from jaxssl.errors import UserError, explain_write_errors, suggest
from jaxssl.training import git

FOLDER = Path(jaxssl.__file__).parent / "studies"
CONFIGS = Path(jaxssl.__file__).parents[1] / "configs" / "studies"
FLAGS = flags.FlagValues()
POSITIONAL = "name"
NAME = flags.DEFINE_string("name", None, "The study; may stand alone.", flag_values=FLAGS)
SCALE = flags.DEFINE_string(
    "scale", "tiny", "A file of configs/studies/: tiny, small or paper.", flag_values=FLAGS
)
DATASET = flags.DEFINE_string(
    "dataset", None, "data.name of all runs; default the scale's.", flag_values=FLAGS
)
SEEDS = flags.DEFINE_integer(
    "seeds", 5, "Seeds 0, 1, ... of every cell.", lower_bound=1, flag_values=FLAGS
)
OUT = flags.DEFINE_string(
    "out", None, "Output folder; default runs/studies/SCALE[-DATASET].", flag_values=FLAGS
)
METHODS = flags.DEFINE_list(
    "methods", [], "Methods to compare, where a study compares methods.", flag_values=FLAGS
)
BATCHES = flags.DEFINE_list(
    "batch_sizes", [], "Batch sizes, where a study varies them.", flag_values=FLAGS
)
EQUAL_STEPS = flags.DEFINE_boolean(
    "equal_steps", False, "Batch sizes have equal steps, not equal epochs.", flag_values=FLAGS
)
PAGE = flags.DEFINE_string(
    "page", None, "Write a page of Markdown; of `claims` claims.md in --out.", flag_values=FLAGS
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "A run to look at, where a study looks at one.", flag_values=FLAGS
)


def main(overrides: list[tuple[str, str]]) -> None:
    """Flags to a study's `run`."""
    if NAME.value is None:
        for name in components.names("study"):
            doc = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
            print(f"{name:18} {doc.splitlines()[0]}")
        return
    if NAME.value == "claims":
        from jaxssl.studies.claims import write_claims

        folder = Path(OUT.value or "runs/studies")
        print(f"claims: {write_claims(folder, Path(PAGE.value or folder / 'claims.md'))}")
        return
    if NAME.value not in components.names("study"):
        valid = [*components.names("study"), "claims"]
        raise UserError(f"study {NAME.value!r} is unknown{suggest(NAME.value, valid)}")
    scales = sorted(path.stem for path in CONFIGS.glob("*.py") if "_" not in path.stem)
    if SCALE.value not in scales:
        where = "" if scales else f" (there is no {CONFIGS}: studies need a source checkout)"
        raise UserError(f"--scale {SCALE.value!r} is unknown{suggest(SCALE.value, scales)}{where}")
    _run(overrides)


def _run(overrides: list[tuple[str, str]]) -> None:
    from jaxssl.studies import documents
    from jaxssl.studies.study import Setting, scale_config
    from jaxssl.training import compile_cache

    if not all(size.isdecimal() and int(size) > 0 for size in BATCHES.value):
        raise UserError(f"--batch_sizes expects numbers > 0, got {','.join(BATCHES.value)}")
    default = Path("runs") / "studies" / "-".join(filter(None, [SCALE.value, DATASET.value]))
    compile_cache.enable()
    study = components.module("study", NAME.value)
    setting = Setting(
        scale=SCALE.value,
        config=scale_config(CONFIGS, SCALE.value, getattr(study, "PAPER", "")),
        dataset=DATASET.value or "",
        seeds=SEEDS.value,
        out=Path(OUT.value or default),
        overrides=tuple(overrides),
        methods=tuple(METHODS.value),
        batch_sizes=tuple(map(int, BATCHES.value)),
        workdir=Path(WORKDIR.value) if WORKDIR.value else None,
        equal_steps=EQUAL_STEPS.value,
    )
    sys.path.append(str(CONFIGS.parents[1]))  # a config imports what it differs from
    for flag in ("methods", "batch_sizes", "workdir", "equal_steps"):
        if getattr(setting, flag) and flag not in getattr(study, "FLAGS", ()):
            raise UserError(f"--{flag}: the study {NAME.value!r} has no use for it; leave it out")
    start = time.perf_counter()
    with explain_write_errors(setting.out):
        setting.out.mkdir(parents=True, exist_ok=True)  # or the work would be done in vain
    found = study.run(setting)
    title = study.__doc__.splitlines()[0].rstrip(".")
    about = _about(time.perf_counter() - start)
    with explain_write_errors(setting.out):
        path = documents.write_study(_stem(setting), title, setting, study.CLAIMS, found, about)
    if PAGE.value:
        documents.write_markdown(Path(PAGE.value), path.with_suffix(".json"))
    documents.print_findings(study.CLAIMS, found)
    print(f"page: {path}")


def _stem(setting: Any) -> str:
    """Of the study's files; a part of a study has files of its own."""
    run = [setting.workdir.resolve().name] if setting.workdir else []
    steps = ["equal_steps"] if setting.equal_steps else []
    return "-".join([NAME.value, *setting.methods, *map(str, setting.batch_sizes), *steps, *run])


def _about(seconds: float) -> dict[str, str]:
    """Where and with what a study was run."""
    import jax

    device = jax.devices()[0]
    return {
        "command": f"jaxssl study {shlex.join(sys.argv[2:])}",
        "version": jaxssl.__version__,
        "commit": git.current_commit(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "devices": f"{jax.device_count()} {device.device_kind}",
        "seconds": f"{seconds:.0f}",
    }
