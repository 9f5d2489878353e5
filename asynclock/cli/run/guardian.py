"""A dead man's switch: a guardian process that kills the command if we no longer can.

If the parent is killed, the kernel ends only its direct child (PR_SET_PDEATHSIG), and only on
Linux; a shell's own children would go on without the lock. A parent that is stopped, starved or
swapped out renews nothing. So the first thing we do is to fork a guardian process. It kills the
command's process group when the pipe to us breaks, or when a deadline passes that we did not move.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import NoReturn

from ... import _clock

CHECK_EVERY = 1.0
"""Maximum seconds between looks at the clock: `select` doesn't count while the machine sleeps."""


class Guardian:
    """Our handle of the guardian process. Make it before the process has any other thread."""

    def __init__(self) -> None:
        read, self._pipe = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._pipe)
            _run_guardian(read)
        os.close(read)

    def watch(self, group: int, deadline: float) -> None:
        """Have `group` killed at `deadline` (boot-time clock), or as soon as we die."""
        self._send(f"{group} {deadline!r}\n")

    def close(self) -> None:
        """End the guardian without killing anything, because the command has ended."""
        self._send("0 inf\n")
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _send(self, order: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the guardian is dead: only PDEATHSIG is left
            os.write(self._pipe, order.encode())


def _run_guardian(pipe: int) -> NoReturn:
    try:
        os.setsid()  # so that Ctrl-C or a closed terminal doesn't end the guardian
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # Close our copies of the standard files: a reader of a pipe would wait for their end.
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
        # Read messages first: if we were starved ourselves, a later deadline may be waiting.
        if select.select([pipe], [], [], max(0.0, min(left, CHECK_EVERY)))[0]:
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
