"""Small data sets that are bundled or generated, for demos and tests.

A file that defines `builder` is a value of `data.name`, see `jaxssl.components`. A builder is
called with the group `config.data` and the folder of prepared sets (None is TFDS' default), and
returns a TFDS builder.
"""
