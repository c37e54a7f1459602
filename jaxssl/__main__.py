"""`python -m jaxssl` is the command `jaxssl`."""

from jaxssl import cli

if __name__ == "__main__":
    cli.main()
