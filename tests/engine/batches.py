"""Batches for the tests: many names in one tick, and what the nodes execute and keep."""

import asyncio
from collections.abc import Callable
from typing import Any

import asynclock
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import TTL, Nodes, Way, instead
from tests.waiting import until

NAMES = "abcde"
KINDS: dict[str, Callable[[asynclock.LockManager, str], Any]] = {
    "lock": lambda locks, name: locks.lock(name).acquire(),
    "fair_lock": lambda locks, name: locks.fair_lock(name).acquire(),
    "election": lambda locks, name: locks.election(name).campaign(),
    "read": lambda locks, name: locks.rwlock(name).read().acquire(),
    "write": lambda locks, name: locks.rwlock(name).write().acquire(),
    "semaphore": lambda locks, name: locks.semaphore(name, 3).acquire(),
}
"""The calls of all kinds whose names travel together."""


def listen(node: MemoryNode) -> list[str]:
    """Return a list of the operations that the node executes from now on."""
    seen: list[str] = []

    def listening(words: Any) -> None:
        if words[0].upper() in (b"EVALSHA", b"EVAL"):
            seen.append(words[3 + int(words[2])].decode())

    instead(node, listening)
    return seen


async def together(on: Nodes, names: str = NAMES, **settings: Any) -> list[Any]:
    """Acquire all names in one tick; return leases and errors."""
    calls = (on.locks.lock(name, **settings).acquire() for name in names)
    return await asyncio.gather(*calls, return_exceptions=True)


async def free(on: Nodes, *names: str) -> None:
    """Wait until the nodes have nothing of these names but their fences."""

    async def gone() -> bool:
        keys = [key for node in on.nodes for key in await node.command("KEYS", "asynclock:*")]
        return not any(key.split(":")[1] in names and "#fence" not in key for key in keys)

    # In virtual time, and long before a ttl is over.
    await until(gone, f"nothing of {names} is left", timeout=TTL / 2, every=0.01)


def forbid(node: MemoryNode, name: str) -> None:
    """Refuse all commands with keys of this name: the user has no right to them."""

    def refusing(words: Any) -> Any:
        keys = words[3 : 3 + int(words[2])] if words[0].upper() in (b"EVALSHA", b"EVAL") else ()
        denied = any(key.decode().partition(":#")[0] == f"asynclock:{name}" for key in keys)
        return ReplyError("NOPERM No permissions to access a key") if denied else None

    instead(node, refusing)


def deny(node: MemoryNode) -> None:
    """Refuse each script, as a server without memory does."""
    scripts, error = (b"EVALSHA", b"EVAL"), ReplyError("OOM command not allowed")
    instead(node, lambda words: error if words[0].upper() in scripts else None)


async def lease_of(on: Nodes, name: str) -> asynclock.Lease:
    return await on.locks.lock(name).acquire()


async def teach(on: Nodes) -> None:
    """Let another client, which is near, bring the nodes our scripts."""
    async with Nodes(on.nodes, [Way() for _ in on.nodes]).connect() as near, near.lock("near"):
        pass
