"""Type checkers report an `acquire` that is neither awaited nor entered, where they are asked to.

So they do if its truth is asked for: mypy with "truthy-bool", as for each coroutine; pyright with
reportUnnecessaryComparison for coroutines of `async def`, such as that of `try_acquire`.

By default both report coroutines of one class only, that of `async def`, and no subclass: it could
not be entered. So mypy needs "unused-awaitable", and pyright reportUnusedCallResult.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typing.conftest import pyright_command

SNIPPET = """\
import asyncio

import asynclock


async def main(locks: asynclock.LockManager) -> None:
    lock = locks.lock("a")
    lock.acquire()
    locks.rwlock("a").read().acquire()
    locks.multi_lock("a", "b").acquire()
    locks.reentrant_lock("a").acquire()
    locks.election("a").campaign()
    lease: asynclock.Lease = await lock.acquire()
    async with lock.acquire(timeout=1) as entered:
        number: int = entered.fence + lease.fence
    task: asyncio.Task[asynclock.Lease] = asyncio.create_task(lock.acquire())
    async with asyncio.TaskGroup() as group:
        other: asyncio.Task[asynclock.MultiLease] = group.create_task(
            locks.multi_lock("a", "b").acquire()
        )
    both = await asyncio.gather(lock.acquire(), lock.acquire())
    shielded: asynclock.Lease = await asyncio.shield(asyncio.wait_for(lock.acquire(), 1))
    future = asyncio.run_coroutine_threadsafe(lock.acquire(), asyncio.get_running_loop())
    print(number, task, other, both, shielded, future.result().fence)
    if lock.acquire():
        print("always")
    if lock.try_acquire():
        print("always")
"""
pytestmark = pytest.mark.timeout(300)

UNUSED = [8, 9, 10, 11, 12]
TRUE_ACQUIRE, TRUE_TRY_ACQUIRE = 25, 27
"""Lines that ask a call for its truth, which every coroutine has."""


@pytest.fixture
def snippet(tmp_path: Path) -> Path:
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    return path


def test_mypy(snippet: Path) -> None:
    asked = ["--enable-error-code=unused-awaitable", "--enable-error-code=truthy-bool"]
    command = [sys.executable, "-m", "mypy", "--strict", *asked]
    cache = f"--cache-dir={snippet.parent / 'cache'}"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, "--follow-imports=silent", "--output=json", cache, str(snippet)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = [one for one in found if one["severity"] == "error"]
    unused = dict.fromkeys(UNUSED, "unused-awaitable")
    true = dict.fromkeys([TRUE_ACQUIRE, TRUE_TRY_ACQUIRE], "truthy-bool")
    assert {one["line"]: one["code"] for one in errors} == unused | true, done.stdout + done.stderr


def test_pyright(snippet: Path) -> None:
    (snippet.parent / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "reportUnusedCallResult": "error",
                "reportUnnecessaryComparison": "error",
                "extraPaths": [str(Path(__file__).parents[2])],
                "include": [str(snippet)],
            }
        )
    )
    done = subprocess.run(
        [*pyright_command(), "--outputjson", "-p", str(snippet.parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [
        one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"
    ]
    unused = dict.fromkeys(UNUSED, "reportUnusedCallResult")
    assert {one["range"]["start"]["line"] + 1: one["rule"] for one in found} == {
        **unused,
        TRUE_TRY_ACQUIRE: "reportUnnecessaryComparison",
    }, done.stdout
