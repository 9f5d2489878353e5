"""The examples of the primitives run, and show what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SHOWN = {
    "quota.py": ["never more than 3"],
    "settings.py": ["version 1, unchanged: True", "version 2, unchanged: True", "rewritten"],
    "rounds.py": ["round 0 is complete", "round 1 is complete", "all finished"],
    "transfer.py": ["30 transfers; still 300 in all"],
    "nested.py": ["held 2 times", "asked the server 2 times for 3 items"],
    "handlers.py": ["order 1 shipped", "order 1 was shipped under fence", "order 3 shipped"],
    "scheduler.py": ["term 1:", "term 2:", "terms rise: True"],
    "tickets.py": ["customer 4 is served", "in order: True"],
}


@pytest.mark.parametrize("name", SHOWN)
def test_example(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for line in SHOWN[name]:
        assert line in run.stdout
    if name == "settings.py":
        assert "unchanged: False" not in run.stdout
