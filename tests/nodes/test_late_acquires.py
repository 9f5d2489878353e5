"""Keys that a broken connection leaves on a server must not wait for the end of their ttl there."""

import asyncio
from collections.abc import Callable

import pytest

import asynclock
from asynclock.testing.memory import MemoryNode, Stream
from tests.engine.virtual_nodes import Nodes, Way
from tests.tables.inside import now
from tests.waiting import call_off, go_through, in_virtual_time

LATE = 0.4
NODE_TIMEOUT = 0.1
KEY = b"asynclock:a"


def connect(nodes: list[MemoryNode], detour: Way, ttl: float = 60) -> asynclock.LockManager:
    """The first node is reached by the detour."""
    on = Nodes(nodes, [detour, *(Way() for _ in nodes[1:])])
    return on.connect(ttl=ttl, max_ttl=60, node_timeout=NODE_TIMEOUT, restart_guard=False)


async def comes(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def broken(locks: asynclock.LockManager, *, back: bool = False) -> None:
    """Wait until the first connection has ended, and perhaps until the next one is open."""
    while locks.nodes()[0].state == "up":
        await asyncio.sleep(0)
    while back and locks.nodes()[0].state != "up":
        await asyncio.sleep(0.001)


async def vanishes(node: MemoryNode) -> None:
    while node.keys.get(KEY) is not None:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("back", [True, False])
@in_virtual_time
async def test_a_lease_released_before_its_own_request_arrives_leaves_no_key(back: bool) -> None:
    """Won by the others' votes, released on the next connection; then the old one delivers.

    back: whether the next connection is open when the release is made, or still being opened.
    """
    nodes, detour = [MemoryNode(name) for name in "abc"], Way()
    async with asyncio.timeout(20), connect(nodes, detour, ttl=60) as locks:
        await go_through(locks.lock("warm"))
        detour.seconds = LATE
        lease = await locks.lock("a").acquire()
        detour.seconds = 0.0
        nodes[0].cut()
        await broken(locks, back=back)
        await lease.release()
        while nodes[0].keys.get(KEY + b":#fence") is None:
            await asyncio.sleep(0.01)
        await vanishes(nodes[0])


class Slow(Way):
    """Holds up the first piece with an acquire in it, and so what follows on its connection."""

    held: Stream | None = None

    def admit(self, stream: Stream, data: bytes) -> bool:
        if self.seconds and b"\r\nacquire\r\n" in data:
            self.held = stream
            loop = asyncio.get_running_loop()
            loop.call_later(self.seconds, self.let_go, context=stream.context)
            self.seconds = 0.0
        return stream is not self.held

    def let_go(self) -> None:
        stream, self.held = self.held, None
        assert stream is not None
        stream.pump()

    def delay(self) -> float:
        return 0.0


@pytest.mark.parametrize("met", [True, False])
@in_virtual_time
async def test_the_first_acquire_of_a_manager_is_not_executed_long_after(met: bool) -> None:
    """It is made before enough clocks are known; it arrives after all repeated releases."""
    nodes = [MemoryNode(name) for name in "abc"]
    detour = Slow()

    locks = connect(nodes, detour, ttl=60)  # not entered: that waits for the nodes
    if met:  # one of three
        nodes[1].freeze()
        nodes[2].freeze()
        knowing = asyncio.ensure_future(locks.ready())
        await comes(lambda: locks.nodes()[0].state == "up")
        knowing.cancel()
    detour.seconds = 20 * NODE_TIMEOUT
    acquiring = asyncio.ensure_future(locks.lock("a").acquire())
    await comes(lambda: not detour.seconds)
    nodes[1].thaw()
    nodes[2].thaw()
    lease = await acquiring
    nodes[0].cut()
    await broken(locks)
    await lease.release()
    await comes(lambda: detour.held is None)
    await asyncio.sleep(NODE_TIMEOUT)
    assert nodes[0].keys.get(KEY) is None
    await locks.aclose()


@in_virtual_time
async def test_a_release_is_kept_longer_for_a_node_whose_clock_was_set_back() -> None:
    """It comes back when the lease would have ended by every other clock, not by its own."""
    nodes = [MemoryNode(name) for name in "abc"]
    async with asyncio.timeout(20), connect(nodes, Way(), ttl=0.5) as locks:
        lease = await locks.lock("a").acquire()
        assert nodes[0].keys.get(KEY) is not None
        nodes[0].freeze()
        nodes[0].jump_clock(-3600)
        await lease.release()
        await asyncio.sleep(0.6)
        nodes[0].restart(keep_data=True)
        assert nodes[0].keys.get(KEY) is not None
        await vanishes(nodes[0])


@pytest.mark.parametrize("refreshed", [False, True])
@in_virtual_time
async def test_a_ticket_stays_away_though_its_acquire_arrives_late(refreshed: bool) -> None:
    """The task has left over a new connection, and the server reads the old one afterwards."""
    node, detour = MemoryNode("a"), Way()
    async with connect([node], Way()) as ours, connect([node], detour) as theirs:
        lease = await ours.lock("a").acquire()
        waiting = asyncio.ensure_future(theirs.lock("a").acquire())
        if refreshed:  # the acquire has another owner than the first, and the same ticket
            await asyncio.sleep(0.1)
            before = theirs.statistics().attempts
            detour.seconds = LATE
            await comes(lambda: theirs.statistics().attempts > before)
        else:
            detour.seconds = LATE
            await asyncio.sleep(0.01)
        detour.seconds = 0.0
        await asyncio.sleep(0.005)
        node.cut()
        await broken(theirs, back=True)
        await call_off(waiting)
        await asyncio.sleep(0.6)
        assert node.keys.get(KEY + b":#queue") is None
        await lease.release()


@in_virtual_time
async def test_what_no_longer_matters_does_not_delay_closing() -> None:
    nodes, detour = [MemoryNode(name) for name in "abc"], Way()
    async with connect(nodes, detour, 60) as ours, connect(nodes, detour, 60) as theirs:
        lease = await ours.lock("a").acquire()
        waiting = asyncio.ensure_future(theirs.lock("a").acquire())
        await asyncio.sleep(0.5)
        nodes[0].kill()
        await asyncio.sleep(0.3)
        await call_off(waiting)
        await asyncio.sleep(60)
        began = now()
        await theirs.aclose()
        assert now() - began < NODE_TIMEOUT
        await lease.release()
