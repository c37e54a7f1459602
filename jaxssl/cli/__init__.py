"""What `train.py` and `eval.py` share: flags, dotted overrides, errors and exit statuses."""

import logging
import os
import sys
from collections.abc import Callable

from absl import flags

from jaxssl.errors import UserError

PREFIX = "--config."


def run(main: Callable[[list[tuple[str, str]]], None], *, positional: str | None = None) -> None:
    """Parse the command line and call ``main(overrides)``.

    An argument that is no flag is the value of the flag ``positional``; of a flag of many values
    there may be several.

    Exit status 2 and one line on stderr for a `UserError` or a wrong flag.
    """
    sys.exit(_guarded(main, sys.argv, positional))


def _guarded(
    main: Callable[[list[tuple[str, str]]], None], argv: list[str], positional: str | None = None
) -> int:
    # The libraries' chatter; their errors are raised as well.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    if {"-h", "--help"} & set(argv):
        both = flags.FLAGS.main_module_help(), flags.FLAGS.module_help("jaxssl.cli")
        print(sys.modules["__main__"].__doc__, *both, sep="\n")
        return 0
    try:
        argv, overrides = split_overrides(argv)
        flags.FLAGS.set_gnu_getopt(True)  # flags may stand behind other arguments
        rest = flags.FLAGS(argv)[1:]
        if rest and positional:
            flag = flags.FLAGS[positional]
            if isinstance(flag.value, list):
                flag.value, rest = [*flag.value, *rest], []
            else:
                flag.value = rest.pop(0)
        if rest:
            raise UserError(f"argument {rest[0]!r} is not understood; flags begin with --")
        main(overrides)
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


def define_processes() -> None:
    """Define the flags of a script that may run as several processes."""
    flags.DEFINE_string(
        "coordinator", None, "Of several processes: HOST:PORT of the first. Slurm, TPU pods: none."
    )
    flags.DEFINE_integer("num_processes", None, "How many processes there are.", lower_bound=1)
    flags.DEFINE_integer("process_id", None, "Which one this is, from 0.", lower_bound=0)


def start_jax() -> None:
    """Keep compiled programs; join the other processes if `define_processes` names any."""
    from jaxssl import distributed
    from jaxssl.training import compile_cache

    compile_cache.keep()
    values = flags.FLAGS
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
