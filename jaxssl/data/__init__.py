"""Load data sets and make batches on the host, without TensorFlow.

From bottom to top, each module using only modules above it in this list:

    decoders               files and archives, pictures, captions, arrays
    integrity              checks of prepared sets
    kind, records          what depends on the kind of examples, records of a prepared split
    formats, toy           TFDS builders of user files and of bundled sets
    splits                 splits of data sets, read by index, and classes of them
    opening                sets that are prepared once, or given as Python objects
    source, fingerprint    a split by its name, a digest of its data
    batches                the stream of batches
    prompts                sentences for zero-shot classification
"""

IN_MEMORY = "python"  # data.name of sets that are given as Python objects
