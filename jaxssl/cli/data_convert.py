"""Make a set that TFDS prepared as TFRecord readable by index: jaxssl data convert DIR.

DIR is the folder of one version of the set, such as ~/tensorflow_datasets/cifar10/3.0.2. Its
TFRecord files stay as they are.
"""

from pathlib import Path

from absl import flags

from jaxssl.errors import UserError

FLAGS = flags.FlagValues()
POSITIONAL = "folder"
FOLDER = flags.DEFINE_string("folder", None, "Folder of the set's version.", flag_values=FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Flags to `jaxssl.data.convert.convert`."""
    from jaxssl.data.convert import convert

    if overrides:
        raise UserError("the files are converted as they are: leave --config flags out")
    if FOLDER.value is None:
        raise UserError("name the folder to convert: jaxssl data convert DIR")
    count = convert(Path(FOLDER.value).expanduser())
    print(f"{FOLDER.value}: {count} records converted" if count else "it is converted already")
