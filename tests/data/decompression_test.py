"""Archives that expand to far more than their size are refused in bounded memory and time."""

import bz2
import gzip
import lzma
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from file_cases import pack, refused

from jaxssl.data.decoders import decompression, files

ZEROS = bytes(2**24)
BIG = 2**30
COMPRESSED = {".tar.gz": gzip, ".tar.bz2": bz2, ".tar.xz": lzma}
# Program that opens an archive, and prints its error and the MB of memory that it needed.
MEASURE = """
import re, sys
from pathlib import Path
from jaxssl.data.decoders import files
from jaxssl.errors import UserError

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000

start = peak()
try:
    for name, read in files.read_files(Path(sys.argv[1])):
        try:
            read()
        except OSError as error:
            print(error)
except UserError as error:
    print(error)
print(peak() - start)
"""


def write(path: Path, header: bytes, size: int) -> Path:
    """Write a compressed tar of one header and ``size`` zeros, from streams of 16 MiB each."""
    compress = COMPRESSED["." + path.name.partition(".")[2]].compress
    path.write_bytes(compress(header) + size // len(ZEROS) * compress(ZEROS))
    return path


def header(kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo("a.png")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", sorted(COMPRESSED))
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (tarfile.GNUTYPE_LONGNAME, "a header of 1073741824 bytes"),
        (tarfile.XHDTYPE, "a header of 1073741824 bytes"),
        (tarfile.GNUTYPE_SPARSE, "an entry that is a sparse file; pack it again without --sparse"),
    ],
)
def test_archive_with_a_header_of_a_gigabyte_is_refused_unread(tmp_path, kind, entry, message):
    path = write(tmp_path / f"bomb{kind}", header(entry, BIG), len(ZEROS))
    with refused(str(path), message):
        list(files.read_files(path))


def test_archive_with_thousands_of_tar_headers_for_one_entry_is_refused(tmp_path):
    path = write(tmp_path / "bomb.tar.gz", 5000 * header(tarfile.GNUTYPE_LONGNAME, 0), 0)
    with refused(str(path), "is damaged", "recursion"):
        list(files.read_files(path))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_bzip2_and_lzma_zip_entries_are_refused_with_the_method_named(tmp_path, method):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.png", b"x")
    name = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA"}[method]
    with refused(str(path), f"'a.png' is compressed by {name}, not by deflate"):
        list(files.read_files(path))


def bomb(path: Path) -> Path:
    """Write an archive of at most half a megabyte with hundreds of megabytes of zeros."""
    if path.suffix != ".zip":
        return write(path, header(tarfile.REGTYPE, BIG), 25 * len(ZEROS))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a.png", "b.png"):
            archive.writestr(name, 5 * ZEROS)
    return path


@pytest.mark.parametrize("kind", [".zip", *sorted(COMPRESSED)])
def test_decompression_bomb_is_refused_without_using_much_memory(tmp_path, kind):
    measure = [sys.executable, "-c", MEASURE, str(bomb(tmp_path / f"bomb{kind}"))]
    out = subprocess.run(measure, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "is rejected because it expands to more than" in out[-2]
    assert "unpack it and name the folder" in out[-2]
    assert float(out[-1]) < 200


def test_archive_that_expands_less_than_the_ratio_limit_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(decompression, "FREE", 0)
    rng = np.random.default_rng(0)
    content = rng.bytes(9000) + rng.bytes(100) * 9000
    path = pack(tmp_path / "pack.tar.gz", {"a.bin": content})
    assert len(content) > 50 * path.stat().st_size
    assert [read() for _, read in files.read_files(path)] == [content]


@pytest.mark.parametrize("kind", sorted(COMPRESSED))
def test_archive_of_several_compressed_streams_is_read_to_the_end(tmp_path, kind):
    """Parallel compressors write one stream for each block."""
    content, compress = bytes(range(250)) * 20, COMPRESSED[kind].compress
    text = pack(tmp_path / "plain.tar", {"a.bin": content}).read_bytes()
    path = tmp_path / f"pack{kind}"
    path.write_bytes(compress(text[:1000]) + compress(text[1000:]) + bytes(8))
    assert [read() for _, read in files.read_files(path)] == [content]


@pytest.mark.parametrize("zeros", [4, decompression.INPUT, 2 * decompression.INPUT + 4])
def test_files_after_any_number_of_padding_zeros_between_xz_streams_are_read(tmp_path, zeros):
    content = {f"{name}.bin": name.encode() for name in "ab"}
    text = pack(tmp_path / "plain.tar", content).read_bytes()
    first, rest = (lzma.compress(part) for part in (text[:1024], text[1024:]))
    path = tmp_path / "pack.tar.xz"
    path.write_bytes(first + bytes(zeros) + rest)
    assert {name: read() for name, read in files.read_files(path)} == content


def test_xz_with_a_huge_dictionary_is_refused(tmp_path):
    data = bytearray(lzma.compress(b"x"))
    assert data[14:16] == b"\x21\x01"  # the filter LZMA2, and one byte of settings
    data[16] = 36  # code of a dictionary of 1 GiB
    data[20:24] = zlib.crc32(data[12:20]).to_bytes(4, "little")
    path = tmp_path / "bomb.tar.xz"
    path.write_bytes(data)
    with refused(str(path), "Memory usage limit"):
        list(files.read_files(path))


def test_gzip_file_that_expands_beyond_the_ratio_limit_is_refused(monkeypatch):
    monkeypatch.setattr(decompression, "FREE", 0)
    data = gzip.compress(ZEROS)
    with refused("archive images-ubyte.gz is rejected because it expands"):
        decompression.gunzip(data, "images-ubyte.gz")
    assert decompression.gunzip(gzip.compress(b"abc"), "a.gz") == b"abc"
