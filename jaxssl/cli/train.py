"""Pretrain an encoder.

usage: jaxssl train [--config NAME] [--config.KEY=VALUE ...] [--workdir DIR]

`jaxssl list configs` prints the packaged configs. The config "base" has all keys with their
defaults; the keys of a loss, a network or an augmentation are the arguments of its factory. The
same command again resumes an interrupted run.
"""

from pathlib import Path

from absl import flags

from jaxssl import cli

FLAGS = flags.FlagValues()
CONFIG = flags.DEFINE_string(
    "config", "digits", "Name of a packaged config, or a Python file with get_config().", FLAGS
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Output folder; default: runs/ and the name of the config.", FLAGS
)
DRY_RUN = flags.DEFINE_bool(
    "dry_run",
    False,
    "Print shapes, parameters, settings and memory, and take one step on random images. Needs no "
    "data and writes nothing.",
    FLAGS,
)
PROFILE = flags.DEFINE_string(
    "profile",
    None,
    "Trace the steps FIRST:END, counted from 0, with JAX's profiler into WORKDIR/profile.",
    FLAGS,
)
cli.define_processes(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Pretrain, or with --dry_run only check the config and its memory."""
    # JAX is imported after the flags are checked, so that wrong flags are reported at once.
    from jaxssl.training import config, profiling

    profile = profiling.parse(PROFILE.value) if PROFILE.value else None
    settings = config.load(CONFIG.value, overrides)
    cli.start_jax(FLAGS)
    if DRY_RUN.value:
        from jaxssl.training.dry_run import dry_run

        return dry_run(settings)
    from jaxssl.evaluation import pretrain

    workdir = Path(WORKDIR.value or Path("runs") / Path(CONFIG.value).stem)
    pretrain.train(settings, workdir, profile=profile)
