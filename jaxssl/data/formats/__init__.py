"""Data sets from a user's files, which the config key `data.path` names.

A file that defines `builder` is a value of `data.name`, see `jaxssl.components`. A builder is
called with the group `config.data` and the folder of prepared sets (None is TFDS' default), and
returns a TFDS builder. `published` reads the files of CIFAR, MNIST and STL-10.
"""
