"""Helpers of fuzz tests: rules that hold for every input, and ways to damage a valid input."""

import atexit
import json
import math
import os
import resource
import signal
import stat
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from jaxssl.errors import UserError

WANTED = int(os.environ.get("JAXSSL_FUZZ", "0"))  # inputs of all tests together; 0 means few
USUAL = 10_000  # sum of the numbers of inputs that the tests ask for
FEW = 15  # By default, the number of inputs is divided by this.
MIB = 2**20
MOST, LONGEST = 400 * MIB, 20  # most bytes of memory and seconds per input
REFUSED = object()
COUNTS: dict[str, Any] = {}

# Audit events of Python that no input may cause.
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")
FORBIDDEN += ("subprocess.Popen", "pickle.find_class", "socket.connect", "ctypes.dlopen")
# Audit events that are allowed only inside the folder of the test.
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod")
CHANGES += ("os.truncate", "shutil.rmtree", "shutil.move", "shutil.copyfile")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Parts of paths to which Python, JAX and Matplotlib may write in any test.
OWN = ("/__pycache__/", "/.cache/jax/", "/dev/null", f"{tempfile.gettempdir()}/matplotlib")

_watch: dict = {"below": None, "seen": []}


class Caught(BaseException):
    """A violation; not an Exception, so that `except Exception` does not catch it."""


def _hook(event, args):
    below = _watch["below"]
    if below is None:
        return
    if event in FORBIDDEN:
        bad = event
    elif event == "open" and isinstance(args[2], int) and args[2] & WRITES:
        bad = _outside(args[0], below)
    elif event in CHANGES:
        bad = any([_outside(path, below) for path in args[:2] if isinstance(path, str | Path)])
    else:
        return
    if bad:
        _watch["seen"].append(f"{event} {args!r:.200}")
        raise Caught(_watch["seen"][-1])


def _outside(path, below):
    if not isinstance(path, str | bytes | os.PathLike):
        return False  # an open file's descriptor has no path
    path = os.path.realpath(os.fsdecode(path))
    return not path.startswith(below) and not any(own in path for own in OWN)


sys.addaudithook(_hook)


def _hung(*_):
    raise Caught(f"took more than {LONGEST} seconds")


@contextmanager
def _guarded(below):
    """Raise if the code starts programs, writes elsewhere, hangs, or needs much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old = signal.signal(signal.SIGALRM, _hung)
    signal.alarm(LONGEST)
    _watch.update(below=os.path.realpath(below), seen=[])
    try:
        with warnings.catch_warnings(action="ignore"):  # for users, warnings are no errors
            yield
    finally:
        _watch["below"] = None
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    assert not _watch["seen"]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < MOST, f"{grown} KiB"


def outcome(subject, call, below, *, errors=(UserError,)) -> Any:
    """Return the result of a call, or `REFUSED` if it raises an error with a one-line message."""
    counts = COUNTS.setdefault(subject, Counter())
    counts["inputs"] += 1
    start = time.perf_counter()
    try:
        with _guarded(below):
            result = call()
    except errors as error:
        message = str(error)
        assert len(message.splitlines()) == 1 and message.strip(), repr(message)
        assert len(message) < 30_000
        counts["refused"] += 1
        return REFUSED
    finally:
        counts["seconds"] += time.perf_counter() - start
    counts["read"] += 1
    return result


def fuzzed(share):
    """Return hypothesis settings for a test that takes this share of `USUAL` inputs."""
    number = math.ceil(share * WANTED / USUAL) if WANTED else math.ceil(share / FEW)
    every: Any = list(HealthCheck)
    options = {"derandomize": True, "database": None, "deadline": None}
    return settings(max_examples=number, suppress_health_check=every, **options)


@atexit.register
def _report():
    if WANTED:
        for subject, counts in COUNTS.items():
            print(
                f"{subject:28}", *(f"{k} {v:.6g}" for k, v in counts.items()), file=sys.__stderr__
            )
        print(f"{sum(c['inputs'] for c in COUNTS.values())} inputs", file=sys.__stderr__)


# ---- Random damage to the bytes of a file.

NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


@st.composite
def damaged(draw, whole, most=2):
    """Draw damaged bytes: up to ``most`` flipped bits, cuts, moved pieces or huge numbers."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, most))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        length = draw(st.integers(1, 64))
        match draw(
            st.sampled_from("flip flip flip byte number number cut drop insert copy".split())
        ):
            case "flip":
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "byte":
                data[at] = draw(st.integers(0, 255))
            case "number":
                size, order = draw(st.sampled_from((2, 4, 8))), draw(st.sampled_from("<>"))
                number = draw(st.sampled_from(NUMBERS)) % 256**size
                order = "little" if order == "<" else "big"
                data[at : at + size] = number.to_bytes(size, order)
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + length]
            case "insert":
                data[at:at] = draw(st.binary(max_size=64))
            case "copy":
                to = draw(st.integers(0, len(data)))
                data[to:to] = data[at : at + length]
    return bytes(data)


# ---- Random damage to the values of a JSON document.

WORDS = ("", "x", "../../../fuzz", "/etc/passwd", "a\nb", "\0", "\x1b[31m", "ä\u2028", "{x}", "%s")
WORDS += ("train", "fuzz_canary.Image", "nan", "9" * 30, "{SPLIT}", "x" * 5000, "__class__")
WORDS += ("{'a': 1}", "(" * 300)
VALUES = (None, True, False, 0, 1, -1, 3, 255, 2**31, 2**63, 10**30, 0.5, -0.0, 1e-300, 1e308)
VALUES += (math.inf, -math.inf, math.nan, [], [[]], {}, {"a": 1}, [0], [None], ["a", 1])
scalars = st.sampled_from((*VALUES, *WORDS)) | st.integers() | st.floats() | st.text(max_size=8)
values = scalars | st.lists(scalars, max_size=4) | st.dictionaries(st.text(max_size=5), scalars)


def _places(tree, here=()):
    yield here
    if not isinstance(tree, dict | list):
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _places(value, (*here, key))


@st.composite
def changed(draw, document, most=3):
    """Draw a JSON document with up to ``most`` values replaced, removed, renamed or added."""
    tree = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, most))):
        indices = list(_places(tree))
        *path, key = draw(st.sampled_from(indices)) or [None]
        if key is None:
            continue  # the root is not replaced here; `texts` damages the document as a whole
        node = tree
        for part in path:
            node = node[part]
        match draw(st.sampled_from("replace replace replace remove rename add".split())):
            case "replace":
                node[key] = draw(values)
            case "remove":
                del node[key]
            case "rename" if isinstance(node, dict):
                node[draw(st.sampled_from(WORDS) | st.text(max_size=8))] = node.pop(key)
            case _ if isinstance(node, dict):
                node[draw(st.text(max_size=8))] = draw(values)
            case _:
                node.insert(key, draw(values))
    return tree


def texts(document):
    """Return a strategy for the text of a document, changed or damaged."""
    good = json.dumps(document)
    return changed(document).map(json.dumps).map(str.encode) | damaged(good.encode())


def everything(root):
    """Return kind, size and time of all files below a folder, to detect writes."""
    files = {}
    for path in sorted(Path(root).rglob("*")):
        status = path.lstat()
        files[str(path)] = (stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns)
    return files


def refilled(root, content, **changes):
    """Replace all files of a folder by these."""
    for path in root.iterdir():
        path.unlink()
    for name, data in (content | changes).items():
        (root / name).write_bytes(data)
