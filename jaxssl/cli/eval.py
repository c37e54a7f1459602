"""Evaluate encoders: jaxssl eval --workdir DIR | --weights FILE [--protocols knn,linear].

A protocol is a file of jaxssl/evaluation/protocols/, given as NAME or NAME:PRESET. "all" runs
every protocol that fits.
The data set is that of the run, or --dataset NAME with --config.data.KEY=VALUE where need be.
"""

from pathlib import Path

from absl import flags

from jaxssl import cli

FLAGS = flags.FlagValues()
WORKDIR = flags.DEFINE_list("workdir", [], "Folder of a run, or several.", flag_values=FLAGS)
WEIGHTS = flags.DEFINE_list(
    "weights", [], "Weights file (.safetensors, .pth), or several.", flag_values=FLAGS
)
PROTOCOLS = flags.DEFINE_list(
    "protocols", None, "NAME, NAME:PRESET or all; default the run's.", flag_values=FLAGS
)
DATASET = flags.DEFINE_string(
    "dataset", None, "Another data set, as config.data.name.", flag_values=FLAGS
)
SUITE = flags.DEFINE_string(
    "suite", None, "Python file with get_suite(): many data sets.", flag_values=FLAGS
)
STEP = flags.DEFINE_string(
    "step", None, "Of the checkpoint: a number, last (default) or best.", flag_values=FLAGS
)
LAYER = flags.DEFINE_string(
    "layer", "backbone", "Features: of the backbone or the projector.", flag_values=FLAGS
)
KINDS = flags.DEFINE_list(
    "kinds",
    None,
    "Of features: some of raw,untrained,pretrained; default all that fit.",
    flag_values=FLAGS,
)
SEED = flags.DEFINE_integer(
    "seed", None, "Of the protocols' draws; default the run's.", lower_bound=0, flag_values=FLAGS
)
OUT = flags.DEFINE_string(
    "out", None, "Folder of results.json; default the workdir.", flag_values=FLAGS
)
FREE = {"data.dir", "data.cache", "data.workers"}  # where a suite's sets lie, how they are read
cli.define_processes(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Flags to `jaxssl.evaluation.run.evaluate`, or to `jaxssl.evaluation.suite.run`."""
    # Imports come late, so that a mistake is answered at once.
    from configs import base
    from jaxssl.errors import UserError
    from jaxssl.evaluation import run
    from jaxssl.evaluation.overrides import data_config, split_overrides

    paths = [Path(path) for path in (*WORKDIR.value, *WEIGHTS.value)]
    if not paths:
        raise UserError("name what to evaluate: --workdir DIR or --weights FILE")
    cli.start_jax(FLAGS)
    of_data, weights_options = split_overrides(overrides)
    options = {
        "step": cli.parse_step(STEP.value),
        "kinds": KINDS.value,
        "layer": LAYER.value,
        "seed": SEED.value,
        "out": OUT.value and Path(OUT.value),
        "weights_options": weights_options,
    }
    if SUITE.value:
        from jaxssl.evaluation import suite

        if DATASET.value or PROTOCOLS.value or {key for key, _ in of_data} - FREE:
            raise UserError(
                "a suite names its data sets and protocols; leave those flags out, but for "
                f"{', '.join(sorted(FREE))}"
            )
        return suite.run(Path(SUITE.value), paths, base.get_config().data, of_data, **options)
    for path in paths:
        data = data_config(path, base.get_config().data, DATASET.value, of_data)
        run.evaluate(path, PROTOCOLS.value, data=data, **options)
