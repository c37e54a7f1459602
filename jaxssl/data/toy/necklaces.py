"""Graphs that are made, not collected: rings with pendants, for demos and tests."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from jaxssl.data.formats.tu import Graph

# How many ring nodes with a pendant stand next to each other, group by group.
CLASSES = {"four": (4,), "three and one": (3, 1), "two and two": (2, 2), "apart": (1, 1, 1, 1)}
SIZES = {"train": 800, "test": 200}
RING = 14, 20  # nodes of a ring, the least and the most
TWIGS = 8  # of the nodes beyond ring and pendants


class Builder(tfds.core.GeneratorBasedBuilder):
    """Rings of 14 to 20 nodes of which four have a pendant; the class is how these stand together.

    Three to eight more nodes are added one by one, each to a pendant or to one that was added. All
    classes have the same distribution of degrees, so counting them tells nothing.
    """

    name = "necklaces"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "tag": tfds.features.Tensor(shape=(None,), dtype=np.int32),
            "edge": tfds.features.Tensor(shape=(None, 2), dtype=np.int32),
            "label": tfds.features.ClassLabel(names=list(CLASSES)),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__class__.__doc__,
            features=tfds.features.FeaturesDict(features),
            metadata=tfds.core.MetadataDict({"kind": "graph", "num_tags": 1}),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        rng = np.random.default_rng(list(SIZES).index(split))
        for i in range(SIZES[split]):
            name = list(CLASSES)[i % len(CLASSES)]
            yield i, {**necklace(rng, CLASSES[name])._asdict(), "label": name}


def necklace(rng: np.random.Generator, groups: tuple[int, ...]) -> Graph:
    """A ring of which some nodes have a pendant; groups of them stand two nodes or more apart."""
    n = int(rng.integers(RING[0], RING[1] + 1))
    gaps = rng.multinomial(n - sum(groups) - 2 * len(groups), [1 / len(groups)] * len(groups)) + 2
    marked, place = [], 0
    for group, gap in zip(groups, gaps, strict=True):
        marked += range(place, place + group)
        place += group + int(gap)
    edges = [(i, (i + 1) % n) for i in range(n)] + [(at, n + i) for i, at in enumerate(marked)]
    outer = list(range(n, n + len(marked)))
    for _ in range(int(rng.integers(3, TWIGS + 1))):
        edges.append((int(rng.choice(outer)), n + len(outer)))
        outer.append(n + len(outer))
    shuffled = rng.permutation(n + len(outer))
    edge = np.sort(shuffled[np.array(edges)], axis=1)
    return Graph(np.zeros(len(shuffled), np.int32), np.unique(edge, axis=0).astype(np.int32))
