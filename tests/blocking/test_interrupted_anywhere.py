"""A signal handler that raises, at any point of a lock's use, leaves nothing held."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.blocking import interrupting


@pytest.mark.parametrize(
    "work",
    [
        "leave",
        "leave_by_an_error",
        "leave_a_lease",
        "leave_several",
        "leave_a_stack",
        "leave_a_stack_with_a_lease",
        "leave_a_manager",
        "release",
        "close",
        "enter",
        "change_sides",
    ],
)
def test_a_handler_that_raises_leaves_nothing_held(work: str) -> None:
    command = [sys.executable, "-m", interrupting.__name__, work]
    found = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert found.returncode == 0, found.stderr
    *stayed, interruptions = found.stdout.split("\n")[:-1]
    assert not stayed
    assert int(interruptions) > 20
