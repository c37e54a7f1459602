"""Write the HTML report of a run, or compare several runs.

usage: jaxssl report DIR [DIR ...] [--out FILE.html]

One DIR: its report.html is written again from its files, without training or evaluation. Several:
a page compares the runs.
"""

from absl import flags

from jaxssl import cli

FLAGS = flags.FlagValues()
POSITIONAL = "workdir"
WORKDIR = flags.DEFINE_multi_string("workdir", [], "Same as DIR.", FLAGS)
OUT = flags.DEFINE_string(
    "out", None, "Page to write; default: DIR/report.html, or compare.html for several.", FLAGS
)
cli.define_processes(FLAGS)


def main() -> None:
    """Write the report page with `jaxssl.report.comparison.write_page`."""
    # The report code is imported after the flags are checked, so that wrong flags fail at once.
    from jaxssl.buckets import as_path
    from jaxssl.report.comparison import write_page
    from jaxssl.training.output.console import show

    cli.leave_to_first_process(FLAGS)
    workdirs = [as_path(name) for name in WORKDIR.value]
    path = write_page(workdirs, as_path(OUT.value) if OUT.value else None)
    show(f"{'report' if len(workdirs) == 1 else 'comparison'}: {path}")
