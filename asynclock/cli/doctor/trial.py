"""Takes a real lock and uses every other primitive once, so that all scripts of the library run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from ..._inspect.survey import ask
from ..._keys import lock_key
from ..._nodes.script import Command
from ..._primitives.kinds import KINDS
from ...errors import AsyncLockError
from ...manager import LockManager, node_access
from .._sources import Settings

PRIMITIVE_TIMEOUT = 2.0
"""Maximum seconds for each primitive."""
TTL = 5.0
"""Seconds after which the locks of an interrupted trial end by themselves."""

Use = Callable[[LockManager, str], Awaitable[object]]


async def _lock(locks: LockManager, name: str) -> None:
    lease = await locks.lock(name, timeout=PRIMITIVE_TIMEOUT).acquire()
    await lease.extend()
    await lease.release()


async def _multi(locks: LockManager, name: str) -> None:
    async with locks.multi_lock(name, f"{name}-2", timeout=PRIMITIVE_TIMEOUT):
        pass


async def _semaphore(locks: LockManager, name: str) -> None:
    async with locks.semaphore(name, 1, timeout=PRIMITIVE_TIMEOUT).acquire():
        pass


async def _rwlock(locks: LockManager, name: str) -> None:
    lock = locks.rwlock(name, timeout=PRIMITIVE_TIMEOUT)
    async with lock.read():
        pass
    async with lock.write():
        pass


async def _fair(locks: LockManager, name: str) -> None:
    async with locks.fair_lock(name, timeout=PRIMITIVE_TIMEOUT):
        pass


async def _election(locks: LockManager, name: str) -> None:
    term = await locks.election(name, timeout=PRIMITIVE_TIMEOUT).campaign()
    await term.publish("doctor")
    await term.resign()


async def _event(locks: LockManager, name: str) -> None:
    await locks.event(name, keep=TTL).set(timeout=PRIMITIVE_TIMEOUT)


async def _latch(locks: LockManager, name: str) -> None:
    await locks.latch(name, 1, keep=TTL).count_down(timeout=PRIMITIVE_TIMEOUT)


async def _barrier(locks: LockManager, name: str) -> None:
    await locks.barrier(name, 1).wait(timeout=PRIMITIVE_TIMEOUT)


async def _once(locks: LockManager, name: str) -> None:
    async with locks.once(name, keep=TTL, timeout=PRIMITIVE_TIMEOUT) as run:
        run.finish("doctor")


USES: dict[str, tuple[Use, str]] = {
    "lock": (_lock, "lock"),
    "multi_lock": (_multi, "lock"),
    "semaphore": (_semaphore, "semaphore"),
    "rwlock": (_rwlock, "rwlock"),
    "fair_lock": (_fair, "fair"),
    "election": (_election, "election"),
    "event": (_event, "event"),
    "latch": (_latch, "latch"),
    "barrier": (_barrier, "barrier"),
    "once": (_once, "once"),
}
"""For each primitive: how it is used, and the kind of the keys that it leaves."""


async def use_everything(settings: Settings, url: str) -> dict[str, str]:
    """Use each primitive on this node alone; return the cause for each one that fails.

    `settings` are those of the services, including `acks`. The guards are off, because a node
    without a vote has a finding of its own.
    """
    options = {**settings.options, "ttl": TTL, "strict": False}
    options |= {"restart_guard": False, "clock_guard": False, "set_guard": False}
    options["node_timeout"] = max(1.0, float(options.get("node_timeout", 1.0)))
    options["max_ttl"] = max(4 * options["node_timeout"], TTL, float(options.get("max_ttl", TTL)))
    run = f"doctor-{secrets.token_hex(8)}"
    failed: dict[str, str] = {}
    async with Settings((url,), options).connect() as locks:
        for primitive, (use, _) in USES.items():
            # If a plain lock fails, the other primitives would only fail in the same way.
            if "lock" not in failed and (cause := await _cause(use(locks, f"{run}-{primitive}"))):
                failed[primitive] = cause
        await _clean_up(locks, run)
    return failed


async def _cause(using: Awaitable[object]) -> str | None:
    try:
        async with asyncio.timeout(2 * PRIMITIVE_TIMEOUT):
            await using
    except AsyncLockError as error:
        nodes = getattr(error, "nodes", None)
        return next(iter(nodes.values())) if nodes else str(error)
    except TimeoutError:
        return f"no answer within {2 * PRIMITIVE_TIMEOUT:g} s"
    return None


async def _clean_up(locks: LockManager, run: str) -> None:
    access = node_access(locks)
    declared = {kind.name: kind for kind in KINDS}
    keys = {
        key
        for primitive, (_, kind) in USES.items()
        for key in declared[kind].keys(lock_key(access.prefix, f"{run}-{primitive}"))
    }
    for locked in ("multi_lock-2", "once"):
        keys |= declared["lock"].keys(lock_key(access.prefix, f"{run}-{locked}"))
    (node,) = access.nodes
    # One key per command, because on a Cluster the keys are in different slots.
    await asyncio.gather(*(ask(node, Command.plain("DEL", key)) for key in keys))
