"""The command line: `asynclock …` or `python -m asynclock …` (extra `[cli]`).

A module per command, with the modules that it needs beside it; what all commands share has an
underscore. A command is imported when it runs: `import asynclock` and `asynclock run` load no
terminal library.
"""

from __future__ import annotations

import os
import signal
import sys

_EXTRA = ("typer", "rich")


def main() -> None:
    """Run the program with the arguments of this process, and exit with its status."""
    _let_ctrl_c_end_us()
    _open_standard_files()
    try:
        status = _start(sys.argv[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        from .. import _settings

        print(f"asynclock: {_settings.needs('the command line', 'cli')}", file=sys.stderr)
        status = 64  # as for a wrong setting: a retry doesn't help
    # The work is done: from here on ignore interruptions.
    _let_ctrl_c_end_us()
    try:
        sys.stderr.flush()
    except OSError:  # Python would try again at the very end, and exit with status 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(status)


def _start(arguments: list[str]) -> int:
    """Run `run` and `inspect` directly, all others through typer, a slow import."""
    import importlib

    if arguments[:1] in (["run"], ["inspect"]) and "_ASYNCLOCK_COMPLETE" not in os.environ:
        command = importlib.import_module(f".{arguments[0]}", __package__)
        if (wanted := command.parse(arguments[1:])) is not None:
            return int(command.start(wanted))
    from ._app import run_program

    return run_program(arguments)


def _let_ctrl_c_end_us() -> None:
    # Ctrl-C ends the program as it ends one in C, without a traceback. Commands install their own
    # handlers. If our caller has us ignore Ctrl-C (nohup, a background job), we ignore it.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _open_standard_files() -> None:
    """Open /dev/null where the caller has closed a standard file (`>&-`).

    Otherwise the next socket would get its number, and Python would have no `sys.stdout`. A command
    that we run still finds the file closed, because files that Python opens are not inherited.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is `number`
            mode = "r" if number == 0 else "w"
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
