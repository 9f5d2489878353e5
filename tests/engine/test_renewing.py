"""When leases are renewed, together and again, and what is said of those that were not."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import events
from asynclock.testing.memory import MemoryNode
from tests.engine.virtual_nodes import (
    KEY,
    TTL,
    VALID,
    Nodes,
    instead,
    refuse_tracking,
    seconds_until,
    start,
    virtual,
)
from tests.tables.inside import now
from tests.waiting import until

UNRENEWED = "no quorum renewed it before its ttl ran out"
AT_ONCE = 0.05


def batches(node: MemoryNode) -> list[int]:
    """Return a list that gets the size of each batch of renewals from now on."""
    sizes: list[int] = []

    def counting(words: Any) -> None:
        if b"extend" in words:
            sizes.append(len(words) - 1 - words.index(b"extend") - 2)

    instead(node, counting)
    return sizes


async def loses(lease: asynclock.Lease) -> float:
    """Return the seconds until the lease is reported as lost."""
    return await seconds_until(lambda: lease.lost_reason)


@virtual
async def test_max_hold_counts_from_the_moment_at_which_the_lock_is_won(on: Nodes) -> None:
    theirs = on.connect()
    held = await theirs.lock("a").acquire()
    waiting = start(on.locks.lock("a", ttl=4.0, max_hold=6.0).acquire())
    await asyncio.sleep(3)
    await held.release()
    lease = await waiting
    assert await loses(lease) == pytest.approx(6.0, abs=AT_ONCE)
    assert lease.lost_reason == "its max_hold is over"
    await theirs.aclose()


@virtual
async def test_a_lease_that_is_not_to_be_renewed_ends_with_its_ttl(on: Nodes) -> None:
    """Also if its process had the name before in a lease that was renewed."""
    first = await on.locks.lock("a").acquire()
    waiting = start(on.locks.lock("a", renew=False).acquire())
    await until(lambda: on.locks.statistics().waiting)
    await first.release()
    lease = await waiting
    assert await loses(lease) <= VALID + 0.01
    assert lease.lost_reason == "its ttl ran out (renew=False)"


@virtual
async def test_a_slow_answer_puts_no_renewal_off(on: Nodes) -> None:
    """The keys' time began when they were requested."""
    lease = await on.locks.lock("a").acquire()
    on.slow(0.4)
    await asyncio.sleep(31)
    assert on.locks.statistics().renewed == 9, "each third of the ttl"
    assert lease.held


@pytest.mark.parametrize("ttls", [(TTL, 3.0), (3.0, TTL)])
@virtual
async def test_a_short_lease_is_renewed_with_a_long_one(
    on: Nodes, ttls: tuple[float, float]
) -> None:
    leases = [await on.locks.lock(f"{ttl}", ttl=ttl).acquire() for ttl in ttls]
    await asyncio.sleep(3.2)
    assert all(lease.held for lease in leases)
    assert on.locks.statistics().renewed >= 3


@virtual
async def test_leases_that_began_within_a_moment_are_renewed_together(on: Nodes) -> None:
    sizes = batches(on.nodes[0])
    leases = []
    for number in range(20):
        leases.append(await on.locks.lock(f"{number}").acquire())
        await asyncio.sleep(0.0004)
    await asyncio.sleep(VALID + 1)
    assert sizes == [20, 20, 20]
    assert all(lease.held for lease in leases)


@virtual
async def test_a_batch_has_a_bound(on: Nodes) -> None:
    """A script for thousands of keys would block its server."""
    sizes = batches(on.nodes[0])
    leases = await asyncio.gather(*(on.locks.lock(f"{n}").acquire() for n in range(300)))
    await asyncio.sleep(VALID + 1)
    assert sum(sizes) == 3 * 300
    assert max(sizes) <= 256
    assert all(lease.held for lease in leases)


@virtual
async def test_leases_of_all_sizes_are_renewed_side_by_side(on: Nodes) -> None:
    leases: list[Any] = [
        await wish.acquire()
        for wish in (
            on.locks.multi_lock("b", "c"),
            on.locks.lock("a"),
            on.locks.multi_lock("d", "e", "f"),
            on.locks.semaphore("s", 3),
            on.locks.rwlock("r").read(),
            on.locks.rwlock("w").write(),
            on.locks.lock("g", ttl=6.0),
        )
    ]
    await asyncio.sleep(3 * TTL)
    assert all(lease.held for lease in leases)
    assert on.locks.statistics().lost == 0
    assert [await lease.check() for lease in leases] == [True] * 7


@virtual
async def test_a_renewal_is_repeated_until_shortly_before_the_end(on: Nodes) -> None:
    locks = on.connect(node_timeout=0.2)
    lease = await locks.lock("a").acquire()
    for node in on.nodes:
        node.durable = True
        node.kill()
    await until(lambda: lease.remaining() < 0.85, timeout=20)
    for node in on.nodes:
        node.restart()
        node.born_ago(3600)
    assert await seconds_until(lambda: lease.remaining() > 9) < 0.8
    await locks.aclose()


@virtual
async def test_a_loss_is_told_at_its_moment_and_its_cause_is_the_network(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    other = await on.locks.lock("b", ttl=7.0).acquire()
    on.go_mute()
    on.freeze()
    assert await loses(other) == pytest.approx(7.0 * 0.99 - 0.002, abs=0.002)
    assert await loses(lease) + 7.0 * 0.99 == pytest.approx(VALID, abs=0.005)
    assert lease.lost_reason == other.lost_reason == UNRENEWED
    on.thaw()


@virtual
async def test_a_renewal_without_an_answer_does_not_delay_the_news(on: Nodes) -> None:
    """It is out for a node timeout, and the lease ends before that."""
    lease = await on.locks.lock("a", ttl=1.5).acquire()
    await asyncio.sleep(0.2)
    on.freeze()
    assert 0.2 + await loses(lease) == pytest.approx(1.5 * 0.99 - 0.002, abs=0.005)
    assert lease.lost_reason == UNRENEWED
    on.thaw()


@virtual
async def test_the_last_renewal_before_max_hold_changes_no_ttl(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=4.0, max_hold=6.0).acquire()
    await asyncio.sleep(5)
    assert 0.9 < lease.remaining() <= 1.0
    assert lease.ttl == 4.0
    left = await on.nodes[0].command("PTTL", KEY)
    assert left <= 1100, "the keys end with it, should this process die now"
    await lease.extend(TTL)
    assert lease.remaining() == pytest.approx(1.0, abs=0.0005)
    assert await loses(lease) == pytest.approx(1.0, abs=0.001)


@virtual
async def test_a_call_of_extend_that_failed_leaves_renewals_as_they_were(on: Nodes) -> None:
    locks = on.connect(max_ttl=60)
    lease = await locks.lock("a").acquire()
    on.freeze()
    with pytest.raises(asynclock.QuorumUnavailableError) as raised:
        await lease.extend(40)
    assert raised.value.name == "a"
    assert sorted(raised.value.nodes) == ["memory://a", "memory://b", "memory://c"]
    assert all(raised.value.nodes.values())
    for node in on.nodes:
        node.restart(keep_data=True)
        node.born_ago(3600)
    before = locks.statistics().renewed
    await until(lambda: locks.statistics().renewed > before + 1)
    assert lease.ttl == TTL
    assert lease.remaining() <= TTL
    await locks.aclose()


@virtual
async def test_an_answer_that_comes_after_the_release_revives_nothing(on: Nodes) -> None:
    seen: list[object] = []
    on.locks.observe(seen.append)
    lease = await on.locks.lock("a").acquire()
    on.slow(0.3)
    extending = start(lease.extend())
    await asyncio.sleep(0.01)
    assert await lease.release()
    with pytest.raises(asynclock.LeaseLostError, match="it was released"):
        await extending
    await asyncio.sleep(3 * TTL)
    figures = on.locks.statistics()
    assert (figures.renewed, figures.lost, figures.held) == (0, 0, 0)
    assert not on.locks.leases()
    assert not [event for event in seen if isinstance(event, events.Renewed | events.Lost)]


@virtual
async def test_a_lease_that_ends_while_extend_waits_is_lost(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=1.5, renew=False).acquire()
    await asyncio.sleep(1)
    on.freeze()
    with pytest.raises(asynclock.LeaseLostError, match="ttl ran out") as lost:
        await lease.extend()
    assert (lost.value.name, lost.value.owner, lost.value.fence) == ("a", lease.owner, lease.fence)
    assert lost.value.reason == lease.lost_reason
    with pytest.raises(asynclock.LeaseLostError):
        await lease.extend()
    on.thaw()


@virtual
async def test_a_cancelled_call_of_extend_disturbs_nobody(on: Nodes) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    async with on.connect(max_ttl=60) as locks:
        lease = await locks.lock("a").acquire()
        on.slow(0.2)
        extending = start(lease.extend(20))
        await asyncio.sleep(0.1)
        extending.cancel()
        await asyncio.sleep(1)
        assert lease.ttl == 20
        assert not complaints
        on.slow(0.0)


@virtual
async def test_an_error_that_renewals_get_is_shown_until_they_succeed(on: Nodes) -> None:
    node = on.nodes[2]
    lease = await on.locks.lock("a").acquire()
    await node.command("DEL", KEY)
    await node.command("ZADD", KEY, 1, "of another program")
    with pytest.raises(asynclock.QuorumUnavailableError, match=r"to extend 'a': .*: WRONGTYPE"):
        on.nodes[1].freeze()
        await lease.extend()
    assert "WRONGTYPE" in on.locks.nodes()[2].cause
    on.nodes[1].thaw()
    await node.command("DEL", KEY)
    await node.command("SET", KEY, lease.owner, "PX", 20000)
    await lease.extend()
    await asyncio.sleep(0.01)
    assert on.locks.nodes()[2].cause == ""


@virtual
async def test_a_connection_that_broke_in_a_renewal_says_nothing_about_the_next(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    on.ways[0].seconds = 0.3
    extending = start(lease.extend())
    await asyncio.sleep(0.01)
    on.nodes[0].cut()
    on.ways[0].seconds = 0.0
    await extending
    await asyncio.sleep(0.01)
    await until(lambda: on.locks.nodes()[0].state == "up")
    assert on.locks.nodes()[0].cause == ""


@virtual
async def test_no_renewal_is_put_off_for_a_node_that_will_vote_soon(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    on.nodes[2].flush()
    for _ in range(int(2 * TTL / 0.1)):
        await asyncio.sleep(0.1)
        assert lease.remaining() > VALID - TTL / 3 - AT_ONCE
    assert on.nodes[2].keys.get(KEY)


@pytest.mark.parametrize("names", ["a", "_ab"])
@virtual
async def test_a_deleted_key_is_noticed_and_counts_once_most_lack_it(on: Nodes, names: str) -> None:
    sizes, lease = batches(on.nodes[2]), await on.locks.multi_lock(*names).acquire()
    await lease.extend()
    await on.nodes[0].command("DEL", KEY)
    await asyncio.sleep(AT_ONCE)
    assert sizes == [1, 1], "the nodes were asked"
    assert lease.held
    await on.nodes[1].command("DEL", KEY)
    assert await loses(lease) < 0.2
    assert lease.lost_reason == "the nodes no longer hold it for us"
    await until(lambda: on.nodes[2].keys.get(KEY) is None, "it is given back", timeout=AT_ONCE)


@pytest.mark.parametrize("how", ["flush", "delete"])
@virtual
async def test_many_lost_keys_are_noticed_soon_and_not_in_one_go(on: Nodes, how: str) -> None:
    """A flush also before the first renewal."""
    leases = [await on.locks.lock(f"{n}").acquire() for n in range(600)]
    if how == "delete":
        await asyncio.gather(*(lease.extend() for lease in leases))
    began = now()
    for node in on.nodes[:2]:
        if how == "flush":
            node.flush()
        else:
            await node.command("DEL", *(f"asynclock:{n}" for n in range(600)))
    for lease in leases:
        await loses(lease)
    assert AT_ONCE / 2 < now() - began < 2 * AT_ONCE


@virtual
async def test_one_node_that_pushes_is_enough_to_notice_a_deleted_key(on: Nodes) -> None:
    refuse_tracking(on.nodes[1:])
    sizes = batches(on.nodes[2])
    async with on.connect() as locks, locks.lock("a") as lease:
        await lease.extend()
        await on.nodes[0].command("DEL", KEY)
        await asyncio.sleep(AT_ONCE)
        assert sizes == [1, 1], "the nodes were asked"


@virtual
async def test_nodes_that_push_nothing_are_asked_for_no_push(on: Nodes) -> None:
    refuse_tracking(on.nodes)
    asked: list[bytes] = []
    instead(on.nodes[0], lambda words: asked.append(words[0]))
    async with on.connect() as locks, locks.lock("a") as lease:
        await lease.extend()
        await asyncio.sleep(TTL)
    assert b"EVALSHA" in asked
    assert b"MGET" not in asked


@virtual
async def test_pushes_for_keys_that_did_not_change_cause_few_renewals(on: Nodes) -> None:
    """As from a server whose table of tracked keys is full."""
    sizes, lease = batches(on.nodes[0]), await on.locks.lock("a").acquire()
    for _ in range(int(6 * TTL / 0.01)):
        await on.nodes[0].command("SET", KEY, lease.owner, "PX", 10_000)
        await asyncio.sleep(0.01)
    assert 18 <= len(sizes) <= 18 + 7
    assert lease.held
    await asyncio.sleep(2 * TTL)
    await on.nodes[0].command("DEL", KEY)
    await on.nodes[1].command("DEL", KEY)
    assert await loses(lease) < AT_ONCE, "an ordinary renewal found no change"


@virtual
async def test_readers_wake_no_readers(on: Nodes) -> None:
    """All readers of a name share a key, which each renewal changes."""
    theirs, sizes = on.connect(), batches(on.nodes[0])
    leases = [await locks.rwlock("a").read().acquire() for locks in (on.locks, theirs)]
    await asyncio.sleep(TTL)
    assert len(sizes) <= 6
    assert all(lease.held for lease in leases)
    await theirs.aclose()


@virtual
async def test_a_lease_that_has_ended_hears_of_no_change(on: Nodes) -> None:
    first = await on.locks.lock("a").acquire()
    await first.extend()
    waiting = start(on.locks.lock("a").acquire())
    await until(lambda: on.locks.statistics().waiting)
    await first.release()
    second = await waiting
    assert on.locks.statistics().handovers == 1
    await on.command("DEL", KEY)
    assert await loses(second) < AT_ONCE
    assert first.lost_reason is None
    third = await on.locks.lock("a").acquire()
    await third.extend()
    await third.release()
    await on.ghost()
    sizes = batches(on.nodes[0])
    await on.command("DEL", KEY)
    await asyncio.sleep(TTL)
    assert not sizes
    assert third.lost_reason is None
