"""Load data sets and make batches on the host, without TensorFlow.

Modules in dependency order. Each imports only from modules listed before it:

    prompts                sentences for zero-shot classification
    decoders               files and archives, pictures, captions, arrays
    integrity              checks of prepared sets
    records, kind          records of a prepared split, functions for each kind of examples
    formats, toy           TFDS builders of user files and of bundled sets
    splits                 splits of data sets, read by index, and classes of them
    opening                Python objects and tar shards as data sets, conversion of prepared sets
    source, fingerprint    a split by its name, prepared if necessary, and a digest of its data
    batches                the stream of batches
"""

from collections.abc import Iterator
from typing import Any

# Keys and features of the examples of a split, as TFDS builders generate them.
KeyedExamples = Iterator[tuple[int | str, dict[str, Any]]]
IN_MEMORY = "python"  # data.name of sets that are given as Python objects
