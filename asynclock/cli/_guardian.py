"""A dead man's switch: ends the command if we no longer can.

The kernel ends only the direct child of a killed parent (PR_SET_PDEATHSIG), and only on Linux; a
shell's own children would go on without the lock. And a parent that is stopped, starved or swapped
out renews nothing. So before anything else a process is forked off that does one thing: it kills
the command's process group when the pipe to us breaks, or when a deadline passes that we did not
move.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import NoReturn

from .. import _clock

NAP = 1.0
"""Seconds between looks at the clock: the timer of `select` stands still while a machine sleeps."""


class Guardian:
    """The switch, as seen by whom it guards. Make it before the process has any other thread."""

    def __init__(self) -> None:
        read, self._pipe = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._pipe)
            _stand_guard(read)
        os.close(read)

    def watch(self, group: int, deadline: float) -> None:
        """Kill `group` at `deadline` (boot-time clock), or when we die, whatever comes first."""
        self._tell(f"{group} {deadline!r}\n")

    def close(self) -> None:
        """The command is done: nothing is killed any more."""
        self._tell("0 inf\n")
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _tell(self, order: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: PDEATHSIG is left
            os.write(self._pipe, order.encode())


def _stand_guard(pipe: int) -> NoReturn:
    try:
        os.setsid()  # a Ctrl-C or a closed terminal is not for us
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # No output of ours may keep a pipe open that somebody reads to its end.
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        _guard(pipe)
    finally:
        os._exit(0)


def _guard(pipe: int) -> None:
    group, deadline, unread = 0, float("inf"), b""
    while True:
        left = deadline - _clock.now()
        # What was told comes first: we may have been starved ourselves while it lay there.
        if select.select([pipe], [], [], max(0.0, min(left, NAP)))[0]:
            data = os.read(pipe, 4096)
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                words = line.split()
                group, deadline = int(words[0]), float(words[1])
        elif left <= 0:
            break
    if group > 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
