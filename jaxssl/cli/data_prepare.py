"""Prepare a data set, so that runs start at once and need no network.

usage: jaxssl data prepare NAME [--config.data.KEY=VALUE ...]
       jaxssl data prepare folder --config.data.path=PATH
"""

from absl import flags

from jaxssl.errors import UserError

FLAGS = flags.FlagValues()
POSITIONAL = "name"
NAME = flags.DEFINE_string("name", None, "Same as NAME, a data set as in config.data.name.", FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Prepare the data set that the flags name, and print the names of its splits."""
    if NAME.value is None:
        raise UserError("name the data set to prepare: jaxssl data prepare NAME")
    if any(not key.startswith("data.") for key, _ in overrides):
        raise UserError("only --config.data flags are used; leave the others out")
    from jaxssl.data import source
    from jaxssl.training import config
    from jaxssl.training.output import console, logs

    settings = config.load("base", [("data.name", NAME.value), *overrides])
    logs.log_to_screen()
    builder = source.prepare(settings.data)
    for split, info in builder.info.splits.items():
        console.show(f"{split}: {info.num_examples} examples")
    console.show(f"prepared in {builder.data_dir}")
