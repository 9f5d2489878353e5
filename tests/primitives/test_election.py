"""Election: one term at a time, when its value is published, and what observers see."""

import asyncio
import contextlib
import gc
import json
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import asynclock
from asynclock._rules.pacing import BLIND, FIRST_PAUSE
from asynclock.testing import lose
from tests.cancel.stepping import cancelled_at
from tests.engine.batches import listen
from tests.engine.virtual_nodes import TTL, Nodes, instead, start, virtual, virtual_single
from tests.tables.inside import now
from tests.waiting import call_off, go_through, until

LOCK, VALUE = "asynclock:e:#leader", "asynclock:e:#leader:#message"
LONGEST_VALUE = 65_536


async def leads(election: asynclock.Election) -> asynclock.Leader | None:
    """The leader; it must be known within two node timeouts."""
    async with asyncio.timeout(2.1):
        return await election.leader()


@contextlib.asynccontextmanager
async def observed(locks: asynclock.LockManager) -> AsyncIterator[list[tuple[int, str, float]]]:
    """The terms and values that an observer sees, and when."""
    seen: list[tuple[int, str, float]] = []

    async def watch() -> None:
        async for leader in locks.election("e").observe():
            seen.append((leader.term, leader.value, now()))
            assert len(seen) < 9, "it sees the same again and again"

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.1)
    yield seen
    await call_off(watching)


@virtual
async def test_a_value_is_published_again_with_each_renewal(on: Nodes) -> None:
    async with on.locks.election("e").campaign("here"):
        await asyncio.sleep(0.1)
        for _ in range(50):
            left = await on.nodes[0].command("PTTL", VALUE) / 1000
            assert TTL / 2 < left <= TTL
            await asyncio.sleep(1)
        await on.nodes[0].command("DEL", VALUE)
        await asyncio.sleep(TTL / 2)
        assert await on.nodes[0].command("GET", VALUE) is not None
    await asyncio.sleep(0.1)
    assert await on.nodes[0].command("GET", VALUE) is None


@virtual
async def test_a_message_of_a_lease_lasts_as_long_as_the_lease(on: Nodes) -> None:
    """It is shown of no later lease, also if that has the same owner, and comes back to a node."""
    node, lock, key = on.nodes[0], on.locks.lock("m"), "asynclock:m:#message"
    lease = await lock.acquire()
    on.nodes[2].freeze()
    assert await lease.publish("one")
    on.nodes[2].thaw()
    await asyncio.sleep(1)
    await node.command("DEL", "asynclock:m", key)
    on.ways[2].seconds = 0.1
    assert await lease.publish("one"), "the two others have it"
    on.ways[2].seconds = 0
    await node.command("SET", "asynclock:m", lease.owner, "PX", int(TTL * 1000))
    for _ in range(30):
        await asyncio.sleep(1)
        assert (await on.locks.inspect("m")).message == "one"
    for one in on.nodes:
        assert TTL / 2 < await one.command("PTTL", key) / 1000 <= TTL
    await lease.release()
    lease = await lock.acquire()
    assert await lease.publish("one again")
    waiting = start(lock.acquire())
    await asyncio.sleep(0.01)
    assert await lease.release()
    second = await waiting
    assert second.owner == lease.owner, "it was handed over"
    assert (await on.locks.inspect("m")).message is None
    on.freeze()
    publishing = start(second.publish("two"))
    await asyncio.sleep(0.1)
    await call_off(publishing)
    on.thaw()
    await asyncio.sleep(TTL / 2)
    assert (await on.locks.inspect("m")).message == "two", "the next renewal sent it again"
    lose(second)
    await asyncio.sleep(0.1)
    assert [await one.command("EXISTS", key) for one in on.nodes] == [0, 0, 0]
    third = await lock.acquire()
    assert await third.publish("three")
    assert await third.detach()
    await asyncio.sleep(0.1)
    assert [await one.command("EXISTS", key) for one in on.nodes] == [0, 0, 0]


@virtual
async def test_a_message_of_a_dead_holder_is_not_that_of_the_next_one(on: Nodes) -> None:
    dead = await on.locks.lock("m", renew=False, ttl=TTL).acquire()
    assert await dead.publish("one")
    await on.command("DEL", "asynclock:m", only="bc")  # as if the key had ended there
    async with on.connect() as others, others.lock("m", timeout=1).acquire():
        assert (await others.inspect("m")).message is None
        assert [one.message async for one in others.inspect_all()] == [None]
    await asyncio.sleep(TTL + 0.1)
    assert await on.nodes[0].command("EXISTS", "asynclock:m:#message") == 0


@pytest.mark.parametrize("moment", ["waiting", "resuming"])
@virtual
async def test_cancelled_at_each_await(on: Nodes, moment: Any) -> None:
    """By then the message is published and the request made, or they are not; nothing stays."""
    on.slow(0.01)
    async with on.connect(label="boss") as others:

        async def ask(lease: asynclock.Lease) -> None:
            assert await others.ask_back(lease.name)
            assert await lease.wanted() == "boss"

        works: list[Callable[[asynclock.Lease], Any]] = [
            lambda lease: lease.publish("one"),
            lambda lease: others.release_held(lease.name, owner=lease.owner),
            ask,
        ]
        for kind, work in enumerate(works):
            point, more = 0, True
            while more:
                lease = await on.locks.lock(f"{kind}-{point}").acquire()
                more = await cancelled_at(work(lease), point, moment)
                await lease.release()
                point += 1
            assert point > 1
        assert not on.locks.leases()
        assert not others.waits()
        await asyncio.sleep(TTL + 1)
        keys = [key for node in on.nodes for key in await node.command("KEYS", "*")]
        assert [key for key in keys if not key.endswith((":#fence", ":#witness"))] == []


@virtual
async def test_a_lease_without_a_message_costs_no_request_for_one(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    async with on.locks.lock("m"):
        await asyncio.sleep(TTL)
    assert set(seen) == {"acquire", "extend", "release"}
    async with on.locks.lock("m") as lease:
        await lease.publish("one")
        await lease.publish("")
        seen.clear()
        await asyncio.sleep(TTL)
    assert set(seen) == {"extend", "release"}


@virtual
async def test_a_reader_publishes_nothing(on: Nodes) -> None:
    async with on.locks.rwlock("m").read() as lease:
        with pytest.raises(asynclock.ConfigurationError, match="readers"):
            await lease.publish("one")


@virtual
async def test_a_leader_that_is_asked_ends_its_body_while_it_leads(on: Nodes) -> None:
    """An error of the body, and a cancellation from outside, are not swallowed."""
    election, ended = on.locks.election("e"), list[bool]()

    async def lead(error: type[BaseException] | None = None) -> str:
        async with election.campaign("here", on_wanted="resign") as term:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(term.held)
                if error is not None:
                    raise error
        assert (term.held, term.lease.lost_reason) == (False, None)
        return "resigned"

    async with on.connect() as others:
        for error in (None, ZeroDivisionError):
            leading = start(lead(error))
            await asyncio.sleep(0.1)
            began = now()
            assert await others.ask_back("e")
            await asyncio.wait([leading])
            assert now() - began < 0.2
            assert type(leading.exception()) is (error or type(None))
        leading = start(lead())
        await asyncio.sleep(0.1)
        await call_off(leading)
        assert leading.cancelled()
        assert ended == [True] * 3
        async with election.campaign("here") as term:
            assert await others.ask_back("e")
            assert await term.lease.wanted() is not None
            await asyncio.sleep(1)
            ended.append(term.held)
        assert len(ended) == 4, "nobody told it to resign"
    with pytest.raises(asynclock.ConfigurationError, match="on_wanted"):
        election.campaign(on_wanted="step down")  # type: ignore[arg-type]


@virtual
async def test_who_has_released_is_not_told_of_a_request(on: Nodes) -> None:
    told: list[bool] = []
    on.slow(0.01)
    async with on.connect() as others:
        for steps in range(0, 20, 2):
            lease = await on.locks.lock("m").acquire()
            lease.on_wanted(lambda lease: told.append(lease.held))
            await asyncio.sleep(0.1)
            asking = start(others.ask_back("m"))
            await asyncio.sleep(steps * 0.005)
            await lease.release()
            await asyncio.wait([asking])
    assert 0 < len(told) < 10
    assert all(told)


@virtual
async def test_a_request_is_for_one_owner_and_for_a_time(on: Nodes) -> None:
    told: list[asynclock.Lease] = []
    async with on.connect(label="boss") as others:
        first, next_one = await on.locks.lock("m").acquire(), start(on.locks.lock("m").acquire())
        await asyncio.sleep(0.01)
        assert await others.ask_back("m")
        assert await first.wanted() == "boss"
        await first.release()
        lease = await next_one
        for wrong in (None, others.ask_back):
            with pytest.raises(asynclock.ConfigurationError, match="callback"):
                lease.on_wanted(wrong)  # type: ignore[arg-type]
        cut = start(lease.wanted())
        lease.on_wanted(told.append)
        await asyncio.sleep(0.1)
        assert not cut.done(), "only the lease before it was asked for"
        await call_off(cut)
        on.nodes[0].kill()
        assert await others.ask_back("m")
        await asyncio.sleep(0.1)
        assert told == [lease]
        assert await lease.wanted() == "boss", "it is remembered"
        await lease.release()
        later = await on.locks.lock("m").acquire()
        later.on_wanted(told.append)
        asked = start(later.wanted())
        await asyncio.sleep(TTL + 0.1)
        assert not asked.done()
        assert told == [lease], "the next holder was not asked"
        keys = await on.nodes[1].command("KEYS", "asynclock:m*")
        assert sorted(keys) == ["asynclock:m", "asynclock:m:#fence"]
        await on.nodes[1].command("SET", "asynclock:foreign", "fence")
        await on.nodes[2].command("SET", "asynclock:foreign", "fence")
        assert not await others.ask_back("foreign")
        assert await on.nodes[1].command("EXISTS", "asynclock:foreign:#fence") == 0
        on.nodes[1].kill()
        with pytest.raises(asynclock.QuorumUnavailableError):
            await others.ask_back("m")
        with pytest.raises(asynclock.QuorumUnavailableError):
            await others.release_held("m", force=True)


@virtual
async def test_a_release_of_no_owner_or_of_one_and_any_asks_no_node(on: Nodes) -> None:
    asked: list[Any] = []
    instead(on.nodes[0], asked.append)
    for wrong in ({}, {"owner": "a", "force": True}, {"owner": b"a"}):
        with pytest.raises(asynclock.ConfigurationError, match="either the owner"):
            await on.locks.release_held("m", **wrong)
    assert not asked


@virtual
async def test_a_callback_that_fails_is_reported(on: Nodes) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))

    def fail(lease: asynclock.Lease) -> None:
        raise asynclock.ConfigurationError(lease.name)

    async with on.locks.lock("m") as lease:
        lease.on_wanted(fail)
        await asyncio.sleep(0.1)
        async with on.connect() as others:
            assert await others.ask_back("m")
        await asyncio.sleep(0.1)
    assert [str(one["exception"]) for one in reported] == ["m"]
    assert reported[0]["message"] == "asynclock: a callback of m failed"


def ours() -> int:
    """Number of tasks, and of objects of the library."""
    gc.collect()
    kinds = [str(type(one)) for one in gc.get_objects()]
    return len(asyncio.all_tasks()) + sum("'asynclock." in kind for kind in kinds)


@virtual
async def test_listening_for_a_request_leaves_nothing_behind(on: Nodes) -> None:
    election, found = on.locks.election("e"), list[int]()
    async with on.locks.lock("m") as lease:
        for _ in range(2):
            for _ in range(5):
                async with election.campaign(on_wanted="resign"):
                    pass  # it ends before the task that listens begins
                waiting = start(lease.wanted())
                await asyncio.sleep(0.1)
                await call_off(waiting)
            await asyncio.sleep(TTL)
            found.append(ours())
    assert found[1] <= found[0]


@virtual
async def test_a_manager_that_takes_its_own_lock_back_notices_that_at_once(on: Nodes) -> None:
    lease = await on.locks.lock("m").acquire()
    await lease.extend()
    assert await on.locks.release_held("m", force=True)
    await asyncio.wait_for(lease.wait_lost(), TTL / 10)


@virtual
async def test_a_term_that_is_over_is_published_no_more(on: Nodes) -> None:
    term = await on.locks.election("e").campaign("here")
    await asyncio.sleep(1)
    await term.resign()
    with pytest.raises(asynclock.LeaseLostError, match="released"):
        await term.publish("too late")
    await on.nodes[0].command("DEL", VALUE)
    await asyncio.sleep(2 * TTL)
    assert await on.nodes[0].command("GET", VALUE) is None


@virtual
async def test_a_term_that_is_over_at_once_is_never_published(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    await go_through(on.locks.election("e").campaign("here"))
    assert seen == ["acquire", "release"]


@pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")
@virtual_single
async def test_a_term_that_the_program_dropped_ends(on: Nodes) -> None:
    term = weakref.ref(await on.locks.election("e").campaign("here"))
    await asyncio.sleep(1)
    gc.collect()
    assert term() is None
    await asyncio.sleep(2 * TTL)
    assert await on.nodes[0].command("GET", LOCK) is None


@virtual
async def test_observers_see_a_change_at_once(on: Nodes) -> None:
    async with on.connect() as others, observed(on.locks) as here, observed(others) as there:
        began = now()
        async with on.locks.election("e").campaign("one") as term:
            await asyncio.sleep(1.5)
            second = now()
            assert await term.publish("two")
            assert term.value == "two"
            await asyncio.sleep(2 * TTL)
            for seen in (here, there):
                assert [value for _, value, _ in seen] == ["one", "two"], "and nothing twice"
                assert seen[0][2] - began < 0.2
                assert seen[1][2] - second < 0.2
                assert {number for number, _, _ in seen} == {term.number}


@virtual
async def test_an_observer_sees_no_earlier_term_again(on: Nodes) -> None:
    """As from nodes that were restored from a snapshot."""
    async with observed(on.locks) as seen:
        for number, owner in ((7, "b"), (5, "a"), (9, "c")):
            record = json.dumps([number, 0, owner, f"value of {owner}"])
            await on.command("SET", LOCK, owner, "PX", 60_000)
            await on.command("SET", VALUE, record, "PX", 60_000)
            await asyncio.sleep(5)
        assert [(term, value) for term, value, _ in seen] == [(7, "value of b"), (9, "value of c")]


@virtual
async def test_an_observer_goes_on_through_an_outage_and_ends_with_its_manager(on: Nodes) -> None:
    others = on.connect()
    seen: list[str] = []

    async def watch() -> None:
        async for leader in others.election("e").observe():
            seen.append(leader.value)
            assert len(seen) < 9, "it sees the same again and again"

    watching = start(watch())
    first = await on.locks.election("e").campaign("one")
    await asyncio.sleep(1)
    on.freeze("bc")
    await asyncio.sleep(4)
    on.thaw()
    await asyncio.sleep(4)
    await first.resign()
    async with on.locks.election("e").campaign("two"):
        await asyncio.sleep(3)
        assert seen == ["one", "two"]
        await others.aclose()
        await asyncio.wait_for(watching, 5)
    with pytest.raises(asynclock.ConfigurationError, match="closed"):
        await anext(others.election("e").observe())


@virtual
async def test_an_observer_sees_a_leader_whose_value_was_there_already(on: Nodes) -> None:
    """It watches the lock too."""
    async with observed(on.locks) as seen:
        await on.command("SET", VALUE, json.dumps([7, 0, "me", "mine"]), "PX", 60_000)
        await asyncio.sleep(BLIND / 4)
        assert not seen
        began = now()
        await on.command("SET", LOCK, "me", "PX", 60_000)
        await until(lambda: seen, every=0.01)
        assert now() - began < 0.1


@virtual_single
async def test_resign_says_whether_the_term_lasted_until_then(on: Nodes) -> None:
    election = on.locks.election("e")
    term = await election.campaign("one")
    assert await term.resign() is True
    term = await election.campaign("two")
    lose(term.lease)
    assert await term.resign() is False


@virtual
async def test_the_leader_is_the_one_that_a_majority_names(on: Nodes) -> None:
    election = on.locks.election("e")
    record = json.dumps([7, 0, "me", "mine"])
    for count, node in enumerate(on.nodes, 1):
        await node.command("SET", LOCK, "me", "PX", 60_000)
        await node.command("SET", VALUE, record, "PX", 60_000)
        leader = await leads(election)
        assert (leader is not None) == (count >= 2)
    assert leader is not None
    assert (leader.name, leader.term, leader.owner, leader.value) == ("e", 7, "me", "mine")
    on.kill("bc")
    assert await leads(election) is None


@virtual
async def test_the_value_of_another_leader_is_not_that_of_this_one(on: Nodes) -> None:
    election = on.locks.election("e")
    async with election.campaign("mine"):
        await asyncio.sleep(0.1)
        await on.command("SET", VALUE, json.dumps([9, 0, "another", "theirs"]))
        began = now()
        assert await leads(election) is None
        assert now() - began == pytest.approx(1.0, abs=0.1), "it may be on its way"


@virtual
async def test_no_leader_is_known_at_once_and_a_value_on_its_way_is_waited_for(on: Nodes) -> None:
    election = on.locks.election("e")
    began = now()
    assert await leads(election) is None
    assert now() - began < 0.01
    async with election.campaign("here"):
        await asyncio.sleep(0.1)
        await on.command("DEL", VALUE)
        looking = start(leads(election))
        await asyncio.sleep(0.3)
        for node in on.nodes:
            record = [1, 1, await node.command("GET", LOCK), "late"]
            await node.command("SET", VALUE, json.dumps(record))
        began = now()
        leader = await looking
        assert leader is not None
        assert leader.value == "late"
        assert now() - began < 2 * FIRST_PAUSE


@virtual
async def test_publish_says_whether_a_majority_stores_the_value(on: Nodes) -> None:
    async with on.locks.election("e").campaign("one") as term:
        await asyncio.sleep(0.1)
        await on.command("SET", LOCK, "another", only="bc")
        assert await term.publish("two") is False, "two nodes have another leader"
        await on.command("SET", LOCK, term.lease.owner, only="bc")
        assert await term.publish("three") is True
        on.freeze("bc")
        assert await term.publish("four") is False, "two nodes do not answer"
        on.thaw("bc")
        await asyncio.sleep(TTL)
        leader = await leads(on.locks.election("e"))
        assert leader is not None
        assert leader.value == "four"


@virtual_single
async def test_a_value_has_a_bound(on: Nodes) -> None:
    election = on.locks.election("e")
    wrong: list[Any] = ["x" * (LONGEST_VALUE + 1), b"bytes", None, 7]
    for value in wrong:
        with pytest.raises(asynclock.ConfigurationError, match="at most 65536"):
            election.campaign(value)
    async with election.campaign("x" * LONGEST_VALUE) as term:
        for value in wrong:
            with pytest.raises(asynclock.ConfigurationError, match="at most 65536"):
                await term.publish(value)
        assert term.value == "x" * LONGEST_VALUE
        assert await term.publish("y" * LONGEST_VALUE)


@virtual
async def test_the_latest_of_many_values_counts_on_whichever_node_it_is(on: Nodes) -> None:
    """A node that missed the latest has an earlier one, or another program's value, or none."""
    election = on.locks.election("e")
    async with on.connect(label="web-1") as locks, locks.election("e").campaign("first") as term:
        for value in ("z", "y"):
            await term.publish(value)
            earlier = await on.nodes[0].command("GET", VALUE)
        await term.publish("a")
        for other in (earlier, json.dumps([2**60, 1, "x", "evil"]), "not json"):
            await on.nodes[0].command("SET", VALUE, other)
            leader = await election.leader()
            assert leader is not None
            assert (leader.value, leader.holder) == ("a", "web-1")
            assert (leader.term, leader.owner) == (term.number, term.lease.owner)
        await on.command("SET", VALUE, "not json")
        assert await election.leader() is None
        assert term.held
