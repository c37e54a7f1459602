"""Draw training images and their augmented views into a picture file.

usage: jaxssl data show --config NAME [--out PNG] [--config.KEY=VALUE ...]

Each row shows an image of the data set with its label, its augmented views as training sees them,
and its small crops if the config has any.
"""

from pathlib import Path

from absl import flags

from jaxssl.errors import UserError

FLAGS = flags.FlagValues()
CONFIG = flags.DEFINE_string(
    "config", None, "Name of a packaged config, or a Python file with get_config().", FLAGS
)
OUT = flags.DEFINE_string(
    "out", None, "PNG file to write; default: views_CONFIG.png, with the name of the config.", FLAGS
)
ROWS = flags.DEFINE_integer("rows", 8, "Number of images.", lower_bound=1, flag_values=FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Draw a sheet of images and views with `jaxssl.evaluation.gallery.write_sheet`."""
    if CONFIG.value is None:
        raise UserError("data show needs a config: --config NAME, or a Python file")
    from jaxssl.data import kind, source
    from jaxssl.evaluation import gallery
    from jaxssl.training import config, processes
    from jaxssl.training.output import logs
    from jaxssl.training.output.console import show

    settings = config.load(CONFIG.value, overrides)
    processes.check_platform()
    logs.log_to_screen()
    out = Path(OUT.value or f"views_{config.run_name(CONFIG.value)}.png")
    examples = kind.of(settings)
    if examples.show is None:
        raise UserError(
            f"augment.name={settings.augment.name!r} makes no pictures; "
            "show an image or video config"
        )
    folder = settings.data.path and Path(settings.data.path).expanduser().resolve()
    if folder and out.resolve().is_relative_to(folder):
        raise UserError(f"--out {out} lies among the data; name a file outside {folder}")
    train = source.load(settings.data, settings.data.train_split, examples.data)
    gallery.write_sheet(settings, train, ROWS.value, out)
    show(train.describe())
    show(f"views: {out}")
