"""The command `jaxssl`: subcommands, flags, config overrides, error messages and exit statuses.

Each subcommand is a file of this folder with

* a docstring, which `jaxssl COMMAND --help` prints,
* `FLAGS`, the subcommand's flags,
* ``main(overrides)``, called with the --config.KEY=VALUE overrides after the flags are parsed,
* optionally `POSITIONAL`, the name of the flag that takes the arguments without dashes.
"""

import atexit
import difflib
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence

from absl import flags

import jaxssl
from jaxssl.errors import UserError, shorten, suggest
from jaxssl.training import peers
from jaxssl.training.output.console import outlive_terminal, show_error

PREFIX = "--config."
# Purposes of the subcommands. The file of "data show" is data_show.py.
COMMANDS = {
    "train": "pretrain an encoder",
    "eval": "evaluate encoders",
    "embed": "write the embeddings of images to a file",
    "neighbours": "find the nearest pictures of each picture, and likely duplicates",
    "study": "reproduce a claim of a paper",
    "report": "write the report of a run, or compare runs",
    "export": "write an encoder as a file for other projects",
    "list": "list the configs, losses, networks, protocols and other components",
    "data show": "draw images and their views",
    "data prepare": "prepare a data set, so that runs start at once",
    "data convert": "convert TFRecord files of TFDS to files that can be read by index",
}
SECONDS_TO_END = 4.0  # time after an error for threads that still wait
OUT_OF_MEMORY = (
    "memory is used up; reduce batch_size or the network, set data.cache=none, or raise the limit "
    "of this process (ulimit -v)"
)
FILES = {"list": "component_list"}  # a module `list` would hide the type in this file
WITH_CONFIG = ("train", "study", "data show")  # commands that take all keys --config.KEY=VALUE

_peers: peers.Peers | None = None  # the other processes of the run


def main(command: str | None = None) -> None:
    """Run the command line `jaxssl COMMAND [arguments]`, and end the process.

    Args:
        command: a subcommand, if the command line has its arguments only.
    """
    words = sys.argv[1:3]
    for name in [command] if command else (" ".join(words), *words[:1]):
        if name in COMMANDS:
            arguments = sys.argv[1:] if command else sys.argv[1 + len(name.split()) :]
            try:
                run(name, arguments)
            except SystemExit as stop:
                if stop.code in (1, 2):
                    _leave(stop.code)
                raise
            except Exception as error:
                sys.excepthook(type(error), error, error.__traceback__)
                _leave(1)
    outlive_terminal()
    if words == ["--version"]:
        print(f"jaxssl {jaxssl.__version__}")
        sys.exit(0)
    group = {
        c: purpose for c, purpose in COMMANDS.items() if c.startswith(f"{' '.join(words[:1])} ")
    }
    if words and not group and not {"-h", "--help", "help"} & set(words):
        sys.exit(_fail(UserError(f"command {words[0]!r} is unknown{suggest(words[0], COMMANDS)}")))
    if group and words[1:] and words[1] not in ("-h", "--help"):
        word = " ".join(words)
        sys.exit(_fail(UserError(f"command {word!r} is unknown{suggest(word, group)}")))
    print("usage: jaxssl COMMAND [arguments]\n")
    for name, purpose in (group or COMMANDS).items():
        print(f"  {name:14} {purpose}")
    print("\njaxssl COMMAND --help lists the arguments of a command, jaxssl --version the version.")
    sys.exit(0 if words else 2)


def _leave(status: int) -> None:
    """End the process soon after an error, although threads and other processes keep it waiting.

    Orbax waits a minute for a checkpoint that could not be written, and JAX for the other processes
    of a run.
    """
    sys.stdout.flush()
    cleaning = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    cleaning.start()
    cleaning.join(SECONDS_TO_END)
    os._exit(status)


def run(command: str, arguments: Sequence[str]) -> None:
    """Run a subcommand such as `jaxssl train` and exit with its status.

    The exit status is 2, with one line on stderr, for a `UserError` or a wrong flag.

    Args:
        command: one of `COMMANDS`.
        arguments: of the subcommand.
    """
    sys.exit(_run(command, list(arguments)))


def _run(command: str, arguments: list[str]) -> int:
    # absl would print a library's error a second time. The raised exception is enough.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # every repeated request is a warning
    file = FILES.get(command, command.replace(" ", "_"))
    module = importlib.import_module(f"jaxssl.cli.{file}")
    if {"-h", "--help"} & set(arguments):
        print(f"{module.__doc__}\nFlags:")
        for name in (module.__name__, __name__):
            _, _, lines = module.FLAGS.module_help(name).lstrip().partition("\n")
            print(lines, end="\n" if lines else "")
        return 0
    outlive_terminal()
    try:
        # A second command in the same process must start from the default flags.
        for name in module.FLAGS:
            module.FLAGS[name].unparse()
        rest, overrides = split_overrides(arguments)
        module.FLAGS.set_gnu_getopt(True)  # allow flags after positional arguments
        rest = module.FLAGS([f"jaxssl {command}", *rest])[1:]
        positional = getattr(module, "POSITIONAL", None)
        if rest and positional:
            flag = module.FLAGS[positional]
            if isinstance(flag.value, list):
                flag.value, rest = [*flag.value, *rest], []
            else:
                flag.value = rest.pop(0)
        if rest:
            raise UserError(f"argument {rest[0]!r} is not understood; flags begin with --")
        module.main(overrides)
    except flags.UnrecognizedFlagError as error:
        return _fail(UserError(_unknown_flag(command, error.flagname, module.FLAGS)))
    except (flags.Error, UserError) as error:
        return _fail(error)
    except KeyboardInterrupt:
        show_error("interrupted")
        return 130
    except Exception as error:
        # JAX has no type of its own for this error.
        texts = ("RESOURCE_EXHAUSTED", "Out of memory")
        if isinstance(error, MemoryError) or any(text in str(error) for text in texts):
            return _fail(MemoryError(OUT_OF_MEMORY))
        # If JAX cannot reach another process, the peers say which one it is, and end this process.
        if _peers and any(word in str(error) for word in ("Gloo", "NCCL", "UNAVAILABLE")):
            time.sleep(peers.LIMIT + peers.GRACE)
        _tell_peers(error)
        raise
    return 0


def _tell_peers(error: Exception) -> None:
    """Tell the other processes of the run that this one ends with an error."""
    if _peers:
        _peers.tell_error(error)


def _unknown_flag(command: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an unknown flag, which may be a config key without its prefix."""
    from jaxssl.training import config
    from jaxssl.training.config import keys as config_keys

    valid = [f"--{flag}" for flag in known]
    if command in WITH_CONFIG:
        key = config_keys.closest_key(name, config_keys.flat_keys(config.load("base")))
        if key and not difflib.get_close_matches(name, known, n=1):
            return f"flag --{name} is unknown; did you mean '{PREFIX}{key}'?"
    return f"flag --{name} is unknown{suggest(f'--{name}', valid)}"


def define_processes(values: flags.FlagValues) -> None:
    """Define the flags of a command that can run as several processes."""
    flags.DEFINE_string(
        "coordinator",
        None,
        "With several processes: HOST:PORT of the first. Not needed under Slurm and on TPU pods.",
        values,
    )
    flags.DEFINE_integer(
        "num_processes", None, "Number of processes.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_integer(
        "process_id", None, "Index of this process, from 0.", lower_bound=0, flag_values=values
    )


def define_trust(values: flags.FlagValues) -> flags.FlagHolder[bool]:
    """Define the flag --trust of a command that reads runs."""
    return flags.DEFINE_bool(
        "trust",
        False,
        "Execute the Python files that the config of the run names, even if you have not trained "
        "with them.",
        values,
    )


def start_jax(values: flags.FlagValues) -> None:
    """Enable the cache of compiled programs, join the other processes, and find the devices."""
    from jaxssl import distributed
    from jaxssl.training import compile_cache

    compile_cache.enable()
    distributed.initialize(values.coordinator, values.num_processes, values.process_id)
    distributed.check_platform()
    distributed.check_devices()
    if distributed.process_count() > 1:
        global _peers
        place = distributed.process_index(), distributed.process_count()
        _peers = peers.Peers(distributed.key_value_store(), *place)


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Split command-line arguments into config overrides and all others.

    Args:
        argv: arguments, among them ``--config.KEY=VALUE`` or ``--config.KEY VALUE``.

    Returns:
        The other arguments, and the overrides as pairs (KEY, VALUE).

    Raises:
        UserError: if a value is missing.
    """
    rest, overrides = [], []
    items = iter(argv)
    for item in items:
        if not item.startswith(PREFIX):
            rest.append(item)
            continue
        key, equals, value = item.removeprefix(PREFIX).partition("=")
        if not equals:
            value = next(items, None)
            if value is None:
                raise UserError(f"{item} needs a value: {item}=VALUE")
        overrides.append((key, value))
    return rest, overrides


def parse_step(text: str | None) -> int | str | None:
    """Parse the flag --step: a checkpoint number, "last", "best", or None.

    Raises:
        UserError: on any other text.
    """
    if text in (None, "last", "best"):
        return text
    if not text.isdecimal():
        raise UserError(f"--step must be a number, last or best, got {text!r}")
    return int(text)


def _fail(error: Exception) -> int:
    _tell_peers(error)
    show_error(f"error: {shorten(' '.join(str(error).split()))}")
    return 2
