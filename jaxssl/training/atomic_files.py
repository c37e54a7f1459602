"""Write files atomically: a reader sees the old content or the new one, never a part."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any) -> None:
    """Replace a file by a JSON document."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file by UTF-8 text."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # otherwise a machine crash could leave an empty file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
