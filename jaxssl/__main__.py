"""Run the command `jaxssl` as `python -m jaxssl`."""

from jaxssl import cli

if __name__ == "__main__":
    cli.main()
