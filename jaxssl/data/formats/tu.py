"""Graph data sets of the TU collection: `data.name=tu data.path=PATH`.

The path is a folder or an archive, or a folder in an archive, that holds the text files of one set.
These are either the files that the authors of the collection publish,

    NAME_A.txt                  one edge "i, j" a line, nodes numbered from 1 over all graphs
    NAME_graph_indicator.txt    the graph of each node
    NAME_graph_labels.txt       the class of each graph
    NAME_node_labels.txt        the tag of each node (optional)

or the single file `NAME.txt` of GIN's released code. It has the number of graphs, then for each
graph a line "nodes class", and for each of its nodes a line "tag degree neighbour ...", where
neighbours are numbered from 0. Labels of edges, and attributes of edges and nodes, are not read.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from ml_collections import ConfigDict

from jaxssl.data import KeyedExamples
from jaxssl.data.decoders import files
from jaxssl.data.formats import user_files
from jaxssl.errors import UserError, one_line

URL = "https://www.chrsmrrs.com/graphkerneldatasets/NAME.zip"
PARTS = ("A", "graph_indicator", "graph_labels", "node_labels")
# Cross-validation folds, descriptions, and labels and attributes that are not read.
SKIPPED = re.compile(r"idx|readme|_edge_labels$|_(edge|node)_attributes$", re.IGNORECASE)
MAX_FILE = 2**32  # largest text file in bytes


class Graphs(NamedTuple):
    """All graphs of a TU data set, with their classes.

    Attributes:
        graphs: in the order of the files, each with its node tags "tag" int32 [n] and the pairs
            of nodes "edge" int32 [m, 2], the smaller node first, each edge once.
        labels: the class of each graph, as the files name it.
        num_tags: number of node tags.
    """

    graphs: list[dict[str, np.ndarray]]
    labels: list[int]
    num_tags: int


class Builder(user_files.Builder, skip_registration=True):
    """TFDS builder of graphs in a fixed random order, so that slices are random samples."""

    name = "tu"

    def _info(self) -> tfds.core.DatasetInfo:
        classes = sorted(set(self._set.labels))
        features = {
            "tag": tfds.features.Tensor(shape=(None,), dtype=np.int32),
            "edge": tfds.features.Tensor(shape=(None, 2), dtype=np.int32),
            "label": tfds.features.ClassLabel(names=[str(label) for label in classes]),
        }
        metadata = {"kind": "graph", "num_tags": self._set.num_tags}
        return self._make_info("Graphs", features, metadata)

    @functools.cached_property
    def _set(self) -> Graphs:
        return read_tu_graphs(self.builder_config.source.root, self.builder_config.source.inside)

    def _split_generators(self, dl_manager: object) -> dict[str, object]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> KeyedExamples:
        graphs, labels, _ = self._set
        order = np.random.default_rng(0).permutation(len(graphs))
        for key, i in enumerate(order.tolist()):
            yield key, {**graphs[i], "label": str(labels[i])}


def builder(data: ConfigDict, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return the TFDS builder for the present files of a TU data set.

    Args:
        data: "path". A damaged file always stops, whatever "on_error" says.
        data_dir: folder of prepared sets. None is TFDS' default.

    Raises:
        UserError: if the path does not hold one set, or its files are damaged.
    """
    source = user_files.locate(data, f"the files of a set, such as {URL}", (".txt",))
    return user_files.find_builder(Builder, source, source.content, data_dir, lambda: None)


def read_tu_graphs(root: Path, inside: str = "") -> Graphs:
    """Read the graphs of the only TU data set in a folder or an archive.

    Args:
        root: the folder or archive.
        inside: folder inside the archive. "" is all of it.

    Raises:
        UserError: unless the folder holds exactly one set, or if a file is damaged.
    """
    where = f"{root}/{inside}" if inside else str(root)
    texts: dict[str, bytes] = {}
    for name, read in files.read_files(root, inside, max_bytes=MAX_FILE):
        path = PurePosixPath(name)
        if path.suffix != ".txt" or SKIPPED.search(path.stem):
            continue
        try:
            texts[path.with_suffix("").as_posix()] = read()
        except OSError as error:
            raise UserError(f"{name} of {where} cannot be read: {error}") from error
    names = sorted(_set_names(texts))
    if len(names) != 1:
        listed = f": {', '.join(names[:5])}" if names else ""
        parent = PurePosixPath(names[0]).parent.as_posix() if names else "."
        raise UserError(
            f"data.path={where} holds the graphs of {len(names)} sets{listed}; expected one, as "
            f"NAME_A.txt with its companions or as NAME.txt; name the set's folder, such as "
            f"{where}/{'NAME' if parent == '.' else parent}"
        )
    (name,) = names
    if f"{name}_graph_attributes" in texts and f"{name}_graph_labels" not in texts:
        raise UserError(f"data.path={where}: the graphs {name} have numbers, but no classes")
    try:
        if f"{name}_A" in texts:
            return _parse_collection(
                {k: texts[f"{name}_{k}"] for k in PARTS if f"{name}_{k}" in texts}
            )
        return _parse_gin(texts[name])
    except (ValueError, StopIteration, OverflowError) as error:
        reason = "cut short" if isinstance(error, StopIteration) else one_line(error)
        raise UserError(
            f"the graphs {name} of {where} are damaged ({reason}); download them again, for "
            f"example from {URL}"
        ) from error


def _set_names(texts: Mapping[str, bytes]) -> set[str]:
    """Return the name of each set, with its folder: the part before `_A`, or a GIN file's stem.

    Other files that begin with the name of a set belong to it.
    """
    many = {stem.removesuffix("_A") for stem in texts if stem.endswith("_A")}
    parts = {stem for stem in texts if re.search(rf"_({'|'.join(PARTS)})$", stem)}
    others = set(texts) - parts
    return many | {stem for stem in others if not any(stem.startswith(f"{n}_") for n in many)}


def _parse_collection(texts: Mapping[str, bytes]) -> Graphs:
    """Parse the files that the collection publishes, by the ends of their names."""
    if missing := [part for part in PARTS[:3] if part not in texts]:
        raise ValueError(f"the file *_{missing[0]}.txt is missing")
    edges, graph_of, labels = (_read_numbers(texts, part) for part in PARTS[:3])
    edges = edges.reshape(-1, 2)
    tags = np.zeros(len(graph_of), np.int64)
    if "node_labels" in texts:  # In some data sets nodes have several labels. The first is read.
        lines = texts["node_labels"].splitlines()
        tags = np.array([line.partition(b",")[0] for line in lines if line.strip()], np.int64)
    if len(tags) != len(graph_of):
        raise ValueError(f"{len(tags)} nodes have a label, but {len(graph_of)} belong to a graph")
    if (np.diff(graph_of) < 0).any():
        raise ValueError("the nodes of a graph are not consecutive")
    _require_range("a node", "graph", graph_of, 1, len(labels))
    _require_range("an edge", "node", edges, 1, len(graph_of))
    edges = edges - 1
    if (graph_of[edges[:, 0]] != graph_of[edges[:, 1]]).any():
        raise ValueError("an edge joins two graphs")
    first = np.searchsorted(graph_of, np.arange(1, len(labels) + 2))
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    cut = np.searchsorted(edges[:, 0], first)
    graphs = [
        (tags[first[g] : first[g + 1]], edges[cut[g] : cut[g + 1]] - first[g])
        for g in range(len(labels))
    ]
    return _normalise(graphs, labels.tolist())


def _read_numbers(texts: Mapping[str, bytes], part: str) -> np.ndarray:
    """Return the numbers of a file with two on each line, or one. Weights of edges are refused."""
    columns = 2 if part == "A" else 1
    numbers = np.array(texts[part].replace(b",", b" ").split(), np.int64)
    lines = sum(1 for line in texts[part].splitlines() if line.strip())
    if len(numbers) != columns * lines:
        raise ValueError(
            f"*_{part}.txt has {len(numbers)} numbers on {lines} lines, not {columns} on each"
        )
    return numbers


def _parse_gin(text: bytes) -> Graphs:
    """Parse the single file of GIN's released code."""
    lines = iter(text.decode().splitlines())
    graphs, labels = [], []
    for _ in range(int(next(lines))):
        number, label = map(int, next(lines).split()[:2])
        tags, edges = [], []
        for node in range(number):
            tag, degree, *rest = next(lines).split()
            neighbours = rest[: int(degree)]  # Attributes may follow the neighbours.
            if len(neighbours) != int(degree):
                raise ValueError(
                    f"node {node} lists {len(neighbours)} neighbours, but claims {degree}"
                )
            tags.append(int(tag))
            edges += [(node, int(other)) for other in neighbours]
        graphs.append((np.array(tags, np.int64), np.array(edges, np.int64).reshape(-1, 2)))
        _require_range("an edge", "node", graphs[-1][1], 0, number - 1)
        labels.append(label)
    if any(line.strip() for line in lines):
        raise ValueError(f"the first line claims {len(graphs)} graphs, but the file has more")
    return _normalise(graphs, labels)


def _normalise(graphs: Sequence[tuple[np.ndarray, np.ndarray]], labels: list[int]) -> Graphs:
    """Number the different node labels (tags) from 0, remove self-loops and keep each edge once."""
    if not graphs or not all(len(tags) for tags, _ in graphs):
        raise ValueError("the data set has no graphs, or a graph without nodes")
    all_tags = np.unique(np.concatenate([tags for tags, _ in graphs]))
    normalised = []
    for tags, edges in graphs:
        edges = np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1)
        edges = np.unique(edges, axis=0).astype(np.int32)
        normalised.append({"tag": np.searchsorted(all_tags, tags).astype(np.int32), "edge": edges})
    return Graphs(normalised, labels, len(all_tags))


def _require_range(owner: str, noun: str, numbers: np.ndarray, first: int, last: int) -> None:
    """Raise ValueError unless all numbers are in [first, last]."""
    wrong = numbers[(numbers < first) | (numbers > last)]
    if len(wrong):
        raise ValueError(f"{owner} has {noun} {wrong[0]}, but {noun}s are {first} to {last}")
