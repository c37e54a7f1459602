"""Sets of graphs: text files in both forms, damage, splits of what was prepared, made graphs."""

from collections import Counter

import numpy as np
import pytest
from data_cases import data_config
from file_cases import finished, pack, refused, unpack
from graph_cases import neighbours_of, reached
from real_data import real_data

from jaxssl.data import source
from jaxssl.data.formats import tu
from jaxssl.data.toy import necklaces
from jaxssl.kinds import graph as graph_kind

pytestmark = pytest.mark.fast

# Three graphs: a path with a node that stands alone but for a loop; one node; a triangle. Edges
# are written once or both ways, in any order; "{0}" is the name of the set.
MANY = {
    "{0}_A.txt": b"6, 7\n1, 2\n2, 1\n3, 2\n4, 4\n8,7\n 8, 6\n7, 6\n",
    "{0}_graph_indicator.txt": b"1\n1\n1\n1\n2\n3\n3\n3\n",
    "{0}_graph_labels.txt": b"0\n2\n0\n",
    "{0}_node_labels.txt": b"3\n7\n3\n7\n7\n3\n3\n7\n",
}
ONE = {
    "{0}.txt": b"3\n4 0\n3 1 1\n7 2 0 2\n3 1 1\n7 1 3\n1 2\n7 0\n3 0\n3 2 1 2\n3 2 0 2\n7 2 0 1\n"
}
TAGS = [[0, 1, 0, 1], [1], [0, 0, 1]]
EDGES = [[(0, 1), (1, 2)], [], [(0, 1), (0, 2), (1, 2)]]
FOLDS = {"10fold_idx/test_idx-1.txt": b"0\n", "10fold_idx/train_idx-1.txt": b"1\n2\n"}
MORE = {
    "{0}_edge_labels.txt": b"1\n",
    "{0}_node_attributes.txt": b"0.5, 1\n",
    "readme.txt": b"names\n",
    "{0}_label_readme.txt": b"names\n",
}


def named(files, name="TINY", around=""):
    return {around + path.format(name): data for path, data in files.items()}


def assert_holds(found, tags=TAGS, edges=EDGES):
    """The set has these graphs, in this order."""
    assert len(found.graphs) == len(tags)
    for record, tag, edge in zip(found.graphs, tags, edges, strict=True):
        graph = graph_kind.Graph(**record)
        assert graph.tag.dtype == graph.edge.dtype == np.int32
        np.testing.assert_array_equal(graph.tag, tag)
        np.testing.assert_array_equal(graph.edge, np.reshape(edge, (-1, 2)))


@pytest.mark.parametrize("files", [MANY, ONE, {**MANY, **ONE}])
def test_tu_files_as_folder_and_zip_give_the_same_graphs(tmp_path, files):
    actual = tu.read_tu_graphs(unpack(tmp_path, named(files)))
    assert_holds(actual)
    assert (actual.labels, actual.num_tags) == ([0, 2, 0], 2)


def test_graph_nodes_without_node_labels_all_get_node_label_0(tmp_path):
    files = {name: data for name, data in MANY.items() if "node_labels" not in name}
    actual = tu.read_tu_graphs(unpack(tmp_path, named(files)))
    assert_holds(actual, [[0] * len(tag) for tag in TAGS])
    assert actual.num_tags == 1


def test_first_of_several_labels_of_a_node_is_used(tmp_path):
    rows = (b"%d, %d" % (tag, i) for i, tag in enumerate((3, 7, 3, 7, 7, 3, 3, 7)))
    files = {**MANY, "{0}_node_labels.txt": b"\r\n".join(rows) + b"\r\n\r\n"}
    assert_holds(tu.read_tu_graphs(unpack(tmp_path, named(files))))


def test_node_attributes_are_ignored(tmp_path):
    files = {"{0}.txt": ONE["{0}.txt"].replace(b"7 2 0 2\n", b"7 2 0 2 0.25 -1e3\n")}
    assert_holds(tu.read_tu_graphs(unpack(tmp_path, named(files))))


@pytest.mark.parametrize("files", [MANY | MORE, ONE])
@pytest.mark.parametrize("suffix", ["", ".zip", ".tar.xz"])
def test_files_beside_the_tu_graph_files_are_ignored(tmp_path, files, suffix):
    content = named({**files, **FOLDS, "README.txt": b"=== TINY ==="}, around="TINY/")
    content |= named(ONE, "OTHER", "OTHER/")
    make = pack if suffix else unpack
    root, inside = tu.files.locate(f"{make(tmp_path / f'sets{suffix}', content)}/TINY")
    assert (root.name, inside) == ((f"sets{suffix}", "TINY") if suffix else ("TINY", ""))
    assert_holds(tu.read_tu_graphs(root, inside))


WITHOUT = {name: {**MANY, name: None} for name in MANY}
WHOLE, MIXED = ONE["{0}.txt"], b"1\n2\n1\n1\n2\n3\n3\n3\n"
DAMAGE = {
    "no companion": (WITHOUT["{0}_graph_labels.txt"], "graph_labels.txt is missing"),
    "no graph of nodes": (
        WITHOUT["{0}_graph_indicator.txt"],
        "the file *_graph_indicator.txt is missing",
    ),
    "half an edge": (
        {**MANY, "{0}_A.txt": b"1, 2\n2"},
        "_A.txt has 3 numbers on 2 lines, not 2 on",
    ),
    "weights of edges": ({**MANY, "{0}_A.txt": b"1, 2, 1\n2, 3, 1\n"}, "6 numbers on 2 lines"),
    "two classes": (
        {**MANY, "{0}_graph_labels.txt": b"0 1\n2\n"},
        "3 numbers on 2 lines, not 1 on",
    ),
    "node 9 of 8": ({**MANY, "{0}_A.txt": b"1, 9\n"}, "an edge has node 9, but nodes are 1 to 8"),
    "node 0": ({**MANY, "{0}_A.txt": b"1, 2\n0, 2\n"}, "an edge has node 0, but nodes are 1 to 8"),
    "two graphs": ({**MANY, "{0}_A.txt": b"1, 2\n4, 5\n"}, "an edge joins two graphs"),
    "edges in letters": ({**MANY, "{0}_A.txt": b"1, two\n"}, "invalid literal"),
    "a huge node": ({**MANY, "{0}_A.txt": b"1, 99999999999999999999\n"}, "too large"),
    "tags cut": (
        {**MANY, "{0}_node_labels.txt": b"3\n7\n"},
        "nodes have a label, but 8 belong to a graph",
    ),
    "tags in letters": ({**MANY, "{0}_node_labels.txt": b"C\n" * 8}, "invalid literal"),
    "labels cut": (
        {**MANY, "{0}_graph_labels.txt": b"0\n"},
        "a node has graph 2, but graphs are 1 to 1",
    ),
    "too many labels": ({**MANY, "{0}_graph_labels.txt": b"0\n" * 4}, "a graph without nodes"),
    "no nodes": ({**MANY, "{0}_graph_indicator.txt": b"", "{0}_node_labels.txt": b""}, "nodes"),
    "graph 0": (
        {**MANY, "{0}_graph_indicator.txt": b"0\n1\n1\n1\n2\n3\n3\n3\n"},
        "a node has graph 0, but graphs are 1 to 3",
    ),
    "mixed": ({**MANY, "{0}_graph_indicator.txt": MIXED}, "are not consecutive"),
    "empty": ({"{0}.txt": b""}, "cut short"),
    "cut at a line": ({"{0}.txt": WHOLE[: WHOLE.index(b"7 2 0 1")]}, "cut short"),
    "cut in a line": ({"{0}.txt": WHOLE[:-3]}, "node 2 lists 1 neighbours, but claims 2"),
    "-1 neighbours": ({"{0}.txt": WHOLE.replace(b"7 0", b"7 -1 3 4")}, "but claims -1"),
    "more graphs": ({"{0}.txt": WHOLE.replace(b"3", b"2", 1)}, "claims 2 graphs, but the file has"),
    "neighbour 4 of 4": ({"{0}.txt": WHOLE.replace(b"1 3", b"1 4")}, "node 4, but nodes are 0 to"),
    "neighbour -1": ({"{0}.txt": WHOLE.replace(b"1 3", b"1 -1")}, "node -1, but nodes are 0"),
    "letters": ({"{0}.txt": WHOLE.replace(b"7 0", b"x 0")}, "invalid literal"),
    "no text": ({"{0}.txt": b"\xff\xfe"}, "can't decode"),
    "no graph": ({"{0}.txt": b"0\n"}, "no graph"),
    "no node": ({"{0}.txt": b"1\n0 2\n"}, "a graph without nodes"),
}


@pytest.mark.parametrize("files, reason", DAMAGE.values(), ids=DAMAGE)
def test_damaged_graph_files_are_reported_in_one_line(tmp_path, files, reason):
    files = {name: data for name, data in files.items() if data is not None}
    root = unpack(tmp_path, named(files))
    with refused(f"the graphs TINY of {root} are damaged (", reason, tu.URL):
        tu.read_tu_graphs(root)


def test_graphs_with_numbers_in_place_of_classes_are_refused(tmp_path):
    files = {**WITHOUT["{0}_graph_labels.txt"], "{0}_graph_attributes.txt": b"0.5\n1\n2\n"}
    root = unpack(tmp_path, named({name: data for name, data in files.items() if data is not None}))
    with refused(f"data.path={root}: the graphs TINY have numbers, but no classes"):
        tu.read_tu_graphs(root)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (FOLDS, ["the graphs of 0 sets;", "sets/NAME"]),
        (named(WITHOUT["{0}_A.txt"]), ["the graphs of 0 sets;"]),
        (named(ONE) | named(MANY, "B"), ["2 sets: B, TINY;", "sets/NAME"]),
        (named(ONE, around="a/") | named(ONE, around="b/"), ["2 sets: a/TINY, b/TINY", "sets/a"]),
    ],
)
def test_data_path_must_contain_exactly_one_graph_set(tmp_path, content, parts):
    root = unpack(tmp_path / "sets", {k: v for k, v in content.items() if v is not None})
    with refused("expected one, as NAME_A.txt with its companions or as NAME.txt", *parts):
        tu.read_tu_graphs(root)


def of_tu(path, directory, split="train", kind="graph", **changes):
    settings = {"name": "tu", "path": str(path), "dir": str(directory)}
    return source.load(data_config(**settings | changes), split, kind)


def test_tu_data_set_opens_as_a_data_source(tmp_path, prepared):
    path = unpack(tmp_path / "TINY", named(MANY))
    whole = of_tu(path, prepared)
    assert whole.class_names == ("0", "2") and whole.shape == (2,) and whole.labelled
    assert whole.describe() == "TINY, train: 3 graphs of nodes with 2 tags, 2 classes"
    expected = sorted(zip(TAGS, EDGES, [0, 1, 0], strict=True))

    def contents(opened):
        actual = opened.read(np.arange(len(opened)))
        assert [example.label for example in actual] == opened.labels.tolist()
        array = graph_kind.array(opened)
        assert len(array) == len(actual) and array.num_tags == 2
        for graph, example in zip(array.graphs, actual, strict=True):
            np.testing.assert_array_equal(graph.tag, example.input.tag)
            np.testing.assert_array_equal(graph.edge, example.input.edge)
        return [
            (e.input.tag.tolist(), list(map(tuple, e.input.edge.tolist())), e.label) for e in actual
        ]

    assert sorted(contents(whole)) == expected
    first, rest = (of_tu(path, prepared, split) for split in ("train[:2]", "train[2:]"))
    assert contents(first) + contents(rest) == contents(whole)


def test_graph_classes_are_sorted_numerically(tmp_path, prepared):
    files = {**MANY, "{0}_graph_labels.txt": b"10\n-1\n2\n"}
    opened = of_tu(unpack(tmp_path / "TINY", named(files)), prepared)
    assert opened.class_names == ("-1", "2", "10")
    assert {len(e.input.tag): e.label for e in opened.read(np.arange(3))} == {4: 2, 1: 0, 3: 1}


def test_graph_set_is_prepared_again_only_when_a_file_changes(tmp_path, monkeypatch):
    root, directory = unpack(tmp_path / "TINY", named(ONE)), tmp_path / "data"
    assert of_tu(root, directory).shape == (2,)
    with monkeypatch.context() as patch:
        patch.setattr(tu, "read_tu_graphs", lambda *_: pytest.fail("read again"))
        (root / "notes.md").write_text("")
        of_tu(root, directory)
        assert len(finished(directory)) == 1
    (root / "TINY.txt").write_bytes(ONE["{0}.txt"].replace(b"1 2\n7 0", b"1 2\n77 0"))
    assert of_tu(root, directory).shape == (3,)
    assert len(finished(directory)) == 2


def test_graphs_and_images_are_refused_for_recipes_of_the_other(tmp_path, prepared, data_dir):
    path = unpack(tmp_path, named(ONE))
    with refused(
        "data.name='tu' holds graphs, but augment.name or the encoder takes images; change"
    ):
        of_tu(path, prepared, kind="image")
    with refused(
        "data.name='digits' holds images, but augment.name or the encoder takes graphs; change"
    ):
        source.load(data_config(dir=str(data_dir)), "train", "graph")


@pytest.mark.parametrize(
    ("path", "changes", "parts"),
    [
        ("", {}, ["data.name='tu' needs data.path", tu.URL]),
        ("nowhere", {}, ["nowhere does not exist"]),
        ("TINY.txt", {}, ["is a file; expected a folder, or an archive"]),
        (".", {"name": "necklaces"}, ["'necklaces' does not read data.path"]),
        (".", {"labels": "labels.csv"}, ["data.labels is only for data.name='folder'"]),
        (".", {"split": "test"}, ["has no split 'test'", "valid: train"]),
    ],
)
def test_wrong_graph_settings_are_rejected(tmp_path, prepared, path, changes, parts):
    unpack(tmp_path, named(ONE))
    with refused(*parts):
        of_tu(path and tmp_path / path, prepared, **changes)


# Published label counts and mean numbers of nodes and edges.
@pytest.mark.parametrize(
    ("name", "labels", "nodes", "edges", "tags"),
    [("MUTAG", {0: 63, 2: 125}, 17.93, 19.79, 7), ("NCI1", {0: 2053, 1: 2057}, 29.87, 32.30, 37)],
)
def test_published_graph_sets_have_the_published_sizes(name, labels, nodes, edges, tags):
    actual = tu.read_tu_graphs(real_data("tu_graphs.tar.xz"), name)
    assert Counter(actual.labels) == labels and actual.num_tags == tags
    means = [np.mean([len(graph[part]) for graph in actual.graphs]) for part in ("tag", "edge")]
    np.testing.assert_allclose(means, [nodes, edges], atol=0.0051)


class SameRing:
    """Random numbers of which the gaps between groups take none, so that classes share the rest."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.integers, self.choice, self.permutation = rng.integers, rng.choice, rng.permutation
        self.multinomial = np.random.default_rng(seed + 1000).multinomial


def ring_of(graph):
    """The nodes of the only circle in order, beginning after one without a pendant."""
    near = neighbours_of(graph)
    while leaves := [node for node, others in near.items() if len(others) == 1]:
        for leaf in leaves:
            (other,) = near.pop(leaf)
            near[other].discard(leaf)
    degree = np.bincount(graph.edge.ravel())
    ring = [next(node for node in near if degree[node] == 2)]
    ring.append(min(near[ring[0]]))
    while len(ring) < len(near):
        (after,) = near[ring[-1]] - {ring[-2]}
        ring.append(after)
    assert ring[0] in near[ring[-1]]
    return ring


@pytest.mark.parametrize("seed", range(8))
def test_graphs_of_all_necklace_classes_have_the_same_degree_histogram(seed):
    histograms = []
    for groups in necklaces.CLASSES.values():
        graph = graph_kind.Graph(**necklaces.necklace(SameRing(seed), groups))
        degree = np.bincount(graph.edge.ravel(), minlength=len(graph.tag))
        ring = ring_of(graph)
        assert necklaces.RING[0] <= len(ring) <= necklaces.RING[1]
        assert Counter(degree[ring].tolist()) == {2: len(ring) - 4, 3: 4}
        # A connected graph with as many edges as nodes has one circle; all other nodes form trees.
        assert len(graph.edge) == len(graph.tag)
        assert 4 + 3 <= len(graph.tag) - len(ring) <= 4 + necklaces.TWIGS[1]
        text = "".join("x" if degree[node] == 3 else "-" for node in ring)
        while text[-1] == "x":  # A group of nodes x may wrap around the end of the text.
            text = "x" + text[:-1]
        assert sorted(map(len, text.replace("-", " ").split())) == sorted(groups)
        assert "x-x" not in text + text
        histograms.append(np.bincount(degree, minlength=12))
    for histogram in histograms[1:]:
        np.testing.assert_array_equal(histogram, histograms[0])


def test_necklaces_are_connected_graphs():
    for seed, groups in enumerate(list(necklaces.CLASSES.values()) * 5):
        graph = graph_kind.Graph(**necklaces.necklace(np.random.default_rng(seed), groups))
        nodes = set(range(len(graph.tag)))
        assert reached(neighbours_of(graph), 0, nodes) == nodes


def test_necklaces_has_four_classes(prepared):
    opened = [
        source.load(data_config(name="necklaces", dir=str(prepared)), split, "graph")
        for split in ("train", "test")
    ]
    for split, actual in zip(("train", "test"), opened, strict=True):
        size = necklaces.SIZES[split]
        described = f"necklaces, {split}: {size} graphs of nodes with 1 tags, 4 classes"
        assert actual.describe() == described
        assert np.bincount(actual.labels).tolist() == [size // 4] * 4
    train, test = ({g.edge.tobytes() for g in graph_kind.array(x).graphs} for x in opened)
    assert not train & test  # No test graph is a training graph.
    for example in opened[1].read(np.arange(8)):
        ring = ring_of(example.input)
        marked = np.bincount(example.input.edge.ravel())[ring] == 3
        runs = (marked & ~np.roll(marked, 1)).sum()
        assert runs == len(necklaces.CLASSES[opened[1].class_names[example.label]])
