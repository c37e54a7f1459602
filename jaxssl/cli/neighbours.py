"""Find the nearest pictures of each picture, and likely duplicates.

usage: jaxssl neighbours ENCODER IMAGES [--threshold 0.995] [--out FILE.html]

ENCODER is the folder of a run, a weights file, or hf://OWNER/NAME. IMAGES is a picture, a folder or
an archive of pictures, or a .npy, .npz, .csv or .parquet file. The page shows pictures next to
their neighbours by cosine similarity, and pairs of likely duplicates. A CSV file next to the page
lists the neighbours of all pictures.

--config.net.KEY and --config.inputs.KEY give settings that a weights file does not hold, such as
--config.net.num_heads=6 or --config.inputs.crop=0.9.
"""

from absl import flags

from jaxssl import cli

FLAGS = flags.FlagValues()
POSITIONAL = "paths"
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
    "rows",
    100,
    "Largest number of pictures in each table of the page.",
    lower_bound=1,
    flag_values=FLAGS,
)
cli.define_pictures(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Write the page with `jaxssl.evaluation.picture_neighbours.write`."""
    encoder, images = cli.encoder_and_pictures(FLAGS, "neighbours")
    options = cli.encoder_options(FLAGS)
    from jaxssl.buckets import local_path
    from jaxssl.evaluation import picture_neighbours
    from jaxssl.evaluation.overrides import split_overrides
    from jaxssl.pretrained.load import load_pretrained
    from jaxssl.training.output import console

    _, of_weights = split_overrides(overrides, "neighbours")
    number, pairs = picture_neighbours.write(
        load_pretrained(encoder, options["step"], trust=options["trust"], **of_weights),
        images,
        local_path("out", OUT.value),
        k=K.value,
        threshold=THRESHOLD.value,
        rows=ROWS.value,
        layer=options["layer"],
        on_error=FLAGS.on_error,
    )
    console.show(f"{OUT.value}: {number} pictures; pairs of likely duplicates: {pairs}")
