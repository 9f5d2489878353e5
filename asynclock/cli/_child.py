"""The command under the lock: a process group of its own that gets our signals and our terminal."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from ._terminal import Terminal

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Child:
    """A running command. Made in the event loop's thread, which also gets its signals."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._terminal = Terminal()
        self._on_resume: Callable[[], bool] = lambda: True
        lend = self._terminal.wanted
        self._process = subprocess.Popen(
            command, env=env, process_group=0, preexec_fn=_die_with(os.getpid())
        )
        self.group = self._process.pid
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit status as a shell tells it: 128 + n for a signal."""
        if lend:
            self._terminal.lend(self.group)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._look)
        for number in FORWARDED:
            # Who started us with a signal ignored (nohup, a background job) means it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self.send, number)
        self._look()

    def send(self, number: signal.Signals) -> None:
        """Signal the command and all it has started."""
        if not self.done.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, number)

    def end(self, number: signal.Signals) -> None:
        """The same, and a stopped process is continued to see it."""
        self.send(number)
        self.send(signal.SIGCONT)

    def on_resume(self, ask: Callable[[], bool]) -> None:
        """After a Ctrl-Z, `ask` says whether the command may go on."""
        self._on_resume = ask

    def _look(self) -> None:
        if self.done.done():
            return
        pid, status = os.waitpid(self.group, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            self._stopped(os.WSTOPSIG(status))
            return
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code  # reaped here, where stops are seen too
        self._terminal.take_back(tidy=code < 0)
        self.done.set_result(code if code >= 0 else 128 - code)

    def _stopped(self, number: int) -> None:
        if number in (signal.SIGTTIN, signal.SIGTTOU) and self._terminal.ours:
            self._terminal.lend(self.group)
            self.send(signal.SIGCONT)
            return
        self._terminal.take_back(tidy=False)
        _stop_ourselves()
        # Here we are again: `fg`, `bg`, or nobody who could continue us, so that we never stopped.
        if self._terminal.wanted:
            self._terminal.lend(self.group)
        if self._on_resume():
            self.send(signal.SIGCONT)


def _stop_ourselves() -> None:
    # By the default action of SIGTSTP rather than by SIGSTOP: the kernel leaves it out where no
    # shell is there to continue us (an orphaned process group).
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.killpg(os.getpgrp(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


def _die_with(parent: int) -> Callable[[], None]:
    def prepare() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the kernel knew
                os.kill(os.getpid(), signal.SIGKILL)

    return prepare
