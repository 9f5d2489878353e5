"""How often and how soon a node that forgot a lease's key is asked to take it back."""

import asyncio

import pytest

import asynclock
from asynclock.testing.memory import Stream
from tests.engine.virtual_nodes import COUNTER, KEY, TTL, Nodes, Way, seconds_until, start, virtual
from tests.tables.inside import now
from tests.waiting import until

AT_ONCE = 0.05


class Holding(Way):
    """Counts the acquires that get through this way, and holds one up for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.acquires = 0
        self.hold = 0.0
        self.held: Stream | None = None

    def admit(self, stream: Stream, data: bytes) -> bool:
        acquires = data.count(b"\r\nacquire\r\n")
        if acquires and self.hold and self.held is None:
            self.held = stream
            loop = asyncio.get_running_loop()
            loop.call_later(self.hold, self._let_go, context=stream.context)
        through = stream is not self.held and super().admit(stream, data)
        self.acquires += acquires * through
        return through

    def _let_go(self) -> None:
        stream, self.held = self.held, None
        assert stream is not None
        hold, self.hold = self.hold, 0.0
        stream.pump()
        self.hold = hold


async def holding(on: Nodes) -> tuple[Holding, asynclock.LockManager, asynclock.Lease]:
    """Return the way to the first node, a manager that uses it, and its lease."""
    way = on.ways[0] = Holding()
    locks = on.connect()
    lease = await locks.lock("a").acquire()
    return way, locks, lease


async def forgets(on: Nodes, locks: asynclock.LockManager) -> None:
    """Let the first node forget all, and wait until shortly before it votes again."""
    on.nodes[0].flush()
    await until(lambda: locks.nodes()[0].votes_in, "the news of it")
    await asyncio.sleep(locks.nodes()[0].votes_in - AT_ONCE / 2)
    assert on.nodes[0].keys.get(KEY) is None


async def put_back(on: Nodes, way: Holding, locks: asynclock.LockManager, hold: float) -> None:
    """Let the first node forget all, and the request to take the key back be on its way."""
    await forgets(on, locks)
    way.hold = hold
    await until(lambda: way.held, every=0.001)


def has_it(on: Nodes) -> bool:
    return on.nodes[0].keys.get(KEY) is not None


async def returns(on: Nodes) -> float:
    """Return the seconds until the first node has the key again."""
    return await seconds_until(lambda: has_it(on))


@virtual
async def test_waiters_of_other_processes_keep_no_key_away(on: Nodes) -> None:
    """Their tickets go before the acquires of others, not before the lease that they wait for."""
    async with on.connect(restart_guard=False) as theirs:
        lease = await on.locks.lock("a").acquire()
        waiting = start(theirs.lock("a").acquire())
        await until(lambda: theirs.statistics().waiting)
        await forgets(on, on.locks)
        assert on.nodes[0].keys.get(KEY + b":#queue"), "the ticket is back first"
        assert await returns(on) < TTL / 20 + AT_ONCE
        assert await on.nodes[0].command("GET", KEY) == lease.owner
        assert not waiting.done()
        assert await lease.release()
        assert (await waiting).held


@virtual
async def test_a_lease_won_while_a_node_had_no_vote_outlives_the_next_restart(on: Nodes) -> None:
    on.nodes[0].restart()
    await until(lambda: on.locks.nodes()[0].state == "quarantined")
    lease = await on.locks.lock("a").acquire()
    await until(lambda: has_it(on) and on.locks.nodes()[0].state == "up", timeout=2 * TTL)
    on.nodes[1].restart()
    await until(lambda: on.nodes[1].keys.get(KEY))
    await asyncio.sleep(TTL)
    assert await lease.release()


@virtual
async def test_a_process_that_acquires_nothing_else_gets_its_key_back(on: Nodes) -> None:
    """Its only acquire was sent before it knew any clock, which a request to put back needs."""
    async with on.connect() as locks:
        lease = await locks.lock("a").acquire()
        on.nodes[0].restart()
        await until(lambda: not has_it(on))
        await until(lambda: has_it(on))
        assert lease.held
        assert 0 < await on.nodes[0].command("PTTL", KEY) <= 1000 * TTL


@virtual
async def test_a_reader_comes_back_while_a_writer_waits(on: Nodes) -> None:
    lease = await on.locks.rwlock("a").read().acquire()
    async with on.connect() as others:
        writing = start(others.rwlock("a").write().acquire())
        for node in on.nodes:
            await asyncio.sleep(2 * TTL)
            node.restart()
            await until(lambda node=node: node.keys.get(KEY + b":#readers"))  # type: ignore[misc]
        assert lease.held
        assert not writing.done()
        assert await lease.release()
        assert (await writing).held


@virtual
async def test_without_the_guard_no_key_is_put_back(on: Nodes) -> None:
    """Then nobody knows when all that a node forgot is over."""
    async with on.connect(restart_guard=False) as locks:
        lease = await locks.lock("a").acquire()
        for forget in (on.nodes[0].flush, on.nodes[0].restart):
            forget()
            await asyncio.sleep(2 * TTL)
            assert not has_it(on)
        assert lease.held


@virtual
async def test_a_node_is_asked_once_at_a_time(on: Nodes) -> None:
    way, locks, lease = await holding(on)
    await forgets(on, locks)
    before, way.seconds = way.acquires, 0.4
    await asyncio.gather(*(lease.extend() for _ in range(3)))  # it replies to each that it lacks it
    await asyncio.sleep(3)
    assert way.acquires == before + 1
    assert has_it(on)
    way.seconds = 0.0
    await locks.aclose()


@virtual
async def test_a_node_that_refused_is_asked_again_soon(on: Nodes) -> None:
    """It had given the name to another owner, whose lease ends."""
    lease = await on.locks.lock("a").acquire()
    await forgets(on, on.locks)
    await on.nodes[0].command("SET", KEY, "somebody else", "PX", 1000)
    await until(lambda: not has_it(on))
    assert await returns(on) < TTL / 20 + AT_ONCE
    assert await on.nodes[0].command("GET", KEY) == lease.owner


@virtual
async def test_a_node_that_did_not_answer_is_asked_again(on: Nodes) -> None:
    way, locks, lease = await holding(on)
    await put_back(on, way, locks, 0.4)
    on.nodes[0].kill()
    way.hold = 0.0
    await asyncio.sleep(1.0)
    on.nodes[0].restart()
    await until(lambda: has_it(on), timeout=60)
    assert lease.held
    await locks.aclose()


@pytest.mark.parametrize("answered", [True, False])
@virtual
async def test_a_node_that_forgot_twice_gets_its_keys_back_twice(on: Nodes, answered: bool) -> None:
    """Also if it forgot again while its answer was under way: that is older than its loss."""
    way, locks, lease = await holding(on)
    await put_back(on, way, locks, 0.01)
    if not answered:
        way.seconds = 0.4
    assert await returns(on) < AT_ONCE
    if answered:
        await asyncio.sleep(AT_ONCE)
    way.seconds = 0.0
    await forgets(on, locks)
    assert await returns(on) < AT_ONCE
    assert lease.held
    await locks.aclose()


@virtual
async def test_fences_that_are_reserved_meanwhile_reach_the_node_as_well(on: Nodes) -> None:
    """Else its counter would lag behind the fences of hand-overs."""
    way, locks, lease = await holding(on)
    await put_back(on, way, locks, 0.4)
    waiting = [start(locks.lock("a").acquire()) for _ in range(2)]
    await until(lambda: locks.statistics().waiting == 2)
    await lease.release()
    heir = await waiting[0]
    await asyncio.sleep(1.0)
    assert heir.fence > lease.fence
    assert int(await on.nodes[0].command("GET", COUNTER)) >= heir.fence
    await heir.release()
    await locks.aclose()


@pytest.mark.parametrize("cut", [False, True])
@virtual
async def test_a_lease_that_has_ended_meanwhile_stays_ended(on: Nodes, cut: bool) -> None:
    """Also if the request to take the key back is executed after the release."""
    way, locks, lease = await holding(on)
    await put_back(on, way, locks, 0.6)
    if cut:  # so the release takes the next connection
        before = set(way.streams)
        on.nodes[0].cut()
        await until(lambda: len(way.streams - before) > 1, every=0.001)
        await asyncio.sleep(0.01)
    assert await lease.release()
    await asyncio.sleep(2 * TTL)
    assert not has_it(on)
    assert locks.statistics().lost == 0
    await locks.aclose()


@pytest.mark.parametrize(
    ("ttl", "late", "executed"), [(TTL, 5.0, True), (TTL, 8.1, False), (4.0, 5.0, False)]
)
@virtual
async def test_no_request_is_executed_after_the_lease_or_long_after_it_was_sent(
    on: Nodes, ttl: float, late: float, executed: bool
) -> None:
    """A key that is set then keeps others out for a whole ttl."""
    way = on.ways[0] = Holding()
    async with on.connect() as locks:
        lease = await locks.lock("a", ttl=ttl).acquire()
        began = now()
        await put_back(on, way, locks, late)
        await asyncio.sleep(late + 0.1)
        assert has_it(on) is executed
        assert lease.held
        assert now() - began > TTL
