"""Pretrain an encoder: jaxssl train [--config FILE] [--config.key=value ...] [--workdir DIR].

The keys and their defaults are in configs/base.py; those of a loss, a network or a recipe are the
arguments of its factory. The same command again resumes. With --dry_run nothing is trained: shapes,
parameters, settings and memory are printed, and one step is taken on random images.
"""

from pathlib import Path

from absl import flags

from jaxssl import cli

DEFAULT = Path(__file__).parents[2] / "configs" / "digits.py"
FLAGS = flags.FlagValues()
CONFIG = flags.DEFINE_string(
    "config", str(DEFAULT), "Python file with get_config().", flag_values=FLAGS
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Output folder; default runs/<name of the config>.", flag_values=FLAGS
)
DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Try the config out without data or output.", flag_values=FLAGS
)
cli.define_processes(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Flags to `jaxssl.evaluation.pretrain.train` or `jaxssl.training.dry_run.dry_run`."""
    # Imports come late, so that a mistake is answered at once.
    from jaxssl.training import config

    settings = config.load(CONFIG.value, overrides)
    cli.start_jax(FLAGS)
    if DRY_RUN.value:
        from jaxssl.training.dry_run import dry_run

        return dry_run(settings)
    from jaxssl.evaluation import pretrain

    pretrain.train(settings, Path(WORKDIR.value or Path("runs") / Path(CONFIG.value).stem))
