"""What is kept for a node that comes and goes: one entry per lease, nothing that can't matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.pending_releases import PendingReleases
from asynclock._nodes.replies import Failure, Sink
from asynclock._nodes.script import Command, Word
from asynclock._primitives.lock import SCRIPT
from asynclock.testing import FaultProxy, LocalServer, memory_node, run_virtual, until
from tests.waiting import in_virtual_time

LEASES = 20
NODE_TIMEOUT = 0.1
ALL_REPEATS = 10 * NODE_TIMEOUT
"""Seconds in which every repeat that was scheduled has been sent."""


@pytest.fixture
async def proxy(asynclock_nodes: list[LocalServer]) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        yield proxy


@pytest.fixture
async def locks(
    asynclock_nodes: list[LocalServer], proxy: FaultProxy
) -> AsyncIterator[asynclock.LockManager]:
    urls = [proxy.url, *(node.url for node in asynclock_nodes[1:])]
    settings = {"ttl": 60.0, "max_ttl": 60.0, "node_timeout": NODE_TIMEOUT}
    async with asynclock.connect(*urls, restart_guard=False, **settings) as locks:  # type: ignore[arg-type]
        yield locks


async def releases(node: LocalServer) -> int:
    """How often the node has run a script."""
    for line in (await node.command("INFO", "commandstats")).splitlines():
        if line.startswith("cmdstat_evalsha:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


async def comes_and_goes(
    locks: asynclock.LockManager, proxy: FaultProxy, state: str, *, times: int = 1
) -> None:
    for _ in range(times):
        proxy.partition()
        await is_seen(locks, "down")
        proxy.heal()
        await is_seen(locks, "up")
    if state == "down":
        proxy.partition()
        await is_seen(locks, "down")


async def is_seen(locks: asynclock.LockManager, state: str) -> None:
    async def seen() -> bool:
        return locks.nodes()[0].state == state

    await until(seen, f"the first node is seen {state}")


async def test_a_node_that_comes_and_goes_gets_each_release_once(
    asynclock_nodes: list[LocalServer], locks: asynclock.LockManager, proxy: FaultProxy
) -> None:
    node = asynclock_nodes[0]
    leases = [await locks.lock(f"n{i}").acquire() for i in range(LEASES)]
    assert (await locks.inspect("n0")).nodes[0].owner  # all before is answered, too
    proxy.partition()
    await is_seen(locks, "down")
    for lease in leases:
        assert await lease.release()
    assert await node.command("EXISTS", *(f"asynclock:n{i}" for i in range(LEASES))) == LEASES
    before = await releases(node)
    proxy.heal()
    await is_seen(locks, "up")
    await comes_and_goes(locks, proxy, "up", times=4)
    await asyncio.sleep(ALL_REPEATS)
    assert await node.command("EXISTS", *(f"asynclock:n{i}" for i in range(LEASES))) == 0
    assert await releases(node) - before <= 2 * LEASES  # a cut may have swallowed the replies


async def test_nothing_is_kept_for_a_node_that_was_sent_nothing(
    asynclock_nodes: list[LocalServer], locks: asynclock.LockManager, proxy: FaultProxy
) -> None:
    async with locks.lock("warm"):
        pass

    async def answered() -> bool:
        return (await locks.inspect("warm")).nodes[0].error is None

    await until(answered, "the first node has answered everything")
    proxy.partition()
    await is_seen(locks, "down")
    before = await releases(asynclock_nodes[0])
    for number in range(LEASES):
        async with locks.lock(f"n{number}"):
            pass
    proxy.heal()
    await is_seen(locks, "up")
    await asyncio.sleep(ALL_REPEATS)
    assert await releases(asynclock_nodes[0]) == before


@pytest.mark.parametrize("ttl", [10.0, 60.0])
def test_the_backlog_of_a_flapping_node_is_bounded(ttl: float) -> None:
    """0.5 s up and 0.8 s down, 40 locks a second, for half a minute of virtual time."""

    async def scenario() -> int:
        asynclock_nodes = ("memory://a", "memory://b", "memory://c")
        most, tasks = 0, set()
        async with asynclock.connect(*asynclock_nodes, ttl=ttl, restart_guard=False) as locks:

            async def use(number: int) -> None:
                async with locks.lock(f"n{number}", timeout=5):
                    await asyncio.sleep(0.05)

            node = locks._engine.multiplexer.nodes[0]
            for number in range(30 * 40):
                phase = number / 40 % 1.3
                if phase < 0.5 and not memory_node("a").alive:
                    memory_node("a").restart(keep_data=True)
                elif phase >= 0.5 and memory_node("a").alive:
                    memory_node("a").kill()
                task = asyncio.create_task(use(number))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                await asyncio.sleep(1 / 40)
                most = max(most, len(node.pending))
            await asyncio.gather(*tasks)
            assert locks.statistics().lost == 0
        return most

    assert run_virtual(scenario()) <= 10


# ---- the rules alone; tests/nodes/test_server_requests.py shows when each release is repeated


class Sends:
    """Keeps what is sent, and the sinks for its answers."""

    def __init__(self) -> None:
        self.sent: list[tuple[Word, Sink]] = []

    def __call__(self, command: Command, sink: Sink) -> None:
        self.sent.append((command.owner, sink))


def ours(owner: str, *, since: float = 0.0, ttl: float = 60.0) -> Command:
    return Command.release(SCRIPT, ("asynclock:a",), owner, since, _clock.now() + ttl)


@in_virtual_time
async def test_only_what_the_server_was_asked_for_before_it_fell_silent_is_kept() -> None:
    pending, silent = PendingReleases(1.0, Sends()), _clock.now()
    commands = [ours("before", since=silent), ours("after", since=silent + 0.1)]
    pending.connection_broke(commands, silent)
    assert [command.owner for command in pending.take()] == ["before"]


@in_virtual_time
async def test_another_server_with_these_keys_gets_what_still_matters_and_this_one_nothing() -> (
    None
):
    sends = Sends()
    pending = PendingReleases(1.0, sends)
    for command in (ours("a", ttl=1.0), ours("b")):
        pending.keep(command)
    pending.resend()
    for _, sink in sends.sent:
        sink.on_reply(0, Failure("no answer"))
    await asyncio.sleep(1.05)
    assert [command.owner for command in pending.take()] == ["b"]
    await asyncio.sleep(10)
    pending.resend()
    assert [owner for owner, _ in sends.sent] == ["a", "b"]


@in_virtual_time
async def test_a_release_whose_key_has_moved_goes_to_the_other_server_once() -> None:
    for moved in (True, False):
        sends, elsewhere = Sends(), list[Word]()
        pending = PendingReleases(1.0, sends)
        if moved:
            pending.on_redirect = lambda command: elsewhere.append(command.owner)  # noqa: B023
        pending.keep(ours("a"))
        pending.resend()
        sends.sent[0][1].on_reply(0, Failure("MOVED 1 b:2", code="MOVED"))
        await asyncio.sleep(2)
        assert elsewhere == ["a"] * moved
        assert len(sends.sent) == (1 if moved else 2)
        assert len(pending) == (0 if moved else 1)


@in_virtual_time
async def test_closing_ends_when_nothing_is_kept_any_more_and_each_time() -> None:
    """One wait that is cancelled does not end another one."""
    pending = PendingReleases(1.0, Sends())
    for _ in range(2):
        pending.keep(ours("a"))
        waits = [asyncio.create_task(pending.wait_sent()) for _ in range(2)]
        await asyncio.sleep(0.1)
        waits[0].cancel()
        await asyncio.sleep(0.1)
        assert not waits[1].done()
        pending.clear()
        async with asyncio.timeout(1):
            await waits[1]


@in_virtual_time
async def test_what_is_over_by_a_clock_that_was_set_back_is_kept_that_much_longer() -> None:
    pending = PendingReleases(1.0, Sends())
    pending.keep(ours("a", ttl=1.0))
    pending.set_back = 5.0
    await asyncio.sleep(5.9)
    pending.drop_expired()
    assert len(pending) == 1
    await asyncio.sleep(0.2)
    pending.drop_expired()
    assert len(pending) == 0


@in_virtual_time
async def test_a_leave_and_a_release_that_name_the_same_are_both_repeated() -> None:
    sent: list[Command] = []
    pending = PendingReleases(NODE_TIMEOUT, lambda command, _sink: sent.append(command))
    release = Command.release(SCRIPT, ("a",), "me", 0.0, _clock.now() + 60)
    leave = Command(SCRIPT, ("a",), ("leave", "me"))
    leave.asked_since, leave.retry_until = 0.0, _clock.now() + 60
    pending.connection_broke([release, leave, release], _clock.now())
    pending.resend()
    assert sent == [release, leave]
    pending.clear()


@in_virtual_time
async def test_a_release_that_fails_is_repeated_ever_more_rarely_up_to_a_limit() -> None:
    """A node that is well again must not keep the name locked for long."""
    moments: list[float] = []

    def failing(_command: Command, sink: Sink) -> None:
        moments.append(_clock.now())
        sink.on_reply(0, Failure("LOADING the data"))

    pending = PendingReleases(1.0, failing)
    pending.keep(Command.release(SCRIPT, ("a",), "me", 0.0, _clock.now() + 60))
    pending.resend()
    await pending.wait_sent()
    pauses = [after - one for one, after in pairwise(moments)]
    assert pauses == pytest.approx([1.1, 2.1, 4.1, *[8.1] * 6], abs=0.001)
