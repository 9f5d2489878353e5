"""Whether a process of a command's group still runs, by what /proc shows."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from asynclock.cli import child
from asynclock.cli.child import Group

NUMBER = 4_000_000
"""A group that no machine has."""


class Proc:
    """A /proc with the processes that a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").symlink_to(str(os.getpid()))
        (folder / "loadavg").write_bytes(b"0.1 0.2 0.3 1/2 4000009\n")
        self.has(1, 1)

    def has(
        self, pid: int, number: int, state: str = "S", name: str = "sh", threads: int = 1
    ) -> None:
        (self.folder / str(pid)).mkdir(exist_ok=True)
        fields = [state, "1", str(number), *["0"] * 14, str(threads), *["0"] * 30]
        text = f"{pid} ({name}) {' '.join(fields)}\n"
        (self.folder / str(pid) / "stat").write_text(text)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    def none_of_ours(*_: int) -> Any:
        raise ChildProcessError

    monkeypatch.setattr(child, "_PROC", tmp_path)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    monkeypatch.setattr(os, "waitpid", none_of_ours)
    return Proc(tmp_path)


@pytest.mark.parametrize(
    ("state", "name", "threads", "runs"),
    [
        ("S", "sh", 1, True),
        ("T", "sh", 1, True),
        ("D", "a) Z 1 1 (b", 1, True),
        ("Z", "sh", 1, False),
        ("X", "sh", 1, False),
        ("Z", "a) S 1 1 (b", 1, False),
        ("Z", "sh", 2, True),
    ],
)
def test_which_process_of_a_group_runs(
    proc: Proc, state: str, name: str, threads: int, runs: bool
) -> None:
    for leader in (NUMBER, NUMBER + 5):  # found at once, or by looking at all
        proc.has(NUMBER, NUMBER, "Z")
        proc.has(NUMBER + 5, NUMBER, "Z")
        proc.has(leader, NUMBER, state, name, threads)
        proc.has(NUMBER + 7, NUMBER + 7)
        assert Group(NUMBER).runs() is runs


def test_all_processes_are_looked_at_only_when_the_known_one_has_ended(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes milliseconds, four times a second, for as long as the group lives."""
    scans = 0
    listdir = os.listdir

    def counted(path: Any) -> list[str]:
        nonlocal scans
        scans += 1
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    proc.has(NUMBER, NUMBER)
    one = Group(NUMBER)
    assert [one.runs() for _ in range(3)] == [True] * 3
    assert scans == 0
    proc.has(NUMBER, NUMBER, "Z")
    proc.has(NUMBER + 5, NUMBER)
    assert [one.runs() for _ in range(3)] == [True] * 3
    assert scans == 1


def test_processes_that_start_in_a_scan_count(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent ends before the scan looks at it, and the list of the scan is older."""
    listdir = os.listdir

    def list_before_the_fork(path: Any) -> list[str]:
        found = listdir(path)
        proc.has(NUMBER + 1, NUMBER, "Z")
        proc.has(NUMBER + 2, NUMBER)
        (proc.folder / "loadavg").write_bytes(b"0.1 0.2 0.3 1/2 4000010\n")
        return found

    monkeypatch.setattr(os, "listdir", list_before_the_fork)
    proc.has(NUMBER, NUMBER, "Z")
    proc.has(NUMBER + 1, NUMBER)
    assert Group(NUMBER).runs()


def test_a_group_that_ended_or_is_another_users(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, runs in ((ProcessLookupError, False), (PermissionError, True)):

        def refuse(*_: int, error: type[OSError] = error) -> None:
            raise error

        monkeypatch.setattr(os, "killpg", refuse)
        proc.has(NUMBER, NUMBER, "Z" if runs else "S")
        assert Group(NUMBER).runs() is runs


@pytest.mark.parametrize("shown", ["another process", "only ours", "nothing"])
def test_where_proc_does_not_show_all_the_group_counts_as_running(proc: Proc, shown: str) -> None:
    """In a namespace that is not the one of /proc, or where others' processes are hidden."""
    if shown == "another process":
        (proc.folder / "self").unlink()
        (proc.folder / "self").symlink_to("77")
    elif shown == "only ours":
        (proc.folder / "1" / "stat").unlink()
    else:
        shutil.rmtree(proc.folder)
    assert Group(NUMBER).runs()


def test_zombies_that_we_inherit_are_reaped(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first process of a container."""
    zombies, asked = [NUMBER + 1, NUMBER + 2, 0], []

    def reap(pid: int, how: int) -> tuple[int, int]:
        asked.append((pid, how))
        return zombies.pop(0), 0

    monkeypatch.setattr(os, "waitpid", reap)
    Group(NUMBER).runs()
    assert asked == [(-NUMBER, os.WNOHANG)] * 3
