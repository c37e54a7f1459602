"""Find the nearest pictures of each picture and likely duplicates, for a page and a CSV file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxssl import distributed
from jaxssl.errors import UserError, printable
from jaxssl.evaluation.embedding import (
    Embedded,
    embed_pictures,
    make_folder,
    refuse_overwriting,
    write_csv,
)
from jaxssl.evaluation.nearest_neighbours import Nearest, nearest_others
from jaxssl.kinds import image
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.report.gallery import image_cell, image_table
from jaxssl.report.page import Cell, Table, render
from jaxssl.training.output import file_io
from jaxssl.training.output.logs import log

ROUNDING = 1e-5  # The cosine of equal features differs from 1 by less.
SUFFIXES = (".html", ".htm")
HEADER = ("file", "rank", "neighbour", "cosine", "duplicate")  # of the CSV file
FACTS = ("source", "step", "loss")  # metadata of the encoder that the page shows

# Maps the index of a picture to the indices and cosines of its most similar pictures.
Neighbours = dict[int, list[tuple[int, float]]]


class Pair(NamedTuple):
    """Two likely duplicates: indices of the pictures, the smaller first, and their cosine."""

    picture: int
    other: int
    cosine: float


def write(
    encoder: PretrainedEncoder,
    images: object,
    out: Path,
    *,
    k: int,
    threshold: float,
    rows: int,
    **options: Any,
) -> tuple[int, int]:
    """Write an HTML page of nearest pictures and likely duplicates, and a CSV file next to it.

    Neighbours are found block by block, so that memory grows with the number of pictures only by
    their features and k neighbours. Of a picture with more than k likely duplicates, the k nearest
    are listed.

    Args:
        encoder: an encoder of images.
        images: as for `embedding.embed_pictures`.
        out: the page. The CSV file has the same name and the suffix ".csv".
        k: neighbours of each picture, >= 1.
        threshold: pictures are likely duplicates if their features have at least this cosine.
        rows: largest number of pictures in each table of the page. The CSV file has all.
        **options: layer and on_error of `embedding.embed_pictures`.

    Returns:
        The number of pictures, and the number of pairs of likely duplicates.

    Raises:
        UserError: as `embedding.embed_pictures`; for one picture, features that are not finite, or
            a file that cannot be written.
    """
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"the page {out} must end with one of {', '.join(SUFFIXES)}")
    csv_file = out.with_suffix(".csv")
    refuse_overwriting(images, out, csv_file, HEADER)
    for file in (out, csv_file):
        make_folder(file)
    embedded = embed_pictures(encoder, images, **options)
    number = len(embedded.features)
    names = embedded.names or [f"image {i}" for i in range(number)]
    if number < 2:
        only = printable(names[0])
        raise UserError(f"a picture has no neighbours in a set of one ({only}); give two or more")
    try:
        nearest = nearest_others(embedded.features, k)
    except ValueError as error:
        raise UserError(f"the pictures have no neighbours: {error}") from error
    is_duplicate = nearest.similarity >= threshold - ROUNDING
    pairs = _find_pairs(nearest, is_duplicate)
    if not distributed.is_first_process():
        return number, len(pairs)
    median = float(np.median(nearest.similarity[:, 0]))
    if median >= threshold - ROUNDING:
        log.warning(
            "at least half of the pictures have a cosine of %.4f or more to another, and the "
            "threshold is %g; unless they are copies, raise --threshold or train longer",
            *(median, threshold),
        )
    write_csv(csv_file, _csv_rows(names, nearest, is_duplicate))
    duplicates: Neighbours = {}
    for pair in pairs:
        duplicates.setdefault(pair.picture, []).append((pair.other, pair.cosine))
    shown = np.unique(np.linspace(0, number - 1, min(rows, number)).round().astype(int)).tolist()
    similar = {
        i: list(zip(nearest.indices[i].tolist(), nearest.similarity[i].tolist(), strict=True))
        for i in shown
    }
    first = {i: others[:k] for i, others in list(duplicates.items())[:rows]}
    metadata = encoder.metadata
    html = render(
        "neighbours.html",
        title=f"{number} pictures: likely duplicates and nearest neighbours",
        facts=[f"{key} {metadata[key]}" for key in FACTS if metadata.get(key) is not None],
        csv_file=csv_file.name,
        threshold=f"{threshold:g}",
        num_pairs=len(pairs),
        k=k,
        num_duplicates=len(duplicates),
        duplicates=_table("likely duplicates", first, embedded, names),
        quantiles=[f"{x:.3f}" for x in np.quantile(nearest.similarity[:, 0], (0.5, 0.9, 0.99))],
        num_pictures=number,
        nearest=_table("nearest pictures", similar, embedded, names),
    )
    file_io.write_text(out, html)
    return number, len(pairs)


def _find_pairs(nearest: Nearest, is_duplicate: np.ndarray) -> list[Pair]:
    """Return each pair of likely duplicates once, the most similar pair first.

    Args:
        nearest: the k neighbours of each of n pictures.
        is_duplicate: [n, k] bool, whether each neighbour is a likely duplicate.
    """
    picture, rank = np.nonzero(is_duplicate)
    both = np.sort(np.stack([picture, nearest.indices[picture, rank]], axis=1), axis=1)
    pairs, first = np.unique(both, axis=0, return_index=True)
    cosines = nearest.similarity[picture, rank][first]
    order = np.argsort(-cosines, kind="stable")
    columns = *pairs[order].T.tolist(), cosines[order].tolist()
    return [Pair(*values) for values in zip(*columns, strict=True)]


def _csv_rows(
    names: Sequence[str], nearest: Nearest, is_duplicate: np.ndarray
) -> Iterator[tuple[object, ...]]:
    """Yield the header of the CSV file, and a row for each neighbour of each picture."""
    yield HEADER
    for (i, rank), cosine in np.ndenumerate(nearest.similarity):
        neighbour = names[int(nearest.indices[i, rank])]
        yield names[i], rank + 1, neighbour, f"{cosine:.6f}", int(is_duplicate[i, rank])


def _table(title: str, rows: Neighbours, embedded: Embedded, names: list[str]) -> Table:
    """Build a table of pictures, each next to similar ones with their cosines."""
    cells: list[list[str | Cell]] = []
    for i, similar in rows.items():
        pixels = image.draw(embedded.pixels[i])
        row: list[str | Cell] = [image_cell(pixels, "picture", [names[i]], "first")]
        for j, cosine in similar:
            text = [f"{cosine:.3f}", names[j]]
            row.append(image_cell(image.draw(embedded.pixels[j]), "neighbour", text))
        cells.append(row)
    return image_table(title, "picture", cells)
