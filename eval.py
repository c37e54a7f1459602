"""Evaluate encoders. `python eval.py` is the same as `jaxssl eval` (--help lists the flags)."""

from jaxssl import cli

if __name__ == "__main__":
    cli.main("eval")
