"""The command under the lock, in its own process group, with our signals and our terminal."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from .group import Group
from .terminal import Terminal

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)
MIN_CHECK, MAX_CHECK = 0.01, 0.25
"""First and maximum seconds between two checks whether the command's group has ended."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def hear_of_ends() -> None:
    """Undo it if our caller ignores or blocks SIGCHLD; call this before the first fork.

    If it is ignored, the kernel reaps our children, and we don't learn the command's status. If it
    is blocked, we don't learn of the command's end. The command gets the default too, as from
    `timeout` and `flock`.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


class Child:
    """A running command. Make it in the event loop's thread, which also gets the signals.

    It has started, or OSError says why it can't start. Call `follow` at once.

    With `whole_group` the command has ended only when all processes in its group have ended.
    `on_fork` runs in the new process before the command does, and gets the number of its group: the
    guardian must know the group before it has a process that our death would leave behind.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        whole_group: bool,
        on_fork: Callable[[int], None],
    ) -> None:
        self._terminal = Terminal()
        self._whole_group = whole_group
        self._on_resume: Callable[[], bool] = lambda: True
        lend = self._terminal.wanted
        if lend:
            self._terminal.note_modes()
        prepare = _prepare(os.getpid(), on_fork, self._terminal.foreground if lend else None)
        try:
            self._process = subprocess.Popen(
                command,
                env=env,
                process_group=0,
                # It gets the descriptors that our caller gave us, as from env, timeout and flock.
                # Those that Python opens, in the library or for it, are not inherited (PEP 446).
                close_fds=False,
                preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
            )
        except BaseException:
            if lend:  # the new process had the terminal, but could not become the command
                self._terminal.foreground(os.getpgrp())
            raise
        self.group: int = self._process.pid
        self._processes = Group(self.group)
        self._lend = lend
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        """The command's exit status as in a shell: 128 + n for a signal."""
        self.done: asyncio.Future[int] = loop.create_future()
        """The exit status, once the command (with `whole_group`, its group) has ended."""

    def follow(self) -> None:
        """Lend the command the terminal, send it our signals from now on, and notice its end."""
        if self._lend:
            self._terminal.lend(self.group)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._look)
        for number in FORWARDED:
            # A signal that our caller has us ignore (nohup, a background job) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self.send, number)
        self._look()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command's process group."""
        if not self.done.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and continue stopped processes so that they get it."""
        self.send(number)
        self.send(signal.SIGCONT)

    def wait_for_all(self) -> None:
        """Make `done` wait for the whole group from now on."""
        self._whole_group = True
        if self.done.done() and self.others_live():
            self.done = asyncio.get_running_loop().create_future()
            self._look_at_group(MIN_CHECK)

    def others_live(self) -> bool:
        """Return whether a process is left in the command's group."""
        return self._processes.runs()

    def on_resume(self, ask: Callable[[], bool]) -> None:
        """Call `ask` after a Ctrl-Z: it returns whether the command may go on."""
        self._on_resume = ask

    def _look(self) -> None:
        if self.ended.done():
            return
        pid, status = os.waitpid(self.group, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            self._stopped(os.WSTOPSIG(status))
            return
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code  # reaped above, where stops are noticed too
        self._terminal.take_back(tidy=code < 0)
        self.ended.set_result(code if code >= 0 else 128 - code)
        self._look_at_group(MIN_CHECK)

    def _look_at_group(self, pause: float) -> None:
        # There is no signal for the end of grandchildren, so check again and again.
        if self.done.done():
            return
        if self._whole_group and self.others_live():
            asyncio.get_running_loop().call_later(
                pause, self._look_at_group, min(2 * pause, MAX_CHECK)
            )
        else:
            self.done.set_result(self.ended.result())

    def _stopped(self, number: int) -> None:
        if number in (signal.SIGTTIN, signal.SIGTTOU) and self._terminal.ours:
            self._terminal.note_modes()
            self._terminal.lend(self.group)
            self.send(signal.SIGCONT)
            return
        self._terminal.take_back(tidy=False)
        _stop_ourselves()
        # We run again after `fg` or `bg`, or because no shell was there and we never stopped.
        if self._terminal.wanted:
            self._terminal.note_modes()
            self._terminal.lend(self.group)
        if self._on_resume():
            self.send(signal.SIGCONT)


def _stop_ourselves() -> None:
    # Uses the default action of SIGTSTP instead of SIGSTOP: the kernel skips it if there is no
    # shell to continue us (an orphaned process group).
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.killpg(os.getpgrp(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


def _prepare(
    parent: int, on_fork: Callable[[int], None], lend: Callable[[int], None] | None
) -> Callable[[], None]:
    def prepare() -> None:
        on_fork(os.getpid())  # its own group, see process_group
        if lend is not None:  # as shells do: a command that reads keys before that would be stopped
            lend(os.getpid())
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the parent died before prctl
                os.kill(os.getpid(), signal.SIGKILL)

    return prepare
