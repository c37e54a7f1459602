"""Data set of pictures with captions: `data.name=captions data.path=PATH`.

The path is a folder or an archive of pictures with a table `captions.csv`, `.txt` or `.tsv`. The
table's header names the columns "image" and "caption". A picture may have several rows. The key
`data.labels` names another table.

The pictures are in the order of a hash of their names, so that any slice of them is a random part.
"""

import csv
import hashlib
import io
import os
from pathlib import Path, PurePosixPath

import tensorflow_datasets as tfds
from ml_collections import ConfigDict

from jaxssl.data import KeyedExamples
from jaxssl.data.decoders import decoding, files
from jaxssl.data.formats import user_files
from jaxssl.errors import UserError, abbreviate, printable

TABLES = ("captions.csv", "captions.txt", "captions.tsv")
IMAGE_COLUMNS = ("image", "file", "filename", "image_name")
CAPTION_COLUMNS = ("caption", "text", "comment")
RULES_VERSION = 2  # as `user_files.RULES_VERSION`, for captions alone


class Builder(user_files.Builder, skip_registration=True):
    """TFDS builder of pictures with their captions, in the order of `key_of`."""

    name = "captions"

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(None, None, user_files.CHANNELS)),
            "captions": tfds.features.Sequence(tfds.features.Text()),
            "file": tfds.features.Text(),
        }
        metadata = {"shape": None, "skipped": [], "upright": True}
        return self._make_info("Pictures and captions", features, metadata, disable_shuffling=True)

    def _split_generators(self, dl_manager: object) -> dict[str, object]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> KeyedExamples:
        config, metadata = self.builder_config, self.info.metadata
        assert metadata is not None
        captions: dict[str, list[str]] = config.contents
        wanted = (file for file in config.source.read() if file[0] in captions)
        sizes = set()
        for name, data, size in user_files.read_checked(wanted):
            if isinstance(size, str):
                metadata["skipped"].append(f"{name}: {size}")
                continue
            sizes.add(size)
            yield key_of(name), {"image": data, "captions": captions[name], "file": name}
        if not sizes and metadata["skipped"]:
            raise UserError(
                f"none of the {len(metadata['skipped'])} pictures of {config.source.root} can be "
                f"read ({metadata['skipped'][0]}); repair them or name another folder"
            )
        if config.source.on_error == "stop":
            user_files.report_unreadable("pictures", config.source.root, metadata["skipped"])
        metadata["shape"] = [*sizes.pop(), user_files.CHANNELS] if len(sizes) == 1 else None


def key_of(name: str) -> int:
    """Return the key of 128 bits that places a picture: a hash of its file name.

    TFDS sorts in buckets that divide the range of the keys, and each must fit in memory.
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16])


def builder(data: ConfigDict, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return the TFDS builder for the present files of a folder of captioned pictures.

    Args:
        data: "path", "labels" (another table) and "on_error".
        data_dir: folder of prepared sets. None is TFDS' default.

    Raises:
        UserError: if the folder or the table does not exist, or they do not match.
    """
    suffixes = (*decoding.SUFFIXES, *(Path(name).suffix for name in TABLES))
    source = user_files.locate(data, "a folder or archive of pictures", suffixes)
    table = None
    if data["labels"]:
        path = Path(os.path.expanduser(data["labels"]))
        table = _read_text(path.read_bytes, data["labels"])
    content = *source.content, table, RULES_VERSION

    def read_captions() -> dict[str, list[str]]:
        text, pictures, tables = table, [], []
        for file, read in source.read():
            if file.lower().endswith(decoding.SUFFIXES):
                pictures.append(file)
            elif table is None and PurePosixPath(file).name in TABLES:
                text = _read_text(read, file)
                tables.append(file)
        if len(tables) > 1:
            raise UserError(
                f"data.path={source.path} has several tables of captions ({abbreviate(tables)}); "
                "name one with data.labels"
            )
        if text is None:
            raise UserError(
                f"data.path={source.path} has no table of captions ({', '.join(TABLES)}); name one "
                "with data.labels"
            )
        captions = parse_captions(text, data["labels"] or source.path)
        return _match(captions, pictures, source.path)

    return user_files.find_builder(Builder, source, content, data_dir, read_captions)


def parse_captions(table: str, path: str) -> dict[str, list[str]]:
    """Parse a table of captions with a header: file name to captions.

    Args:
        table: its text, separated by tabs if the header has one, else by commas. Of several
            columns of pictures or captions, the first name of `IMAGE_COLUMNS` or `CAPTION_COLUMNS`
            is read.
        path: for messages.

    Raises:
        UserError: if a column is missing or ambiguous, or a row lacks the picture or the caption.
    """
    head = table.partition("\n")[0]
    separator = "\t" if "\t" in head else ","
    try:
        fields, rows = _read_rows(table, separator)
    except csv.Error as error:  # For example, a quote is never closed.
        raise UserError(f"the captions of {path} cannot be read: {error}") from error
    image = next((name for name in IMAGE_COLUMNS if name in fields), None)
    caption = next((name for name in CAPTION_COLUMNS if name in fields), None)
    if image is None or caption is None:
        raise UserError(
            f"the captions of {path} must be a table, separated by commas or tabs, whose header "
            f"names the columns 'image' and 'caption'; its first line is {printable(head[:80])}"
        )
    for name in (image, caption):
        if fields.count(name) > 1:
            raise UserError(
                f"the captions of {path} have several columns {name!r}; rename or remove all but "
                "one"
            )
    captions: dict[str, list[str]] = {}
    for number, row in rows:
        if None in row:  # DictReader puts additional columns under the key None.
            raise UserError(
                f"line {number} of the captions of {path} has more columns than the header; quote "
                f"captions that contain {separator!r}"
            )
        picture, text = (row[image] or "").strip(), (row[caption] or "").strip()
        if not picture or not text:
            raise UserError(f"line {number} of the captions of {path} lacks a picture or a caption")
        captions.setdefault(picture, []).append(text)
    if not captions:
        raise UserError(f"the captions of {path} have a header but no rows")
    return captions


def _read_rows(table: str, separator: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the lower-case names of a table's columns, and each row with its line number.

    Raises:
        csv.Error: if a quote is not closed in a table with commas, or a field is too long.
    """

    def read(plain_quotes: bool) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
        text = io.StringIO(table, newline="")
        quoting = csv.QUOTE_NONE if plain_quotes else csv.QUOTE_MINIMAL
        reader = csv.DictReader(text, delimiter=separator, quoting=quoting, strict=True)
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        return list(reader.fieldnames), [(reader.line_num, row) for row in reader]

    try:
        fields, rows = read(plain_quotes=False)
    except csv.Error:
        if separator == ",":
            raise
        return read(plain_quotes=True)  # A table with tabs need not follow the rules of CSV.
    values = [value for _, row in rows for value in row.values() if isinstance(value, str)]
    if separator == "\t" and any("\t" in value and "\n" in value for value in values):
        # Two quotes in different rows may have enclosed the rows between them.
        plain = read(plain_quotes=True)
        if not any(None in row or None in row.values() for _, row in plain[1]):
            return plain
    return fields, rows


def _match(captions: dict[str, list[str]], pictures: list[str], path: str) -> dict[str, list[str]]:
    """Match captions to picture files. The table or the files may omit leading folders."""
    by_name: dict[str, list[str]] = {}
    for picture in pictures:
        by_name.setdefault(PurePosixPath(picture).name, []).append(picture)
    paths = set(pictures)
    # For each row, the pictures that it may name, with the folders of the row that they omit.
    found: dict[str, dict[str, str]] = {}
    for name in captions:
        row = PurePosixPath(name).as_posix().lstrip("/")  # without "./"
        same_name = [row] if row in paths else by_name.get(PurePosixPath(row).name, [])
        found[name] = {
            picture: row[: -len(picture)]
            for picture in same_name
            if f"/{picture}".endswith(f"/{row}") or f"/{row}".endswith(f"/{picture}")
        }
    omitted = [set(of_row.values()) for of_row in found.values() if of_row]
    folders = set.intersection(*omitted) if omitted else set()
    if not folders:  # The table names several folders. One of them may be `path`.
        root = os.path.abspath(os.path.expanduser(path))
        for suffix in files.ARCHIVES:
            root = root.removesuffix(suffix)
        folders = {x for x in set.union(set(), *omitted) if f"{root}/".endswith(f"/{x}")}
    matches = {
        name: [picture for picture, folder in of_row.items() if folder in folders]
        for name, of_row in found.items()
    }
    if missing := sorted(name for name, candidates in matches.items() if not candidates):
        elsewhere = any(found[name] for name in missing)
        where = f"of other folders than data.path={path}"
        where = where if elsewhere else f"that data.path={path} does not hold"
        raise UserError(f"the captions name pictures {where}: {abbreviate(missing)}")
    matched: dict[str, list[str]] = {}
    for name, candidates in matches.items():
        if len(candidates) > 1:
            raise UserError(
                f"the captions name {printable(name)}, which could be {abbreviate(candidates)} in "
                f"data.path={path}; give its folder too"
            )
        matched.setdefault(candidates[0], []).extend(captions[name])
    user_files.log_left_out(sorted(paths - set(matched)), "without a caption")
    return matched


def _read_text(read: files.ReadBytes, name: str) -> str:
    try:
        return read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the captions {name} cannot be read as a UTF-8 file: {error}") from error
