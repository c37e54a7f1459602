"""Pretrain an encoder.

usage: jaxssl train [--config NAME] [--config.KEY=VALUE ...] [--workdir DIR]
       jaxssl train --resume DIR [--extend_to EPOCHS]
       jaxssl train [--config NAME] --grid KEY=A,B,C [--grid ...] [--workdir DIR]

`jaxssl list configs` prints the packaged configs, and --keys all keys of a config with a line of
text. `jaxssl list losses NAME` prints the keys of a loss, and likewise those of a network or an
augmentation. The same command again resumes an interrupted run.
"""

import shlex
import sys

from absl import flags

from jaxssl import cli
from jaxssl.errors import UserError
from jaxssl.training import retry

FLAGS = flags.FlagValues()
CONFIG = flags.DEFINE_string(
    "config",
    "digits",
    "Name of a packaged config, possibly with a variant (NAME:VARIANT), a Python file with "
    "get_config(), or the config.json of a run.",
    FLAGS,
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Output folder; default: runs/ and the name of the config.", FLAGS
)
RESUME = flags.DEFINE_string(
    "resume", None, "Folder of a run to go on with, in place of --config and --workdir.", FLAGS
)
EXTEND_TO = flags.DEFINE_float(
    "extend_to",
    None,
    "With --resume: go on to this number of epochs, with the schedules of a run of that length.",
    flag_values=FLAGS,
)
TRUST = cli.define_trust(FLAGS)
KEYS = flags.DEFINE_bool(
    "keys", False, "Print all config keys with type, value and a line of text.", FLAGS
)
DRY_RUN = flags.DEFINE_bool(
    "dry_run",
    False,
    "Print shapes, parameters, settings and memory, and take one step on two examples a device, "
    "unless its program is large. Opens the weights of config.init. Prepares data sets, "
    "other than common sets of images, and writes no workdir.",
    FLAGS,
)
TOPOLOGY = flags.DEFINE_string(
    "topology",
    None,
    "With --dry_run: compile for a pod, such as v5e-256, v6e:8x8, v5p-512, h100-64 or cpu:8, and "
    "print memory and communication. Needs no such device.",
    FLAGS,
)
PROFILE = flags.DEFINE_string(
    "profile",
    None,
    "Trace the steps FIRST:END, counted from 0, with JAX's profiler into WORKDIR/profile.",
    FLAGS,
)
GRID = flags.DEFINE_multi_string(
    "grid",
    [],
    "KEY=A,B,C: train all combinations of these values of config keys, and print a table. May be "
    "given several times.",
    FLAGS,
)
MAX_RUNS = flags.DEFINE_integer(
    "max_runs", 1000, "Largest number of runs of a --grid.", lower_bound=1, flag_values=FLAGS
)
RETRY = flags.DEFINE_integer(
    "retry",
    0,
    "Restart the command up to this many times if it is killed or fails. Invalid settings, a full "
    "disk, steps that are not finite, SIGTERM and SIGINT are not retried.",
    lower_bound=0,
    flag_values=FLAGS,
)
cli.define_processes(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Pretrain an encoder, or with --dry_run only check the config and the memory that it needs."""
    _check_flags()
    if RETRY.value:
        words = [word for word in sys.orig_argv if word != "--"]  # No flags may follow "--".
        raise SystemExit(retry.run([*words, "--retry=0"], RETRY.value))
    # JAX is imported after the flags are checked, so that wrong flags are reported at once.
    from jaxssl.buckets import as_path
    from jaxssl.training import config, profiling
    from jaxssl.training.config import help as config_help
    from jaxssl.training.workdir.opening import resume_config

    if GRID.value:
        return _train_grid(overrides)
    profile = None if PROFILE.value is None else profiling.parse(PROFILE.value)
    workdir = as_path(RESUME.value or WORKDIR.value or f"runs/{config.run_name(CONFIG.value)}")
    if RESUME.value:
        settings = resume_config(workdir, EXTEND_TO.value, overrides, trust=TRUST.value)
    else:
        settings = config.load(CONFIG.value, overrides, trust=TRUST.value)
    if KEYS.value:
        print(*config_help.table(config_help.config_settings(settings)), sep="\n")
        return None
    if not TOPOLOGY.value:
        cli.start_jax(FLAGS)
    from jaxssl.evaluation import pretrain

    if DRY_RUN.value:
        from jaxssl.pretrained.start import load_init
        from jaxssl.training.dry_run import dry_run
        from jaxssl.training.workdir import checkpoint

        pretrain.check(settings)
        # A run that has a checkpoint does not need the weights that it started from.
        starts = settings.init and not checkpoint.steps(workdir)
        if starts and not TOPOLOGY.value:
            load_init(settings, trust=TRUST.value)
        dry_run(settings, TOPOLOGY.value)
        if starts and TOPOLOGY.value:  # Weights start JAX, after which a topology cannot be set.
            load_init(settings, trust=TRUST.value)
        return None
    pretrain.train(settings, workdir, profile=profile, trust=TRUST.value)


def _check_flags() -> None:
    """Raise UserError for flags that do not go together."""
    if EXTEND_TO.value is not None and not RESUME.value:
        raise UserError("--extend_to needs the folder of a run: --resume DIR")
    if RESUME.value and (GRID.value or FLAGS["config"].present or WORKDIR.value):
        raise UserError(
            "--resume takes the config of the run; leave --config, --workdir, --grid out"
        )
    for flag in ("keys", "dry_run", "topology", "profile", "trust"):
        if GRID.value and FLAGS[flag].value:
            raise UserError(f"--{flag} is for one run; leave it or --grid out")
    if FLAGS["max_runs"].present and not GRID.value:
        raise UserError("--max_runs limits the runs of a grid: --grid KEY=A,B,C")
    if KEYS.value and (DRY_RUN.value or PROFILE.value is not None):
        raise UserError("--keys only prints the config; leave --dry_run and --profile out")
    if PROFILE.value is not None and DRY_RUN.value:
        raise UserError("--dry_run takes no steps to trace; leave it or --profile out")
    if PROFILE.value is not None and RETRY.value:
        raise UserError("--retry would trace steps that are done; leave it or --profile out")
    if TOPOLOGY.value and not DRY_RUN.value:
        raise UserError("--topology describes devices that are not here; add --dry_run")


def _train_grid(overrides: list[tuple[str, str]]) -> None:
    """Train all combinations of values that --grid names."""
    from jaxssl.buckets import local_path
    from jaxssl.studies import parameter_grid
    from jaxssl.training import config

    grid = parameter_grid.parse(GRID.value)
    default = f"runs/{config.run_name(CONFIG.value)}-grid"
    folder = local_path("workdir", WORKDIR.value or default)
    cli.start_jax(FLAGS)
    named = [flag for flag in ("config", "grid", "max_runs") if FLAGS[flag].present]
    changes = [f"{cli.PREFIX}{key}={value}" for key, value in overrides]
    words = [word for flag in named for word in FLAGS[flag].serialize().splitlines()]
    command = shlex.join(["jaxssl", "train", *words, *changes, "--workdir", str(folder)])
    parameter_grid.train(CONFIG.value, grid, folder, overrides, command, MAX_RUNS.value)
