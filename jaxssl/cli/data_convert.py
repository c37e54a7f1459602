"""Convert TFRecord files of a TFDS data set to ArrayRecord files, which can be read by index.

usage: jaxssl data convert DIR

DIR is the folder of one version of a data set, such as ~/tensorflow_datasets/cifar10/3.0.2. The
TFRecord files are not changed.
"""

from pathlib import Path

from absl import flags

from jaxssl.errors import UserError

FLAGS = flags.FlagValues()
POSITIONAL = "folder"
FOLDER = flags.DEFINE_string("folder", None, "Same as DIR.", FLAGS)


def main() -> None:
    """Call `jaxssl.data.opening.convert.convert` for the folder that the flags name."""
    from jaxssl.data.opening.convert import convert
    from jaxssl.training.output.console import show

    if FOLDER.value is None:
        raise UserError("data convert needs a folder: jaxssl data convert DIR")
    count = convert(Path(FOLDER.value).expanduser())
    show(f"{FOLDER.value}: {f'{count} records converted' if count else 'already converted'}")
