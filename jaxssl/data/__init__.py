"""Data on the host, without TensorFlow: `source` reads prepared sets, `batches` makes batches.

Each data set of ours has a file with its TFDS builder: `data.name` in a config is its name.
"""
