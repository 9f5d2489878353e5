"""Election: one term at a time, terms rise, observers see who leads and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import asynclock
from asynclock.testing import History, LocalServer, check
from asynclock.testing.plugin import StartServers
from tests.contract.faces import Face
from tests.primitives.conftest import Connect
from tests.waiting import PATIENCE, until, waits

CAMPAIGNER = Path(__file__).with_name("campaigner.py")
TTL = 1.5


async def test_terms_follow_one_another(face: Face, connect: Connect) -> None:
    here, there = connect(label="here"), connect(label="there")
    assert await there.election("scheduler").leader() is None
    async with here.election("scheduler").campaign("10.0.0.1:80") as first:
        assert first.held
        with pytest.raises(asynclock.AcquireTimeoutError):
            await there.election("scheduler").campaign(timeout=0.1)
        seen = await there.election("scheduler").leader()
        assert seen is not None
        assert (seen.term, seen.value, seen.holder) == (first.number, "10.0.0.1:80", "here")
        before = there.statistics().refused
        follower = asyncio.create_task(_lead(there, "10.0.0.2:80"))
        await until(lambda: there.statistics().refused > before, "the follower is refused")
        assert not follower.done()
        assert await first.resign() is True
    second = await asyncio.wait_for(follower, PATIENCE)
    assert second.number > first.number
    with pytest.raises(asynclock.LeaseLostError):
        await first.publish("too late")
    await second.resign()
    await face.empty(":#value")


async def _lead(locks: asynclock.LockManager, value: str) -> asynclock.Term:
    return await locks.election("scheduler").campaign(value)


async def test_observers_see_leaders_and_values(connect: Connect) -> None:
    here, there = connect(), connect()
    seen: list[tuple[int, str]] = []
    arrived = asyncio.Condition()

    async def watch() -> None:
        async with contextlib.aclosing(there.election("scheduler").observe()) as leaders:
            async for leader in leaders:
                async with arrived:
                    seen.append((leader.term, leader.value))
                    arrived.notify_all()

    async def expect(*wanted: tuple[int, str]) -> None:
        async with asyncio.timeout(PATIENCE), arrived:
            await arrived.wait_for(lambda: seen == list(wanted))

    observer = asyncio.create_task(watch())
    async with here.election("scheduler").campaign("one") as first:
        await expect((first.number, "one"))
        assert await first.publish("two")
        await expect((first.number, "one"), (first.number, "two"))
    async with here.election("scheduler").campaign("two") as second:
        await expect((first.number, "one"), (first.number, "two"), (second.number, "two"))
    observer.cancel()
    await asyncio.gather(observer, return_exceptions=True)


async def test_the_value_comes_back_to_a_node_that_forgot(face: Face, connect: Connect) -> None:
    locks = connect(ttl=1.5)  # a leader tells the nodes its value again and again
    async with locks.election("scheduler").campaign("here"):
        for server in face.well:
            await server.command("DEL", "asynclock:scheduler:#value")
        await until(locks.election("scheduler").leader, "the value is back")


async def test_foreign_values_are_ignored(face: Face, connect: Connect) -> None:
    locks = connect()
    async with locks.election("scheduler").campaign("mine") as term:
        for server in face.well[: len(face.well) // 2]:
            await server.command(
                "SET", "asynclock:scheduler:#value", '[99999999999999999, 1, "x", "evil"]'
            )
        if len(face.well) > 1:
            leader = await locks.election("scheduler").leader()
            assert leader is not None
            assert leader.value == "mine"
        for server in face.well:
            await server.command("SET", "asynclock:scheduler:#value", "not json")
        assert await locks.election("scheduler").leader() is None
        assert term.held
    with pytest.raises(asynclock.ConfigurationError):
        locks.election("scheduler").campaign(7)  # type: ignore[arg-type]  # that is the point


async def test_inspect_and_cancel(face: Face, connect: Connect) -> None:
    here, there = connect(), connect()
    async with here.election("scheduler").campaign() as term:
        seen = await there.election("scheduler").inspect()
        assert (seen.kind, seen.part, seen.owner) == ("election", "leader", term.lease.owner)
        waiting = asyncio.create_task(_lead(there, ""))
        await waits(there)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await face.empty(":#value")


@contextlib.asynccontextmanager
async def campaigner(
    history: Path, servers: list[LocalServer]
) -> AsyncIterator[asyncio.subprocess.Process]:
    urls = [server.url for server in servers]
    process = await asyncio.create_subprocess_exec(
        sys.executable, CAMPAIGNER, history, str(TTL), *urls, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.nightly)])
@pytest.mark.timeout(180)
async def test_a_killed_leader_is_replaced_within_its_ttl(
    asynclock_servers: StartServers,
    connect_to: Connect,
    tmp_path: Path,
    record_testsuite_property: Callable[[str, object], None],
    kills: int,
) -> None:
    servers = await asynclock_servers(3)
    path = tmp_path / "history.jsonl"
    history = History(path)
    election = connect_to(servers, ttl=TTL).election("scheduler")
    killed: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(campaigner(path, servers)) for _ in range(kills + 1)
        ]
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        by_pid = {process.pid: process for process in processes}
        led: set[int] = set()
        leaders = await stack.enter_async_context(contextlib.aclosing(election.observe()))
        async for leader in leaders:
            pid = int(leader.value)
            if pid in led:
                continue
            led.add(pid)
            if len(led) > kills:
                break
            # Published before `campaign` returns: let it write down that it leads.
            process = by_pid[pid]
            assert process.stdout is not None
            assert (await process.stdout.readline()).startswith(b"leads")
            killed.append(history.now())
            process.kill()
        process = by_pid[pid]
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"leads")
    assert check(history) == []
    began = [event for event in history if event.kind == "acquired"]
    terms = [event.fence for event in began]
    assert terms == sorted(set(terms))
    gaps = [event.at - at for at, event in zip(killed, began[1:], strict=True)]
    record_testsuite_property("seconds without a leader", [round(gap, 2) for gap in gaps])
    assert max(gaps) <= TTL + 1.0
