"""What a manager counts, logs and forgets, and what its closing says. In virtual time."""

import asyncio
import logging

import pytest

import asynclock
from asynclock.testing import lose
from asynclock.testing.memory import MemoryNode
from tests.engine.virtual_nodes import KEY, TTL, Nodes, start, virtual, virtual_single
from tests.tables.inside import names_in_use
from tests.waiting import go_through, in_virtual_time, until


@virtual
async def test_figures_are_those_of_the_moment_at_which_they_were_asked_for(on: Nodes) -> None:
    theirs = on.connect()
    held = await on.locks.lock("a").acquire()
    waiting = start(theirs.lock("a").acquire())
    await until(lambda: theirs.statistics().waiting)
    before = theirs.statistics()
    copy = dict(before.wakeups)
    await held.release()
    lease = await waiting
    after = theirs.statistics()
    assert before.wakeups == copy
    assert sum(after.wakeups.values()) > sum(before.wakeups.values())
    after.wakeups["push"] = 1000
    assert theirs.statistics().wakeups["push"] < 1000, "editing a copy changes no figures"
    await lease.release()
    await theirs.aclose()


@virtual
async def test_each_figure_counts_its_own(on: Nodes) -> None:
    locks, theirs = on.connect(), on.connect()
    lock = locks.lock("a")
    first = await lock.acquire()
    waiters = [start(lock.acquire()) for _ in range(3)]
    await until(lambda: locks.statistics().waiting == 3)
    assert locks.waiters() == {"a": 3}
    await asyncio.sleep(0.05)
    assert locks.waits() == {"a": [pytest.approx(0.05, abs=0.01)] * 3}
    assert await theirs.lock("a").try_acquire() is None
    await first.release()
    second = await waiters[0]
    assert second.owner == first.owner
    await second.extend()
    lose(second)
    third = await waiters[1]
    await third.release()
    fourth = await waiters[2]
    figures = locks.statistics()
    assert (figures.held, figures.waiting) == (1, 0)
    assert (figures.acquired, figures.released, figures.lost) == (4, 2, 1)
    assert (figures.renewed, figures.handovers, figures.wakeups["turn"]) == (1, 2, 3)
    assert locks.waiters() == {}
    assert (theirs.statistics().attempts, theirs.statistics().refused) == (1, 1)
    assert (theirs.statistics().acquired, theirs.statistics().split_votes) == (0, 0)
    await fourth.release()
    assert not names_in_use(locks)
    await locks.aclose()
    await theirs.aclose()


@virtual
async def test_who_waits_is_counted_once_the_nodes_have_refused(on: Nodes) -> None:
    theirs = on.connect()
    held = await on.locks.semaphore("a", 1).acquire()
    on.slow(0.2)
    asking = [start(theirs.semaphore("a", 1).acquire()) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert theirs.statistics().waiting == 2
    assert theirs.waiters() == {"a": 1}, "the other one may be granted"
    await until(lambda: theirs.statistics().refused)
    assert theirs.waiters() == {"a": 2}
    on.slow(0.0)
    await held.release()
    await (await asking[0]).release()
    await (await asking[1]).release()
    await theirs.aclose()


@virtual
async def test_health_says_when_a_node_votes_again(on: Nodes) -> None:
    assert [node.votes_in for node in on.locks.nodes()] == [0.0] * 3
    assert [node.role for node in on.locks.nodes()] == ["master"] * 3
    on.nodes[1].flush()
    await until(lambda: on.locks.nodes()[1].state == "quarantined")
    assert on.locks.nodes()[1].votes_in == pytest.approx(TTL * 1.01, abs=0.05)
    await asyncio.sleep(TTL * 1.01 + 1)
    assert on.locks.nodes()[1].votes_in == 0.0


@in_virtual_time
async def test_each_owner_has_an_id_of_its_own() -> None:
    async with asynclock.connect("memory://ids", label="", restart_guard=False) as locks:
        owners = [(await locks.lock(f"{number}").acquire()).owner for number in range(100)]
    assert len({owner[:32] for owner in owners}) == 100
    assert {owner[32:] for owner in owners} == {":"}, "an empty label is a label"


@in_virtual_time
async def test_ready_says_that_its_manager_was_closed() -> None:
    on = Nodes([MemoryNode(name) for name in "abc"])
    on.freeze()
    locks = on.connect()
    waiting = [start(locks.ready()), start(locks.ready(voting=True))]
    await asyncio.sleep(0.1)
    await locks.aclose()
    for one in waiting:
        with pytest.raises(asynclock.ConfigurationError, match="closed"):
            await one


@pytest.mark.parametrize("held", [0, 1, 10, 11])
@virtual
async def test_closing_names_at_most_ten_leases_it_ends(
    on: Nodes, held: int, caplog: pytest.LogCaptureFixture
) -> None:
    lock = on.locks.lock("released")
    await go_through(lock)
    leases = [await on.locks.lock(f"n{number}").acquire() for number in range(held)]
    caplog.set_level(logging.INFO, "asynclock")
    await on.locks.aclose()
    await on.locks.aclose()
    assert [lease.lost_reason for lease in leases] == ["the manager was closed"] * held
    assert on.locks.statistics().lost == held
    assert len(caplog.records) == bool(held), "a close that ends nothing logs nothing"
    for record in caplog.records:
        told = record.getMessage()
        assert f"ends {held} held lease{'s' * (held > 1)}: 'n0'" in told
        assert told.endswith("…") is (held > 10)
        assert told.count("'n") == min(held, 10)
        assert record.levelno == logging.WARNING
        assert vars(record)["asynclock_names"] == tuple(lease.name for lease in leases)


@virtual_single
async def test_closing_ends_a_grant_that_is_between_two_leases(
    on: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its key is deleted, and no lease is named that somebody held."""
    caplog.set_level(logging.WARNING, "asynclock")
    first = await on.locks.lock("a").acquire()
    waiting = start(on.locks.lock("a").acquire())
    await until(lambda: on.locks.statistics().waiting)
    await first.release()
    await on.locks.aclose()
    with pytest.raises(asynclock.ConfigurationError):
        await waiting
    assert on.locks.statistics().lost == 0
    assert on.nodes[0].keys.get(KEY) is None
    assert not [one for one in caplog.records if "closed" in one.getMessage()]


@virtual
async def test_a_loss_is_logged_with_what_its_reader_needs(on: Nodes) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment, method-assign]
    logging.getLogger("asynclock").addHandler(handler)
    try:
        lease = await on.locks.lock("a").acquire()
        await asyncio.sleep(2)
        on.nodes[0].kill()
        await asyncio.sleep(0.01)
        lose(lease)
    finally:
        logging.getLogger("asynclock").removeHandler(handler)
    (record,) = [one for one in records if "lost the lease" in one.getMessage()]
    text = record.getMessage()
    assert f"'a' (fence {lease.fence}) after 2.0" in text
    assert "; memory://a: " in text, "the node that is down, with the cause"
    assert "memory://b" not in text
    facts = vars(record)
    assert facts["asynclock_name"] == "a"
    assert facts["asynclock_fence"] == lease.fence
    assert facts["asynclock_reason"] == lease.lost_reason
    assert facts["asynclock_held"] == pytest.approx(2.0, abs=0.05)
