"""Write an encoder as a file for other projects.

usage: jaxssl export DIR --to safetensors|torch|stablehlo|timm [--out FOLDER] [--push hf://OWNER/NAME]

DIR is the folder of a run, a weights file, or hf://OWNER/NAME. The file and a model card,
README.md, are written to --out, by default the folder `export` in the run's folder or next to
the file. Parameters have the names of torchvision for ResNets and of timm for ViTs.

--config.net.KEY and --config.inputs.KEY give settings that a weights file does not hold, such as
--config.net.num_heads=6 or --config.inputs.crop=0.9.
"""

from absl import flags

from jaxssl import cli
from jaxssl.errors import UserError

FLAGS = flags.FlagValues()
POSITIONAL = "workdir"
WORKDIR = flags.DEFINE_string("workdir", None, "Same as DIR.", FLAGS)
TO = flags.DEFINE_list(
    "to",
    [],
    "Formats: safetensors, torch (.pth; needs PyTorch), stablehlo, timm (config.json and "
    "model.safetensors, for timm and transformers).",
    FLAGS,
)
STEP = flags.DEFINE_string("step", None, "Checkpoint: a step, last or best; default: last.", FLAGS)
OUT = flags.DEFINE_string(
    "out", None, "Folder to write to; default: `export` in DIR or next to the file.", FLAGS
)
PUSH = flags.DEFINE_string(
    "push", None, "Upload the files to a model repository too: hf://OWNER/NAME.", FLAGS
)
TRUST = cli.define_trust(FLAGS)
cli.define_processes(FLAGS)


def main(overrides: list[tuple[str, str]]) -> None:
    """Export a run's encoder with `jaxssl.pretrained.export.export`."""
    # JAX is imported after the flags are checked, so that wrong flags are reported at once.
    from jaxssl.buckets import as_path
    from jaxssl.evaluation.overrides import split_overrides
    from jaxssl.pretrained.export import export
    from jaxssl.training import processes
    from jaxssl.training.output.console import show

    cli.leave_to_first_process(FLAGS)
    if WORKDIR.value is None:
        raise UserError("export needs the folder of a run: jaxssl export DIR --to safetensors")
    processes.check_platform()
    out = as_path(OUT.value) if OUT.value else None
    _, of_weights = split_overrides(overrides, "export")
    options = {"step": cli.parse_step(STEP.value), "trust": TRUST.value, "push": PUSH.value}
    options["weights_options"] = of_weights
    for path in export(as_path(WORKDIR.value), TO.value, out=out, **options):
        show(str(path))
    if PUSH.value:
        show(f"uploaded to {PUSH.value}")
