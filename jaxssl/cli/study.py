"""Run a study: training runs or measurements that test claims of a paper.

usage: jaxssl study                                            list all studies
       jaxssl study NAME [--scale tiny|small|medium|paper|paper_simclr] [...]
       jaxssl study claims                                     summarise all results below --out

A study trains a grid of runs or measures a quantity. It prints a table next to the published
results and writes PNG figures, an HTML page and a JSON document to --out. The same command again
continues an interrupted study and does not repeat finished runs. --config.KEY=VALUE changes all
runs.
"""

import platform
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

import jaxssl
from jaxssl import cli, components
from jaxssl.errors import UserError, explain_write_errors, suggest
from jaxssl.training.output.console import show

if TYPE_CHECKING:  # The module imports JAX, which is slow.
    from jaxssl.studies.study import Setting

FLAGS = flags.FlagValues()
POSITIONAL = "name"
NAME = flags.DEFINE_string("name", None, "Same as NAME.", FLAGS)
SCALES = ["tiny", "small", "medium", "paper", "paper_simclr"]
SCALE = flags.DEFINE_enum("scale", "tiny", SCALES, "A variant of configs/studies.py.", FLAGS)
DATASET = flags.DEFINE_string(
    "dataset", None, "data.name of all runs; default: the data set of the scale.", FLAGS
)
SEEDS = flags.DEFINE_integer(
    "seeds",
    5,
    "Number of runs of each cell, with seeds 0, 1, ...",
    lower_bound=1,
    flag_values=FLAGS,
)
OUT = flags.DEFINE_string(
    "out", None, "Output folder; default: runs/studies/SCALE[_PAPER][-DATASET].", FLAGS
)
METHODS = flags.DEFINE_list("methods", [], "Methods, for studies that compare methods.", FLAGS)
BATCHES = flags.DEFINE_list("batch_sizes", [], "Batch sizes, for studies that vary them.", FLAGS)
EQUAL_STEPS = flags.DEFINE_boolean(
    "equal_steps", False, "Train all batch sizes for equal steps instead of equal epochs.", FLAGS
)
FINISHED = flags.DEFINE_boolean(
    "finished", False, "Train nothing; report the finished runs of a grid.", FLAGS
)
EARLIER = flags.DEFINE_string(
    "earlier", None, "JSON document whose runs count as finished, to go on elsewhere.", FLAGS
)
PAGE = flags.DEFINE_string(
    "page", None, "Markdown file to write as well; default for `claims`: OUT/claims.md.", FLAGS
)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run, for studies of one run.", FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """List the studies, summarise the verdicts on their claims, or run one study."""
    name, names = NAME.value, components.names("study")
    if name is None:
        for study in names:
            show(f"{study:18} {components.summary(components.file('study', study))}")
        return
    if PAGE.value and not PAGE.value.endswith(".md"):
        raise UserError(f"--page={PAGE.value} must be a Markdown file, whose name ends in .md")
    if name == "claims":
        if options := _options(overrides):
            raise UserError(f"{options[0]} is not used by `claims`; leave it out")
        from jaxssl.buckets import local_path
        from jaxssl.studies.claims import write_claims

        folder = local_path("out", OUT.value or "runs/studies")
        page = local_path("page", PAGE.value or str(folder / "claims.md"))
        show(f"claims: {write_claims(folder, page)}")
        return
    if name not in names:
        raise UserError(f"study {name!r} is unknown{suggest(name, [*names, 'claims'])}")
    if not all(size.isdecimal() and int(size) > 0 for size in BATCHES.value):
        raise UserError(f"--batch_sizes expects numbers > 0, got {','.join(BATCHES.value)}")
    _run(name, overrides)


def _run(name: str, overrides: list[tuple[str, str]]) -> None:
    from jaxssl.buckets import local_path
    from jaxssl.studies import documents
    from jaxssl.studies.study import Setting, at_one_size, published_tables, scale_config
    from jaxssl.training import config, memory, processes
    from jaxssl.training.config.overrides import full_key
    from jaxssl.training.output import compile_cache

    study = components.module("study", name)
    for flag in (METHODS, BATCHES, WORKDIR, EQUAL_STEPS, FINISHED, EARLIER):
        if flag.value and flag.name not in getattr(study, "FLAGS", ()):
            raise UserError(f"--{flag.name} is not used by the study {name!r}; leave it out")
    unused = getattr(study, "UNUSED_WITH_WORKDIR" if WORKDIR.value else "UNUSED", ())
    given = [
        f"--{flag.name}" for flag in (SCALE, DATASET, SEEDS) if flag.present and flag.name in unused
    ]
    given += [f"{cli.PREFIX}{key}" for key, _ in overrides if "config" in unused]
    for text in given:
        raise UserError(f"{text} is not used by the study {name!r} here; leave it out")
    memory.share_arena()
    compile_cache.enable()
    processes.check_platform()
    page = local_path("page", PAGE.value) if PAGE.value else None
    name_of_config = scale_config(SCALE.value, getattr(study, "PAPER", ""))
    variant = name_of_config.partition(":")[2]
    default = f"runs/studies/{'-'.join(filter(None, [variant, DATASET.value]))}"
    base = config.load(name_of_config)
    setting = Setting(
        scale=SCALE.value,
        config=name_of_config,
        dataset=DATASET.value or "",
        seeds=SEEDS.value,
        out=local_path("out", OUT.value or default),
        overrides=tuple((full_key(base, key), text) for key, text in overrides),
        methods=tuple(dict.fromkeys(METHODS.value)),
        batch_sizes=tuple(sorted({*map(int, BATCHES.value)})),
        workdir=local_path("workdir", WORKDIR.value) if WORKDIR.value else None,
        equal_steps=EQUAL_STEPS.value,
        finished=FINISHED.value,
        earlier=local_path("earlier", EARLIER.value) if EARLIER.value else None,
    )
    stem, start = _stem(name, setting), time.perf_counter()
    for file in (setting.out / f"{stem}.json", *([page.with_suffix(".json")] if page else [])):
        documents.check_replaceable(file, setting, name)
    if page and page.exists() and not page.with_suffix(".json").exists():
        raise UserError(f"{page} is not the page of a study; choose another --page")
    # A folder that cannot be made must fail before the work, not after it.
    for folder in (setting.out, *([page.parent] if page else [])):
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    findings = study.run(setting)
    if len(setting.batch_sizes) == 1:
        findings = at_one_size(findings, study.CLAIMS)
    findings = findings._replace(tables=[*findings.tables, *published_tables(name)])
    title = components.summary(components.file("study", name)).rstrip(".")
    about = _provenance(_command(name, overrides), time.perf_counter() - start)
    path = documents.write_study(stem, title, setting, study.CLAIMS, findings, about)
    if page:
        documents.write_markdown(page, path.with_suffix(".json"))
    documents.print_findings(study.CLAIMS, findings)
    show(f"page: {path}")


def _stem(name: str, setting: "Setting") -> str:
    """Return the stem of a study's file names: its name and the flags that change its results."""
    from jaxssl.studies.cells import file_settings, safe_name

    run = [setting.workdir.resolve().name] if setting.workdir else []
    steps = ["equal_steps"] if setting.equal_steps else []
    methods = map(components.short_name, setting.methods)
    changes = file_settings(dict(setting.overrides))
    parts = [name, *methods, *map(str, setting.batch_sizes), *steps, *run, changes]
    return safe_name("-".join(filter(None, parts)))


def _command(name: str, overrides: list[tuple[str, str]]) -> str:
    """Return a study's command line without output files, with absolute paths cut to file names."""
    # How finished runs were read does not help to repeat them.
    reading = ("--finished", "--earlier=")
    words = [word.partition("=") for word in _options(overrides) if not word.startswith(reading)]
    portable = [
        f"{key}={Path(value).name}" if Path(value).is_absolute() else f"{key}{equals}{value}"
        for key, equals, value in words
    ]
    return shlex.join(["jaxssl", "study", name, *portable])


def _options(overrides: list[tuple[str, str]]) -> list[str]:
    """Return the given flags except flags of output files, then the config overrides."""
    given = [flag for flag in FLAGS if FLAGS[flag].present and flag not in ("name", "out", "page")]
    flags_given = [FLAGS[flag].serialize() for flag in given]
    return [*flags_given, *(f"{cli.PREFIX}{key}={value}" for key, value in overrides)]


def _provenance(command: str, seconds: float) -> dict[str, str]:
    """Return the command, versions and hardware of a study."""
    import jax

    from jaxssl.training.output import git

    device = jax.devices()[0]
    return {
        "command": command,
        "version": jaxssl.__version__,
        "commit": git.current_commit(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "devices": f"{jax.device_count()} {device.device_kind}",
        "seconds": f"{seconds:.0f}",
    }
