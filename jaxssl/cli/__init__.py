"""The command `jaxssl`: subcommands, flags, config overrides, error messages and exit statuses.

Each subcommand is a file of this folder with

* a docstring, which `jaxssl COMMAND --help` prints,
* `FLAGS`, the subcommand's flags,
* ``main()``, called after the flags are parsed, or ``main(overrides)`` if the subcommand takes
  config keys as --config.KEY=VALUE,
* optionally `POSITIONAL`, the name of the flag that takes the arguments without dashes.
"""

import atexit
import errno
import importlib
import itertools
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

import jaxssl
from jaxssl import components
from jaxssl.errors import UserError, shorten, suggest
from jaxssl.training import rendezvous
from jaxssl.training.output import console

if TYPE_CHECKING:  # The module imports JAX, which is slow.
    from jaxssl.training.processes import Peers

PREFIX = "--config."
SECONDS_TO_END = 4.0  # time after an error for threads that still wait
OUT_OF_MEMORY = (
    "out of memory; reduce batch_size or the network, set data.cache=none, or raise ulimit -v"
)


class Command(NamedTuple):
    """A subcommand as it appears in the list of commands, next to its docstring's first line.

    Attributes:
        heading: of the commands among which it is listed.
        example: arguments.
        keys: start of the config keys that it takes as --config.KEY=VALUE; None if it takes none.
    """

    heading: str
    example: str
    keys: str | None = None


# Subcommands by name. The function of "data show" is `main` of jaxssl/cli/data_show.py.
COMMANDS = {
    "train": Command("Pretrain", "--config auc_cl:cifar10 --config.batch_size=64", ""),
    "eval": Command("Evaluate", "--workdir runs/digits --protocols knn,linear", "data."),
    "embed": Command("Evaluate", "runs/digits pictures/", "inputs."),
    "neighbours": Command("Evaluate", "runs/digits pictures/", "inputs."),
    "report": Command("Evaluate", "runs/A runs/B"),
    "study": Command("Evaluate", "gradient_bias", ""),
    "export": Command("Share", "runs/digits --to safetensors", "inputs."),
    "data show": Command("Data", "--config digits", ""),
    "data prepare": Command("Data", "cifar10", "data."),
    "data convert": Command("Data", "~/tensorflow_datasets/cifar10/3.0.2"),
    "list": Command("Look up", "losses nt_xent"),
    "completion": Command("Look up", "bash"),
}
FILES = {"list": "component_list"}  # a module `list` would hide the type in this file

# Environment variables in which the launcher of a process passes the index of the process.
INDICES = (
    *("JAX_PROCESS_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "TPU_WORKER_ID"),
    "JOB_COMPLETION_INDEX",
)

_peers: "Peers | None" = None  # the other processes of the run


def main(command: str | None = None) -> None:
    """Run the command line `jaxssl COMMAND [arguments]`, and end the process.

    Args:
        command: a subcommand, if the command line has its arguments only.
    """
    words = sys.argv[1:]
    if words[:1] == ["help"] and find_command(words[1:]):  # jaxssl help train
        words = [*words[1:], "--help"]
    name = command or find_command(words)
    if name is None:
        console.outlive_terminal()
        sys.exit(_run_without_command(words))
    try:
        run(name, words if command else words[len(name.split()) :])
    except SystemExit as stop:
        if stop.code in (1, 2):
            _leave(stop.code)
        raise
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        _leave(1)


def find_command(words: Sequence[str]) -> str | None:
    """Return the subcommand, of one or two words, that a command line begins with, or None."""
    return next((c for c in (" ".join(words[:2]), *words[:1]) if c in COMMANDS), None)


def load(command: str) -> ModuleType:
    """Import the file of a subcommand."""
    return importlib.import_module(f"jaxssl.cli.{_file(command)}")


def _file(command: str) -> str:
    return FILES.get(command, command.replace(" ", "_"))


def _run_without_command(words: Sequence[str]) -> int:
    """Print the version, completions or the list of commands, and return the exit status."""
    if words[:1] == ["--complete"]:  # The scripts of `jaxssl completion` call this.
        from jaxssl.cli.completion import complete

        print(*complete(words[-1]), sep="\n")
        return 0
    if words == ["--version"]:
        print(f"jaxssl {jaxssl.__version__}")
        return 0
    # The first word of commands of two words, such as "data", lists them.
    begun = [name for name in COMMANDS if name.split()[0] in words[:1]]
    names, number = (begun, 2) if begun else (list(COMMANDS), 1)
    if len(words) >= number and not {"-h", "--help", "help"} & set(words[:2]):
        if words[0].startswith("-"):
            return _fail(UserError(f"the command comes first: jaxssl COMMAND {words[0]}"))
        word = " ".join(words[:number])
        return _fail(UserError(f"command {word!r} is unknown{suggest(word, names)}"))
    _print_commands(names, f"{words[0]} COMMAND" if begun else "COMMAND")
    return 0 if words else 2


def _print_commands(names: Iterable[str], form: str) -> None:
    """Print the list of commands of a form, with purpose and example of each."""
    print(f"usage: jaxssl {form} [arguments]")
    for heading, commands in itertools.groupby(names, lambda name: COMMANDS[name].heading):
        print(f"\n{heading}")
        for name in commands:
            purpose = components.summary(Path(__file__).with_name(f"{_file(name)}.py"))
            print(f"  {name:14} {purpose[0].lower()}{purpose[1:].rstrip('.')}")
            print(f"  {'':14} jaxssl {name} {COMMANDS[name].example}")
    print("\njaxssl COMMAND --help lists the arguments of a command, jaxssl --version the version.")


def _leave(status: int) -> None:
    """End this process within seconds after an error, without waiting for threads or processes.

    Orbax waits a minute for a checkpoint that it cannot write, and JAX for the other processes.
    """
    sys.stdout.flush()
    cleaning = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    cleaning.start()
    cleaning.join(SECONDS_TO_END)
    os._exit(status)


def run(command: str, arguments: Sequence[str]) -> None:
    """Run a subcommand such as `jaxssl train`, and exit with its exit status.

    The exit status is 2, with one line on stderr, for a `UserError` or a wrong flag.

    Args:
        command: one of `COMMANDS`.
        arguments: of the subcommand.
    """
    sys.exit(_run(command, list(arguments)))


def _run(command: str, arguments: list[str]) -> int:
    """Run a subcommand and return the exit status. Errors of the user are printed as one line."""
    # absl would print a library's error a second time. The raised exception is enough.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # It warns of every retry.
    console.outlive_terminal()
    module = load(command)
    if {"-h", "--help"} & set(arguments):
        print(f"{module.__doc__}\nFlags:")
        for name in (module.__name__, __name__):
            _, _, lines = module.FLAGS.module_help(name).lstrip().partition("\n")
            print(lines, end="\n" if lines else "")
        return 0
    try:
        with console.repeat_lost_interrupts():
            _call(command, module, arguments)
    except flags.UnrecognizedFlagError as error:
        from jaxssl.cli.completion import describe_unknown_flag

        return _fail(UserError(describe_unknown_flag(command, error.flagname, module.FLAGS)))
    except (flags.Error, UserError) as error:
        return _fail(error)
    except KeyboardInterrupt:
        console.show_error("interrupted")
        if _peers:  # They would wait for this process.
            _tell_peers(UserError("interrupted"), 130)
            _leave(130)
        return 130
    except Exception as error:
        # JAX has no exception type for a lack of memory.
        if isinstance(error, MemoryError) or re.search("RESOURCE_EXHAUSTED|Out of mem", str(error)):
            return _fail(MemoryError(OUT_OF_MEMORY))
        if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.EACCES):
            return _fail(UserError(f"{error.filename}: {error.strerror}; choose another path"))
        # If JAX cannot reach another process, `Peers` reports which one, and ends this process.
        if _peers and re.search("Gloo|NCCL|UNAVAILABLE", str(error)):
            _peers.wait_for_loss()
        _tell_peers(error)
        raise
    return 0


def _call(command: str, module: ModuleType, arguments: list[str]) -> None:
    """Parse the arguments of a subcommand and call its function ``main``.

    Raises:
        UserError: for an argument that the subcommand does not take, or an empty one.
        flags.Error: for an unknown flag or a wrong value.
    """
    # A second command in the same process must start from the default flags.
    module.FLAGS.unparse_flags()
    rest, overrides = split_overrides(arguments)
    if not (takes_keys := COMMANDS[command].keys is not None) and overrides:
        raise UserError(f"jaxssl {command} takes no config keys; omit {PREFIX}{overrides[0][0]}")
    module.FLAGS.set_gnu_getopt(True)  # allow flags after positional arguments
    rest = module.FLAGS([f"jaxssl {command}", *rest])[1:]
    positional = getattr(module, "POSITIONAL", None)
    if rest and positional:
        flag = module.FLAGS[positional]
        if isinstance(flag.value, list):
            flag.value, rest = [*flag.value, *rest], []
        elif not flag.present:
            flag.parse(rest.pop(0))
    if rest:
        example = f", such as '--config {rest[0]}'" if "config" in module.FLAGS else ""
        raise UserError(f"unexpected argument {rest[0]!r}; flags begin with --{example}")
    for name, flag in ((name, module.FLAGS[name]) for name in module.FLAGS):
        words = flag.value if isinstance(flag.value, list) else [flag.value]
        if "" in words or (flag.present and not words):
            raise UserError(f"--{name} is empty; give it a value, or leave it out")
    module.main(*([overrides] if takes_keys else []))


def _tell_peers(error: Exception, status: int = 1) -> None:
    """Tell the other processes of the run that this one ends with an error."""
    if _peers:
        _peers.tell_error(error, status)


@atexit.register
def _close_peers() -> None:
    """Stop watching the other processes of the run.

    JAX's function for the end, which waits for them, is registered later and so called earlier.
    """
    if _peers:
        _peers.close()


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


def leave_to_first_process(values: flags.FlagValues) -> None:
    """End all processes but the first with status 0, for a command that one process runs.

    The environment tells the index of a process without JAX, which would connect them.
    """
    is_alone = rendezvous.is_only_task_of_slurm()
    names = [name for name in INDICES if not (is_alone and name.startswith("SLURM"))]
    indices = [values.process_id, *map(os.environ.get, names)]
    index = next((index for index in indices if index is not None), 0)
    if str(index) != "0":
        console.show(f"process {index} has nothing to do: process 0 writes the files")
        raise SystemExit(0)


def define_trust(values: flags.FlagValues) -> flags.FlagHolder[bool]:
    """Define the flag --trust, which permits the code and data that the config of a run names."""
    return flags.DEFINE_bool(
        "trust",
        False,
        "Execute Python files and use data of the run's config that you have not trained with.",
        values,
    )


def define_encoder(values: flags.FlagValues) -> None:
    """Define the flags of a command that reads an encoder, for `encoder_options`."""
    flags.DEFINE_string(
        "step", None, "Checkpoint: a step, last or best; default: last.", flag_values=values
    )
    flags.DEFINE_string("layer", "backbone", "Layer: backbone or projector.", flag_values=values)
    define_trust(values)


def encoder_options(values: flags.FlagValues) -> dict[str, Any]:
    """Return the flags of `define_encoder` as keyword arguments "step", "layer" and "trust"."""
    return {"step": parse_step(values.step), "layer": values.layer, "trust": values.trust}


def define_pictures(values: flags.FlagValues) -> None:
    """Define the flags of a command that takes an encoder and pictures."""
    flags.DEFINE_list("paths", [], "Same as ENCODER,IMAGES.", values)
    define_encoder(values)
    define_processes(values)
    line = "Stop at pictures that cannot be read, or skip."
    flags.DEFINE_enum("on_error", "stop", ["stop", "skip"], line, values)


def encoder_and_pictures(values: flags.FlagValues, command: str) -> tuple[str, str]:
    """Return the encoder and the pictures that --paths names, start JAX, and show the log.

    Raises:
        UserError: if it does not name two paths.
    """
    if len(values.paths) != 2:
        raise UserError(f"name the encoder and the images: jaxssl {command} ENCODER IMAGES")
    from jaxssl import distributed
    from jaxssl.training.output import logs

    start_jax(values)
    logs.log_to_screen(distributed.process_index())
    return values.paths[0], values.paths[1]


def start_jax(values: flags.FlagValues) -> None:
    """Enable JAX's compilation cache, connect to the run's other processes, and find devices."""
    global _peers
    from jaxssl.training import processes
    from jaxssl.training.output import compile_cache

    compile_cache.enable()
    _peers = processes.start(values.coordinator, values.num_processes, values.process_id)


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
        if not equals and (value := next(items, None)) is None:
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
    status = error.status if isinstance(error, UserError) else 2
    _tell_peers(error, status)
    console.show_error(f"error: {shorten(' '.join(str(error).split()))}")
    return status
