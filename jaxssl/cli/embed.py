"""Write the embeddings of images to a file.

usage: jaxssl embed ENCODER IMAGES [--out FILE]

ENCODER is the folder of a run, or a weights file. IMAGES is a picture, or a folder or an archive of
pictures. The file is a .npy array with the names of the pictures in a CSV file beside it, or a
.parquet table.
"""

from absl import flags

from jaxssl import cli

FLAGS = flags.FlagValues()
POSITIONAL = "paths"
PATHS = flags.DEFINE_list("paths", [], "Same as ENCODER,IMAGES.", FLAGS)
OUT = flags.DEFINE_string("out", "embeddings.npy", "File to write, .npy or .parquet.", FLAGS)
LAYER = flags.DEFINE_string("layer", "backbone", "Layer: backbone or projector.", FLAGS)
STEP = flags.DEFINE_string("step", None, "Checkpoint: a step, last or best; default: last.", FLAGS)
ON_ERROR = flags.DEFINE_enum(
    "on_error", "stop", ["stop", "skip"], "Stop at pictures that cannot be read, or skip.", FLAGS
)
TRUST = cli.define_trust(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Call `jaxssl.embed` with the flags."""
    from jaxssl.errors import UserError

    if len(PATHS.value) != 2:
        raise UserError("name the encoder and the images: jaxssl embed ENCODER IMAGES")
    from jaxssl import api
    from jaxssl.training.output import console

    encoder, images = PATHS.value
    step = cli.parse_step(STEP.value)
    options = {"layer": LAYER.value, "step": step, "trust": TRUST.value, "on_error": ON_ERROR.value}
    shape = api.embed(encoder, images, OUT.value, **options).shape
    console.show(f"{OUT.value}: {shape[0]} embeddings of {shape[1]} numbers")
