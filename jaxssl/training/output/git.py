"""Find the git commit of the code, which is stored with measured results."""

import functools
import os
import subprocess
from pathlib import Path


@functools.cache
def current_commit() -> str:
    """Return the commit of the checkout that holds this file, or "" outside of a checkout.

    "-dirty" is appended if files were changed since the commit. The environment variable
    JAXSSL_COMMIT overrides the result. Set it for copies of the files without a git folder.
    """
    if os.environ.get("JAXSSL_COMMIT"):
        return os.environ["JAXSSL_COMMIT"]
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # An OSError means that git is not installed.
        return ""
