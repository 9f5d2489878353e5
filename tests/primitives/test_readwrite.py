"""The read-write lock: readers together, writers alone, and writers not starved."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import asynclock
from asynclock import _clock
from asynclock._primitives import readwrite
from asynclock.testing import History, LocalServer, check, run_virtual
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.plugin import StartServers
from tests.contract.faces import Face
from tests.primitives.conftest import Connect, hold
from tests.waiting import PATIENCE, becomes, until


async def test_readers_share_and_writers_do_not(connect: Connect) -> None:
    here, there = connect(), connect()
    async with here.rwlock("cfg").read() as first, there.rwlock("cfg").read() as second:
        assert first.owner != second.owner
        assert first.part == second.part == "read"
        assert await there.rwlock("cfg").write().try_acquire() is None
    async with here.rwlock("cfg").write() as writer:
        assert writer.fence > max(first.fence, second.fence)
        assert await there.rwlock("cfg").read().try_acquire() is None
        assert await there.rwlock("cfg").write().try_acquire() is None
    reader = await there.rwlock("cfg").read().acquire(timeout=PATIENCE)
    assert reader.fence > writer.fence


async def test_nothing_is_left_behind(face: Face, connect: Connect) -> None:
    locks = connect()
    async with locks.rwlock("cfg").read():
        pass
    async with locks.rwlock("cfg").write():
        pass
    await face.empty()


async def test_each_reader_is_renewed_by_itself(connect: Connect) -> None:
    locks = connect(ttl=2)
    one = await locks.rwlock("cfg", renew=False).read().acquire(timeout=PATIENCE)
    two = await locks.rwlock("cfg").read().acquire(timeout=PATIENCE)
    ends = _clock.now() + two.remaining()
    await asyncio.wait_for(one.wait_lost(), PATIENCE)
    assert one.lost_reason
    await asyncio.sleep(ends + 0.1 - _clock.now())
    assert two.held
    assert await two.release() is True
    assert await locks.rwlock("cfg").write().try_acquire() is not None


async def test_a_waiting_writer_keeps_new_readers_out(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readwrite, "PATIENCE", 600.0)  # no ticket expires
    here, there = connect(), connect()
    reader = await here.rwlock("cfg").read().acquire(timeout=PATIENCE)
    writer = asyncio.create_task(hold(there.rwlock("cfg").write()))
    async with asyncio.timeout(PATIENCE):
        while (late := await here.rwlock("cfg").read().try_acquire()) is not None:
            await late.release()  # until the writer has said that it waits
            await asyncio.sleep(0.01)
    refused = here.statistics().refused
    waiting = asyncio.create_task(hold(here.rwlock("cfg").read()))
    await until(lambda: here.statistics().refused > refused, "the reader is refused")
    assert not writer.done()
    assert not waiting.done()
    await reader.release()
    lease = await asyncio.wait_for(writer, PATIENCE)
    assert not waiting.done()
    await lease.release()
    assert (await asyncio.wait_for(waiting, PATIENCE)).fence > lease.fence


async def test_a_writer_that_gives_up_lets_readers_in(
    face: Face, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readwrite, "PATIENCE", 600.0)  # its ticket does not expire
    here, there = connect(), connect()
    reader = await here.rwlock("cfg").read().acquire(timeout=PATIENCE)
    with pytest.raises(asynclock.AcquireTimeoutError):
        await there.rwlock("cfg").write().acquire(timeout=0.2)
    before = there.statistics().refused
    writer = asyncio.create_task(hold(there.rwlock("cfg").write()))
    await until(lambda: there.statistics().refused > before, "the writer is refused")
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    late = await until(here.rwlock("cfg").read().try_acquire, "a reader is let in")
    await late.release()
    await reader.release()
    await face.empty()


@pytest.mark.parametrize("late", [False, True])
async def test_a_writer_that_wins_takes_its_ticket_back_everywhere(
    asynclock_servers: StartServers,
    connect_to: Connect,
    monkeypatch: pytest.MonkeyPatch,
    *,
    late: bool,
) -> None:
    """Also on a node with a reader, whose refusal comes before the verdict or after it."""
    monkeypatch.setattr(readwrite, "PATIENCE", 60.0)  # it must not go by itself
    servers = await asynclock_servers(3)
    locks = connect_to(servers, node_timeout=2)
    await locks.event("warm").is_set()
    reads = servers[0]
    seconds = int((await reads.command("TIME"))[0])
    await reads.command("ZADD", "asynclock:cfg:#readers", (seconds + 60) * 1000, "f00:gone")
    await reads.command("PEXPIRE", "asynclock:cfg:#readers", 60_000)
    if late:
        await reads.freeze()
    async with locks.rwlock("cfg").write().acquire(timeout=PATIENCE):
        await reads.thaw()
        await until(lambda: executed(reads, "zrevrange"), "the attempt is executed")
        await becomes(lambda: reads.command("EXISTS", "asynclock:cfg:#phases"), 0)


async def executed(server: LocalServer, command: str) -> bool:
    """Whether the server has executed this command, alone or in a script."""
    return f"cmdstat_{command}:" in await server.command("INFO", "commandstats")


async def test_a_writer_that_crashes_while_it_waits_lets_readers_in(
    face: Face, connect: Connect
) -> None:
    """No waiter removes its ticket, so it expires."""
    here = connect()
    for server in face.well:
        await server.command("ZADD", "asynclock:cfg:#phases", 2, "gone")
        await server.command("SET", "asynclock:cfg:#phases:#gone", "1", "PX", 60_000)
    assert await here.rwlock("cfg").read().try_acquire() is None
    for server in face.well:
        await server.command("PEXPIRE", "asynclock:cfg:#phases:#gone", 100)
    lease = await here.rwlock("cfg").read().acquire(timeout=PATIENCE)
    assert lease.held


async def test_readers_that_waited_for_a_writer_go_before_the_next_one(
    asynclock_servers: StartServers, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they came after it; and a reader that comes then goes after it.

    Over several nodes a reader whose request crosses the release may go after the next writer.
    """
    monkeypatch.setattr(readwrite, "PATIENCE", 600.0)  # no ticket expires
    servers = await asynclock_servers(1)
    here, there, far = (connect_to(servers) for _ in range(3))
    writing = await hold(here.rwlock("cfg").write())
    next_one = asyncio.create_task(hold(there.rwlock("cfg").write()))
    await until(lambda: there.statistics().refused >= 1, "the next writer is refused")
    readers = [asyncio.create_task(hold(far.rwlock("cfg").read())) for _ in range(3)]
    await until(lambda: far.statistics().refused >= 3, "all readers are refused")
    await writing.release()
    leases = await asyncio.wait_for(asyncio.gather(*readers), PATIENCE)
    assert not next_one.done()
    late = asyncio.create_task(hold(here.rwlock("cfg").read()))
    refused = here.statistics().refused
    await until(lambda: here.statistics().refused > refused, "the late reader is refused")
    for lease in leases:
        assert lease.fence > writing.fence
        assert await lease.release()
    lease = await asyncio.wait_for(next_one, PATIENCE)
    assert lease.fence > max(one.fence for one in leases)
    assert not late.done()
    await lease.release()
    assert (await asyncio.wait_for(late, PATIENCE)).fence > lease.fence


async def test_readers_do_not_rival_one_another(
    asynclock_servers: StartServers, connect_to: Connect
) -> None:
    """However votes fall between them and writers, they take no room that slows writers down."""
    servers = await asynclock_servers(5)
    locks = connect_to(servers)
    for server, writer in zip(servers[:3], "abc", strict=True):
        await server.command("SET", "asynclock:cfg:#write", f"{writer}:gone", "PX", 60_000)
    waiting = [asyncio.create_task(hold(locks.rwlock("cfg").read())) for _ in range(10)]
    await until(lambda: locks.statistics().refused >= 10, "all readers are refused")
    assert locks.statistics().split_votes == 0
    for server in servers[:3]:
        await server.command("DEL", "asynclock:cfg:#write")
    # They ask again at times: the locks that were in the way had a minute left.
    leases = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
    assert all(lease.held for lease in leases)


async def test_no_task_waits_for_itself(connect: Connect) -> None:
    locks = connect()
    async with locks.rwlock("cfg").read():
        with pytest.raises(asynclock.AlreadyHeldError):
            await locks.rwlock("cfg").write().acquire(timeout=PATIENCE)
    async with locks.rwlock("cfg").write():
        with pytest.raises(asynclock.AlreadyHeldError):
            await locks.rwlock("cfg").read().acquire(timeout=PATIENCE)


async def test_inspect_shows_the_writer_and_the_readers(connect: Connect) -> None:
    locks = connect(label="web")
    async with locks.rwlock("cfg").read() as one, locks.rwlock("cfg").read() as two:
        seen = await locks.rwlock("cfg").inspect()
    assert seen.kind == "rwlock"
    assert seen.parts[0].part == "write"
    assert seen.parts[0].owner is None
    assert {part.owner for part in seen.parts[1:]} == {one.owner, two.owner}
    assert {part.part for part in seen.parts[1:]} == {"read"}
    assert all(part.remaining and part.holder == "web" for part in seen.parts[1:])
    async with locks.rwlock("cfg").write() as writer:
        seen = await locks.rwlock("cfg").inspect()
    assert [part.owner for part in seen.parts] == [writer.owner]


@pytest.mark.parametrize("nodes", [1, 5])
async def test_nine_readers_to_one_writer(
    asynclock_servers: StartServers, connect_to: Connect, nodes: int
) -> None:
    """Readers overlap, no writer overlaps anything, and writers are not starved."""
    servers = await asynclock_servers(nodes)
    history = History()
    managers = [connect_to(servers) for _ in range(4)]
    reading = peak = written = 0

    def going_on() -> bool:
        return peak < 10 or written < 20

    async def read(number: int) -> None:
        nonlocal reading, peak
        while going_on():
            began = history.now()
            async with managers[number % 4].rwlock("cfg").read() as lease:
                with history.body(lease, began=began, shared=True):
                    reading += 1
                    peak = max(peak, reading)
                    await asyncio.sleep(0.03)
                    reading -= 1

    async def write(number: int) -> None:
        nonlocal written
        while going_on():
            await asyncio.sleep(0.1)
            began = history.now()
            async with managers[number % 4].rwlock("cfg").write() as lease:
                written += 1
                with history.body(lease, began=began):
                    assert reading == 0
                    await asyncio.sleep(0.002)

    await asyncio.gather(*(read(n) for n in range(18)), *(write(n) for n in range(2)))
    assert check(history) == []


@pytest.mark.parametrize("nodes", [1, 5])
def test_a_writer_waits_for_each_writer_before_it_and_one_round_of_readers(nodes: int) -> None:
    run_virtual(_busy_readers(nodes))


async def _busy_readers(nodes: int) -> None:
    places = [MemoryEndpoint(name, MemoryNode(name)) for name in "abcde"[:nodes]]
    waits: list[float] = []
    reading, writers, stop = 0.05, 5, _clock.now() + 2.0

    async def read(locks: asynclock.LockManager, number: int) -> None:
        await asyncio.sleep(number * reading / 18)
        while _clock.now() < stop:
            async with locks.rwlock("cfg").read():
                await asyncio.sleep(reading)

    async def write(locks: asynclock.LockManager, number: int) -> None:
        await asyncio.sleep(0.017 * number)
        while _clock.now() < stop:
            began = _clock.now()
            async with locks.rwlock("cfg").write():
                waits.append(_clock.now() - began)
            await asyncio.sleep(0.1)

    async with AsyncExitStack() as stack:
        managers = [asynclock.connect(*places, restart_guard=False) for _ in range(6)]
        for locks in managers:
            await stack.enter_async_context(locks)
        readers = (read(managers[number % 6], number) for number in range(18))
        await asyncio.gather(*readers, *(write(managers[n], n) for n in range(writers)))
    assert len(waits) > 10
    assert max(waits) < (writers + 1) * reading + 0.1
