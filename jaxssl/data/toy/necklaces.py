"""Generated graphs of rings with pendants, for demos and tests."""

import numpy as np
import tensorflow_datasets as tfds

from jaxssl.data import KeyedExamples, toy

# Each class lists the sizes of the groups of adjacent ring nodes that have a pendant.
CLASSES = {"four": (4,), "three and one": (3, 1), "two and two": (2, 2), "apart": (1, 1, 1, 1)}
SIZES = {"train": 800, "test": 200}
RING = 14, 20  # range of the number of ring nodes
TWIGS = 3, 8  # range of the number of nodes other than ring nodes and pendants


class Builder(toy.ToyBuilder):
    """TFDS builder of ring graphs of 14 to 20 nodes with four pendants, classed by their grouping.

    Three to eight more nodes are added one by one, each to a pendant or to a node added before. All
    classes have the same distribution of degrees, so degrees do not reveal the class.
    """

    name = "necklaces"
    metadata = {"kind": "graph", "num_tags": 1}

    def _features(self) -> dict[str, object]:
        return {
            "tag": tfds.features.Tensor(shape=(None,), dtype=np.int32),
            "edge": tfds.features.Tensor(shape=(None, 2), dtype=np.int32),
            "label": tfds.features.ClassLabel(names=list(CLASSES)),
        }

    def _split_generators(self, dl_manager: object) -> dict[str, object]:
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split: str) -> KeyedExamples:
        rng = np.random.default_rng(list(SIZES).index(split))
        for i in range(SIZES[split]):
            name = list(CLASSES)[i % len(CLASSES)]
            yield i, {**necklace(rng, CLASSES[name]), "label": name}


def necklace(rng: np.random.Generator, groups: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Draw a ring graph with groups of adjacent pendants.

    Args:
        rng: draws the graph, and the order of its nodes.
        groups: sizes of the groups. At least two ring nodes without a pendant follow each group.

    Returns:
        "tag" int32 [n], all 0, and "edge" int32 [m, 2], see `jaxssl.kinds.graph.Graph`.
    """
    n = int(rng.integers(RING[0], RING[1] + 1))
    gaps = rng.multinomial(n - sum(groups) - 2 * len(groups), [1 / len(groups)] * len(groups)) + 2
    marked, start = [], 0
    for group, gap in zip(groups, gaps, strict=True):
        marked += range(start, start + group)
        start += group + int(gap)
    edges = [(i, (i + 1) % n) for i in range(n)] + [(node, n + i) for i, node in enumerate(marked)]
    outer = list(range(n, n + len(marked)))
    for _ in range(int(rng.integers(TWIGS[0], TWIGS[1] + 1))):
        edges.append((int(rng.choice(outer)), n + len(outer)))
        outer.append(n + len(outer))
    shuffled = rng.permutation(n + len(outer))
    edge = np.sort(shuffled[np.array(edges)], axis=1)
    tags = np.zeros(len(shuffled), np.int32)
    return {"tag": tags, "edge": np.unique(edge, axis=0).astype(np.int32)}
