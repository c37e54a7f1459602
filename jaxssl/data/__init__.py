"""Data on the host, without TensorFlow.

By a set's name `prepare` gives its TFDS builder (`digits`, `raw`, `folder` are ours), `source`
opens splits, `batches` makes batches. `show` and `convert` are commands.
"""
