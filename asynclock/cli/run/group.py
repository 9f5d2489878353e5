"""Says whether a process of a group still runs. A zombie, which has ended, does not.

Usually the first process of the machine reaps what a command leaves behind. In a container, the
first process may be any program, which reaps nothing: there, zombies stay in the group for ever.

Rejected: to inherit the orphans ourselves (PR_SET_CHILD_SUBREAPER), and to reap them. It changes
what the command sees: an orphan that waits for `getppid() == 1` would wait for ever, and one that
reads keys in the background would be stopped instead of getting an error. And it misses zombies
whose parent left the group.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

SCANS = 10
"""Maximum number of scans in a row that are repeated because new processes started meanwhile."""
_PROC = Path("/proc")
_ENDED = ("Z", "X", "x")
"""States of a process in /proc/PID/stat (proc_pid_stat(5)): a zombie, or dead."""


class _Process(NamedTuple):
    group: int
    runs: bool


class Group:
    """The processes of a group."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._known = number
        """A process of the group that ran when we looked last."""

    def runs(self) -> bool:
        """Return whether a process of the group has not ended."""
        # As the first process of a container we inherit orphans: reap ours.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.number, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.number, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # the process runs as another user now
            return True
        # A signal can be sent to a zombie as well.
        try:
            return not _shows_all() or self._one_runs()
        except OSError:  # another system than Linux, or /proc is not for us
            return True

    def _one_runs(self) -> bool:
        if _process(self._known) == (self.number, True):  # a scan takes milliseconds
            return True
        for _ in range(SCANS):
            newest = _newest()
            for entry in os.listdir(_PROC):  # noqa: PTH208 - at once, and no generator
                if entry.isdigit() and _process(int(entry)) == (self.number, True):
                    self._known = int(entry)
                    return True
            # The list has no process that started after it, whose parent may have ended meanwhile.
            if _newest() == newest:
                break
        return False


def _process(pid: int) -> _Process | None:
    try:
        # The name of the program, in parentheses, may contain anything.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, group, threads = fields[0].decode(), int(fields[2]), int(fields[17])
    # A process whose first thread has ended is shown as a zombie while its other threads run.
    return _Process(group, state not in _ENDED or threads > 1)


def _newest() -> bytes:
    """Return the number of the process (or thread) that started last."""
    return (_PROC / "loadavg").read_bytes().split()[-1]


def _shows_all() -> bool:
    """Return whether /proc shows our processes by our numbers, and those of other users."""
    return str((_PROC / "self").readlink()) == str(os.getpid()) and _process(1) is not None
