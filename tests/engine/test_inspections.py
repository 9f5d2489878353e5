"""What people are told about a name: its owner, its waiters, and why they did not get it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine import refusals
from asynclock._engine.grant import Grant
from asynclock._engine.inspection import Inspection, NodeView, whole
from asynclock._engine.local_queue import LocalQueue
from asynclock._engine.spec import LockSpec, ms
from asynclock._engine.vote import Vote
from asynclock._engine.waiters import SCRIPT, Waiter
from asynclock._nodes.acks import UNSUPPORTED
from asynclock._nodes.replies import Failure
from asynclock.errors import UnsupportedDeploymentError
from tests.engine.attempts import around
from tests.engine.virtual_nodes import KEY, TTL, Nodes, start, virtual
from tests.waiting import until

OURS, THEIRS = "0" * 32 + ":web:1", "1" * 32 + ":web:2"
CLOCK = 1_800_000_000_000_000


def seen(*views: tuple[str | None, float | None, int], errors: int = 0) -> Inspection:
    """Return an inspection of a name on some nodes, with a quorum of more than half."""
    nodes = [NodeView(f"n{at}", *view) for at, view in enumerate(views)]
    nodes += [NodeView(f"e{at}", None, None, 0, "no answer") for at in range(errors)]
    return Inspection("a", tuple(nodes), len(nodes) // 2 + 1)


def test_the_owner_is_named_by_a_quorum() -> None:
    two = seen((OURS, 5.0, CLOCK), (OURS, 3.0, CLOCK + 7), (THEIRS, 9.0, CLOCK + 9))
    assert (two.owner, two.holder) == (OURS, "web:1")
    assert two.remaining == 3.0, "then one node is left, and no quorum"
    assert two.fence == CLOCK + 7, "a single node may be ahead"
    assert two.since == CLOCK / 1_000_000, "in seconds, by the node that granted it first"
    assert not two.agreed


def test_a_name_without_a_quorum_for_one_owner_has_none() -> None:
    split = seen((OURS, 5.0, CLOCK), (THEIRS, 3.0, CLOCK), (None, None, CLOCK))
    assert (split.owner, split.holder, split.remaining, split.since) == (None, None, None, None)
    assert split.fence == CLOCK
    assert not split.agreed
    one = seen((OURS, 5.0, CLOCK), errors=2)
    assert (one.owner, one.remaining) == (None, None)
    assert one.fence == 0, "no quorum has reached it"


def test_nodes_that_did_not_answer_disagree_with_nobody() -> None:
    assert seen((OURS, 5.0, 1), (OURS, 5.0, 1), errors=1).agreed
    assert seen(errors=3).agreed
    assert not seen((OURS, 5.0, 1), (None, None, 1), errors=1).agreed


def test_a_quorum_is_kept_as_long_as_its_last_node_keeps_it() -> None:
    five = seen(*((OURS, float(left), 1) for left in (9, 2, 7, 5, 3)))
    assert five.remaining == 5.0
    assert seen((OURS, None, 1), (OURS, None, 1), (OURS, 4.0, 1)).remaining is None
    assert seen((OURS, 4.0, 1), (OURS, 3.0, 1), (THEIRS, 9.0, 1)).remaining == 3.0


def test_a_quorum_of_an_even_number_of_nodes_has_reached_a_fence() -> None:
    four = seen(*((OURS, float(fence), CLOCK + fence) for fence in (4, 1, 3, 2)))
    assert four.quorum == 3
    assert (four.fence, four.remaining) == (CLOCK + 2, 2.0)


def test_since_when_another_owner_has_it_says_nothing() -> None:
    found = seen((THEIRS, 1.0, CLOCK - 5_000_000), (OURS, 1.0, CLOCK), (OURS, 1.0, CLOCK + 9))
    assert found.since == CLOCK / 1_000_000


@pytest.mark.parametrize(
    ("owner", "fence", "shared", "since"),
    [
        (OURS, CLOCK, False, CLOCK / 1_000_000),
        (OURS, 10**15, False, 1e9),
        (OURS, CLOCK, True, None),
        (OURS, 10**15 - 1, False, None),
        (OURS, 2**53, False, None),
        ("1" * 31 + ":x", CLOCK, False, None),
        (None, CLOCK, False, None),
    ],
)
def test_a_fence_tells_since_when(
    owner: str | None, fence: int, shared: bool, since: float | None
) -> None:
    assert NodeView("n", owner, 1.0, fence, shared=shared).since == since


def test_the_whole_of_several_parts() -> None:
    first, second = Waiter("x", woken=True), Waiter("y", woken=False)
    held = NodeView("m", OURS, 1.0, 3), NodeView("n", OURS, 1.0, 9)
    free = NodeView("m", None, None, 7), NodeView("n", None, None, 0, "dead")
    parts = [
        Inspection("a", held, 2, waiting=(first, second)),
        Inspection("a", free, 2, waiting=(second,)),
    ]
    one = whole("a", "semaphore", parts)
    assert (one.name, one.kind, one.owner, one.parts) == ("a", "semaphore", None, tuple(parts))
    assert [view.fence for view in one.nodes] == [7, 9]
    assert [view.error for view in one.nodes] == [None, "dead"]
    assert [view.node for view in one.nodes] == ["m", "n"]
    assert one.waiting == (first, second), "each is listed once"


@virtual
async def test_a_waiter_for_any_part_is_listed_once_and_with_each_part(on: Nodes) -> None:
    theirs = on.connect(label="theirs")
    held = [await on.locks.semaphore("s", 2).acquire() for _ in range(2)]
    waiting = start(theirs.semaphore("s", 2).acquire())
    await until(lambda: theirs.statistics().refused)
    await asyncio.sleep(0.1)
    found = await on.locks.semaphore("s", 2).inspect()
    assert [waiter.label for waiter in found.waiting] == ["theirs"]
    assert len(found.parts) == 2
    assert [part.waiting for part in found.parts] == [found.waiting] * 2
    assert {part.owner for part in found.parts} == {lease.owner for lease in held}
    await held[0].release()
    await (await waiting).release()
    await theirs.aclose()


@virtual
async def test_what_other_programs_wrote_is_shown_and_breaks_nothing(on: Nodes) -> None:
    for node in on.nodes:
        await node.command("SET", KEY, b"\xff\xfe of another program")
    found = await on.locks.inspect("a")
    assert found.owner is not None
    assert found.owner.endswith(" of another program")
    assert found.remaining is None, "it has no ttl"
    assert found.holder is not None
    assert len(found.holder) == refusals.SHOWN_CHARACTERS + 1
    on.nodes[0].freeze()
    found = await on.locks.inspect("a")
    assert [bool(view.error) for view in found.nodes] == [True, False, False]
    on.nodes[0].thaw()


@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        (None, None),
        (OURS, "web:1"),
        ("0" * 32 + ":", ""),
        ("0" * 32, "00000000…"),
        ("12345678", "12345678"),
        ("123456789", "12345678…"),
        ("short:text", "short:te…"),
        ("s:t", "s:t"),
    ],
)
def test_an_owner_is_shown_without_what_could_release_the_lock(
    owner: str | None, shown: str | None
) -> None:
    assert refusals.label(owner) == shown


def test_an_id_of_this_library_is_told_by_its_form() -> None:
    assert refusals.is_owner_id(OURS)
    for other in (None, "", "short:text", "0" * 33 + ":x", "0" * 32):
        assert not refusals.is_owner_id(other)


@virtual
async def test_a_refusal_says_who_holds_it_and_for_how_long(on: Nodes) -> None:
    theirs = on.connect(label="theirs")
    lease = await theirs.lock("a").acquire()
    await asyncio.sleep(1)
    with pytest.raises(asynclock.AcquireTimeoutError, match="'a' was not free in time") as late:
        await on.locks.lock("a").acquire(timeout=0.5)
    error = late.value
    assert (error.name, error.owner, error.holder) == ("a", lease.owner, "theirs")
    assert "held by 'theirs'" in str(error)
    assert error.remaining == pytest.approx(TTL - 1, abs=0.6)
    assert error.votes == {"granted": 0, "refused": 3, "unknown": 0}
    on.nodes[0].freeze()
    with pytest.raises(asynclock.NotAcquiredError) as partly:
        await on.locks.lock("a").acquire(timeout=0.5)
    assert partly.value.votes is not None
    assert partly.value.votes["refused"] == 2
    on.nodes[0].thaw()
    await theirs.aclose()


@virtual
async def test_a_refusal_by_this_process_itself_says_so(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    await asyncio.sleep(1)
    with pytest.raises(asynclock.AcquireTimeoutError, match="other tasks of this process") as late:
        await on.locks.lock("a").acquire(timeout=0.5)
    assert (late.value.name, late.value.owner) == ("a", lease.owner)
    assert late.value.remaining == pytest.approx(lease.remaining(), abs=0.01)
    assert await on.locks.lock("a").try_acquire() is None
    await lease.release()


class Failed(Vote):
    """A vote of three nodes in which some failed."""

    AIM, NEVER = "lock", "be locked"
    name = "a"

    def __init__(self, *failures: Failure) -> None:
        self._nodes = [cast("Any", SimpleNamespace(address=f"n{at}")) for at in range(3)]
        self._quorum = 2
        self.failures = dict(enumerate(failures))


NO_RIGHT = Failure("no rights", permanent=True)
NO_ACKS = Failure("no acks", permanent=True, code=UNSUPPORTED)


def test_what_can_never_succeed_is_an_error_of_the_configuration() -> None:
    error = refusals.hopeless(Failed(NO_RIGHT, NO_RIGHT))
    assert type(error) is asynclock.ConfigurationError
    assert error.name == "a"
    assert str(error) == "'a' can't be locked here: n0: no rights; n1: no rights"
    assert type(refusals.hopeless(Failed(NO_RIGHT, NO_ACKS))) is UnsupportedDeploymentError


def test_too_few_answers_are_an_outage_with_the_cause_at_each_node() -> None:
    now = _clock.now()
    quarantined = Failure("quarantined", votes_from=now + 30)
    error = refusals.outage(Failed(Failure("lost"), quarantined))
    assert (error.name, error.nodes) == ("a", {"n0": "lost", "n1": "quarantined"})
    assert "to lock 'a': n0: lost; n1: quarantined" in str(error)
    assert error.retry_after == 1.0, "the first node may answer at any moment"
    both = refusals.outage(Failed(quarantined, quarantined))
    assert both.retry_after == pytest.approx(30, abs=10)
    assert str(refusals.outage(Failed())).endswith("no node answered")


def test_a_discarded_reply_is_one_whose_node_votes_again() -> None:
    now = _clock.now()
    ended, lasting = Failure("q", votes_from=now - 1), Failure("q", votes_from=now + 60)
    assert refusals.discarded(Failed(Failure("lost"), ended))
    assert not refusals.discarded(Failed(Failure("lost"), lasting))
    assert not refusals.discarded(Failed(Failure("lost")))


def test_only_who_waited_is_told_of_a_timeout() -> None:
    """Events, and callers that treat a TimeoutError, tell the two apart."""
    ballot = SimpleNamespace(claims={1: 5}, refused=2, unknown=0)
    facts = {"holder": THEIRS, "remaining": 3.0, "ballot": ballot, "spec": spec()}
    facts["retry_after"] = lambda: 0.5
    attempt = cast("Any", SimpleNamespace(**facts))
    assert type(refusals.refused(attempt)) is asynclock.NotAcquiredError
    assert type(refusals.too_long(attempt)) is asynclock.AcquireTimeoutError
    assert refusals.refused(attempt).votes == {"granted": 1, "refused": 2, "unknown": 0}
    _, context = around()
    late = refusals.out_of_time(context, spec())
    assert (type(late), late.name) == (asynclock.AcquireTimeoutError, "a")
    queue = LocalQueue[Grant]("a", "p:a", 1, 0.0)
    assert type(refusals.too_long_here(context, queue)) is asynclock.AcquireTimeoutError
    queue.grants.append(Grant(spec(), OURS, 1, 1.0, _clock.now() - 5, (0,), 0.0, None))
    here = refusals.held_here(context, queue)
    assert (type(here), here.remaining) == (asynclock.NotAcquiredError, 0.0)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (asynclock.NotAcquiredError, "refused"),
        (asynclock.AcquireTimeoutError, "timeout"),
        (asynclock.QuorumUnavailableError, "outage"),
    ],
)
def test_events_name_the_outcome_of_each_error(
    error: type[asynclock.AsyncLockError], outcome: str
) -> None:
    assert refusals.OUTCOMES[error] == outcome


def spec(**facts: Any) -> LockSpec:
    return LockSpec("a", SCRIPT, ("k", "c"), **facts)


def test_times_for_redis_are_whole_milliseconds_and_never_none() -> None:
    assert [ms(seconds) for seconds in (0.0, 0.0001, 0.0016, 1.2345, 0.0299999999)] == [
        1,
        1,
        2,
        1234,
        30,
    ]


def test_the_keys_of_each_command() -> None:
    alone, queued = spec(), spec(queue="q", neighbours=("n",), ticket_ttl=1.5)
    phased = spec(queue="q", neighbours=("n",), phased=True)
    assert alone.acquire("o", 1.0, 5, 6, 7).keys == ("k", "c")
    assert queued.acquire("o", 1.0, 5, 6, 7).keys == ("k", "c", "q", "n")
    assert queued.leave("t").keys == queued.pass_on().keys == ("k", "c", "q", "n")
    assert alone.release("o", 0.0, 1.0).keys == ("k", "c")
    assert queued.release("o", 0.0, 1.0).keys == ("k", "c", "q")
    assert phased.release("o", 0.0, 1.0).keys == ("k", "c", "q", "n")
    assert queued.check("o").keys == queued.write_back("o", 1, 2).keys == ("k", "c")
    assert (alone.waits, queued.waits) == ((), (1500,))


def test_the_arguments_of_an_acquire() -> None:
    assert spec().acquire("o", 1.5, 5, 6, 7).args == ("acquire", "o", 1500, 5, 6, 7)
    exempt = spec(exempt=("other",))
    plain = ("acquire", "o", 1500, 5, 6, 7, 0, "o", 0, 0, "other")
    assert exempt.acquire("o", 1.5, 5, 6, 7).args == plain
    waiting = ("acquire", "o", 1500, 5, 6, 7, 900, "t", 0, 0, "other")
    assert exempt.acquire("o", 1.5, 5, 6, 7, (900, "t")).args == waiting
    assert spec(queue="q").restore("o", 1.5, 5, 6, 7).args[6:] == (0, "o", 0, 1)
    assert spec().restore("o", 1.5, 5, 6, 7).args[6:] == ()


@virtual
async def test_a_leader_that_publishes_a_value_waits_for_no_slow_node(on: Nodes) -> None:
    term = await on.locks.election("e").campaign("me")
    on.ways[0].seconds = 0.4
    began = _clock.now()
    assert await term.publish("at another address")
    assert _clock.now() - began < 0.05
    on.slow(0.0)
    await term.lease.release()
