"""Embeddings of pictures, by an encoder whose features are the pixels of an image."""

import io
import os

import jax
import numpy as np
import pytest
from file_cases import pack, picture, pixels_of, refused, unpack
from PIL import Image
from pyarrow import parquet
from tune_cases import SIZE, Flat, flat_encoder

import jaxssl
from jaxssl.evaluation import embedding, picture_neighbours

pytestmark = pytest.mark.fast

SHAPES = {"a.png": (6, 9), "b.png": (6, 9), "below/c.png": (6, 9)}


def pictures(shapes):
    """Return files by name, and their pixels [h, w, 1]."""
    files = {name: picture(name, shape) for name, shape in shapes.items()}
    return files, [pixels_of(name, shape)[..., None] for name, shape in shapes.items()]


@pytest.mark.parametrize("last", [(6, 9), (9, 6)], ids=["one size", "many sizes"])
def test_embeddings_of_picture_files_equal_those_of_their_pixels(tmp_path, last):
    files, pixels = pictures({**SHAPES, "d.png": last})
    expected = jaxssl.embed(flat_encoder(), pixels)
    folder, archive = unpack(tmp_path / "files", files), pack(tmp_path / "files.zip", files)
    for path in (folder, archive):
        np.testing.assert_array_equal(jaxssl.embed(flat_encoder(), path), expected)


@pytest.mark.parametrize(
    ("last", "way"),
    [
        ((6, 9), "4, all of 6x9x1, which are resized whole"),
        ((9, 6), "4, of many sizes, of which the central square of 0.875 is taken"),
    ],
)
def test_log_of_embed_says_how_pictures_are_resized(tmp_path, caplog, last, way):
    folder = unpack(tmp_path, pictures({**dict.fromkeys(SHAPES, (6, 9)), "d.png": last})[0])
    with caplog.at_level("INFO", "jaxssl"):
        jaxssl.embed(flat_encoder(), folder)
    assert f"pictures   {way}" in caplog.text


def test_embeddings_that_are_not_finite_are_reported_with_the_first_picture(tmp_path, caplog):
    folder = unpack(tmp_path, pictures(SHAPES)[0])
    jaxssl.embed(flat_encoder(), folder)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    encoder = flat_encoder()
    broken = encoder._replace(variables=jax.tree.map(lambda x: x * np.nan, encoder.variables))
    jaxssl.embed(broken, folder)
    assert "3 of 3 embeddings are not finite, the first that of a.png" in caplog.text


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "tiff"])
def test_pictures_are_rotated_by_exif_orientation_before_they_are_embedded(tmp_path, format):
    pixels = np.zeros((6, 9), np.uint8)
    pixels[:, 6:] = 255  # White columns on the right show the orientation.
    exif, out = Image.Exif(), io.BytesIO()
    exif[274] = 6  # A quarter turn to the right moves the white part to the bottom.
    Image.fromarray(pixels).save(out, format, exif=exif)
    folder = unpack(tmp_path, {f"turned.{format}": out.getvalue()})
    expected = jaxssl.embed(flat_encoder(), np.rot90(pixels, -1)[None, ..., None])
    np.testing.assert_allclose(jaxssl.embed(flat_encoder(), folder), expected, atol=0.1)


def test_embed_with_layer_projector_returns_the_projector_output():
    pixels = pixels_of("one", (1, SIZE, SIZE, 1))
    encoder = flat_encoder()
    with refused("layer 'projector': these weights have no projector"):
        jaxssl.embed(encoder, pixels, layer="projector")
    doubled = jax.tree.map(lambda x: 2 * x, encoder.variables["net"])
    variables = {**encoder.variables, "projector": doubled}
    network = encoder.encoder._replace(projector=Flat())
    encoder = encoder._replace(encoder=network, variables=variables)
    expected = 2 * jaxssl.embed(encoder, pixels)
    np.testing.assert_allclose(jaxssl.embed(encoder, pixels, layer="projector"), expected)


def test_embed_rejects_a_step_for_a_weights_file(tmp_path):
    with refused("weights.safetensors is a weights file", "remove step 5"):
        jaxssl.embed(tmp_path / "weights.safetensors", np.zeros((1, 8, 8, 1), np.uint8), step=5)


def test_embeddings_do_not_replace_the_file_of_their_images(tmp_path):
    pixels = np.zeros((2, SIZE, SIZE, 1), np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    for path in (tmp_path / "x.npy", str(tmp_path / "x.npy")):
        with refused("x.npy holds the images; choose another --out"):
            jaxssl.embed(flat_encoder(), path, tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), pixels)


def test_tables_beside_the_output_replace_only_those_of_an_earlier_command(tmp_path):
    unpack(tmp_path / "pictures", {f"{i}.png": picture("x.png", (SIZE, SIZE)) for i in range(3)})
    encoder, pixels = flat_encoder(), np.zeros((2, SIZE, SIZE, 1), np.uint8)
    mine = {"e.files.csv": "name,age\n", "page.csv": "x,y\n1,2\n"}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    with refused("e.files.csv would be replaced, and is another file; choose another --out"):
        jaxssl.embed(encoder, pixels, tmp_path / "e.npy")
    with refused("page.csv would be replaced"):
        page = tmp_path / "page.html"
        picture_neighbours.write(encoder, tmp_path / "pictures", page, k=1, threshold=0.9, rows=9)
    assert {name: (tmp_path / name).read_text() for name in mine} == mine
    for images in (tmp_path / "pictures", pixels, tmp_path / "pictures"):
        jaxssl.embed(encoder, images, tmp_path / "f.npy")
        assert (tmp_path / "f.files.csv").exists() == (images is not pixels)


def test_embeddings_do_not_become_a_picture_of_the_folder_of_their_images(tmp_path):
    folder, encoder = tmp_path / "pictures", flat_encoder()
    folder.mkdir()
    pixels = np.zeros((2, SIZE, SIZE, 2), np.uint8)
    for i in range(2):
        np.save(folder / f"{i}.npy", pixels[i])
    encoder = encoder._replace(inputs=encoder.inputs._replace(channels=2, mean=(0.0,) * 2))
    for name in ("0.npy", "new.npy"):
        with refused(f"{name} would be a picture of", "choose another --out"):
            jaxssl.embed(encoder, folder, folder / name)
    np.testing.assert_array_equal(np.load(folder / "0.npy"), pixels[0])
    assert len(list(folder.iterdir())) == 2
    # An encoder of grey images takes no arrays as pictures.
    unpack(folder, {"0.png": picture("0.png", (SIZE, SIZE))})
    jaxssl.embed(flat_encoder(), folder, folder / "embeddings.npy")
    assert (folder / "embeddings.npy").exists()


def test_output_that_cannot_be_written_is_reported_before_images_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "embed_pictures", lambda *_, **__: pytest.fail("images read"))
    (tmp_path / "file").touch()
    (tmp_path / "folder.npy").mkdir()
    for name, message in (
        ("file/x.npy", f"cannot write {tmp_path}/file/x.npy"),
        ("folder.npy", "folder.npy is a folder; name a file with --out"),
    ):
        with refused(message):
            jaxssl.embed(flat_encoder(), np.zeros((1, SIZE, SIZE, 1), np.uint8), tmp_path / name)


def test_read_only_folder_is_reported_before_any_image_is_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "encode_images", lambda *_, **__: pytest.fail("encoded"))
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    with refused(f"{tmp_path} is read-only; write to another folder with --out"):
        jaxssl.embed(flat_encoder(), np.zeros((1, SIZE, SIZE, 1), np.uint8), tmp_path / "x.npy")


def test_row_groups_of_a_parquet_file_are_small_enough_to_be_read(tmp_path, monkeypatch):
    pixels = pixels_of("many", (10, SIZE, SIZE, 1))
    monkeypatch.setattr(embedding, "GROUP", 4 * SIZE**2)
    expected = jaxssl.embed(flat_encoder(), pixels, tmp_path / "x.parquet")
    file = parquet.ParquetFile(tmp_path / "x.parquet")
    assert file.num_row_groups == 3
    np.testing.assert_array_equal(np.stack(file.read()["embedding"].to_numpy()), expected)


def test_empty_path_of_pictures_is_refused():
    with refused("expected a path, got an empty text"):
        jaxssl.embed(flat_encoder(), "")


def test_archive_of_pictures_that_memory_may_not_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "MAX_HELD", 10)
    files, _ = pictures(SHAPES)
    with refused("files.zip has more than", "of pictures; unpack it and name the folder"):
        jaxssl.embed(flat_encoder(), pack(tmp_path / "files.zip", files))
    assert jaxssl.embed(flat_encoder(), unpack(tmp_path / "files", files)).shape == (3, SIZE**2)
