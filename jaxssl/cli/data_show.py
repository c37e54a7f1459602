"""Show a config's images and views: jaxssl data show --config FILE [--out PNG].

A row for an image: as it is in the data set with its label, its views as training makes them, its
small crops. Overrides are given as to train.py: --config.data.path=DIR.
"""

from pathlib import Path

from absl import flags

FLAGS = flags.FlagValues()
CONFIG = flags.DEFINE_string("config", None, "Python file with get_config().", flag_values=FLAGS)
OUT = flags.DEFINE_string(
    "out", None, "The picture; default views_<name of the config>.png.", flag_values=FLAGS
)
ROWS = flags.DEFINE_integer("rows", 8, "Images to show.", lower_bound=1, flag_values=FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Flags to `jaxssl.evaluation.gallery.write_sheet`."""
    from jaxssl.data import source
    from jaxssl.errors import UserError, explain_write_errors
    from jaxssl.evaluation import gallery
    from jaxssl.training import config, logs, modality

    if CONFIG.value is None:
        raise UserError("name the config to show: --config configs/NAME.py")
    settings = config.load(CONFIG.value, overrides)
    logs.log_to_screen()
    out = Path(OUT.value or f"views_{Path(CONFIG.value).stem}.png")
    if modality.dataset_kind(settings) != "image":
        raise UserError(f"views by augment.name={settings.augment.name!r} are no pictures to show")
    train = source.load(settings.data, settings.data.train_split)
    with explain_write_errors(out):
        gallery.write_sheet(settings, train, ROWS.value, out)
    print(f"{train.describe()}\nviews: {out}")
