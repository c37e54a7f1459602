"""The command `jaxssl`: subcommands, flags, config overrides, error messages and exit statuses.

Each subcommand is a file of this folder with

* a docstring, which `jaxssl COMMAND --help` prints,
* `FLAGS`, the subcommand's flags,
* ``main(overrides)``, called with the --config.KEY=VALUE overrides after the flags are parsed,
* optionally `POSITIONAL`, the name of the flag that takes the arguments without dashes.
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence

from absl import flags

import jaxssl
from jaxssl.errors import UserError, suggest
from jaxssl.training.console import outlive_terminal, show_error

PREFIX = "--config."
# Purposes of the subcommands. The file of "data show" is data_show.py.
COMMANDS = {
    "train": "pretrain an encoder",
    "eval": "evaluate encoders",
    "embed": "write the embeddings of images to a file",
    "study": "reproduce a claim of a paper",
    "report": "write the report of a run, or compare runs",
    "export": "write an encoder as a file for other projects",
    "list": "list the configs, losses, networks, protocols and other components",
    "data show": "draw images and their views",
    "data prepare": "prepare a data set, so that runs start at once",
    "data convert": "convert TFRecord files of TFDS to files that can be read by index",
}
FILES = {"list": "component_list"}  # a module `list` would hide the type in this file


def main() -> None:
    """Run the command line `jaxssl COMMAND [arguments]`."""
    words = sys.argv[1:3]
    for command in (" ".join(words), *words[:1]):
        if command in COMMANDS:
            run(command, sys.argv[1 + len(command.split()) :])
    outlive_terminal()
    if words == ["--version"]:
        print(f"jaxssl {jaxssl.__version__}")
        sys.exit(0)
    if words and not {"-h", "--help", "help"} & set(words):
        sys.exit(_fail(UserError(f"command {words[0]!r} is unknown{suggest(words[0], COMMANDS)}")))
    print("usage: jaxssl COMMAND [arguments]\n")
    for command, purpose in COMMANDS.items():
        print(f"  {command:14} {purpose}")
    print("\njaxssl COMMAND --help lists the arguments of a command, jaxssl --version the version.")
    sys.exit(0 if words else 2)


def run(command: str, arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand such as `jaxssl train` and exit with its status.

    The exit status is 2, with one line on stderr, for a `UserError` or a wrong flag.

    Args:
        command: one of `COMMANDS`.
        arguments: of the subcommand; default: the arguments of this process.
    """
    sys.exit(_run(command, list(sys.argv[1:] if arguments is None else arguments)))


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
    except (flags.Error, UserError) as error:
        return _fail(error)
    except KeyboardInterrupt:
        show_error("interrupted")
        return 130
    except RuntimeError as error:  # RuntimeError is the base class of JAX's errors.
        return _fail_of_another_process(error)
    return 0


def _fail_of_another_process(error: RuntimeError) -> int:
    """Report that another process of the run has ended, if JAX's error may mean that."""
    import jax

    if jax.process_count() == 1 or not isinstance(error, jax.errors.JaxRuntimeError):
        raise error
    _fail(RuntimeError("another process of this run has ended or cannot be reached: see its log"))
    sys.stderr.flush()
    os._exit(1)  # A normal exit would wait for the other process.


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
    message = " ".join(str(error).split())
    show_error(f"error: {message}")
    return 2
