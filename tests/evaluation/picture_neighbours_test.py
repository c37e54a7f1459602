"""The command `jaxssl neighbours`, by an encoder whose features are the pixels of an image."""

import csv
from pathlib import Path

import numpy as np
import page_cases
import pytest
from file_cases import picture, pixels_of, refused, unpack
from PIL import Image
from tune_cases import SIZE, flat_encoder

from jaxssl.evaluation import picture_neighbours
from jaxssl.pretrained import load

pytestmark = pytest.mark.fast

NAMES = [f"{i}.png" for i in range(12)]
SETTINGS = {"k": 3, "threshold": 0.98, "rows": 100}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder of unlike pictures, a copy of 4.png, and 7.png with other last bits."""
    files = {name: picture(name, (SIZE, SIZE)) for name in NAMES}
    root = unpack(tmp_path / "pictures", {**files, "copies/4.png": files["4.png"]})
    Image.fromarray(pixels_of("7.png", (SIZE, SIZE)) ^ 3).save(root / "copies/7.png")
    return root


def read(page: Path) -> list[dict[str, str]]:
    with page.with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_exact_and_slightly_changed_copies_of_a_picture_are_likely_duplicates(
    folder, tmp_path, monkeypatch, run_command, caplog
):
    monkeypatch.setattr(load, "load_pretrained", lambda *_, **__: flat_encoder())
    page = tmp_path / "out" / "page.html"
    status, output, _ = run_command("neighbours", "runs/mine", str(folder), f"--out={page}")
    assert status == 0 and f"{page}: 14 pictures; pairs of likely duplicates: 2" in output
    assert "threshold" not in caplog.text
    duplicates = [row for row in read(page) if row["duplicate"] == "1"]
    pairs = [(f"{n}.png", f"copies/{n}.png") for n in "47"]
    assert {(row["file"], row["neighbour"], row["rank"]) for row in duplicates} == {
        (*one, "1") for pair in pairs for one in (pair, pair[::-1])
    }
    # The exact copy is listed above the changed copy, and each pair once.
    text, html = "".join(page_cases.page(page).text), page.read_text()
    assert "There are\n2 pairs" in text and "<script" not in html
    found = html.partition("Nearest pictures")[0]
    assert [alt.split(", ")[-1] for alt, _ in page_cases.pictures(found)] == [*sum(pairs, ())]


def test_neighbours_are_the_nearest_other_pictures_by_cosine(folder, tmp_path):
    page = tmp_path / "page.html"
    assert picture_neighbours.write(flat_encoder(), folder, page, **SETTINGS) == (14, 2)
    rows = read(page)
    names = list(dict.fromkeys(row["file"] for row in rows))
    pixels = {name: np.asarray(Image.open(folder / name), np.float64).ravel() for name in names}
    z = np.stack([x / np.linalg.norm(x) for x in pixels.values()])
    cosines = z @ z.T - 2 * np.eye(14)
    for i, name in enumerate(names):
        order = np.argsort(-cosines[i], kind="stable")[:3]
        mine = [row for row in rows if row["file"] == name]
        assert [row["neighbour"] for row in mine] == [names[j] for j in order]
        np.testing.assert_allclose([float(row["cosine"]) for row in mine], cosines[i, order], 1e-5)
    shown = page_cases.pictures(page.read_text().partition("Nearest pictures")[2])
    assert [alt for alt, _ in shown][:4] == [
        "picture, 0.png",
        *(f"neighbour, {float(row['cosine']):.3f}, {row['neighbour']}" for row in rows[:3]),
    ]
    np.testing.assert_array_equal(shown[0][1][..., 0], pixels["0.png"].reshape(SIZE, SIZE))


def test_page_shows_limited_rows_and_no_picture_as_its_own_neighbour(tmp_path, caplog):
    images, page = np.full((40, SIZE, SIZE, 1), 9, np.uint8), tmp_path / "page.html"
    settings = {**SETTINGS, "rows": 5}
    number, pairs = picture_neighbours.write(flat_encoder(), images, page, **settings)
    assert (number, pairs) == (40, 3 * 40 - 6)  # 6 pairs are neighbours of each other
    assert "a cosine of 1.0000 or more to another, and the threshold is 0.98;" in caplog.text
    assert all(row["file"] != row["neighbour"] for row in read(page))
    assert [len(table) for table in page_cases.tables(page, "neighbours")] == [1 + 3, 1 + 5]
    assert "shows 5 of 40 pictures" in "".join(page_cases.page(page).text)


def test_page_of_few_pictures_lists_all_others_and_reports_no_duplicates(tmp_path):
    images = np.stack([pixels_of(name, (SIZE, SIZE, 1)) for name in NAMES[:3]])
    page = tmp_path / "page.html"
    assert picture_neighbours.write(flat_encoder(), images, page, **SETTINGS) == (3, 0)
    assert {(row["file"], row["neighbour"]) for row in read(page)} == {
        (f"image {i}", f"image {j}") for i in range(3) for j in range(3) if i != j
    }
    assert "No two pictures have a cosine of 0.98" in "".join(page_cases.page(page).text)


def test_page_shows_only_the_metadata_that_the_encoder_has(folder, tmp_path):
    page, metadata = tmp_path / "page.html", {"source": "x.pth", "step": None, "loss": None}
    encoder = flat_encoder()._replace(metadata=metadata)
    picture_neighbours.write(encoder, folder, page, **SETTINGS)
    assert "<p>source x.pth</p>" in page.read_text()


def test_unreadable_picture_raises_an_error_with_its_name_or_is_skipped(folder, tmp_path):
    (folder / "0.png").write_bytes((folder / "0.png").read_bytes()[:-20])
    page = tmp_path / "page.html"
    with refused("1 of the pictures in", "(0.png: "):
        picture_neighbours.write(flat_encoder(), folder, page, **SETTINGS)
    assert not page.exists()
    number, _ = picture_neighbours.write(flat_encoder(), folder, page, **SETTINGS, on_error="skip")
    assert number == 13 and "0.png" not in {row["file"] for row in read(page)}


def test_impossible_outputs_and_a_single_picture_are_refused(folder, tmp_path):
    with refused("the page", "page.pdf must end with one of .html, .htm"):
        picture_neighbours.write(flat_encoder(), folder, tmp_path / "page.pdf", **SETTINGS)
    table = tmp_path / "photos.csv"
    table.write_text("file,label\npictures/0.png,a\npictures/1.png,b\n")
    before = table.read_text()
    with refused("photos.csv holds the images; choose another --out"):
        picture_neighbours.write(flat_encoder(), table, table.with_suffix(".html"), **SETTINGS)
    assert table.read_text() == before
    with refused("a picture has no neighbours in", "4.png"):
        picture_neighbours.write(flat_encoder(), folder / "4.png", tmp_path / "x.html", **SETTINGS)
    with refused("a picture has no neighbours in a set of one (image 0); give two or more"):
        one = np.zeros((1, SIZE, SIZE, 1), np.uint8)
        picture_neighbours.write(flat_encoder(), one, tmp_path / "x.html", **SETTINGS)
    (tmp_path / "y.csv").mkdir()
    with refused("y.csv is a folder"):
        picture_neighbours.write(flat_encoder(), folder, tmp_path / "y.html", **SETTINGS)
