"""What a user can mend."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

MANY = 100


class UserError(Exception):
    """Bad input. The message is one line: what was wrong, what was expected, how to mend it.

    `train.py` and `eval.py` print it and leave with status 2; any other exception is our bug.
    """


@contextmanager
def explain_write_errors(path: Path, flag: str = "--out") -> Iterator[None]:
    """Around what writes the path that ``flag`` names: a UserError says if that cannot be done."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise UserError(f"cannot write {path}: {reason}; name another with {flag}") from error


def one_line(error: Exception, most: int = 300) -> str:
    """What an error of a library says, as one line that a terminal may show."""
    return printable(" ".join(str(error).split())[:most] or type(error).__name__)


def printable(text: str) -> str:
    """A name as it is, or quoted if it holds line breaks, codes of the terminal or the like."""
    return text if text.isprintable() else repr(text)


def suggest(word: str, valid: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest valid one and all of them.

    Of very many valid words, three near ones.
    """
    valid = list(valid)
    if len(valid) > MANY:
        close = difflib.get_close_matches(word, valid, n=3, cutoff=0)
        return f"; near are {', '.join(close)}, of {len(valid)} valid ones"
    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{hint} valid: {', '.join(valid)}"
