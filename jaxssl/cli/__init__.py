"""The command `jaxssl`: its subcommands, their flags, dotted overrides, errors and exit statuses.

A subcommand is a file of this folder. It has a docstring, which is its help; `FLAGS`, its flags;
``main(overrides)``; and `POSITIONAL`, the flag that takes arguments without dashes, if one does.
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence

from absl import flags

from jaxssl.errors import UserError, suggest

PREFIX = "--config."
COMMANDS = {
    "train": "pretrain an encoder",
    "eval": "evaluate encoders",
    "study": "test a claim of the papers",
    "report": "write the report of a run, or compare runs",
    "export": "write a backbone as a file for other projects",
    "data show": "show a config's images and views",
    "data convert": "make a set that TFDS prepared as TFRecord readable by index",
}


def main() -> None:
    """Run `jaxssl COMMAND [arguments]`; `python -m jaxssl` is the same."""
    words = sys.argv[1:3]
    for command in (" ".join(words), *words[:1]):
        if command in COMMANDS:
            run(command, sys.argv[1 + len(command.split()) :])
    if words and not {"-h", "--help", "help"} & set(words):
        sys.exit(_fail(UserError(f"command {words[0]!r} is unknown{suggest(words[0], COMMANDS)}")))
    print("usage: jaxssl COMMAND [arguments]; jaxssl COMMAND --help says more\n")
    for command, purpose in COMMANDS.items():
        print(f"  {command:14} {purpose}")
    sys.exit(0 if words else 2)


def run(command: str, arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments of a subcommand, call its `main`, and exit.

    The exit status is 2, with one line on stderr, for a `UserError` or a wrong flag.

    Args:
        command: one of `COMMANDS`.
        arguments: of the command; by default those of the process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(command, arguments))


def _run(command: str, arguments: list[str]) -> int:
    # The libraries' chatter; their errors are raised as well.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    module = importlib.import_module(f"jaxssl.cli.{command.replace(' ', '_')}")
    if {"-h", "--help"} & set(arguments):
        both = (module.FLAGS.module_help(name) for name in (module.__name__, __name__))
        print(module.__doc__, *both, sep="\n")
        return 0
    try:
        for name in module.FLAGS:  # a second command of one process starts from the defaults
            module.FLAGS[name].unparse()
        rest, overrides = split_overrides(arguments)
        module.FLAGS.set_gnu_getopt(True)  # flags may stand behind other arguments
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
        print("interrupted", file=sys.stderr)
        return 130
    except RuntimeError as error:  # JAX' are of this kind
        return _of_another_process(error)
    return 0


def _of_another_process(error: RuntimeError) -> int:
    """Say that another process has ended, if this may be it; else the error is ours."""
    import jax

    if jax.process_count() == 1 or not isinstance(error, jax.errors.JaxRuntimeError):
        raise error
    _fail(RuntimeError("another process of this run has ended, or is out of reach: see its log"))
    sys.stderr.flush()
    os._exit(1)  # it would be waited for


def define_processes(values: flags.FlagValues) -> None:
    """Define the flags of a command that may run as several processes."""
    of = {"flag_values": values}
    flags.DEFINE_string(
        "coordinator",
        None,
        "Of several processes: HOST:PORT of the first. Not needed by Slurm and TPU pods.",
        **of,
    )
    flags.DEFINE_integer("num_processes", None, "How many processes.", lower_bound=1, **of)
    flags.DEFINE_integer("process_id", None, "This process, from 0.", lower_bound=0, **of)


def start_jax(values: flags.FlagValues) -> None:
    """Keep compiled programs; join the other processes if the flags name any."""
    from jaxssl import distributed
    from jaxssl.training import compile_cache

    compile_cache.enable()
    distributed.initialize(values.coordinator, values.num_processes, values.process_id)


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """`argv` without `--config.key=value` and `--config.key value`, and those pairs.

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
    """A step from the command line.

    Raises:
        UserError: if it is neither a number nor "last" or "best".
    """
    if text in (None, "last", "best"):
        return text
    if not text.isdecimal():
        raise UserError(f"--step {text!r}: expected a number, last or best")
    return int(text)


def _fail(error: Exception) -> int:
    message = " ".join(str(error).split())
    print(f"error: {message}", file=sys.stderr)
    return 2
