"""Find the nearest pictures of each picture, and likely duplicates.

usage: jaxssl neighbours ENCODER IMAGES [--threshold 0.995] [--out FILE.html]

ENCODER is the folder of a run, a weights file, or hf://OWNER/NAME. IMAGES is a picture, or a folder
or an archive of pictures. The page shows pictures beside their neighbours by cosine similarity, and
pairs of likely duplicates. A CSV file beside the page lists the neighbours of all pictures.
"""

from pathlib import Path

from absl import flags

from jaxssl import cli

FLAGS = flags.FlagValues()
POSITIONAL = "paths"
PATHS = flags.DEFINE_list("paths", [], "Same as ENCODER,IMAGES.", FLAGS)
OUT = flags.DEFINE_string("out", "neighbours.html", "Page to write.", FLAGS)
K = flags.DEFINE_integer(
    "k", 8, "Number of neighbours of each picture.", lower_bound=1, flag_values=FLAGS
)
THRESHOLD = flags.DEFINE_float(
    "threshold",
    0.995,
    "Cosine from which on two pictures are likely duplicates.",
    lower_bound=-1,
    upper_bound=1,
    flag_values=FLAGS,
)
ROWS = flags.DEFINE_integer(
    "rows", 100, "Most pictures in a table of the page.", lower_bound=1, flag_values=FLAGS
)
LAYER = flags.DEFINE_string("layer", "backbone", "Layer: backbone or projector.", FLAGS)
STEP = flags.DEFINE_string("step", None, "Checkpoint: a step, last or best; default: last.", FLAGS)
ON_ERROR = flags.DEFINE_enum(
    "on_error", "stop", ["stop", "skip"], "Stop at pictures that cannot be read, or skip.", FLAGS
)
TRUST = cli.define_trust(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Write the page with `jaxssl.evaluation.picture_neighbours.write`."""
    from jaxssl.errors import UserError

    if len(PATHS.value) != 2:
        raise UserError("name the encoder and the images: jaxssl neighbours ENCODER IMAGES")
    step = cli.parse_step(STEP.value)
    from jaxssl.evaluation import picture_neighbours
    from jaxssl.pretrained.load import load_pretrained
    from jaxssl.training.output import compile_cache, console

    compile_cache.enable()
    encoder, images = PATHS.value
    number, pairs = picture_neighbours.write(
        load_pretrained(encoder, step, trust=TRUST.value),
        images,
        Path(OUT.value),
        k=K.value,
        threshold=THRESHOLD.value,
        rows=ROWS.value,
        layer=LAYER.value,
        on_error=ON_ERROR.value,
    )
    console.show(f"{OUT.value}: {number} pictures, {pairs} pairs of likely duplicates")
