"""Pretrain an encoder: python train.py [flags], which is `jaxssl train`; --help lists the flags."""

from jaxssl import cli

if __name__ == "__main__":
    cli.run("train")
