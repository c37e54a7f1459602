"""Evaluate pretrained encoders.

usage: jaxssl eval --workdir DIR [--protocols knn,linear]
       jaxssl eval --weights FILE --dataset NAME [--protocols knn,linear]
       jaxssl eval --suite NAME --workdir DIR[,DIR ...]

A protocol is a file of jaxssl/evaluation/protocols/, written as NAME or NAME:PRESET; "all" runs
every protocol that fits. The data set of the run is used unless --dataset names another. Overrides
--config.data.KEY=VALUE say where it is stored and how it is split, --config.net.KEY and
--config.inputs.KEY what a weights file does not record.
"""

import itertools
import os

from absl import flags

from jaxssl import cli

POSITIONAL = "workdir"
# Only these config keys may be combined with --suite, because a suite names its data sets.
SUITE_KEYS = {"data.dir", "data.cache", "data.workers"}
FLAGS = flags.FlagValues()
WORKDIR = flags.DEFINE_list("workdir", [], "Folders of runs.", FLAGS)
WEIGHTS = flags.DEFINE_list("weights", [], "Weights: files, folders or hf://OWNER/NAME.", FLAGS)
PROTOCOLS = flags.DEFINE_list(
    "protocols", None, "NAME, NAME:PRESET or all; default: the run's eval.protocols.", FLAGS
)
DATASET = flags.DEFINE_string(
    "dataset", None, "Data set, as config.data.name; default: the run's.", FLAGS
)
SUITE = flags.DEFINE_string(
    "suite",
    None,
    "Evaluate on many data sets: name of a packaged suite, or a Python file with get_suite().",
    FLAGS,
)
KINDS = flags.DEFINE_list(
    "kinds",
    None,
    "Some of raw,untrained,pretrained; default: all; with --suite only pretrained.",
    FLAGS,
)
SEED = flags.DEFINE_integer(
    "seed",
    None,
    "Random seed of the protocols; default: the run's.",
    lower_bound=0,
    flag_values=FLAGS,
)
OUT = flags.DEFINE_string(
    "out", None, "Folder of results.json; default: the workdir, or NAME.eval for weights.", FLAGS
)
cli.define_encoder(FLAGS)
cli.define_processes(FLAGS)


def _join_path_with_commas(paths: list[str]) -> list[str]:
    """Join the parts of one path with commas, as grids and studies name their runs."""
    whole = ",".join(paths)
    return [whole] if len(paths) > 1 and os.path.exists(os.path.expanduser(whole)) else paths


def main(overrides: list[tuple[str, str]]) -> None:
    """Evaluate a run, a weights file or a suite of data sets, as the flags say."""
    # configs is imported after the flags are checked, so that wrong flags are reported at once.
    from jaxssl.buckets import as_path
    from jaxssl.configs import base
    from jaxssl.errors import UserError
    from jaxssl.evaluation import run
    from jaxssl.evaluation.overrides import data_config, split_overrides

    given = [_join_path_with_commas(flag.value) for flag in (WORKDIR, WEIGHTS)]
    paths = [as_path(path) for path in itertools.chain(*given)]
    if not paths:
        raise UserError("eval needs a run or a weights file: --workdir DIR or --weights FILE")
    data_overrides, weights_options = split_overrides(overrides)
    options = {
        **cli.encoder_options(FLAGS),
        "kinds": KINDS.value,
        "seed": SEED.value,
        "out": OUT.value and as_path(OUT.value),
        "weights_options": weights_options,
    }
    cli.start_jax(FLAGS)
    defaults = base.get_config().data
    if SUITE.value:
        from jaxssl.evaluation import suite

        if DATASET.value or PROTOCOLS.value or {key for key, _ in data_overrides} - SUITE_KEYS:
            raise UserError(
                "a suite names its data sets and protocols; leave out --dataset, --protocols and "
                f"--config.data flags, except {', '.join(sorted(SUITE_KEYS))}"
            )
        suite.run(SUITE.value, paths, defaults, data_overrides, **options)
        return
    chosen = DATASET.value, data_overrides
    data = {path: data_config(path, defaults, *chosen, trust=FLAGS.trust) for path in paths}
    # Wrong input for a later encoder is refused before the first is evaluated.
    for dry_run in (True, False) if len(paths) > 1 else (False,):
        for path in paths:
            run.evaluate(path, PROTOCOLS.value, data=data[path], dry_run=dry_run, **options)
