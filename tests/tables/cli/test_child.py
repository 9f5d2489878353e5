"""The command of `asynclock run`: its signals, its end, and the terminal that it is lent."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
import termios
import tty
from pathlib import Path
from typing import Any

import pytest

from asynclock.cli import child
from asynclock.cli.child import Child, Terminal
from tests.cli.conftest import PATIENCE, Program, run_python
from tests.cli.terminal import Session
from tests.waiting import in_virtual_time

NUMBER = 4_000_000
"""A group that no machine has."""


# ---- the terminal --------------------------------------------------------------------------------
def test_a_killed_command_leaves_modes_of_its_last_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user may have changed them while the command was stopped."""
    master, terminal = pty.openpty()
    try:
        lent = Terminal()
        monkeypatch.setattr(lent, "_fd", terminal)
        modes = termios.tcgetattr(terminal)
        for flags in (modes[3], modes[3] & ~termios.ECHO):
            modes[3] = flags
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
            lent.note_modes()
            lent.lend(NUMBER)
            tty.setraw(terminal)
        lent.take_back(tidy=True)
        assert termios.tcgetattr(terminal) == modes
    finally:
        os.close(master)
        os.close(terminal)


# ---- the command ---------------------------------------------------------------------------------
class Screen:
    """A terminal that notes what is done with it."""

    def __init__(self, *, ours: bool = True, wanted: bool = True) -> None:
        self.ours, self.wanted = ours, wanted
        self.done: list[Any] = []

    def note_modes(self) -> None:
        self.done.append("modes")

    def lend(self, number: int) -> None:
        self.done.append(("lent", number))

    def take_back(self, *, tidy: bool) -> None:
        self.done.append(("back", tidy))


def made(screen: Screen | None = None, *, whole_group: bool = False) -> Any:
    """Return a Child without a process; it notes on `screen` what it does."""
    one: Any = object.__new__(Child)
    one.group, one._whole_group = NUMBER, whole_group
    one._terminal = screen or Screen()
    one._may_go_on = lambda: True
    one.ended = asyncio.get_running_loop().create_future()
    one.done = asyncio.get_running_loop().create_future()
    return one


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the signals that are sent to groups, which nobody gets."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *given: found.append(given))
    return found


async def test_a_signal_goes_to_the_group_until_the_command_has_ended(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards its number may belong to another group."""
    one = made()
    one.send(signal.SIGHUP)
    assert sent == [(NUMBER, signal.SIGHUP)]
    for error in (ProcessLookupError, PermissionError):

        def refuse(*_: int, error: type[OSError] = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", refuse)
            one.send(signal.SIGHUP)
    one.done.set_result(0)
    one.send(signal.SIGHUP)
    assert len(sent) == 1


@in_virtual_time
async def test_the_end_of_a_long_lived_group_is_noticed_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, looks = asyncio.get_running_loop(), 0
    end = loop.time() + 1800.0

    def others_live(_: Child) -> bool:
        nonlocal looks
        looks += 1
        return loop.time() < end

    monkeypatch.setattr(Child, "others_live", others_live)
    one = made(whole_group=True)
    one.ended.set_result(4)
    one._look_at_group(child.MIN_CHECK)
    assert await one.done == 4
    assert loop.time() - end <= 0.5
    assert looks < 4 * 1800 + 100, "a look costs milliseconds"
    for lived in (0.02, 0.05):  # most groups end with the command
        quick = made(whole_group=True)
        quick.ended.set_result(0)
        end = loop.time() + lived
        quick._look_at_group(child.MIN_CHECK)
        await quick.done
        assert loop.time() - end <= lived + child.MIN_CHECK


async def test_after_a_loss_the_whole_group_must_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--wait-for command`: the command may have ended already, and what it started must end."""
    alive = True
    monkeypatch.setattr(Child, "others_live", lambda _: alive)
    one = made()
    before = one.done
    one.wait_for_all()
    assert one.done is before, "others wait for it"
    one.ended.set_result(4)
    one._look_at_group(child.MIN_CHECK)
    assert not before.done(), "the group has not ended"
    alive = False
    assert await asyncio.wait_for(before, PATIENCE) == 4
    one.wait_for_all()
    assert one.done.done(), "there is nothing to wait for"
    alive = True
    one.wait_for_all()
    assert not one.done.done()
    alive = False
    assert await asyncio.wait_for(one.done, PATIENCE) == 4


@pytest.mark.parametrize(
    ("number", "ours", "wanted", "may"),
    [
        (signal.SIGTSTP, True, True, True),
        (signal.SIGTSTP, True, True, False),
        (signal.SIGTSTP, True, False, True),
        (signal.SIGSTOP, False, False, True),
        (signal.SIGTTIN, False, False, True),
    ],
)
async def test_with_a_command_that_stops_we_stop(
    number: int, ours: bool, wanted: bool, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell gets its terminal back; after `fg` the command gets it again, and goes on.

    The next Ctrl-Z goes to the command as before.
    """
    screen = Screen(ours=ours, wanted=wanted)

    def note(group: int, sent: int) -> None:
        stops = group == os.getpgrp() and signal.getsignal(sent) is signal.SIG_DFL
        screen.done.append(("stops", sent) if stops else (group, sent))

    monkeypatch.setattr(os, "killpg", note)
    one = made(screen)
    one._may_go_on = lambda: may
    before = signal.signal(signal.SIGTSTP, one.send)
    one._stopped(number)
    assert signal.signal(signal.SIGTSTP, before) == one.send
    again = ["modes", ("lent", NUMBER)] if wanted else []
    last = (NUMBER, signal.SIGCONT if may else signal.SIGKILL)
    assert screen.done == [("back", False), ("stops", signal.SIGTSTP), *again, last]


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that makes a Child, in a process of its own."""
    begin = (
        "from asynclock.cli.child import Child\n"
        "def start(*command):\n"
        "    return Child(command, os.environ, whole_group=False, on_fork=lambda _: None)\n"
    )
    return run_python(begin + script)


def test_a_command_that_ends_before_we_listen_is_not_waited_for_in_vain() -> None:
    ended = run(
        "async def main():\n"
        "    child = start('sh', '-c', 'exit 7')\n"
        "    os.waitid(os.P_PID, child.group, os.WEXITED | os.WNOWAIT)\n"
        "    child.follow(lambda: True)\n"
        "    async with asyncio.timeout(20): return await child.done\n"
        "sys.exit(asyncio.run(main()))\n"
    )
    assert (ended.returncode, ended.stderr) == (7, "")


@pytest.mark.skipif(sys.platform != "linux", reason="a signal at the parent's death is Linux's")
def test_a_command_does_not_outlive_us_even_without_a_guardian() -> None:
    """It ignores SIGTERM. Its output ends with it, and so the wait for it."""
    ended = run(
        "async def main():\n"
        "    start('sh', '-c', 'trap \"\" TERM; echo $$; kill -KILL $PPID; exec sleep 90')\n"
        "    time.sleep(90)\n"
        "asyncio.run(main())\n"
    )
    assert ended.returncode == -signal.SIGKILL
    assert int(ended.stdout)


def test_what_a_new_process_does_before_it_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells its group, takes the terminal if it is lent, and ends if our process has ended."""
    done: list[Any] = []
    monkeypatch.setattr(child, "_prctl", lambda *given: done.append(given))
    monkeypatch.setattr(os, "kill", lambda *given: done.append(given))
    for parent, lend in ((os.getppid(), None), (0, lambda group: done.append(("lent", group)))):
        child._prepare(parent, done.append, lend)()
    us, dies = os.getpid(), (1, signal.SIGKILL)
    assert done == [us, dies, us, ("lent", us), dies, (us, signal.SIGKILL)]


# ---- the terminal --------------------------------------------------------------------------------
class Standard:
    """A standard file."""

    def __init__(self, terminal_: bool) -> None:
        self.terminal = terminal_

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("ours", "stdin", "stdout", "wanted"),
    [
        (True, True, True, True),
        (False, True, True, False),
        (True, False, True, False),
        (True, True, False, False),
    ],
)
def test_the_command_begins_with_the_terminal_if_all_of_it_is_ours(
    ours: bool, stdin: bool, stdout: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Terminal, "ours", ours)
    monkeypatch.setattr(sys, "stdin", Standard(stdin))
    monkeypatch.setattr(sys, "stdout", Standard(stdout))
    assert Terminal().wanted is wanted


def test_what_was_not_lent_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A background job would take the terminal from the one in the foreground."""
    front: list[Any] = []
    monkeypatch.setattr(Terminal, "foreground", lambda _, number: front.append(number))
    monkeypatch.setattr(Terminal, "note_modes", lambda _: front.append("modes"))
    one = Terminal()
    one.take_back(tidy=False)
    for wanted, done in ((False, []), (True, ["modes", os.getpgrp()])):
        monkeypatch.setattr(Terminal, "wanted", wanted)
        with pytest.raises(FileNotFoundError):
            Child(["/no/such"], os.environ, whole_group=False, on_fork=lambda _: None)
        assert front == done
    front.clear()
    one.lend(NUMBER)
    one.take_back(tidy=False)
    one.take_back(tidy=False)
    assert front == [NUMBER, os.getpgrp()]


def test_no_stop_while_the_terminal_changes_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[set[int]] = []

    def note(*_: int) -> None:
        masks.append({*signal.pthread_sigmask(signal.SIG_BLOCK, [])})
        raise OSError

    monkeypatch.setattr(os, "tcsetpgrp", note)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    Terminal().foreground(NUMBER)
    assert masks == [{*before, signal.SIGTTOU}]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


async def test_a_stopped_command_gets_the_signal_that_ends_it() -> None:
    """It would get SIGKILL instead, and could not clean up."""
    with subprocess.Popen(["sleep", "1000"], process_group=0) as process:
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED)
        child: Any = object.__new__(Child)
        child.group, child.done = process.pid, asyncio.get_running_loop().create_future()
        try:
            child.end(signal.SIGTERM)
            assert process.wait(10) == -signal.SIGTERM
        finally:
            process.kill()


LATE_PARENT = """
import sys, termios, time
from asynclock.__main__ import main
from asynclock.cli.child import Terminal
lend = Terminal.lend
Terminal.lend = lambda *given: (time.sleep(1.0), lend(*given))
try:
    main()
finally:
    modes = termios.tcgetattr(sys.stdin)[3]
    print("echo:", bool(modes & termios.ECHO), "ours:", Terminal().ours)
"""
"""`asynclock` that continues late after it has started a command."""


@pytest.mark.parametrize(
    ("command", "status", "shown"),
    [
        # One that reads keys would be stopped in the background.
        (
            (sys.executable, "-c", "import os; print('front:', os.tcgetpgrp(0) == os.getpgrp())"),
            0,
            "front: True",
        ),
        (
            (sys.executable, "-c", "import os, tty; tty.setraw(0); os.kill(os.getpid(), 9)"),
            137,
            "echo: True ours: True",
        ),
        # As without us: `stty` under a lock has its effect.
        (("sh", "-c", "stty -echo; exit 3"), 3, "echo: False ours: True"),
        (("{broken}",), 126, "echo: True ours: True"),
    ],
    ids=["begins in the foreground", "is killed", "ends by itself", "can not start"],
)
async def test_a_command_and_the_terminal(
    program: Program, tmp_path: Path, command: tuple[str, ...], status: int, shown: str
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")  # it can be executed, but has no known format
    broken.chmod(0o755)
    words = [str(broken) if word == "{broken}" else word for word in command]
    ours = (sys.executable, "-c", LATE_PARENT, "run", "j", "--")
    session = Session(program, command=(*ours, *words))
    try:
        assert await session.end() == status
        assert shown in session.screen
    finally:
        session.close()
