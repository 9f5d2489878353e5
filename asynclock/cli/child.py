"""The command under the lock, in its own process group, with our signals and our terminal.

A guardian process kills the command if we no longer can.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import _clock

# ---- Lends the terminal to the command, which runs in its own process group ----------------------


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
        # The kernel stops a background process that sets the foreground, unless SIGTTOU is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._fd, group)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- Says whether a process of a group still runs. A zombie, which has ended, does not -----------
# Usually the first process of the machine reaps what a command leaves behind. In a container, the
# first process may be any program, which reaps nothing: there, zombies stay in the group for ever.
#
# Rejected: to inherit the orphans ourselves (PR_SET_CHILD_SUBREAPER), and to reap them. It changes
# what the command sees: an orphan that waits for `getppid() == 1` would wait for ever, and one that
# reads keys in the background would be stopped instead of getting an error. And it misses zombies
# whose parent left the group.


SCANS = 10
"""Maximum number of scans in a row that are repeated because new processes started meanwhile."""
_PROC = Path("/proc")
_ENDED = ("Z", "X", "x")
"""States of a process in /proc/PID/stat (proc_pid_stat(5)): a zombie, or dead."""


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
        if _group_of(self._known) == self.number:  # a scan takes milliseconds
            return True
        for _ in range(SCANS):
            newest = _newest()
            for entry in os.listdir(_PROC):  # noqa: PTH208 - at once, and no generator
                if entry.isdigit() and _group_of(int(entry)) == self.number:
                    self._known = int(entry)
                    return True
            # The list has no process that started after it, whose parent may have ended meanwhile.
            if _newest() == newest:
                break
        return False


def _group_of(pid: int) -> int | None:
    """Return the group of a process; None if it has ended."""
    try:
        # The name of the program, in parentheses, may contain anything.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, group, threads = fields[0].decode(), int(fields[2]), int(fields[17])
    # A process whose first thread has ended is shown as a zombie while its other threads run.
    return group if state not in _ENDED or threads > 1 else None


def _newest() -> bytes:
    """Return the number of the process (or thread) that started last."""
    return (_PROC / "loadavg").read_bytes().split()[-1]


def _shows_all() -> bool:
    """Return whether /proc shows our processes by our numbers, and those of other users."""
    return str((_PROC / "self").readlink()) == str(os.getpid()) and _group_of(1) is not None


# ---- The command ---------------------------------------------------------------------------------


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
_prctl: Callable[[int, int], object] = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)
"""Only Linux has it."""


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

    def follow(self, may_go_on: Callable[[], bool]) -> None:
        """Lend the command the terminal, send it our signals from now on, and notice its end.

        After a Ctrl-Z, the command is killed if it may not go on.
        """
        self._may_go_on = may_go_on
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
        self.send(signal.SIGCONT if self._may_go_on() else signal.SIGKILL)


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
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


# ---- A dead man's switch: a guardian process that kills the command if we no longer can ----------
# If the parent is killed, the kernel ends only its direct child (PR_SET_PDEATHSIG), and only on
# Linux; a shell's own children would go on without the lock. A parent that is stopped, starved or
# swapped out renews nothing. So the first thing we do is to fork a guardian process. It kills the
# command's process group when the pipe to us breaks, or when a deadline passes that we did not
# move.


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
