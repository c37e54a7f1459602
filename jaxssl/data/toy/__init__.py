"""Small data sets that are bundled or generated, for demos and tests.

A file that defines `Builder`, a TFDS builder, is a value of `data.name`, see `jaxssl.components`.
"""

from typing import Any

import tensorflow_datasets as tfds


class ToyBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Base class of toy data sets: a TFDS builder whose description is the class docstring.

    Attributes:
        metadata: entries that a kind of examples reads from a set's metadata, see `jaxssl.kinds`.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}
    metadata: dict[str, Any] = {}

    def _features(self) -> dict[str, object]:
        raise NotImplementedError

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__class__.__doc__,
            features=tfds.features.FeaturesDict(self._features()),
            metadata=tfds.core.MetadataDict(self.metadata),
        )
