"""Write the embeddings of images to a file.

usage: jaxssl embed ENCODER IMAGES [--out FILE]

ENCODER is the folder of a run, a weights file, or hf://OWNER/NAME. IMAGES is a picture, a folder or
an archive of pictures, or a .npy, .npz, .csv or .parquet file. The output is a .npy array, with the
names of the pictures in NAME.files.csv beside it, or a .parquet table.
"""

from absl import flags

from jaxssl import cli

FLAGS = flags.FlagValues()
POSITIONAL = "paths"
OUT = flags.DEFINE_string("out", "embeddings.npy", "File to write, .npy or .parquet.", FLAGS)
cli.define_pictures(FLAGS)


def main() -> None:
    """Call `jaxssl.embed` with the values of the flags."""
    encoder, images = cli.encoder_and_pictures(FLAGS, "embed")
    from jaxssl import api
    from jaxssl.training.output import console

    options = {**cli.encoder_options(FLAGS), "on_error": FLAGS.on_error}
    shape = api.embed(encoder, images, OUT.value, **options).shape
    console.show(f"{OUT.value}: {shape[0]} embeddings of {shape[1]} numbers")
