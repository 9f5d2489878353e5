"""What goes to all nodes of a manager and what it makes of their facts; pushes; confirmations."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.multiplexer import CLOCK_READING_AGE, Multiplexer
from asynclock._nodes.node import NOT_AFTER_GRACE, NodeSettings
from asynclock._nodes.replicated import CONFIRMED, POLL, WatchedNode, poll_patience
from asynclock._nodes.wakeup import PUSH_WINDOW, QUORUM_PUSH_WINDOW, Wakeups
from asynclock._nodes.wire import NOBODY, Failure
from asynclock._process import Background
from asynclock._rules.validity import Facts
from asynclock.events import Observers
from tests.tables.nodes.links import command
from tests.tables.nodes.nodes import CLOCK, OLD, Hand, HandLink
from tests.waiting import in_virtual_time


class Group:
    """The nodes of a manager; each has an open link."""

    def __init__(self, size: int = 3, *, strict: bool = False) -> None:
        self.hands = [Hand() for _ in range(size)]
        self.nodes = [hand.node for hand in self.hands]
        for number, hand in enumerate(self.hands):
            link: Any = HandLink(hand)
            hand.node.address, hand.node.link = f"n{number}", link
        self.all = Multiplexer(self.nodes, Background(), strict=strict, most_leases=100, label=None)

    def meet(self, number: int, run_id: str = "", **facts: Any) -> None:
        """Let a node tell its facts."""
        known = Facts() if run_id == "unknown" else replace(OLD, run_id=run_id or f"r{number}")
        self.nodes[number].trust.facts = replace(known, **facts)
        self.nodes[number].on_connect(self.nodes[number])

    def read_clocks(self, *ahead: float) -> None:
        """Read the nodes' clocks; `ahead` is by how many seconds they are ahead of `CLOCK`."""
        now = _clock.now()
        for node, seconds in zip(self.nodes, ahead, strict=False):
            node.on_clock(CLOCK + seconds, now, now)

    def heard(self) -> list[list[str]]:
        return [[words.removeprefix("sends ") for words in hand.heard] for hand in self.hands]

    def flaw(self) -> str:
        """Return why the manager refuses to work; "" if it does not."""
        self.all.loop = asyncio.get_running_loop()
        try:
            self.all.ready()
        except asynclock.ConfigurationError as error:
            return str(error)
        return ""


class Unsent:
    """A batch that tells when it is sent."""

    def __init__(self, group: Group, name: str) -> None:
        self.group, self.command, self.writes = group, command(name), list[bool]()

    def send(self, *, write: bool) -> None:
        self.writes.append(write)
        for node in self.group.nodes:
            node.send_batch(self.command, NOBODY, 0, write=write)


@pytest.mark.parametrize("then", ["broadcast", "deliver"])
@in_virtual_time
async def test_what_waits_for_the_end_of_the_tick_goes_before_a_later_command(then: str) -> None:
    """A release of this tick before the next acquire, an acquire before its own release."""
    group = Group()
    batches = [Unsent(group, "first"), Unsent(group, "second")]
    group.all.unsent.extend(batches)
    if then == "broadcast":
        group.all.broadcast(command("PING"), NOBODY, arm=True)
    else:
        group.all.deliver(command("release me"), NOBODY, (0, 2))
    last = ["PING behind CLIENT CACHING YES"] if then == "broadcast" else ["release me"]
    both = ["first", "second"]
    one = both + last
    assert group.heard() == [one, one if then == "broadcast" else both, one]
    assert [batch.writes for batch in batches] == [[False], [False]]
    group.all.flush(write=True)
    assert [len(batch.writes) for batch in batches] == [1, 1], "each is sent once"
    group.all.loop = asyncio.get_running_loop()
    group.all.unsent.append(third := Unsent(group, "third"))
    group.all.flush_soon()
    await asyncio.sleep(0)
    assert third.writes == [True], "the end of the tick writes it"


@pytest.mark.parametrize(("pushing", "enough"), [(3, True), (2, True), (1, False), (0, False)])
@in_virtual_time
async def test_a_release_is_noticed_if_each_quorum_has_pushes(
    pushing: int, *, enough: bool
) -> None:
    """A name is free when a quorum has freed it: two silent nodes of three can free it unheard."""
    group = Group()
    for node in group.nodes[:pushing]:
        node.tracking = True
    assert group.all.tracks() is enough


# ---- clocks
@in_virtual_time
async def test_fences_begin_at_the_lower_middle_of_a_quorum_of_clocks() -> None:
    group, now = Group(), _clock.now()
    for ahead, floor, latest in (
        ((), None, None),
        ((50.0,), None, None),
        ((50.0, 10.0), 10, 50),
        ((50.0, 10.0, 30.0), 10, 50),
    ):
        group.read_clocks(*ahead)
        wanted = -1 if floor is None else round((CLOCK + floor) * 1e6)
        assert group.all.fence_floor(now) == wanted, ahead
        bound = 0 if latest is None else round((CLOCK + latest + 1 + NOT_AFTER_GRACE) * 1e6)
        assert group.all.not_after(now + 1 if latest else now) == pytest.approx(bound, abs=2)
    now += CLOCK_READING_AGE
    assert group.all.fence_floor(now) == round((CLOCK + 30 + CLOCK_READING_AGE) * 1e6)


@pytest.mark.parametrize("event", ["jump", "connection"])
@in_virtual_time
async def test_clocks_are_read_anew_when_one_jumped_or_is_another_machines(event: str) -> None:
    group, now = Group(1), _clock.now()
    group.read_clocks(0.0)
    before = group.all.fence_floor(now)
    if event == "connection":
        group.nodes[0].trust._as_of = 0.0
    group.read_clocks(-60.0)
    if event == "connection":
        group.meet(0)
    assert group.all.fence_floor(now) == pytest.approx(before - 60_000_000, abs=5)


# ---- facts
@in_virtual_time
async def test_a_standstill_of_ours_is_told_once_with_its_length() -> None:
    group, told = Group(), list[float]()
    group.all.on_stood_still = told.append
    group.read_clocks(0.0, 0.0, 0.0)
    await asyncio.sleep(0.1)
    group.read_clocks(5.1)
    assert told == []
    assert [words[-1:] for words in group.heard()] == [[], ["TIME"], ["TIME"]]
    group.read_clocks(5.1, 5.1, 5.1)
    assert [round(seconds) for seconds in told] == [5]
    assert round(group.all.stood_still) == 5


@in_virtual_time
async def test_a_client_that_the_record_refuses_counts_no_reply_and_wakes_its_waiters() -> None:
    group, now = Group(), _clock.now()
    trust = group.nodes[0].trust
    trust.votes_from = now
    assert group.all.counts(0, now, ()), "the request was sent when the quarantine ended"
    trust.votes_from, trust.renews_from = now + 9, now
    assert group.all.counts(0, now, (0,)), "or when the previous primary had ended"
    watch = group.all.wakeups.watch(("a",))
    group.all._set_guard.failure = Failure("other nodes")
    group.meet(0)
    assert not group.all.counts(0, now, (0,))
    assert watch.woken, "they learn it now"
    again = group.all.wakeups.watch(("a",))
    group.meet(1)
    assert not again.woken, "they know it"
    assert group.flaw() == "other nodes"
    group.all._set_guard.failure = None
    group.meet(0)
    assert group.flaw() == ""


# ---- pushes
HALF = f"wait {PUSH_WINDOW / 2}"
QUORUM_HALF = f"wait {QUORUM_PUSH_WINDOW / 2}"
NEVER = None


@pytest.mark.parametrize(
    ("keys", "steps", "slept"),
    [
        ("a b", "wake a 0", PUSH_WINDOW),
        ("a b", "wake a 0, wake b 0, wake b 0", PUSH_WINDOW),
        ("a b", "wake a 0, wake b 1", QUORUM_PUSH_WINDOW),
        ("a b", "wake a 2, wake b 1", QUORUM_PUSH_WINDOW),
        ("a b", "wake a 0, wake b 1, wake b 2", 0.0),
        ("a", "wake a", 0.0),
        ("a", "wake", 0.0),
        ("a", "wake b", NEVER),
        ("a", "wake b 0, wake b 1, wake b 2", NEVER),
        # a ticket wakes its waiter at a quorum, a change of the name a little later
        ("a ours", "wake a 0, wake ours 0, wake a 1, wake ours 1", 0.0),
        ("a ours", "wake a 0, wake theirs 0, wake a 1, wake theirs 1", PUSH_WINDOW),
        ("a ours", f"sleep, wake a 0, {HALF}, wake ours 0", PUSH_WINDOW),
        # what the nodes said in replies counts with their pushes, and starts no timer
        (" ours", "count ours 0", NEVER),
        (" ours", "count ours 0, count theirs 1", NEVER),
        (" ours", "count ours 0, count ours 1", 0.0),
        # more changes do not delay a waiter
        (
            "a ours",
            f"sleep, {HALF}, wake a 0, {HALF}, wake a 0, {HALF}, wake a 0",
            1.5 * PUSH_WINDOW,
        ),
        (
            "a",
            f"wake a 0, sleep, wake a 1, {QUORUM_HALF}, wake a 1, {QUORUM_HALF}, wake a 1",
            QUORUM_PUSH_WINDOW,
        ),
        # pushes from before the request wake nobody behind it
        ("a", "wake a 0, reset", NEVER),
        ("a", "wake a 0, reset, wake a 0", PUSH_WINDOW),
        ("a", "wake a 0, wake a 1, reset, wake a 2", PUSH_WINDOW),
        # a waiter that a quorum woke is not woken again for the first push
        ("a", "wake a 0, wake a 1, sleep, wait 0.5, reset", NEVER),
        ("a", "wake a, sleep, wait 0, reset", NEVER),
    ],
)
@in_virtual_time
async def test_when_the_pushes_of_three_nodes_wake_a_waiter(
    keys: str, steps: str, slept: float | None
) -> None:
    """At once if none is missing, a moment after a quorum, a little later after a single one."""
    wakeups = Wakeups(3, 2)
    *names, ticket = keys.split(" ") if keys.endswith("ours") else (*keys.split(), "")
    watch = wakeups.watch(tuple(filter(None, names)), **({"ticket": ticket} if ticket else {}))
    began, asleep = 0.0, None

    def sleep() -> None:
        nonlocal began, asleep
        began, asleep = _clock.now(), asyncio.ensure_future(watch.wait(1.0))

    for verb, *words in (step.split() for step in steps.split(", ")):
        if verb == "wake":
            wakeups.wake(words[0] if words else None, *map(int, words[1:]))
        elif verb == "count":
            wakeups.count(words[0], int(words[1]))
        elif verb == "wait":
            await asyncio.sleep(float(words[0]))
        elif verb == "sleep":
            sleep()
            await asyncio.sleep(0)
        else:
            if asleep is not None:
                assert await asleep
            watch.reset()
            assert not watch.called
            asleep = None
    if asleep is None:
        sleep()
    assert asleep is not None
    end = asyncio.get_running_loop().create_future()
    asleep.add_done_callback(lambda _: end.set_result(_clock.now() - began))
    assert await asleep is (slept is not None)
    if slept is not None:
        assert await end == pytest.approx(slept, abs=0.0001)


@in_virtual_time
async def test_a_watch_that_is_closed_leaves_nothing_behind() -> None:
    wakeups = Wakeups(3, 2)
    watches = [wakeups.watch(("name",), ticket=ticket) for ticket in ("ours", "theirs")]
    wakeups.wake("name", 0)
    watches[0].close()
    assert set(wakeups.watched) == {"name", "theirs"}
    watches[0].close()
    assert await watches[1].wait(1.0), "the other one still watches"
    assert not watches[0].woken, "its timer is gone"
    watches[1].close()
    assert wakeups.watched == {}


# ---- a primary that has to be confirmed
async def nowhere(*_: Any) -> Any:
    raise OSError


def watched() -> tuple[Hand, WatchedNode]:
    """A primary that is connected, and what is heard of its link."""
    settings = NodeSettings(
        0.25, 10.0, restart_guard=True, guard_first=True, clock_guard=True, disks_kept=False
    )
    hand, node = Hand(), WatchedNode("s", nowhere, settings, Observers())
    hand.node, node.tracking = node, True
    link: Any = HandLink(hand)
    node.link = link
    return hand, node


@in_virtual_time
async def test_a_confirmation_counts_from_its_question_for_replies_and_new_connections() -> None:
    _, node = watched()
    link: Any = node.link
    with pytest.raises(HandshakeError, match="not confirmed as the primary yet"):
        node.watched(link, Facts())
    node.confirm(_clock.now() - CONFIRMED / 2)
    assert node.watched(link, Facts()).lag == CONFIRMED
    node.link = link
    assert link.doubted(_clock.now()) is None
    assert link.doubted(_clock.now() + CONFIRMED / 2 + 0.01) is not None


@in_virtual_time
async def test_a_task_that_waits_for_a_confirmation_goes_on_with_one_that_still_counts() -> None:
    _, node = watched()
    for _ in range(2):
        waiting = asyncio.create_task(node.confirmation())
        await asyncio.sleep(0.1)
        node.confirm(_clock.now() - CONFIRMED - 1)
        await asyncio.sleep(0.1)
        assert not waiting.done(), "that one is over already"
        node.confirm(_clock.now())
        async with asyncio.timeout(1):
            await waiting
            await node.confirmation()
        await asyncio.sleep(CONFIRMED + 0.1)


@pytest.mark.parametrize("node_timeout", [0.01, 0.25, 1.0, 2.5, 15.0])
def test_a_frozen_watcher_costs_no_confirmation(node_timeout: float) -> None:
    """Each question waits for its answer; the next confirmation comes before the last one ends."""
    assert POLL + 2 * poll_patience(node_timeout) <= 0.8 * CONFIRMED
