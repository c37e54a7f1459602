"""Evaluate a checkpoint: python eval.py --workdir DIR [--protocols knn,linear] [--step N]."""

from pathlib import Path

from absl import flags

from jaxssl import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
PROTOCOLS = flags.DEFINE_list(
    "protocols", None, "Files of jaxssl/evals/, each NAME or NAME:PRESET."
)
STEP = flags.DEFINE_integer("step", None, "Step of the checkpoint; default the latest.")


def main(overrides: list[tuple[str, str]]) -> None:
    """Flags to `jaxssl.evaluate.evaluate`."""
    from jaxssl import evaluate
    from jaxssl.errors import UserError

    if overrides:
        raise UserError("eval.py takes its config from the workdir; leave --config.* out")
    if WORKDIR.value is None:
        raise UserError("name the run to evaluate: --workdir DIR")
    evaluate.evaluate(Path(WORKDIR.value), PROTOCOLS.value, STEP.value)


if __name__ == "__main__":
    cli.run(main)
