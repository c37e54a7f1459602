"""Graphs of the TU collection as a data set: `data.name=tu data.path=PATH`.

The path is a folder or an archive, or a folder in one, that holds the text files of one set: those
that its authors publish,

    NAME_A.txt                  an edge a line, "i, j", nodes counted from 1 over all graphs
    NAME_graph_indicator.txt    the graph of each node
    NAME_graph_labels.txt       the class of each graph
    NAME_node_labels.txt        the tag of each node; it may be missing

or the single `NAME.txt` of the code of GIN: the number of graphs, then for each graph a line
"nodes class" and for each node a line "tag degree neighbour ...", neighbours counted from 0.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from jaxssl.data import files
from jaxssl.data.formats import _versions as versions
from jaxssl.errors import UserError, one_line

ADDRESS = "https://www.chrsmrrs.com/graphkerneldatasets/NAME.zip"
PARTS = ("A", "graph_indicator", "graph_labels", "node_labels")
LARGEST = 2**32  # bytes of a text file
RULES = 1  # counts up when the same files would be prepared in another way


class Graph(NamedTuple):
    """An undirected graph.

    Attributes:
        tag: [n] int32, the tag of each node, in [0, number of tags).
        edge: [m, 2] int32, its nodes in [0, n), the smaller first; each edge stands once.
    """

    tag: np.ndarray
    edge: np.ndarray


class Graphs(NamedTuple):
    """All graphs of a set.

    Attributes:
        graphs: in the order of the files.
        labels: the class of each, as the files name them.
        num_tags: how many tags there are.
    """

    graphs: list[Graph]
    labels: list[int]
    num_tags: int


@dataclasses.dataclass
class Config(tfds.core.BuilderConfig):
    """One set in one state; its name holds a fingerprint of both."""

    root: Path = Path()
    inside: str = ""


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Graphs in an order drawn once and for all, so that a slice of them is a random part."""

    name = "tu"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        classes = sorted(set(self._all.labels))
        features = {
            "tag": tfds.features.Tensor(shape=(None,), dtype=np.int32),
            "edge": tfds.features.Tensor(shape=(None, 2), dtype=np.int32),
            "label": tfds.features.ClassLabel(names=[str(label) for label in classes]),
        }
        metadata = {"kind": "graph", "num_tags": self._all.num_tags}
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Graphs of {self.builder_config.root}",
            features=tfds.features.FeaturesDict(features),
            metadata=tfds.core.MetadataDict(metadata),
        )

    @functools.cached_property
    def _all(self) -> Graphs:
        return read(self.builder_config.root, self.builder_config.inside)

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        found = self._all
        order = np.random.default_rng(0).permutation(len(found.graphs))
        for place, i in enumerate(order.tolist()):
            yield place, {**found.graphs[i]._asdict(), "label": str(found.labels[i])}


def builder(data: Mapping[str, Any], data_dir: str | None) -> tfds.core.DatasetBuilder:
    """The builder of a set in its present state, which its name holds a fingerprint of.

    Args:
        data: "path", see above.
        data_dir: where prepared sets lie; None is TFDS' own place.

    Raises:
        UserError: if there is no such set, or its files are damaged.
    """
    path = data["path"]
    if not path:
        raise UserError(
            f"data.name='tu' needs data.path: the files of a set, as in {ADDRESS} with its name"
        )
    root, inside = files.locate(path)
    state = RULES, files.stamp(root, (".txt",)), inside, str(root.resolve())
    name = versions.name_of(path, state, "set")
    if found := versions.prepared(Builder, name, data_dir):
        return found
    config = Config(name=name, root=root, inside=inside)
    return Builder(data_dir=data_dir, config=config)


def decode(record: Mapping[str, Any]) -> Graph:
    """A graph of a prepared set."""
    return Graph(np.asarray(record["tag"], np.int32), np.asarray(record["edge"], np.int32))


def read(root: Path, inside: str = "") -> Graphs:
    """The graphs of the one set below a folder or in an archive.

    Raises:
        UserError: if there are none or several sets, or a file is damaged.
    """
    where = f"{root}/{inside}" if inside else str(root)
    texts: dict[str, bytes] = {}
    for name, data in files.read_all(root, inside, largest=LARGEST):
        path = PurePosixPath(name)
        if path.suffix != ".txt" or "idx" in path.stem or "README" in path.stem:
            continue  # folds, and what is said of the set
        try:
            texts[path.with_suffix("").as_posix()] = data()
        except OSError as error:
            raise UserError(f"{name} of {where} cannot be read: {error}") from error
    names = _names(texts)
    if len(names) != 1:
        some = ", ".join(sorted(names)[:5])
        folder = PurePosixPath(min(names, default="")).parent.as_posix()
        raise UserError(
            f"data.path={where} holds the graphs of {len(names)} sets{': ' * bool(names)}{some}; "
            f"expected one, as NAME_A.txt and its companions or NAME.txt; name its folder, such as "
            f"{where}/{'NAME' if folder == '.' else folder}"
        )
    (name,) = names
    try:
        if f"{name}_A" in texts:
            return _of_many_files({part: texts.get(f"{name}_{part}") for part in PARTS})
        return _of_one_file(texts[name])
    except (ValueError, IndexError, StopIteration, OverflowError) as error:
        raise UserError(
            f"the graphs {name} of {where} are damaged ({_why(error)}); get them again, as from "
            f"{ADDRESS}"
        ) from error


def _names(texts: Mapping[str, bytes]) -> set[str]:
    """The sets, by the paths of their files; a set may have more files than `PARTS`."""
    many = {stem.removesuffix("_A") for stem in texts if stem.endswith("_A")}
    ends = {stem for stem in texts if re.search(rf"_({'|'.join(PARTS)})$", stem)}
    others = set(texts) - ends
    return many | {stem for stem in others if not any(stem.startswith(f"{n}_") for n in many)}


def _why(error: Exception) -> str:
    return "cut short" if isinstance(error, StopIteration) else one_line(error)


def _of_many_files(texts: Mapping[str, bytes | None]) -> Graphs:
    missing = [part for part in PARTS[:3] if texts[part] is None]
    if missing:
        raise ValueError(f"there is no file *_{missing[0]}.txt")
    edges = _numbers(texts["A"]).reshape(-1, 2) - 1
    graph_of = _numbers(texts["graph_indicator"])
    labels = _numbers(texts["graph_labels"])
    tags = texts["node_labels"]
    tags = np.zeros(len(graph_of), np.int64) if tags is None else _first_column(tags)
    if len(tags) != len(graph_of):
        raise ValueError(f"{len(tags)} nodes have tags, {len(graph_of)} a graph")
    if len(graph_of) == 0 or (np.diff(graph_of) < 0).any():
        raise ValueError("the nodes of a graph do not stand together")
    if graph_of[0] < 1 or graph_of[-1] > len(labels):
        wrong = graph_of[0] if graph_of[0] < 1 else graph_of[-1]
        raise ValueError(f"nodes are of graph {wrong} of {len(labels)}")
    _require_nodes(edges, len(graph_of), 1)
    if (graph_of[edges[:, 0]] != graph_of[edges[:, 1]]).any():
        raise ValueError("an edge joins two graphs")
    first = np.searchsorted(graph_of, np.arange(1, len(labels) + 2))
    order = np.argsort(edges[:, 0], kind="stable")
    edges = edges[order]
    cut = np.searchsorted(edges[:, 0], first)
    found = [
        (tags[first[g] : first[g + 1]], edges[cut[g] : cut[g + 1]] - first[g])
        for g in range(len(labels))
    ]
    return _graphs(found, labels.tolist())


def _of_one_file(text: bytes) -> Graphs:
    lines = iter(text.decode().splitlines())
    found, labels = [], []
    for _ in range(int(next(lines))):
        number, label = map(int, next(lines).split()[:2])
        tags, edges = [], []
        for node in range(number):
            tag, degree, *rest = next(lines).split()
            neighbours = rest[: int(degree)]  # attributes may follow
            if len(neighbours) < int(degree):
                raise ValueError(f"node {node} has {len(neighbours)} of {degree} neighbours")
            tags.append(int(tag))
            edges += [(node, int(other)) for other in neighbours]
        found.append((np.array(tags, np.int64), np.array(edges, np.int64).reshape(-1, 2)))
        labels.append(label)
    return _graphs(found, labels)


def _graphs(found: Sequence[tuple[np.ndarray, np.ndarray]], labels: list[int]) -> Graphs:
    """Tags counted from 0, each edge once, without those of a node to itself."""
    if not found or not all(len(tags) for tags, _ in found):
        raise ValueError("there is a graph without nodes, or no graph")
    known = np.unique(np.concatenate([tags for tags, _ in found]))
    graphs = []
    for tags, edges in found:
        _require_nodes(edges, len(tags), 0)
        edges = np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1)
        edges = np.unique(edges, axis=0).astype(np.int32)
        graphs.append(Graph(np.searchsorted(known, tags).astype(np.int32), edges))
    return Graphs(graphs, labels, len(known))


def _require_nodes(edges: np.ndarray, n: int, first: int) -> None:
    wrong = edges[(edges < 0) | (edges >= n)]
    if len(wrong):
        raise ValueError(f"an edge has node {wrong[0] + first} of {n}, counted from {first}")


def _numbers(text: bytes) -> np.ndarray:
    """All integers of a text, separated by commas or space."""
    return np.array(text.replace(b",", b" ").split(), np.int64)


def _first_column(text: bytes) -> np.ndarray:
    """The first number of each line: some sets have several tags a node."""
    rows = [row.partition(b",")[0] for row in text.splitlines() if row.strip()]
    return np.array(rows, np.int64)
