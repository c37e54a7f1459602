"""Files of a folder and of archives of it, and what is refused."""

import gzip
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from file_cases import TARS, pack, refused, unpack

from jaxssl.data.decoders import files

pytestmark = pytest.mark.fast

KINDS = (".zip", *TARS)
CONTENT = {
    "a/1.png": b"one",
    "a/deep/2.bin": np.random.default_rng(0).bytes(9000),
    "b c/ä 3.txt": b"",
    "top.txt": b"top",
}
HIDDEN = {".DS_Store": b"x", "a/.thumbs/4.png": b"x", "a/._1.png": b"x"}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_family = pytest.mark.parametrize("kind", (".zip", ".tar"))


def found(root, inside=""):
    pairs = [(name, read()) for name, read in files.read_files(Path(root), inside)]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def names(root):
    return [name for name, _ in files.read_files(Path(root))]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Makes an archive of a kind once."""
    root = tmp_path_factory.mktemp("archives")

    def of(kind):
        path = root / f"pack{kind}"
        return path if path.exists() else pack(path, CONTENT | HIDDEN)

    return of


# Files that are found in folders and archives.


def test_files_of_a_folder_are_sorted_and_exclude_hidden_files(tmp_path):
    unpack(tmp_path, CONTENT | HIDDEN)
    assert found(tmp_path) == CONTENT
    assert names(tmp_path) == sorted(CONTENT)


@each_kind
def test_archive_has_the_files_of_its_folder_and_is_not_unpacked(
    archive, kind, tmp_path, monkeypatch
):
    path = archive(kind)
    before = sorted(path.parent.iterdir())
    monkeypatch.chdir(tmp_path)
    assert files.locate(str(path)) == (path, "")
    assert found(path) == CONTENT
    assert sorted(path.parent.iterdir()) == before and not list(tmp_path.iterdir())


@each_family
def test_hidden_folder_inside_an_archive_may_be_named(archive, kind):
    assert found(archive(kind), "a/.thumbs") == {"4.png": b"x"}


@pytest.mark.parametrize("inside", ["a", "a/", "a/."])
@each_kind
def test_path_may_continue_inside_an_archive(archive, kind, inside):
    root, rest = files.locate(f"{archive(kind)}/{inside}")
    assert (root, rest) == (archive(kind), "a")
    expected = {"1.png": CONTENT["a/1.png"], "deep/2.bin": CONTENT["a/deep/2.bin"]}
    assert found(root, rest) == expected


@each_family
def test_missing_folder_inside_an_archive_has_no_files(archive, kind):
    for inside in ("nowhere", "to", "top.txt"):  # "to" is only the beginning of a file name
        assert found(*files.locate(f"{archive(kind)}/{inside}")) == {}


def test_archive_suffixes_ignore_case(tmp_path):
    root, _ = files.locate(str(pack(tmp_path / "PACK.ZIP", CONTENT)))
    assert found(root) == CONTENT


@pytest.mark.parametrize("name", ["./a/b.png", "././a/b.png", "a//b.png", "a/./b.png", "a\\b.png"])
@each_family
def test_archive_entry_names_are_normalised(tmp_path, kind, name):
    assert names(pack(tmp_path / f"pack{kind}", {name: b"x"})) == ["a/b.png"]


def test_tilde_expands_to_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pictures").mkdir()
    assert files.locate("~/pictures") == (tmp_path / "pictures", "")


def test_symbolic_links_are_followed_without_cycles(tmp_path):
    unpack(tmp_path / "here", {"x/1.png": b"1", "y.png": b"y"})
    unpack(tmp_path / "there", {"2.png": b"2"})
    (tmp_path / "here/circle").symlink_to(tmp_path / "here")
    (tmp_path / "here/x/up").symlink_to("..")
    (tmp_path / "here/z").symlink_to(tmp_path / "there")
    (tmp_path / "here/link.png").symlink_to(tmp_path / "there/2.png")
    expected = {"link.png": b"2", "x/1.png": b"1", "y.png": b"y", "z/2.png": b"2"}
    assert found(tmp_path / "here") == expected


def test_folder_keeps_its_name_beside_links_to_it_and_the_log_names_these(tmp_path, caplog):
    here = tmp_path / "here"
    unpack(here, {"b/1.png": b"1", "train/b/2.png": b"2"})
    unpack(tmp_path / "there", {"c/3.png": b"3"})
    links = {"a": here / "b", "val": here / "train", "train/z": here / "b"}
    links |= {"y": tmp_path / "there", "x": tmp_path / "there", "0": here / "train/b"}
    for name, target in links.items():
        (here / name).symlink_to(target)
    expected = {"b/1.png": b"1", "train/b/2.png": b"2", "x/c/3.png": b"3"}
    assert found(here) == found(here) == expected
    firsts = {"0": "train/b", "a": "b", "train/z": "b", "val": "train", "y": "x"}
    ending = "is the folder {}, which is read already"
    messages = [f"left out {here / x}: it {ending.format(here / firsts[x])}" for x in firsts]
    assert [record.message.split(maxsplit=1)[1] for record in caplog.records] == messages


def test_broken_symbolic_link_raises_oserror_when_read(tmp_path):
    (tmp_path / "1.png").symlink_to(tmp_path / "gone.png")
    [(name, read)] = files.read_files(tmp_path)
    assert name == "1.png"
    assert files.fingerprint(tmp_path, (".png",)) == files.fingerprint(
        tmp_path, (".png",), samples=2
    )
    with pytest.raises(OSError, match="No such file"):
        read()


# Files and archives that are refused.


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "\\etc\\x", "C:\\x", "./c:/x"])
@each_family
def test_archive_entry_outside_the_archive_is_rejected(tmp_path, kind, name):
    path = pack(tmp_path / f"pack{kind}", {"good.png": b"x", name: b"x"})
    with refused(str(path), repr(name)[1:-1], "points out of the archive"):
        names(path)


def entry(make, name="a/bad.png", /, **fields):
    made = make(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


LINK = {"create_system": 3, "external_attr": (stat.S_IFLNK | 0o777) << 16}
TYPES = [getattr(tarfile, f"{kind}TYPE") for kind in ("SYM", "LNK", "CHR", "BLK", "FIFO")]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("kind", "entries", "message"),
    [
        *(
            (".tar", [entry(tarfile.TarInfo, type=kind, linkname="/etc/passwd")], "a link or a dev")
            for kind in TYPES
        ),
        (".zip", [entry(zipfile.ZipInfo, **LINK)], "'a/bad.png' is a link"),
        (".zip", [entry(zipfile.ZipInfo, filename="")], "is damaged"),
        (".zip", [entry(zipfile.ZipInfo)] * 2, "'a/bad.png' occurs twice"),
        (".tar", [entry(tarfile.TarInfo)] * 2, "'a/bad.png' occurs twice"),
        (".tar", [entry(tarfile.TarInfo, os.fsdecode(b"b\xffd.png"))], "not UTF-8; rename it"),
    ],
)
def test_archive_with_links_repeated_names_or_special_entries_is_rejected(
    tmp_path, kind, entries, message
):
    path = tmp_path / f"pack{kind}"
    if kind == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            [archive.writestr(one, "/etc/passwd") for one in entries]
    else:
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
            [archive.addfile(one) for one in entries]
    with refused(str(path), message):
        names(path)


@pytest.mark.parametrize("pax", [False, True])
def test_tar_entry_of_negative_size_is_rejected(tmp_path, pax):
    path = pack(tmp_path / "pack.tar", {"a.png": b"x", "b.png": b"x"})
    size = {"pax_headers": {"size": "-512"}} if pax else {"size": -512}
    header = entry(tarfile.TarInfo, **size)
    form = tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT
    path.write_bytes(header.tobuf(form) + path.read_bytes())
    with refused(str(path), "is damaged", "download it again"):
        names(path)


@pytest.mark.parametrize("name", [b"b\xffd.png", b"b\xffd/0.png"])
def test_file_or_folder_name_that_is_not_utf8_is_rejected(tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with refused(str(tmp_path), r"'b\udcffd", "not UTF-8; rename it"):
        names(tmp_path)


@each_kind
def test_truncated_archive_and_file_that_is_no_archive_are_rejected(archive, kind, tmp_path):
    whole = archive(kind).read_bytes()
    cut = tmp_path / f"cut{kind}"
    parts = (whole[: int(share * min(len(whole), 9000))] for share in (0, 0.1, 0.5, 0.9))
    for content in (*parts, b"no archive" * 500):
        cut.write_bytes(content)
        with refused(str(cut), "is damaged", "download it again"):
            names(cut)


def test_tar_truncated_anywhere_is_rejected(archive, tmp_path):
    whole = archive(".tar").read_bytes()
    with tarfile.open(archive(".tar")) as opened:
        last = opened.getmembers()[-1]
    cut = tmp_path / "cut.tar"
    # Cut the archive at every boundary of its 512-byte blocks, up to the data of the last entry.
    for length in range(0, last.offset_data + 512, 512):
        cut.write_bytes(whole[:length])
        with refused("is damaged"):
            names(cut)


@pytest.mark.parametrize("kind", [".tar", ".tar.xz", ".tar.bz2"])
def test_damaged_archive_is_rejected(archive, kind, tmp_path):
    whole = bytearray(archive(kind).read_bytes())
    with tarfile.open(archive(".tar")) as opened:
        at = opened.getmembers()[2].offset if kind == ".tar" else len(whole) // 2
    whole[at : at + 30] = b"x" * 30
    damaged = tmp_path / f"damaged{kind}"
    damaged.write_bytes(whole)
    with refused(str(damaged), "is damaged", "download it again"):
        names(damaged)


def test_wrong_gzip_checksum_is_rejected(tmp_path):
    """Stored without compression, so that a changed byte is still a file of that length."""
    whole = bytearray(gzip.compress(pack(tmp_path / "a.tar", {"1.png": b"pixels"}).read_bytes(), 0))
    whole[whole.index(b"pixels")] ^= 1
    path = tmp_path / "flipped.tar.gz"
    path.write_bytes(whole)
    with refused(str(path), "is damaged", "download it again"):
        names(path)


def test_damaged_zip_entry_raises_oserror(archive, tmp_path):
    whole = archive(".zip").read_bytes()
    archives = {  # error -> archive whose first entry has other data, or is marked as encrypted
        "Bad CRC": whole.replace(b"one", b"two"),
        "encrypted": whole.replace(b"PK\3\4\x14\0\0", b"PK\3\4\x14\0\1", 1).replace(
            b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1", 1
        ),
    }
    for reason, data in archives.items():
        (tmp_path / "bad.zip").write_bytes(data)
        for name, read in files.read_files(tmp_path / "bad.zip"):
            if name == "a/1.png":
                with pytest.raises(OSError, match=reason):
                    read()
            else:
                assert read() == CONTENT[name]


@each_family
def test_file_above_the_size_limit_is_not_read(archive, kind):
    for name, read in files.read_files(archive(kind), max_bytes=3):
        if len(CONTENT[name]) > 3:
            with pytest.raises(OSError, match="larger than"):
                read()
        else:
            assert read() == CONTENT[name]


def test_device_files_and_pipes_are_not_read(tmp_path):
    """Each of them would be read for ever."""
    (tmp_path / "device.png").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.png")
    for _, read in files.read_files(tmp_path):
        with pytest.raises(OSError, match="is not a regular file"):
            read()
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(2**40)
    *_, (_, read) = files.read_files(tmp_path)
    with pytest.raises(OSError, match="larger than 256 MiB"):
        read()


def test_tar_entry_of_impossible_size_is_rejected(tmp_path):
    path = tmp_path / "pack.tar"
    path.write_bytes(entry(tarfile.TarInfo, size=2**62).tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with refused(str(path), "is damaged", "an impossible entry of"):
        names(path)


@pytest.mark.parametrize("path", ["note.txt", "note.txt/a"])
def test_path_to_a_file_that_is_no_archive_is_rejected(tmp_path, path):
    (tmp_path / "note.txt").write_text("x")
    with refused(f"{tmp_path}/{path} is a file; expected a folder, or an archive (.zip, .tar,"):
        files.locate(f"{tmp_path}/{path}")


def test_missing_path_error_names_the_nearest_existing_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (f"{tmp_path}/a/b", "gone.zip"):
        with refused(f"path={path} does not exist; the nearest existing folder is {tmp_path}"):
            files.locate(path)


def test_permission_errors_are_reported(archive, tmp_path, monkeypatch):
    def denied(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)
    with refused(f"the folder {tmp_path} cannot be read: Permission denied"):
        names(tmp_path)
    monkeypatch.setattr(io, "open", denied)
    with refused(f"the archive {archive('.tar')} cannot be read", "Permission denied"):
        names(archive(".tar"))


# The fingerprint of a folder or archive.


def test_fingerprint_of_a_folder_changes_with_its_files(tmp_path):
    unpack(tmp_path, {"a/1.png": b"one", "b/2.png": b"two"})
    stamp = lambda: files.fingerprint(tmp_path, (".png",))  # noqa: E731
    seen = [stamp()]
    (tmp_path / ".hidden").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"no picture")
    found(tmp_path)
    assert stamp() == seen[0]
    path = tmp_path / "b/3.png"
    for content in (b"three", b"four!", b"longer"):
        path.write_bytes(content)
        # The last two contents get the same time, as on file systems with coarse clocks.
        os.utime(path, ns=(0, 10**18 + (content == b"three")))
        seen.append(stamp())
    for name in ("b/4.png", "a/4.png"):
        path = path.rename(tmp_path / name)
        seen.append(stamp())
    assert len(set(seen)) == len(seen)


def test_fingerprint_of_an_archive_changes_with_its_bytes(tmp_path):
    path = pack(tmp_path / "pack.zip", CONTENT)
    first = files.fingerprint(path, (".png",))
    found(path)
    assert files.fingerprint(path, (".png",)) == first
    pack(path, CONTENT | {"new.png": b""})
    assert files.fingerprint(path, (".png",)) != first
