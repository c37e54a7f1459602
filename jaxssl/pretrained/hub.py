"""Download weights from the Hugging Face Hub, and upload exported files to the Hub."""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType

from jaxssl.buckets import as_path, fetch, is_bucket
from jaxssl.errors import UserError, one_line
from jaxssl.pretrained.folders import CONFIG_FILES, WEIGHTS_FILES, is_weights_folder

log = logging.getLogger("jaxssl")
REPOSITORY = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def is_hub(path: str | PathLike[str]) -> bool:
    """Return True if a path names a repository of the Hugging Face Hub, hf://owner/name."""
    return fspath(path).startswith("hf:/")


def hub_address(path: str | PathLike[str]) -> str:
    """Return the text of a path, with both slashes of hf://, one of which `Path` leaves out."""
    return re.sub("^hf:/+", "hf://", fspath(path))


def local(path: str | PathLike[str]) -> Path:
    """Return the path of a run, or the path on this machine of a weights file or folder.

    A repository ``hf://owner/name[@revision]`` is downloaded, or taken from the cache if the Hub
    cannot be reached. Weights in a bucket are copied.

    Raises:
        UserError: if the name of a repository is not valid, the repository has no weights, the
            download fails, or huggingface_hub is not installed.
    """
    target = as_path(path)  # raises an error if it is no path
    if is_hub(path):
        return _download(path)
    if is_bucket(path) and (target.is_file() or is_weights_folder(target)):
        return fetch(path)
    return target


def source_name(path: Path) -> str:
    """Return the name of a weights file or folder, and owner/name for one in the Hub's cache."""
    path = path.absolute()
    repository = path.parent.parent.name  # models--OWNER--NAME/snapshots/COMMIT
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/", 1)
    return path.name


def _download(path: str | PathLike[str]) -> Path:
    """Download weights from the Hub to its cache, and return their folder."""
    match, address = REPOSITORY.fullmatch(fspath(path)), hub_address(path)
    if match is None:
        raise UserError(f"{address} must be hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    name, revision = match.groups()
    client, files = _client(address), None
    try:
        files = client.list_repo_files(name, revision=revision)
        weights = next((file for file in WEIGHTS_FILES if file in files), None)
        if weights:
            base = weights.removesuffix(".index.json")  # of shards base-00001-of-00002.suffix
            shards = [] if base == weights else [base.replace(".", "-*-of-*.")]
            patterns = [weights, *CONFIG_FILES, *shards]
            return Path(client.snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # The client raises errors of several HTTP libraries.
        reason = f"{type(error).__name__}: {one_line(error)}"
        # If the Hub cannot be reached, the cache may do. After a failed download it may lack files.
        with suppress(Exception):
            cached = client.snapshot_download(name, revision=revision, local_files_only=True)
            if files is None and is_weights_folder(Path(cached)):
                log.warning("hf://%s is taken from the cache (%s)", name, reason)
                return Path(cached)
        raise UserError(f"hf://{name} cannot be downloaded ({reason})") from error
    raise UserError(f"hf://{name} has none of the files {', '.join(WEIGHTS_FILES)}")


def push(folder: Path, names: Sequence[str], target: str) -> None:
    """Upload exported files to a model repository of the Hugging Face Hub, which may be new.

    Args:
        folder: folder of the files.
        names: names of the files.
        target: "hf://owner/name".

    Raises:
        UserError: if the target is no such name, the package is missing, or the upload fails.
    """
    repository, client = repository_name(target), _client("--push")
    try:
        client.create_repo(repository, exist_ok=True)
        client.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(names),
            commit_message="Upload an encoder exported with jaxssl",
        )
    except Exception as error:  # The client raises errors of several HTTP libraries.
        raise UserError(f"--push {target}: {one_line(error)}; the files are in {folder}") from error


def repository_name(target: str) -> str:
    """Return "owner/name" of "hf://owner/name", and raise UserError for another form."""
    match = REPOSITORY.fullmatch(target)
    if match is None or match[2]:
        raise UserError(f"--push must be hf://owner/name, got {target!r}")
    return match[1]


def _client(needed_by: str | PathLike[str]) -> ModuleType:
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(f"{needed_by} needs huggingface_hub: pip install 'jaxssl[hub]'") from error
    # huggingface_hub logs a warning for every repeated request.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return huggingface_hub
