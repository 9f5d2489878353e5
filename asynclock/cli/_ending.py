"""Ends the program without a traceback after a user's mistake, Ctrl-C or a full disk."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable

from ..errors import AsyncLockError
from ._status import Status, lines_of, status_of
from ._text import say


def guarded(call: Callable[[], object]) -> int:
    """Return the exit status of `call()`: its own, or the one that its error means."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name may have letters that a terminal lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        answer = call()
        sys.stdout.flush()
    except AsyncLockError as error:
        for line in lines_of(error):
            say(line)
        return status_of(error)
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has closed it; Python must not flush into it again.
        _forget_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _forget_output()
        say(f"can't write the output: {error.strerror or error}")
        return Status.OUTPUT
    return answer if isinstance(answer, int) else Status.OK


def raise_on_ctrl_c() -> None:
    """Raise KeyboardInterrupt on Ctrl-C from now on, unless our caller has us ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
