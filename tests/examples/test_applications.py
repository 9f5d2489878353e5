"""The examples, run as their readers run them: whole applications, and one of each primitive."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import pytest

from examples.fastapi_orders.store import StaleError, Store, open_store
from tests.fencing.conftest import postgresql as postgresql

ROOT = Path(__file__).parents[2]
NAMES = (
    *("aiohttp_inventory", "celery_orders", "django_orders", "fastapi_orders"),
    *("leader_cron", "migrate_with_cli", "threaded_orders", "worker_queue"),
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
        [sys.executable, "-W", "error", ROOT / "examples" / name],
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


# ---- the store of fastapi_orders, in both databases ----------------------------------------------
@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return open_store(str(tmp_path / "orders.sqlite"))
    given = dict(word.split("=", 1) for word in request.getfixturevalue("postgresql").split())
    host = quote(given["host"], safe="")
    return open_store(f"postgresql://{given['user']}@{host}/{given['dbname']}")


@pytest.mark.timeout(180)
def test_a_stale_fence_sells_nothing(store: Store) -> None:
    store.create(2)
    assert not store.sold(1)
    store.sell(1, "anna", fence=2**52)
    with pytest.raises(StaleError):
        store.sell(1, "late", fence=2**52 - 1)
    assert store.sold(1)
    assert store.sales() == [(1, "anna")]
    store.sell(1, "ben", fence=2**52)  # the table itself allows doubles: the lock must not
    assert len(store.sales()) == 2
    store.create(2)
    assert store.sales() == []
