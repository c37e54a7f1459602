"""Text of the user on the terminal, and processes that outlive their terminal."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from jaxssl.errors import escape
from jaxssl.training.output import console, logs

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
NAME = "run[seed=1] [/x] :smile: [bold]b[/]"
HOSTILE = "a\x1b[31m\x07\r\nb\udcff\u202e"
ESCAPED = "a\\x1b[31m\\x07\\r\\nb\\udcff\\u202e"
# Program that prints a line, waits for a line on stdin, prints more, and then writes a file.
OUTLIVE = """
import sys
from pathlib import Path
from jaxssl.training.output import console, logs
console.outlive_terminal()
logs.log_to_screen()
with logs.log_to_file(Path(sys.argv[1])):
    console.show("first")
    sys.stdin.readline()
    for number in range(2000):
        console.show(f"{number} ± ü\\U0001f600")
    print("± by print")
    console.show_error("± by show_error")
    logs.log.info("± finished")
"""


def test_names_with_rich_markup_are_printed_literally(capsys):
    table = Table(title=NAME)
    table.add_column(NAME)
    table.add_row(NAME)
    console.show(NAME)
    console.show_table(table)
    assert capsys.readouterr().out.count(NAME) == 4


@pytest.mark.parametrize("line", ["word " * 100 + "end", "short"])
def test_console_lines_are_neither_wrapped_nor_padded(line, capsys, monkeypatch):
    monkeypatch.setattr(logs.log, "handlers", [])
    monkeypatch.setattr(logs.log, "level", logging.NOTSET)
    logs.log_to_screen()
    console.show(line)
    logs.log.info(line)
    assert capsys.readouterr().out == f"{line}\n{line}\n"


def test_control_characters_are_shown_escaped(capsys, tmp_path, monkeypatch):
    table = Table("name")
    table.add_row(HOSTILE.replace("\n", ""))
    console.show(HOSTILE)
    console.show_error(HOSTILE)
    console.show_table(table)
    monkeypatch.setattr(logs.log, "handlers", [])
    monkeypatch.setattr(logs.log, "level", logging.NOTSET)
    logs.log_to_screen()
    with logs.log_to_file(tmp_path / "train.log"):
        logs.log.info("%s", HOSTILE)
        logs.log.info(NAME)
    written = (tmp_path / "train.log").read_text()
    shown = capsys.readouterr()
    assert shown.out.count(ESCAPED) == 2 and ESCAPED.replace("\\n", "") in shown.out
    assert shown.err == f"{ESCAPED}\n"
    assert written.count(ESCAPED) == 1 and written.count("\n") == 2 and NAME in written
    assert NAME in shown.out and "\x1b" not in shown.out + shown.err + written


def test_escaping_control_characters_keeps_printable_text():
    assert escape("größe 中 ±–…\\") == "größe 中 ±–…\\"
    assert escape("a\tb\nc", keep="\n") == "a\\tb\nc"


def outlive(tmp_path, stdout, **environment: str) -> tuple[subprocess.Popen, Path]:
    path = tmp_path / "train.log"
    options = {"stdin": subprocess.PIPE, "stdout": stdout, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", OUTLIVE, str(path)]
    return subprocess.Popen(command, **options, env={**ENVIRONMENT, **environment}), path


def test_process_continues_when_the_reader_of_its_output_exits(tmp_path):
    process, path = outlive(tmp_path, subprocess.PIPE)
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()  # `| head -1` closes the pipe like this.
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(b"\n")
    assert (process.returncode, errors.decode()) == (0, "± by show_error\n")
    assert "± finished" in path.read_text()
    assert "cannot be shown any more (Broken pipe); the run continues" in path.read_text()


def test_process_continues_if_its_output_is_a_full_device_or_closed(tmp_path):
    with open("/dev/full", "w") as full:
        process, path = outlive(tmp_path, full)
    _, errors = process.communicate(b"\n")
    assert (process.returncode, errors.decode()) == (0, "± by show_error\n")
    assert "(No space left on device)" in path.read_text()
    path.unlink()
    close = f"exec {sys.executable} -c '{OUTLIVE}' {path} >&- 2>&-"
    done = subprocess.run(["sh", "-c", close], input=b"\n", env=ENVIRONMENT)
    assert done.returncode == 0
    assert path.read_text().endswith("INFO ± finished\n") and path.read_text().count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_terminal_lacks_are_written_as_escapes(tmp_path, encoding):
    process, path = outlive(tmp_path, subprocess.PIPE, PYTHONIOENCODING=encoding)
    out, errors = process.communicate(b"\n")
    sign = "\\xb1" if encoding == "ascii" else "±"
    assert process.returncode == 0
    assert errors.decode(encoding) == f"{sign} by show_error\n"
    text = out.decode(encoding)
    assert f"{sign} by print" in text and "\\U0001f600" in text
    assert "± finished" in path.read_text()


# Ctrl-C while Python runs a callback, as JAX's, in which it ignores exceptions.
SWALLOWED = """
import gc, signal, time
from jaxssl.training.output import console
signal.signal(signal.SIGINT, signal.default_int_handler)  # A background job ignores SIGINT.
def collected(phase, info):
    gc.callbacks.remove(collected)
    raise KeyboardInterrupt
gc.callbacks.append(collected)
try:
    with console.repeat_lost_interrupts():
        gc.collect()
        time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupt_in_a_callback_of_garbage_collection_is_not_lost():
    """The process is of its own, because handlers of signals in this one are pytest's."""
    command = [sys.executable, "-c", SWALLOWED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert done.stdout == "interrupted\n"
