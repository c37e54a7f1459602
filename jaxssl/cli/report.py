"""Reports of runs: jaxssl report DIR [DIR ...] [--out FILE.html].

Of one DIR its report.html is written again from what it holds; nothing is trained or evaluated. Of
several, a page that compares them; by default compare.html in the current folder.
"""

from pathlib import Path

from absl import flags

from jaxssl.errors import UserError

FLAGS = flags.FlagValues()
POSITIONAL = "workdir"
WORKDIR = flags.DEFINE_multi_string(
    "workdir", [], "Folder of a run; DIR for short.", flag_values=FLAGS
)
OUT = flags.DEFINE_string(
    "out", None, "The page; default DIR/report.html, of several compare.html.", flag_values=FLAGS
)


def main(overrides: list[tuple[str, str]]) -> None:
    """Flags to `write_page`."""
    if overrides:
        raise UserError("the config is the run's: leave --config flags out")
    # Late, so that a mistake is answered at once.
    from jaxssl.report.comparison import write_page

    workdirs = [Path(name) for name in WORKDIR.value]
    path = write_page(workdirs, Path(OUT.value) if OUT.value else None)
    print(f"{'report' if len(workdirs) == 1 else 'comparison'}: {path}")
