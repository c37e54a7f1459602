"""Reading files of torch.save without PyTorch: all tensor types, malicious files, damaged files."""

import json
import pickle
import struct
import warnings
import zipfile

import numpy as np
import pytest
from file_cases import zipped
from weights_cases import GOLDEN, refused

from jaxssl.errors import UserError
from jaxssl.pretrained import pickle_reader, torch_file, weights

pytestmark = pytest.mark.fast


def test_torch_tensors_of_every_dtype_and_stride_are_read(checkpoint):
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    views = {"whole": grid, "turned": grid.T, "steps": grid[1:, ::2], "wide": [2.0] * 3}
    views |= {"none": np.zeros((0, 3)), "one": 5.0}
    with torch_file.opened(checkpoint) as (tree, read):
        for name, tensor in tree["kinds"].items():
            array = read(tensor)
            assert array.dtype.name == name
            expected = [1, 1] if name == "bool" else [1 if name == "uint8" else -2, 3]
            np.testing.assert_array_equal(array.astype(np.float32), expected)
        for name, expected in views.items():
            np.testing.assert_array_equal(read(tree["views"][name]), expected)
            assert tree["views"][name].shape == np.shape(expected)
        assert (tree["epoch"], tree["arch"]) == (3, "vit")
        assert type(tree["args"]) is pickle_reader.Inert


def rebuild(count=4, offset=0, shape=(2, 2), strides=(2, 1), key="0", storage="FloatStorage"):
    """The pickle of {"layer1.0.conv1.weight": a tensor}, opcode by opcode."""
    numbers = [offset, shape, strides]
    offset, shape, strides = (pickle.dumps(x, 2)[2:-1] for x in numbers)
    name, key, count = (pickle.dumps(x, 2)[2:-1] for x in ("layer1.0.conv1.weight", key, count))
    pid = b"(X\x07\0\0\0storagectorch\n" + storage.encode() + b"\n"
    pid += key + b"X\x03\0\0\0cpu" + count + b"t"
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"Q" + offset + shape + strides
    return b"\x80\x02}(" + name + call + b"\x89NtRu."


def test_minimal_handwritten_torch_pickle_is_read(file):
    path = file(zipped(rebuild(), [np.arange(4, dtype=np.float32).tobytes()]))
    with torch_file.opened(path) as (tree, read):
        np.testing.assert_array_equal(read(tree["layer1.0.conv1.weight"]), [[0, 1], [2, 3]])


class Outer:
    class Inner:
        """A class whose objects Python pickles by a call of getattr before protocol 4."""


def test_object_of_a_nested_class_is_a_placeholder(file):
    path = file(zipped(pickle.dumps({"a": Outer.Inner(), "epoch": 3}, 2)))
    with torch_file.opened(path) as (tree, _):
        assert type(tree["a"]) is pickle_reader.Inert and tree["epoch"] == 3


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize("what", ["builtins exec", "os system", "pathlib Path.touch"])
def test_loading_a_torch_file_never_runs_code_of_its_pickle(what, is_legacy, file, tmp_path):
    mark = tmp_path / "mark"
    module, name = what.split()
    code = {"exec": f"open({str(mark)!r}, 'w')", "system": f"touch {mark}"}.get(name, str(mark))
    argument = b"X" + struct.pack("<I", len(code)) + code.encode()
    text = b"\x80\x04}(X\x01\0\0\0ac" + f"{module}\n{name}\n".encode() + b"(" + argument + b"tRu."
    path = file(legacy(text, pickle.dumps([], 2)) if is_legacy else zipped(text))
    with torch_file.opened(path) as (tree, _):
        assert type(tree["a"]) is pickle_reader.Inert
    with pytest.raises(UserError, match="expected a ResNet, ViT"):
        weights.load(path)
    assert not mark.exists()


def doubled(times, leaf=b")", twice=b"2\x86"):
    """The short pickle of nested tuples with 2^times items: each tuple holds the next one twice."""
    return leaf + twice * times


def legacy(*pickles):
    """A file of the format before version 1.6 whose first three pickles are as they should be."""
    head = [torch_file.MAGIC, torch_file.PROTOCOL, {"little_endian": True}]
    return b"".join(pickle.dumps(x, 2) for x in head) + b"".join(pickles)


def test_tensors_beside_a_module_in_a_file_before_version_1_6_are_read(file):
    text = lambda word: b"X" + struct.pack("<I", len(word)) + word  # noqa: E731
    net = b"(" + text(b"module") + b"cmodels\nNet\n" + text(b"net.py") + text(b"source") + b"tQ"
    tree = rebuild().replace(b"}(", b"}(" + text(b"model") + net + b")\x81}b", 1)
    numbers = struct.pack("<q", 4) + np.arange(4, dtype=np.float32).tobytes()
    with torch_file.opened(file(legacy(tree, pickle.dumps(["0"], 2), numbers))) as (tree, read):
        assert type(tree["model"]) is pickle_reader.Inert
        np.testing.assert_array_equal(read(tree["layer1.0.conv1.weight"]), [[0, 1], [2, 3]])


BYTES = np.zeros(4, np.float32).tobytes()
WIDE = rebuild(shape=(1 << 40, 2), strides=(0, 1))
NESTED = legacy(pickle.dumps({}, 2), b"\x80\x02]" + doubled(100) + b"a.")
MEMO = b"\x80\x02}r\xff\xff\xff\x7f."
BAD = {
    "empty": (b"", "is empty"),
    "text": (b"my weights", "not a file of torch.save"),
    "plain pickle": (pickle.dumps({"a": 1}), "a pickle, but not one of torch.save"),
    "no dict": (zipped(pickle.dumps([1], 2)), "expected a state dict .* got list"),
    "a number": (zipped(pickle.dumps(1, 2)), "expected a state dict .* got int"),
    "a module": (
        zipped(b"\x80\x02cmodels\nNet\n)\x81}b."),
        "expected a state dict .* got a module",
    ),
    "no arrays": (zipped(pickle.dumps({"a": 1}, 2)), "expected a ResNet, ViT .* got nothing"),
    "other zip": (zipped(b"").replace(b"data.pkl", b"data.txt"), "torch.save did not write"),
    "compressed": (zipped(rebuild(), [BYTES], zipfile.ZIP_DEFLATED), "is compressed"),
    "huge memo": (zipped(MEMO), "expected a ResNet, ViT .* got nothing"),
    "huge array": (zipped(b"\x80\x05\x96" + b"\0" * 6 + b"\1\0."), "has an array of bytes"),
    "nested names of storages": (NESTED, "names of the storages must be text"),
    "cut pickle": (zipped(rebuild()[:-9], [BYTES]), "is damaged, cut off"),
    "beyond": (zipped(rebuild(offset=1), [BYTES]), "goes beyond its storage"),
    "huge strides": (zipped(rebuild(strides=(1 << 40, 1)), [BYTES]), "goes beyond its storage"),
    "expanded": (zipped(WIDE, [BYTES]), "numbers, but its storage"),
    "negative": (zipped(rebuild(shape=(-1, 2)), [BYTES]), "a tensor has the invalid shape"),
    "many axes": (zipped(rebuild(shape=(1,) * 20, strides=(1,) * 20), [BYTES]), "a tensor has"),
    "wild count": (zipped(rebuild(count=-1), [BYTES]), "or size -1"),
    "wild key": (zipped(rebuild(key=b"x"), [BYTES]), "a storage has the invalid key"),
}


def in_a_list(tuple_):
    """The pickle of a call that returns its argument, which is an item of a list."""
    kind = b"ctorch._utils\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_parameter\nN]"
    return kind + tuple_ + b"atR"


DEEP = b")" + b"\x85" * 200_000
KEYS = {
    "item": b"}" + doubled(100) + b"K\x01s",
    "items": b"}(" + doubled(100) + b"K\x01u",
    "item from the memo": b"}" + doubled(100, twice=b"q\x010h\x01h\x01\x86") + b"K\x01s",
    "deep item": b"}" + DEEP + b"K\x01s",
    "dict": b"(" + doubled(100) + b"K\x01d",
    "set": b"\x8f(" + doubled(100) + b"\x90",
    "frozenset": b"(" + doubled(100) + b"\x91",
    "argument": b"ccollections\nOrderedDict\n](" + doubled(100) + b"K\x01ta\x85R",
    "result of a call": b"}" + in_a_list(doubled(100)) + b"K\x01s",
    "usual": b"}K\x01K\x02\x86K\x01s",
}


@pytest.mark.parametrize("case", KEYS)
def test_pickled_dict_keys_of_exponential_hash_time_are_left_out(case, file):
    with pytest.raises(UserError, match="got nothing|expected a state dict"):
        weights.load(file(zipped(b"\x80\x04" + KEYS[case] + b".")))


@pytest.mark.parametrize("where", ["shape", "strides", "key", "count"])
def test_pickle_errors_do_not_print_nested_values(where, file):
    inner = []
    for _ in range(60):  # nested list with 2^60 leaves if printed
        inner = [inner, inner]
    value = (inner, 1) if where in ("shape", "strides") else inner
    with pytest.raises(UserError, match="list"):
        weights.load(file(zipped(rebuild(**{where: value}), [BYTES])))


def test_torch_checkpoints_with_too_many_values_or_long_names_are_rejected(file):
    tree = {"x": 1}
    for _ in range(5):
        tree = {f"{i}": tree for i in range(32)}
    with pytest.raises(UserError, match="has more than 1000000 values"):
        weights.load(file(zipped(pickle.dumps(tree, 2))))
    with pytest.raises(UserError, match="a name of more than 1000 characters"):
        weights.load(file(zipped(pickle.dumps({"x" * 1001: 1}, 2))))


def test_weights_of_networks_too_large_for_memory_are_rejected(file):
    inputs = {"size": 4096, "channels": 3, "mean": [0.5], "std": [0.5], "crop": 0}
    vit = {"name": "vit", "size": "base", "layers": 1, "patch_size": 1}
    convnet = {"name": "convnet", "widths": [1] * 1001, "strides": [1] * 1001}
    for net, message in (
        (vit, "the positions of a ViT must have at most"),
        (vit | {"positions": "learned"}, "the positions of a ViT must have at most"),
        (convnet, "at most 1000 layers, got 1001"),
    ):
        header = {"version": 1, "net": net, "inputs": inputs, "precision": "float32"}
        with refused(message):
            weights.load(file({"a": np.zeros(1)}, metadata={"jaxssl": json.dumps(header)}))


@pytest.mark.parametrize("case", BAD)
def test_malformed_torch_file_raises_a_one_line_error(case, file):
    content, message = BAD[case]
    with refused(message):
        weights.load(file(content))


def test_torch_storages_longer_than_the_file_are_rejected(file):
    path = file(zipped(rebuild(count=1 << 40), [BYTES]))
    with torch_file.opened(path) as (tree, read), pytest.raises(ValueError, match="buffer"):
        read(tree["layer1.0.conv1.weight"])
    text = GOLDEN["file/legacy"].tobytes()
    with pytest.raises(UserError, match="is too short for a storage"):
        weights.load(file(text[:-3]), num_heads=2)


@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_torch_files_with_flipped_bits_load_or_raise_a_one_line_error(kind, file):
    whole, rng = GOLDEN[f"file/{kind}"].tobytes(), np.random.default_rng(0)
    outcomes = set()
    for number in range(60):
        text = bytearray(whole)
        for at in rng.integers(len(text), size=rng.integers(1, 4)):
            text[at] ^= 1 << int(rng.integers(8))
        if number % 3 == 0:
            text = text[: rng.integers(len(text))]
        path = file(bytes(text))
        try:
            with warnings.catch_warnings(action="error"):
                weights.load(path, num_heads=2)
            outcomes.add("read")
        except UserError as error:
            assert "\n" not in str(error)
            outcomes.add("refused")
    assert "refused" in outcomes
