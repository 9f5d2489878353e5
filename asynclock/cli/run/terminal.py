"""Lends the terminal to the command, which runs in its own process group."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Iterator
from typing import Any


class Terminal:
    """The controlling terminal. If there is none, every method does nothing."""

    def __init__(self) -> None:
        self._lent = False
        self._modes: list[Any] | None = None
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    @property
    def ours(self) -> bool:
        """Whether our process group is in the foreground."""
        if self._fd < 0:
            return False
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        return False

    @property
    def wanted(self) -> bool:
        """Whether the command should have the terminal from the start.

        In a pipeline (`… | less`) others may read keys as well, so there the command gets the
        terminal only when it asks for it (see `lend`).
        """
        return self.ours and sys.stdin.isatty() and sys.stdout.isatty()

    def note_modes(self) -> None:
        """Note the terminal's modes, before the command can change them, for `take_back`."""
        with contextlib.suppress(OSError, termios.error):
            self._modes = termios.tcgetattr(self._fd)

    def lend(self, group: int) -> None:
        """Put `group` in the foreground, so that it reads keys and gets Ctrl-C and Ctrl-Z."""
        self.foreground(group)
        self._lent = True

    def take_back(self, *, tidy: bool) -> None:
        """Come to the foreground again; with `tidy`, restore the terminal's modes as well."""
        if not self._lent:
            return
        self._lent = False
        self.foreground(os.getpgrp())
        if tidy and self._modes is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def foreground(self, group: int) -> None:
        """Put `group` in the foreground, and change nothing else."""
        with _without_sigttou(), contextlib.suppress(OSError):
            os.tcsetpgrp(self._fd, group)


@contextlib.contextmanager
def _without_sigttou() -> Iterator[None]:
    # The kernel stops a background process that sets the foreground, unless SIGTTOU is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
