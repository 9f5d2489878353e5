"""The examples that are whole applications, run as their readers run them."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = (
    "aiohttp_inventory",
    "celery_orders",
    "django_orders",
    "fastapi_orders",
    "leader_cron",
    "migrate_with_cli",
    "threaded_orders",
    "worker_queue",
)
LONGEST = 280
"""Seconds on a machine that has a lot else to do; alone each takes less than ten."""


def run(name: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=LONGEST,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.timeout(LONGEST + 20)
@pytest.mark.parametrize("name", NAMES)
def test_it_goes_right(name: str) -> None:
    said = run(name)
    assert said.splitlines()[-1] == "right"
    if name == "fastapi_orders":
        assert "is killed" in said
        assert re.search(r"p50 \d+ ms, p99 \d+ ms", said)


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is(name: str) -> None:
    """The docstring is its README: what it shows, how to run it, and which file does what."""
    text = import_module(f"examples.{name}").__doc__ or ""
    assert f"python -m examples.{name}" in text
    for file in (ROOT / "examples" / name).glob("*.py"):
        assert file.name == "__init__.py" or file.name in text
