"""The papers' claims as commands, a file each; `jaxssl.studies.study` says what a file has."""
