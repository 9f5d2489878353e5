"""What a log line or an interactive session shows of the package and its objects."""

import importlib
import importlib.metadata
import subprocess
import sys

import pytest

import asynclock
from asynclock import blocking
from asynclock.testing import LocalServer, Quorum
from tests.waiting import in_virtual_time

SECRET = "redis://user:hush@localhost"


def test_the_package_knows_its_version_and_lists_its_names() -> None:
    assert asynclock.__version__ == importlib.metadata.version("asynclock")
    assert set(asynclock.__all__) <= set(dir(asynclock))
    with pytest.raises(AttributeError, match="no attribute 'Mutex'"):
        _ = asynclock.Mutex  # type: ignore[attr-defined]  # on purpose


def test_every_object_shows_its_name() -> None:
    locks = asynclock.connect(SECRET, ttl=2.5, max_ttl=5)
    shown = {
        "<Lock 'a' ttl=2.5>": locks.lock("a"),
        "<FairLock 'a' ttl=2.5>": locks.fair_lock("a"),
        "<Semaphore 'a' permits=3 ttl=2.5>": locks.semaphore("a", 3),
        "<SemaphorePermits 'a' permits=2 of 3 ttl=2.5>": locks.semaphore("a", 3).several(2),
        "<ReadWriteLock 'a' ttl=2.5>": locks.rwlock("a"),
        "<Election 'a' ttl=2.5>": locks.election("a"),
        "<SharedEvent 'a'>": locks.event("a"),
        "<Latch 'a' count=3>": locks.latch("a", 3),
        "<Once 'a' ttl=2.5>": locks.once("a"),
        "<Barrier 'a' parties=3>": locks.barrier("a", 3),
    }
    assert {repr(one): one.name for one in shown.values()} == dict.fromkeys(shown, "a")


@in_virtual_time
async def test_leases_and_terms_show_whether_they_are_held() -> None:
    async with asynclock.connect("memory://") as locks:
        async with locks.election("e").campaign("me") as term:
            assert repr(term) == f"<Term {term.number} of 'e' held=True>"
            assert term.task is not None
        assert repr(term) == f"<Term {term.number} of 'e' held=False>"
        assert term.task is None
        async with locks.reentrant_lock("r") as lease:
            inner = repr(lease).removeprefix("<ReentrantLease of ").removesuffix(">")
            assert inner.startswith("<Lease 'r'")
        async with locks.multi_lock("m", "n", ttl=7) as both:
            assert both.ttl == 7


def test_the_objects_for_threads_show_that_they_block() -> None:
    with blocking.connect("memory://") as locks:
        shown = {
            "<blocking Lock 'a' ttl=10>": locks.lock("a"),
            "<blocking ReadWriteLock 'a' ttl=10>": locks.rwlock("a"),
            "<blocking SharedEvent 'a'>": locks.event("a"),
        }
        assert {repr(one): one.name for one in shown.values()} == dict.fromkeys(shown, "a")
        with locks.lock("a") as lease:
            assert repr(lease).startswith("<blocking Lease 'a'")


def test_managers_and_servers_show_where_they_are_and_no_password() -> None:
    locks = blocking.connect(SECRET)
    assert repr(locks).startswith("<blocking LockManager on ")
    server = LocalServer(password="hush")
    assert repr(server) == f"<LocalServer redis://127.0.0.1:{server.port} not running>"
    quorum = Quorum(1, password="hush")
    assert "of [<LocalServer redis://" in repr(quorum)
    with pytest.raises(RuntimeError, match="has not been started") as caught:
        _ = server.pid
    for one in (locks, server, quorum, caught.value):
        assert "hush" not in repr(one)
    server.close()
    quorum.close()


WITHOUT: list[tuple[str, str, str, str]] = [
    ("typer", "run('demo')", "the command line", "cli"),
    ("rich", "run('demo')", "the command line", "cli"),
    ("uvicorn", "run('serve')", "the page", "cli,dashboard"),
    ("starlette", "run('serve')", "the page", "cli,dashboard"),
    ("starlette", "import asynclock.contrib.dashboard", "", "dashboard"),
    ("starlette", "import asynclock.contrib.fastapi", "", "fastapi"),
    ("fastapi", "import asynclock.contrib.fastapi", "", "fastapi"),
    ("fastapi", "import asynclock.fencing.fastapi", "", "fastapi"),
    ("aiohttp", "import asynclock.contrib.aiohttp", "", "aiohttp"),
    ("aiohttp", "import asynclock.fencing.aiohttp", "", "aiohttp"),
    ("opentelemetry", "import asynclock.observe.otel", "", "otel"),
    ("testcontainers", "asynclock.testing.container_image()", "", "containers"),
    ("docker", "asynclock.testing.container_image()", "", "containers"),
    ("lupa.lua51", "asynclock.connect('memory://')", "memory://", "test"),
    ("trustme", "asynclock.testing.make_certificates(Path())", "make_certificates", "test"),
]
"""What is missing, what is used then, and which words and extras the error must have."""
PROGRAM = f"""
import os, sys
from pathlib import Path
import asynclock, asynclock.cli, asynclock.testing

def run(command):
    sys.argv = ["asynclock", command, *(["--node", "redis://127.0.0.1:1"] * (command == "serve"))]
    asynclock.cli.main()

for missing, use, *_ in {WITHOUT}:
    if (child := os.fork()) == 0:
        sys.modules[missing] = None
        exec(use)
        break
    assert os.waitpid(child, 0)[1], use
    print("end", file=sys.stderr)
"""


def test_a_missing_extra_is_named_in_the_same_words() -> None:
    """Each use has a process of its own; all are forked from one, which has imported the rest."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    *told, rest = done.stderr.split("end\n")
    assert (done.returncode, rest) == (0, ""), done.stderr
    for said, (_, use, what, extras) in zip(told, WITHOUT, strict=True):
        user = what or use.removeprefix("import ").removesuffix("()")
        hint = f"{user} needs an extra; install it with pip install 'asynclock[{extras}]'"
        assert hint in said.splitlines()[-1]
