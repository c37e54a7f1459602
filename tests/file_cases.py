"""Folders, archives and pictures made by tests, and what a refusal looks like."""

import errno
import io
import os
import tarfile
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
from data_cases import data_config
from PIL import Image

from jaxssl.data import source
from jaxssl.data.formats import folder
from jaxssl.errors import UserError

TARS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz", ".tar.bz2": "w:bz2"}
CLASSES = ("ant", "bee", "cat")
PER_CLASS = 10
HEIGHT, WIDTH = 6, 8


@contextmanager
def refused(*parts):
    """A message of one line that holds the parts; it is put into what `with` gives."""
    actual = []
    with pytest.raises(UserError) as error:
        yield actual
    message = str(error.value)
    actual.append(message)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def full_disk(*_, **__):
    """Fail as writing on a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def pack(path, content, **options):
    """An archive of bytes by name, of the kind that the path's suffix says."""
    if path.name.lower().endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
    else:
        mode = TARS["." + path.name.partition(".")[2].lower()]
        with tarfile.open(path, mode, **options) as archive:
            for name, data in content.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    return path


def unpack(root, content):
    """A folder of bytes by name."""
    for name, data in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def loader(prepared):
    """Opens a split of a folder or another set, which is prepared in a directory."""

    def load(path, split="train", **changes):
        settings = {"name": "folder", "path": str(path), "dir": str(prepared)} | changes
        return source.load(data_config(**settings), split)

    return load


def finished(directory):
    """The finished sets of a data directory."""
    return sorted(directory.glob("*/*/1.0.0"))


def nothing_is_prepared(monkeypatch):
    """From now on, preparing a folder or looking through it fails."""

    def again(*_, **__):
        pytest.fail("prepared again")

    monkeypatch.setattr(folder.Builder, "download_and_prepare", again)
    monkeypatch.setattr(folder, "arrange", again)


def files_of(opened):
    """The names of a split's pictures, in its order."""
    [(part, indices)] = opened.parts
    return [record["file"].decode() for record in part.read_records(indices)]


def pixels_of(name, shape=(HEIGHT, WIDTH, 3)):
    """Pixels that are a matter of the name."""
    return np.random.default_rng(list(name.encode())).integers(0, 256, shape, np.uint8)


def encoded(image, format="png", **options):
    """The bytes of a file of pixels, or of a picture of Pillow."""
    out = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(out, format, **options)
    return out.getvalue()


def picture(name, shape=(HEIGHT, WIDTH, 3), format="png", **options):
    """The bytes of a picture file."""
    return encoded(pixels_of(name, shape), format, **options)


def pictures(*names):
    return {name: picture(name) for name in names}


LABELLED = pictures(*(f"{c}/{i}.png" for c in CLASSES for i in range(PER_CLASS)))


def zipped(text, storages=(), compression=zipfile.ZIP_STORED):
    """A file as torch.save lays it out, around any pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("x/data.pkl", text)
        for key, content in enumerate(storages):
            archive.writestr(f"x/data/{key}", content)
    return file.getvalue()
