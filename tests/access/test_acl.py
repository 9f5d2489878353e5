"""The least a user must be allowed, as docs/access.md says it, and what less than that means."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

import asynclock
from asynclock.testing import LocalServer, Replicated, ServerBinary
from asynclock.testing.plugin import StartServers
from tests.able_servers import server_with_waitaof
from tests.access.conftest import Connect
from tests.waiting import go_through, until

PAGE = Path(__file__).parents[2] / "docs" / "access.md"


def minimal() -> list[str]:
    """The words of the documented line, from the name on."""
    line = next(line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("user "))
    return line.split()[1:]


async def server_without(
    start: StartServers, *missing: str, binary: ServerBinary | None = None
) -> LocalServer:
    words = [word for word in minimal() if word not in missing]
    assert len(words) == len(minimal()) - len(missing)
    (server,) = await start(1, users=[" ".join(words), "default off"], binary=binary)
    return server


async def hand_over(here: asynclock.LockManager, there: asynclock.LockManager) -> None:
    """Hold it here, wait for it there, get it."""
    async with here.lock("a", timeout=20) as lease:
        await lease.extend()
        waiter = asyncio.create_task(fence(there))
        await until(lambda: there.statistics().refused, "the waiter is refused")
    assert await waiter > lease.fence


async def fence(locks: asynclock.LockManager, name: str = "a") -> int:
    async with locks.lock(name, timeout=20) as lease:
        return lease.fence


@pytest.mark.parametrize("who", ["locks", "operator"])
async def test_the_users_of_the_manifest(
    asynclock_servers: StartServers, connect: Connect, who: str
) -> None:
    text = (PAGE.parents[1] / "deploy" / "users.acl").read_text("utf-8")
    users = {line.split()[1]: line.split()[1:] for line in text.splitlines()}
    assert set(users["locks"][3:]) == {*minimal()[3:], "+client|setname"}
    (server,) = await asynclock_servers(1, users=[" ".join(words) for words in users.values()])
    locks = connect(server.url_for(who, users[who][2].removeprefix(">")))
    async with locks.lock("a", timeout=20):
        if who == "operator":
            assert [one.name async for one in locks.inspect_all()] == ["a"]
        else:
            with pytest.raises(asynclock.errors.ConfigurationError, match="SCAN"):
                [one.name async for one in locks.inspect_all()]


async def test_the_documented_line_is_enough(
    asynclock_servers: StartServers, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = await server_without(asynclock_servers)
    url = server.url_for("locks", "secret")
    here, there = connect(url), connect(url)
    await hand_over(here, there)
    assert there.statistics().wakeups["push"] >= 1
    async with connect(f"{url}/3").lock("a", timeout=20):
        pass
    assert not [record for record in caplog.records if "refuses" in record.message]
    assert here.nodes()[0].version is not None


PRIMITIVES: dict[str, Callable[[Any], Any]] = {
    "semaphore": lambda locks: locks.semaphore("s", 2).acquire(timeout=20),
    "read": lambda locks: locks.rwlock("rw").read().acquire(timeout=20),
    "write": lambda locks: locks.rwlock("rw").write().acquire(timeout=20),
    "fair": lambda locks: locks.fair_lock("f").acquire(timeout=20),
    "multi": lambda locks: locks.multi_lock("x", "y").acquire(timeout=20),
    "reentrant": lambda locks: locks.reentrant_lock("r").acquire(timeout=20),
    "election": lambda locks: locks.election("e").campaign("me", timeout=20),
    "once": lambda locks: locks.once("once").acquire(timeout=20),
}
SHARED: dict[str, Callable[[Any], Any]] = {
    "event": lambda locks: locks.event("e").set(timeout=20),
    "latch": lambda locks: locks.latch("l", 2).count_down(timeout=20),
    "barrier": lambda locks: locks.barrier("b", 1).wait(timeout=20),
}


@pytest.mark.parametrize("kind", [*PRIMITIVES, *SHARED])
async def test_it_is_enough_for_every_primitive(
    asynclock_servers: StartServers, connect: Connect, kind: str
) -> None:
    server = await server_without(asynclock_servers)
    url = server.url_for("locks", "secret")
    for locks in (connect(url), connect(url)):
        if kind in SHARED:
            await SHARED[kind](locks)
        else:
            async with PRIMITIVES[kind](locks):
                await asyncio.sleep(0)


async def waiters(locks: asynclock.LockManager) -> list[str | None]:
    return [waiter.label for waiter in (await locks.inspect("a")).waiting]


async def test_inspections_say_who_waits_and_without_the_right_the_rest(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    server = await server_without(asynclock_servers)
    await server.command(*"ACL SETUSER looks on >secret ~asynclock:* +@all -zrange -zcard".split())
    here, there = (connect(server.url_for("locks", "secret"), label=one) for one in "ab")
    looks = connect(server.url_for("looks", "secret"))
    async with here.lock("a", timeout=20) as lease:
        waiter = asyncio.create_task(fence(there))

        async def known() -> bool:
            return await waiters(here) == ["b"]

        await until(known, "it is known who waits")
        (listed,) = [one async for one in looks.inspect_all()]
        for found in (await looks.inspect("a"), listed):
            assert (found.owner, found.fence, found.waiting) == (lease.owner, lease.fence, ())
            assert [view.error for view in found.nodes] == [None]
    assert await waiter > lease.fence


async def test_it_is_not_more_than_needed(asynclock_servers: StartServers) -> None:
    server = await server_without(asynclock_servers)
    for command in ("KEYS *", "FLUSHALL", "CONFIG SET maxmemory 1", "DEBUG SLEEP 0", "LPUSH a b"):
        assert not await allowed(server, *command.split()), command


async def allowed(server: LocalServer, *words: str) -> bool:
    async with redis.asyncio.Redis.from_url(server.url_for("locks", "secret")) as client:
        try:
            await client.execute_command(*words)
        except redis.exceptions.NoPermissionError:
            return False
    return True


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["+script|load"], "refuses SCRIPT: scripts are sent in full"),
        (["+info"], "refuses INFO: each new connection is guarded"),
        (["+config|get"], "refuses CONFIG: it is assumed to forget everything"),
        (["+client|tracking", "+client|caching"], "refuses CLIENT: waiters ask again"),
        (["+select"], None),
        (["+wait"], None),
        (["+hset", "+zrevrange", "+zrangebyscore"], None),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
async def test_with_less_it_works_and_says_once_what_it_assumes(
    asynclock_servers: StartServers,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    missing: list[str],
    said: str | None,
) -> None:
    server = await server_without(asynclock_servers, *missing)
    url = server.url_for("locks", "secret")
    here = connect(url, restart_guard=False)
    with caplog.at_level(logging.WARNING, "asynclock"):
        await hand_over(here, connect(url, restart_guard=False))
        await server.command("CLIENT", "KILL", "TYPE", "normal")
        await go_through(here.lock("b", timeout=20))
    texts = [record.getMessage() for record in caplog.records if "refuses" in record.getMessage()]
    assert len(texts) == (2 if said else 0)  # once for each of the two managers
    assert all(said in text for text in texts if said)


@pytest.mark.parametrize(
    ("missing", "said"),
    [(["+evalsha"], "evalsha"), (["+set"], "script"), (["+time"], "script"), (["+pttl"], "script")],
)
@pytest.mark.parametrize("newer", [False, True])
async def test_without_scripts_it_says_so_at_the_first_acquire(
    asynclock_servers: StartServers, connect: Connect, missing: list[str], said: str, *, newer: bool
) -> None:
    """Redis words the error differently since 7.2."""
    binary = server_with_waitaof() if newer else None
    server = await server_without(asynclock_servers, *missing, binary=binary)
    with pytest.raises(asynclock.ConfigurationError, match=said):
        await connect(server.url_for("locks", "secret")).lock("a").acquire(timeout=20)


async def test_acks_without_wait_are_a_mistake(connect: Connect) -> None:
    async with Replicated(1, users=[" ".join(minimal())]) as group:
        await group.primary.command("ACL", "SETUSER", "locks", "-wait")
        locks = connect(group.primary.url_for("locks", "secret"), acks=1, restart_guard=False)
        with pytest.raises(asynclock.ConfigurationError, match="wait"):
            await locks.lock("a").acquire(timeout=20)


async def test_another_prefix_is_none_of_its_business(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    server = await server_without(asynclock_servers)
    locks = connect(server.url_for("locks", "secret"), prefix="other:")
    calls = (locks.lock("a").acquire(timeout=20), locks.release_held("a", force=True))
    for call in (*calls, locks.ask_back("a")):
        with pytest.raises(asynclock.ConfigurationError, match="NOPERM"):
            await call


async def test_a_release_that_is_refused_is_told(
    asynclock_servers: StartServers, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = await server_without(asynclock_servers, "+del")
    locks = connect(server.url_for("locks", "secret"))
    for name in ("a", "b"):
        lease = await locks.lock(name, timeout=20).acquire()
        assert await lease.release()
    told = [record.message for record in caplog.records if "refuses releases" in record.message]
    assert len(told) == 1
