"""A number of ours that somebody has changed by hand is refused, and the error names its key."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.testing import LocalServer
from tests.engine.kinds import calls
from tests.patient import connect_to
from tests.waiting import PATIENCE, go_through, until

LOCKS = calls("strict", "one of two")
TEXTS = [str(2**53 - 1), "-1", "inf", "1e300", "abc", ""]


async def use(locks: asynclock.LockManager, kind: str) -> int:
    async with asyncio.timeout(PATIENCE), LOCKS[kind](locks) as lease:
        fence: int = lease.number if kind == "election" else lease.fence
        return fence


async def damage(server: LocalServer, text: str) -> set[str]:
    """Give each fence counter this text; return the counters' keys."""
    keys: Any = await server.command("KEYS", "*:#fence")
    for key in keys:
        await server.command("SET", key, text)
    return set(keys)


async def lock_keys(server: LocalServer) -> set[str]:
    keys: Any = await server.command("KEYS", "*")
    return {key for key in keys if not key.endswith((":#fence", ":#witness", ":#message"))}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", LOCKS)
async def test_a_damaged_counter_is_refused(
    asynclock_nodes: list[LocalServer], kind: str, text: str
) -> None:
    server = asynclock_nodes[0]
    async with connect_to([server]) as locks:
        await use(locks, kind)
        keys = await damage(server, text)
        for _ in range(2):  # the refusal changes nothing
            with pytest.raises(asynclock.ConfigurationError) as caught:
                await use(locks, kind)
            assert any(f"{key} must keep a whole number" in str(caught.value) for key in keys)
        assert text in [await server.command("GET", key) for key in keys]
        await until(lambda: free(server))
        for key in keys:
            await server.command("DEL", key)
        await use(locks, kind)


async def free(server: LocalServer) -> bool:
    return not await lock_keys(server)


@pytest.mark.parametrize("kind", LOCKS)
async def test_one_damaged_counter_of_three_is_left_out(
    asynclock_nodes: list[LocalServer], kind: str
) -> None:
    async with connect_to(asynclock_nodes) as locks:
        fences = [await use(locks, kind)]
        await damage(asynclock_nodes[0], "9007199254740992")
        fences += [await use(locks, kind) for _ in range(3)]
        assert fences == sorted(set(fences))
        assert max(fences) < 2**53


async def test_names_of_a_command_do_not_share_damage(asynclock_nodes: list[LocalServer]) -> None:
    server = asynclock_nodes[0]
    async with connect_to([server]) as locks:
        await go_through(locks.lock("a"))
        await damage(server, str(-(2**63)))
        wishes = [locks.lock(name).acquire(timeout=5) for name in "abc"]
        broken, *leases = await asyncio.gather(*wishes, return_exceptions=True)
        assert "asynclock:a:#fence must keep" in str(broken)
        assert all(isinstance(lease, asynclock.Lease) and lease.held for lease in leases)


@pytest.mark.parametrize("handoff", [True, "strict"])
async def test_a_counter_that_is_damaged_while_the_lock_is_held(
    asynclock_nodes: list[LocalServer], handoff: Any
) -> None:
    server = asynclock_nodes[0]
    async with connect_to([server]) as locks:
        lease = await locks.lock("a", handoff=handoff).acquire()
        await damage(server, "9007199254740992")
        waiting = asyncio.create_task(use(locks, "lock"))
        await until(lambda: locks.statistics().waiting)
        with pytest.raises(asynclock.ConfigurationError, match="asynclock:a:#fence must keep"):
            await asyncio.gather(waiting, lease.release())
        (view,) = (await locks.inspect("a")).nodes
        assert "asynclock:a:#fence must keep" in (view.error or "")


@pytest.mark.parametrize("kind", ["lock", "read", "election"])
async def test_an_inspection_names_the_key(asynclock_nodes: list[LocalServer], kind: str) -> None:
    async with connect_to(asynclock_nodes) as locks:
        await use(locks, kind)
        keys = await damage(asynclock_nodes[1], "9007199254740992")
        if kind == "lock":
            found = await locks.inspect("a")
        else:
            found = await (locks.rwlock("a") if kind == "read" else locks.election("a")).inspect()
        errors = [part.nodes[1].error or "" for part in (found.parts or (found,))]
        assert any(f"{key} must keep a whole number" in error for key in keys for error in errors)


@pytest.mark.parametrize("field", ["promised", "accepted"])
@pytest.mark.parametrize("text", ["9007199254740992", "abc"])
async def test_a_damaged_number_of_a_register_is_refused(
    asynclock_nodes: list[LocalServer], field: str, text: str
) -> None:
    server = asynclock_nodes[0]
    async with connect_to([server]) as locks, connect_to(asynclock_nodes) as three:
        await three.event("a").set()
        await server.command("HSET", "asynclock:a:#event", field, text)
        with pytest.raises(asynclock.ConfigurationError, match="asynclock:a:#event must keep"):
            await locks.event("a").is_set(timeout=2)
        with pytest.raises(asynclock.ConfigurationError, match="asynclock:a:#event must keep"):
            await locks.event("a").set(timeout=2)
        await three.event("a").clear(timeout=5)
        assert not await three.event("a").is_set(timeout=5)
