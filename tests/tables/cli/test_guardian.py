"""The guardian of `asynclock run`: whom it kills, when, and what it outlives."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asynclock import _clock
from asynclock.cli import child
from tests.cli.conftest import PATIENCE, alive, environment, run_python, until
from tests.waiting import until_in_thread

LATER = 1e12
"""A deadline that no test reaches."""


def guarded(monkeypatch: pytest.MonkeyPatch, *orders: bytes) -> list[tuple[int, int]]:
    """Let the guardian read these orders, one after the other; return whom it kills and how.

    The pipe breaks after the last one.
    """
    killed: list[tuple[int, int]] = []
    read, write = os.pipe()
    waiting = list(orders)

    def look(fds: Sequence[int], _: Any, __: Any, timeout: float) -> Any:
        assert timeout <= 2.0, "it sleeps on while the machine does"
        if waiting:
            os.write(write, waiting.pop(0))
        else:
            with contextlib.suppress(OSError):
                os.close(write)
        return list(fds), [], []

    monkeypatch.setattr(select, "select", look)
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append((group, number)))
    try:
        child._guard(read)
    finally:
        os.close(read)
    return killed


@pytest.mark.parametrize(
    ("orders", "killed"),
    [
        ([b"4000000 %f\n" % LATER, b"4000001 inf\n"], [4_000_001]),
        ([b"40000", b"01 ", b"inf\n4000", b"002 inf", b"\n"], [4_000_002]),
        ([], []),
        ([b"4000000 inf\n", b"0 inf\n"], []),
    ],
    ids=["the last group", "an order in pieces", "before the command", "after it"],
)
def test_whom_it_kills_when_we_die(
    orders: list[bytes], killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = guarded(monkeypatch, *orders)
    assert found == [(group, signal.SIGKILL) for group in killed]


def test_a_deadline_that_passes_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """We are alive, but stopped or starved: the pipe stays open."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append((group, number)))
    read, write = os.pipe()
    try:
        began = _clock.now()
        os.write(write, f"4000000 {began + 0.05!r}\n".encode())
        child._guard(read)
        assert _clock.now() - began >= 0.05
    finally:
        os.close(read)
        os.close(write)
    assert killed == [(4_000_000, signal.SIGKILL)]


def test_a_starved_guardian_reads_a_new_deadline_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was starved after the first order, and the second one already waits in the pipe."""
    moments = iter([0.0])
    monkeypatch.setattr(_clock, "now", lambda: next(moments, 20.0))
    assert guarded(monkeypatch, b"4000000 10.0\n", b"0 inf\n") == []


def test_a_group_that_has_ended_or_is_not_ours_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ProcessLookupError, PermissionError):

        def refuse(*_: int, error: type[OSError] = error) -> None:
            raise error

        read, write = os.pipe()
        os.write(write, b"4000000 inf\n")
        os.close(write)
        monkeypatch.setattr(os, "killpg", refuse)
        try:
            child._guard(read)
        finally:
            os.close(read)


# ---- as a process --------------------------------------------------------------------------------
def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that has a guardian, and read its output to the end."""
    begin = "from asynclock.cli.child import Guardian\nguardian = Guardian()\n"
    return run_python(begin + script)


async def test_a_signal_to_all_our_processes_does_not_end_it() -> None:
    """A service manager sends SIGTERM to each process of a service.

    We end by such a signal later than the guardian would, and the command may take even longer.
    """
    ended = run(
        # It ignores signals before it closes our standard files.
        "files = f'/proc/{guardian._pid}/fd/2'\n"
        "end = time.monotonic() + 15\n"
        "while os.readlink(files) != os.devnull: assert time.monotonic() < end\n"
        "command = subprocess.Popen(['sleep', '1000'], process_group=0, stdout=-3, stderr=-3)\n"
        "guardian.watch(command.pid, float('inf'))\n"
        "for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):\n"
        "    os.kill(guardian._pid, number)\n"
        "print(command.pid, flush=True)\n"
        "os._exit(3)\n"
    )
    assert ended.returncode == 3, ended.stderr
    command = int(ended.stdout)
    try:
        await until(lambda: not _runs(command), "the guardian kills the command", timeout=30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(command, signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - a file of the kernel
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_at_the_end_nothing_of_it_is_left() -> None:
    """It has ended and is reaped; the group that it watched last goes on."""
    ended = run(
        "command = subprocess.Popen(['sleep', '1000'], process_group=0)\n"
        "guardian.watch(command.pid, float('inf'))\n"
        "guardian.close()\n"
        "assert command.poll() is None, 'it was killed'\n"
        "command.kill()\n"
        "command.wait()\n"
        "try: os.kill(guardian._pid, 0)\n"
        "except ProcessLookupError: sys.exit(5)\n"
    )
    assert (ended.returncode, ended.stderr) == (5, "")


def test_a_guardian_that_was_killed_ends_nothing() -> None:
    ended = run(
        "os.kill(guardian._pid, signal.SIGKILL)\n"
        "os.waitid(os.P_PID, guardian._pid, os.WEXITED | os.WNOWAIT)\n"
        "os.set_blocking(guardian._pipe, False)  # it raises where it would wait\n"
        "for _ in range(5000): guardian.watch(os.getpid(), float('inf'))\n"
        "guardian.close()\n"
        "sys.exit(5)\n"
    )
    assert (ended.returncode, ended.stderr) == (5, "")


def test_readers_of_our_output_do_not_wait_for_it() -> None:
    """It lives on for a moment after us, or for ever if it is stopped."""
    ended = run(
        "for name in ('1', '2'):\n"
        "    end = time.monotonic() + 15\n"
        "    while os.readlink(f'/proc/{guardian._pid}/fd/{name}') != os.devnull:\n"
        "        assert time.monotonic() < end, name\n"
        "        time.sleep(0.005)\n"
        "sys.exit(5)\n"
    )
    assert (ended.returncode, ended.stderr) == (5, "")


KILLED_AT_ONCE = """
import asyncio, os, signal, sys, time
from asynclock.cli.child import Child, Guardian
async def main():
    guard = lambda group: guardian.watch(group, float("inf"))
    child = Child(["sh", "-c", sys.argv[1]], os.environ, whole_group=True, on_fork=guard)
    child.follow(lambda: True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
guardian = Guardian()
asyncio.run(main())
"""


def test_killed_before_it_says_more_to_the_guardian_it_leaves_no_child(tmp_path: Path) -> None:
    """The guardian knows the command from before its first instruction."""
    file = tmp_path / "pids"
    script = f"sleep 1000 & echo $$ $! > {file}.new; mv {file}.new {file}; wait"
    program = [sys.executable, "-c", KILLED_AT_ONCE, script, str(file)]
    ended = subprocess.run(program, env=environment(), check=False, timeout=PATIENCE)
    assert ended.returncode == -signal.SIGKILL
    pids = [int(word) for word in file.read_text().split()]
    until_in_thread(lambda: not any(map(alive, pids)), timeout=PATIENCE)


AWAY = """
from asynclock.cli.child import Guardian
guardian = Guardian()
end = time.monotonic() + 20
while os.getsid(guardian._pid) == os.getsid(0):
    assert time.monotonic() < end, "it stays in our session"
    time.sleep(0.01)
guardian.close()
"""


def test_the_guardian_gets_no_signal_of_our_terminal() -> None:
    assert run_python(AWAY).returncode == 0
