"""Upload an exported folder to the Hugging Face Hub."""

from collections.abc import Sequence
from pathlib import Path

from jaxssl.errors import UserError, one_line

PREFIX = "hf://"


def push(folder: Path, names: Sequence[str], target: str) -> str:
    """Upload exported files to a model repository, which is created if it does not exist.

    Args:
        folder: folder of the files.
        names: names of the files.
        target: "hf://owner/name".

    Returns:
        The address of the repository.

    Raises:
        UserError: if the target is no such name, the package is missing, or the upload fails.
    """
    repository = repository_name(target)
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError("--push needs huggingface_hub: pip install 'jaxssl[hub]'") from error
    try:
        url = huggingface_hub.create_repo(repository, exist_ok=True)
        huggingface_hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(names),
            commit_message="Upload an encoder trained with jaxssl",
        )
    except Exception as error:  # The hub and its HTTP library raise many exception types.
        raise UserError(f"--push {target}: {one_line(error)}; the files are in {folder}") from error
    return str(url)


def repository_name(target: str) -> str:
    """Return "owner/name" of "hf://owner/name", and raise UserError for another form."""
    repository = target.removeprefix(PREFIX)
    if not target.startswith(PREFIX) or len([part for part in repository.split("/") if part]) != 2:
        raise UserError(f"--push must be hf://owner/name, got {target!r}")
    return repository
