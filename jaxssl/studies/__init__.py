"""The papers' claims as commands, a file each; see `jaxssl.study` for what such a file has."""
