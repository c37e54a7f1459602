"""Load data sets and make batches on the host, without TensorFlow.

From bottom to top, each module using only modules above it in this list:

    decoders                       files and archives, pictures, clips, graphs, captions, arrays
    class_names, integrity         lists of classes, checks of prepared sets
    kind, records                  what depends on the kind of examples, records of a prepared split
    formats, toy                   TFDS builders of user files and of bundled sets
    splits                         splits of data sets, read by index
    opening                        sets that are prepared once, or given as Python objects
    source, metadata, fingerprint  a split by its name, sizes of common sets, a digest of the data
    statistics                     mean and standard deviation of the channels of training images
    plan, batches                  the stream of batches
    prompts                        sentences for zero-shot classification
"""

IN_MEMORY = "python"  # data.name of sets that are given as Python objects
