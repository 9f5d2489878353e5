"""What replies about a lease that is held mean: released, checked, renewed, passed on."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock._engine.grant import BLOCK, Grant, Reservation, reserve_now
from asynclock._engine.spec import LeaseOptions
from asynclock._nodes.wire import Failure
from asynclock._primitives import lock
from tests.engine.virtual_nodes import KEY, TTL, VALID, Nodes, seconds_until, start, virtual
from tests.tables.engine.told import (
    DONE,
    LOST,
    SILENT,
    UNDONE,
    Reply,
    Table,
    error,
    later,
    no,
    on_told,
    outcome,
    yes,
)
from tests.tables.inside import now
from tests.waiting import go_through, until

GONE = "the nodes no longer held it for us when it was released"
NO_LONGER = "the nodes no longer hold it for us"
OUTAGE = asynclock.QuorumUnavailableError
Vote = tuple[Reply, ...]


def slow(reply: Reply) -> Reply:
    return later(0.2, reply)


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
@pytest.mark.parametrize(
    ("replies", "took", "reason"),
    [
        ((DONE, DONE, slow(DONE)), 0.0, None),
        ((DONE, UNDONE, slow(DONE)), 0.2, None),
        ((DONE, SILENT, SILENT), 1.0, None),
        ((SILENT, SILENT, SILENT), 1.0, None),
        ((UNDONE, SILENT, slow(DONE)), 1.0, None),
        ((UNDONE, SILENT, SILENT), 1.0, None),
        ((UNDONE, UNDONE, slow(UNDONE)), 0.0, GONE),
        ((UNDONE, DONE, slow(UNDONE)), 0.2, GONE),
        ((DONE, DONE, UNDONE, slow(UNDONE)), 0.2, GONE),
        ((DONE, DONE, DONE, slow(UNDONE)), 0.0, None),
        ((error("NOPERM no right"), DONE, slow(DONE)), 0.2, None),
    ],
)
@on_told
async def test_a_release(
    on: Table, replies: Vote, took: float, reason: str | None, kind: str
) -> None:
    """It is done once its outcome is certain, or after a node timeout."""
    on.tell("acquire", (yes(),) * len(replies))
    on.tell("release", replies)
    wanted: Any = on.locks.semaphore("a", 1) if kind == "semaphore" else on.locks.lock("a")
    lease = await wanted.acquire()
    _, seconds = await outcome(lease.release())
    assert seconds == pytest.approx(took, abs=0.001)
    assert lease.lost_reason == reason
    await asyncio.sleep(0.5)
    assert on.locks.statistics().lost == (reason is not None), "told once"


@pytest.mark.parametrize(("dead", "took"), [("a", 0.2), ("abc", 0.0)])
@on_told
async def test_a_release_waits_for_nodes_that_can_get_it(on: Table, dead: str, took: float) -> None:
    """One that is known to be down answers at once: that decides nothing, unless all are."""
    on.tell("acquire", (yes(),) * 3)
    on.tell("rest", (slow(DONE),) * 3)
    lease = await on.locks.lock("a", at_least=5.0).acquire()
    on.kill(dead)
    await until(lambda: [one.state for one in on.locks.nodes()].count("down") == len(dead))
    _, seconds = await outcome(lease.release())
    assert seconds == pytest.approx(took, abs=0.001)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("NOPERM no right", "a node refuses releases, so locks last for their whole ttl: NOPERM"),
        ("WRONGTYPE a key", "a node can't wake the waiters of a lock that was released: WRONGTYPE"),
    ],
)
@on_told
async def test_a_node_that_refuses_is_complained_of_once(
    on: Table, text: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    on.tell("acquire", (yes(),) * 3)
    on.tell("release", (error(text), DONE, error(text)))
    for _ in range(3):
        await go_through(on.locks.lock("a"))
    ours = [one.getMessage() for one in caplog.records if one.name == "asynclock"]
    assert [one[: len(told)] for one in ours] == [told]


KEPT, MISSING = Reply([1]), Reply([0])


@pytest.mark.parametrize(
    ("replies", "result", "took"),
    [
        ((KEPT, KEPT, slow(KEPT)), True, 0.0),
        ((KEPT, MISSING, slow(KEPT)), True, 0.2),
        ((KEPT, MISSING, slow(MISSING)), False, 0.2),
        ((MISSING, MISSING, SILENT), False, 0.0),
        ((KEPT, MISSING, SILENT), OUTAGE, 1.0),
        ((KEPT, LOST, LOST), OUTAGE, 0.0),
    ],
)
@on_told
async def test_a_check(
    on: Table, replies: Vote, result: bool | type[Exception], took: float
) -> None:
    on.tell("acquire", (yes(),) * 3)
    on.tell("check", replies)
    lease = await on.locks.lock("a").acquire()
    found, seconds = await outcome(lease.check())
    assert seconds == pytest.approx(took, abs=0.001)
    assert (type(found) if isinstance(found, Exception) else found) == result
    assert lease.lost_reason == (NO_LONGER if found is False else None)


YES, NOT = Reply([b"1"]), Reply([b"0"])


@pytest.mark.parametrize(
    ("replies", "result", "took", "causes"),
    [
        ((YES, YES, slow(YES)), None, 0.0, ""),
        ((YES, NOT, slow(YES)), None, 0.2, ""),
        ((YES, SILENT, SILENT), OUTAGE, 1.0, "bc"),
        ((YES, LOST, slow(LOST)), OUTAGE, 0.2, "bc"),
        ((NOT, LOST, slow(YES)), OUTAGE, 0.2, "b"),
        ((SILENT, error("OOM no memory"), SILENT), OUTAGE, 1.0, "abc"),
        ((NOT, NOT, SILENT), asynclock.LeaseLostError, 0.0, ""),
        ((NOT, LOST, slow(NOT)), asynclock.LeaseLostError, 0.2, ""),
    ],
)
@on_told
async def test_an_extension(
    on: Table, replies: Vote, result: type[Exception] | None, took: float, causes: str
) -> None:
    on.tell("acquire", (yes(),) * 3)
    on.tell("extend", replies)
    lease = await on.locks.lock("a", renew=False).acquire()
    await asyncio.sleep(3)
    before = lease.remaining()
    found, seconds = await outcome(lease.extend())
    assert seconds == pytest.approx(took, abs=0.001)
    assert (None if found is None else type(found)) == result
    if isinstance(found, OUTAGE):
        assert sorted(address[-1] for address in found.nodes) == list(causes)
    assert (lease.remaining() > before) is (found is None)
    assert lease.lost_reason == (NO_LONGER if result is asynclock.LeaseLostError else None)


@pytest.mark.parametrize(
    ("replies", "first", "second"),
    [
        ((b"11", b"11", None), "renewed", "renewed"),
        ((b"10", b"10", None), "renewed", NO_LONGER),
        ((b"01", b"01", None), NO_LONGER, "renewed"),
        ((b"10", b"11", b"11"), "renewed", "renewed"),
        ((b"11", b"10", None), "renewed", "asked again"),
        ((b"11", None, None), "asked again", "asked again"),
    ],
)
@on_told
async def test_leases_that_are_renewed_together_are_decided_each_by_itself(
    on: Table, replies: tuple[bytes | None, ...], first: str, second: str
) -> None:
    on.tell("acquire", (yes(),) * 3)
    on.tell("batch", (Reply([0, [7, 7]]),) * 3)
    votes = tuple(LOST if said is None else Reply([said]) for said in replies)
    again = b"1" * (first, second).count("asked again")
    on.tell("extend", votes, (Reply([again]),) * 3)
    calls = (on.locks.lock(name).acquire() for name in "ab")
    leases = await asyncio.gather(*calls)
    owners = [lease.owner for lease in leases]
    await asyncio.sleep(5.5)
    asked = [one.words[3:] for one in on.heard("extend") if one.node == "a"]
    assert asked[0] == owners, "one command for both"
    for lease, wanted in zip(leases, (first, second), strict=True):
        assert any(lease.owner in words for words in asked[1:]) is (wanted == "asked again")
        assert lease.lost_reason == (NO_LONGER if wanted == NO_LONGER else None)
        assert (lease.remaining() > 7.0) is (wanted != NO_LONGER)


@on_told
async def test_no_renewal_is_sent_that_would_come_too_late(on: Table) -> None:
    """Each lease that ends would send those that end a moment later again and again."""
    on.tell("acquire", (yes(),) * 3)
    on.tell("extend", (error("OOM no memory"),) * 3)
    first = await on.locks.lock("a").acquire()
    ends = now() + first.remaining()
    await asyncio.sleep(0.005)
    second = await on.locks.lock("b").acquire()
    await until(lambda: second.lost_reason)
    assert ends - 1.0 < max(one.at for one in on.heard("extend")) < ends - 0.01


@pytest.mark.parametrize(
    ("handoff", "replies", "fence"),
    [
        ("strict", (Reply([1, 10]), Reply([1, 10]), SILENT), 11),
        ("strict", (Reply([1, 11]), Reply([1, 10]), SILENT), None),
        ("strict", (Reply([0, 12]), Reply([0, 12]), Reply([1, 10])), None),
        ("strict", (LOST, LOST, LOST), None),
        (True, (Reply([1, 10]), Reply([1, 10]), SILENT), 11),
        (True, (Reply([1, 20]), Reply([1, 10]), SILENT), 21),
        (True, (Reply([1, 10]), Reply([1, 10 + BLOCK]), LOST), 11 + BLOCK),
        (True, (Reply([0, 12]), Reply([0, 12]), Reply([1, 10])), None),
    ],
)
@on_told
async def test_a_hand_over_takes_a_fence_above_all_that_a_node_has_given(
    on: Table, handoff: Any, replies: Vote, fence: int | None
) -> None:
    """If it gets none, the name is released and asked for anew."""
    on.tell("acquire", (yes(10),) * 3, (yes(99),) * 3)
    on.tell("batch", (Reply([0, [1, 99]]),) * 3)
    on.tell("raise", replies)
    wanted = on.locks.lock("a", ttl=1.01, handoff=handoff)
    first = await wanted.acquire()
    waiting = start(wanted.acquire())
    await until(lambda: on.locks.statistics().waiting)
    await first.release()
    second = await waiting
    assert (second.owner == first.owner) is (fence is not None)
    assert second.fence == (fence or 99)
    raised = on.heard("raise")[0].words
    assert raised[1:3] == [first.owner, str(10 + (1 if handoff == "strict" else BLOCK))]
    await second.release()
    assert (await wanted.acquire(timeout=5)).held


@pytest.mark.parametrize(
    ("reply", "guard", "sent"),
    [
        (yes(10), True, ["acquire"]),
        (yes(12), True, ["acquire"]),
        (yes(9), True, ["acquire", "raise"]),
        (no(), True, ["acquire", "acquire"]),
        (LOST, True, ["acquire", "acquire"]),
        (yes(10), False, []),
    ],
)
@on_told
async def test_a_node_that_forgot_a_key_is_sent_the_owners_acquire_again(
    on: Table, reply: Reply, guard: bool, sent: list[str]
) -> None:
    """With the highest fence as its floor, past all who wait; once for each loss."""
    async with on.connect(restart_guard=guard) as locks:
        await go_through(locks.lock("warm"))
        await asyncio.sleep(0.1)
        on.nodes[2].flush()
        await until(lambda: locks.nodes()[2].state == ("quarantined" if guard else "up"))
        on.tell("acquire", (yes(10), yes(10), reply), (yes(10),) * 3)
        on.tell("raise", (Reply([1, 9]),) * 3)
        on.tell("extend", (YES, YES, NOT))
        lease = await locks.lock("a").acquire()
        on.nodes[2].heard.clear()
        await asyncio.sleep(25)
        heard = [one for one in on.nodes[2].heard if one.op not in ("extend", "look")]
        assert [one.op for one in heard] == sent
        for one in heard[:1]:
            assert one.words[1:3] == [lease.owner, "10000"]
            assert one.words[3] == "10"
            assert one.words[6:] == ["0", lease.owner, "0", "1"]
        assert lease.held
        await asyncio.sleep(25)
        assert len([one for one in on.nodes[2].heard if one.op not in ("extend", "look")]) == len(
            sent
        )


async def test_a_late_reply_to_a_reservation_counts_for_no_newer_one() -> None:
    nodes = SimpleNamespace(quorum=2, nodes=(None,) * 3, broadcast=lambda *_: None)
    nodes.counts = lambda *_: True
    context: Any = SimpleNamespace(multiplexer=nodes, retention=1000)
    grant = Grant(lock.spec("p:", "a"), "me", 10, LeaseOptions(1.0), 1.0, (0, 1), 0.0, None)
    first, second = Reservation(context, grant, 5), Reservation(context, grant, 5)
    for index in (0, 1):
        first.on_reply(index, [1, 10, 0])
    assert grant.fences == range(0)
    second.on_reply(0, [1, 20, 0])
    second.on_reply(1, [1, 10, 0])
    assert grant.fences == range(0), "above its own last number"
    third = Reservation(context, grant, 5)
    third.on_reply(0, [1, 20, 0])
    second.on_reply(2, [1, 10, 0])
    third.on_reply(1, [1, 10, 0])
    assert grant.fences == range(21, 26)


@virtual
async def test_a_key_that_is_being_put_back_is_not_the_first_grants(on: Nodes) -> None:
    """Executed late, it may stand where another's key was forgotten."""
    lease = await on.locks.lock("a").acquire()
    grant = on.locks._engine.renewals.find(lease.owner)
    assert grant is not None
    assert sorted(grant.voters) == [0, 1, 2] or len(grant.voters) == 2
    grant.voters = (0, 1, 2)
    on.nodes[0].flush()
    renewals = on.locks._engine.renewals
    await asyncio.sleep(TTL)
    on.ways[0].seconds = 0.2
    await until(lambda: renewals._putting_back)
    assert 0 not in grant.voters
    await until(lambda: not renewals._putting_back)
    assert 0 in grant.voters


@virtual
async def test_a_key_is_put_back_once_the_request_can_have_a_limit(on: Nodes) -> None:
    """Executed late, it would keep others out."""
    lease = await on.locks.lock("a").acquire()
    nodes = on.locks._engine.multiplexer
    usual, nodes.not_after = nodes.not_after, lambda _: 0  # type: ignore[method-assign,assignment]
    on.nodes[0].flush()
    await asyncio.sleep(2 * TTL)
    assert not on.nodes[0].keys.get(KEY)
    nodes.not_after = usual  # type: ignore[method-assign]
    await until(lambda: on.nodes[0].keys.get(KEY))
    assert lease.held


@virtual
async def test_a_node_that_did_not_vote_for_a_lease_only_keeps_it(on: Nodes) -> None:
    """Its grant was not part of the vote, so its renewals do not count before its own vote does."""
    lease = await on.locks.lock("a").acquire()
    grant = on.locks._engine.renewals.find(lease.owner)
    assert grant is not None
    grant.voters = (1, 2)
    on.nodes[0].flush()
    await until(lambda: on.nodes[0].keys.get(KEY))
    await asyncio.sleep(0.1)
    assert grant.voters == (1, 2)


@virtual
async def test_a_lease_that_ends_sooner_is_told_of_in_time(on: Nodes) -> None:
    lease = await on.locks.lock("a", renew=False).acquire()
    await asyncio.sleep(TTL / 2)
    on.locks._engine.renewals.shorten(3.0)
    took = await seconds_until(lambda: lease.lost_reason)
    assert took == pytest.approx(VALID - TTL / 2 - 3.0, abs=0.01)


async def test_a_strict_raise_gives_out_its_last_number_only() -> None:
    """Lower ones may be older than this hand-over: the raise before was lost."""
    nodes = SimpleNamespace(quorum=2, nodes=(None,) * 3, broadcast=lambda *_: None)
    nodes.counts = lambda *_: True
    context: Any = SimpleNamespace(multiplexer=nodes, retention=1000)
    grant = Grant(lock.spec("p:", "a"), "me", 10, LeaseOptions(1.0), 1.0, (0, 1), 0.0, None)
    lost, again = Reservation(context, grant, 1), Reservation(context, grant, 1)
    for index in range(3):
        lost.on_reply(index, Failure("lost"))
        again.on_reply(index, [1, 10, 0])
    assert grant.fences == range(12, 13)
    waits_for = reserve_now(context, grant, LeaseOptions(1.0, handoff="strict"))
    assert waits_for is grant.reserving is not None, "one that is left is too old"
