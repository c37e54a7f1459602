"""Load data sets and make batches on the host, without TensorFlow.

From bottom to top, each module using only modules above it in this list:

    files, decoding, clips, graphs, tokens    read files, decode images, clips, graphs and texts
    array_cache, lazy_array, records          decoded arrays, records of a prepared split
    integrity, convert                        check prepared sets, convert TFRecord to ArrayRecord
    formats, toy                              TFDS builders of user files and of bundled sets
    prepare                                   a data set's name to its prepared set
    splits, tables, labels, in_memory         splits read by index, sets that are Python objects
    source, metadata                          a split by its name, sizes of common sets
    kind                                      what depends on the kind of examples
    plan, batches                             the stream of batches
    prompts                                   sentences for zero-shot classification
"""
