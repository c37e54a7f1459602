"""Load data sets and make batches on the host, without TensorFlow.

From bottom to top, each module using only modules above it in this list:

    files, decoding, clips, graphs, tokens    read files, decode images, clips, graphs and texts
    array_cache, lazy_array, records          decoded arrays, records of a prepared split
    integrity, convert                        check prepared sets, convert TFRecord to ArrayRecord
    formats, toy                              TFDS builders of user files and of bundled sets
    prepare                                   a data set's name to its prepared set
    source, metadata                          splits read by index, sizes of common sets
    readers, plan, batches                    arrays of a batch, the stream of batches
    prompts                                   sentences for zero-shot classification
"""
