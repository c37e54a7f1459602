"""Pretrain an encoder. `python train.py` is the same as `jaxssl train` (--help lists the flags)."""

from jaxssl import cli

if __name__ == "__main__":
    cli.main("train")
