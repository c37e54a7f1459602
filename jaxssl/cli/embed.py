"""Write the embeddings of images to a file.

usage: jaxssl embed ENCODER IMAGES [--out FILE]

ENCODER is the folder of a run, a weights file, or hf://OWNER/NAME. IMAGES is a picture, a folder or
an archive of pictures, or a .npy, .npz, .csv or .parquet file. The output is a .npy array, with the
names of the pictures in NAME.files.csv next to it, or a .parquet table.

--config.net.KEY and --config.inputs.KEY give settings that a weights file does not hold, such as
--config.net.num_heads=6 or --config.inputs.crop=0.9.
"""

from absl import flags

from jaxssl import cli

FLAGS = flags.FlagValues()
POSITIONAL = "paths"
OUT = flags.DEFINE_string("out", "embeddings.npy", "File to write, .npy or .parquet.", FLAGS)
cli.define_pictures(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Call `jaxssl.embed` with the values of the flags."""
    encoder, images = cli.encoder_and_pictures(FLAGS, "embed")
    from jaxssl import api
    from jaxssl.evaluation.overrides import split_overrides
    from jaxssl.pretrained.load import load_pretrained
    from jaxssl.training import memory
    from jaxssl.training.output import console

    _, of_weights = split_overrides(overrides, "embed")
    options = cli.encoder_options(FLAGS)
    loaded = load_pretrained(encoder, options["step"], trust=options["trust"], **of_weights)
    further = {"layer": options["layer"], "on_error": FLAGS.on_error}
    memory.keep_freed()
    shape = api.embed(loaded, images, OUT.value, **further).shape
    console.show(f"{OUT.value}: embeddings {shape[0]} x {shape[1]}")
