"""A signal handler that raises, at any point of a lock's use, leaves nothing held."""

import subprocess
import sys

import pytest

from tests.blocking import interrupting

WORKS = (
    "leave leave_by_an_error leave_a_lease leave_several leave_a_stack leave_a_stack_with_a_lease "
    "leave_a_manager release close enter enter_a_lease acquire try_acquire upgrade "
    "change_sides detach"
).split()


@pytest.mark.timeout(400)
def test_a_handler_that_raises_leaves_nothing_held() -> None:
    """Each work is interrupted at dozens of points."""
    command = [sys.executable, "-m", interrupting.__name__, *WORKS]
    found = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert found.returncode == 0, found.stderr
    lines = [line.split(" ", 1) for line in found.stdout.splitlines()]
    assert [(work, point) for work, point in lines if not point.isdecimal()] == []
    counts = {work: int(count) for work, count in lines}
    assert counts.keys() == set(WORKS)
    assert min(counts.values()) > 15
