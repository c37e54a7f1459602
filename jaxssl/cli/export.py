"""Export a backbone: jaxssl export DIR --to safetensors|torch|stablehlo.

Writes the file and README.md, a model card, into DIR/export or --out FOLDER. Names are
torchvision's for ResNets and timm's for ViTs. DIR may be a weights file too.
"""

from pathlib import Path

from absl import flags

from jaxssl import cli
from jaxssl.errors import UserError

FLAGS = flags.FlagValues()
POSITIONAL = "workdir"
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of a run, or a weights file; DIR for short.", flag_values=FLAGS
)
TO = flags.DEFINE_list(
    "to", [], "safetensors, torch (.pth; needs PyTorch) or stablehlo.", flag_values=FLAGS
)
STEP = flags.DEFINE_string(
    "step", None, "Of the checkpoint: a number, last (default) or best.", flag_values=FLAGS
)
OUT = flags.DEFINE_string(
    "out", None, "Folder to write into; default DIR/export.", flag_values=FLAGS
)


def main(overrides: list[tuple[str, str]]) -> None:
    """Flags to `jaxssl.pretrained.export.export`."""
    if overrides:
        raise UserError("the config is the run's: leave --config flags out")
    # Late, so that a mistake is answered at once.
    from jaxssl.pretrained.export import export

    if WORKDIR.value is None:
        raise UserError("name what to export: jaxssl export DIR --to safetensors")
    step = cli.parse_step(STEP.value)
    out = Path(OUT.value) if OUT.value else None
    for path in export(Path(WORKDIR.value), TO.value, step=step, out=out):
        print(path)
