"""What goes to all nodes of a manager, in which order, and what the manager makes of their facts.

The test plays the nodes, in virtual time.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._background import Background
from asynclock._nodes.multiplexer import CLOCK_READING_AGE, Multiplexer
from asynclock._nodes.node import NOT_AFTER_GRACE
from asynclock._nodes.replies import NOBODY
from asynclock._nodes.script import Command
from asynclock._rules.trust import Facts
from tests.nodes.by_hand import CLOCK, NODE_TIMEOUT, OLD, Hand, HandLink, release
from tests.waiting import in_virtual_time

PING = Command.plain("PING")


class Group:
    """The nodes of a manager; each has an open link."""

    def __init__(self, size: int = 3, *, strict: bool = False) -> None:
        self.nodes = [Hand().node for _ in range(size)]
        self.links = [HandLink(node) for node in self.nodes]
        for number, (node, link) in enumerate(zip(self.nodes, self.links, strict=True)):
            node.address = f"n{number}"
            node._link = link  # type: ignore[assignment]
        self.all = Multiplexer(self.nodes, Background(), strict=strict, batch=100, label=None)

    def meet(self, number: int, **facts: Any) -> None:
        """Let a node tell its facts."""
        self.nodes[number].trust.facts = replace(OLD, run_id=f"r{number}", **facts)
        self.nodes[number].on_connect(self.nodes[number])

    def read_clocks(self, *ahead: float) -> None:
        """Read the nodes' clocks; `ahead` is by how many seconds they are ahead of `CLOCK`."""
        now = _clock.now()
        for node, seconds in zip(self.nodes, ahead, strict=False):
            node.on_clock(CLOCK + seconds, now, now)

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
        self.group, self.command, self.now = group, Command.plain(name), list[bool]()

    def send(self, *, now: bool) -> None:
        self.now.append(now)
        for node in self.group.nodes:
            node.send_batch(self.command, NOBODY, 0, now=now)


# ---- order


@pytest.mark.parametrize("then", ["broadcast", "deliver"])
@in_virtual_time
async def test_what_waits_for_the_end_of_the_tick_goes_before_a_later_command(then: str) -> None:
    """A release of this tick before the next acquire, an acquire before its own release."""
    group = Group()
    batches = [Unsent(group, "first"), Unsent(group, "second")]
    group.all.unsent.extend(batches)
    if then == "broadcast":
        group.all.broadcast(PING, NOBODY, arm=True)
    else:
        group.all.deliver(release("me", 0.0, 60.0), NOBODY, (0, 2))
    asked = [[str(command.op) for command in link.commands] for link in group.links]
    last = ["PING"] if then == "broadcast" else ["release"]
    assert asked[0] == asked[2] == ["first", "second", *last]
    assert asked[1] == ["first", "second", *(["PING"] if then == "broadcast" else [])]
    assert [batch.now for batch in batches] == [[False], [False]]
    group.all.flush(ends=True)
    assert [len(batch.now) for batch in batches] == [1, 1], "each is sent once"


@in_virtual_time
async def test_at_the_end_of_a_tick_the_last_batch_writes_all() -> None:
    group = Group()
    group.all.loop = asyncio.get_running_loop()
    for tick in range(2):
        batches = [Unsent(group, "first"), Unsent(group, "second")]
        group.all.unsent.extend(batches)
        group.all.flush_soon()
        group.all.flush_soon()
        assert [batch.now for batch in batches] == [[], []], tick
        await asyncio.sleep(0)
        assert [batch.now for batch in batches] == [[False], [True]], tick


@in_virtual_time
async def test_all_nodes_are_asked_for_pushes() -> None:
    group = Group()
    for node in group.nodes:
        node.tracking = True
    group.all.broadcast(PING, NOBODY, arm=True)
    group.all.broadcast(PING, NOBODY)
    for link in group.links:
        assert [command.op for command in link.commands] == ["CLIENT", "PING", "PING"]


@pytest.mark.parametrize(("pushing", "enough"), [(3, True), (2, True), (1, False), (0, False)])
@in_virtual_time
async def test_a_release_is_noticed_if_a_quorum_has_a_node_that_pushes(
    pushing: int, *, enough: bool
) -> None:
    """A name is free when a quorum has freed it: two silent nodes of three can free it unheard."""
    group = Group()
    for node in group.nodes[:pushing]:
        node.tracking = True
    assert group.all.tracks() is enough


@in_virtual_time
async def test_whoever_waits_for_a_change_of_state_waits_for_the_next_one() -> None:
    group = Group()
    for _ in range(2):
        waiting = asyncio.create_task(group.all.state_change())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        group.nodes[1].on_state()
        await asyncio.sleep(0)
        assert waiting.done()


@in_virtual_time
async def test_a_push_counts_for_the_node_that_sent_it() -> None:
    group = Group()
    watch = group.all.wakeups.watch(("a",))
    for _ in range(3):
        group.nodes[0].on_push([b"invalidate", [b"a"]])
    assert not watch.woken
    for node in group.nodes[1:]:
        node.on_push([b"invalidate", [b"a"]])
    assert watch.woken


@in_virtual_time
async def test_closing_waits_two_node_timeouts_for_releases_at_most() -> None:
    group, began = Group(), _clock.now()
    for link in group.links:
        link.releasing = True
    await group.all.finish()
    assert _clock.now() - began == pytest.approx(2 * NODE_TIMEOUT, abs=0.01)
    assert [link.causes for link in group.links] == [["closed"]] * 3


# ---- clocks


@in_virtual_time
async def test_fences_begin_at_the_lower_middle_of_a_quorum_of_clocks() -> None:
    group, now = Group(), _clock.now()
    assert group.all.fence_floor(now) == -1
    assert group.all.not_after(now) == 0
    group.read_clocks(50.0)
    assert group.all.fence_floor(now) == -1, "one of three knows too little"
    assert group.all.not_after(now) == 0
    group.read_clocks(50.0, 10.0)
    assert group.all.fence_floor(now) == round((CLOCK + 10) * 1e6), "the lower of two"
    latest = round((CLOCK + 50 + 1 + NOT_AFTER_GRACE) * 1e6)
    assert group.all.not_after(now + 1) == pytest.approx(latest, abs=2), "by the one most ahead"
    group.read_clocks(50.0, 10.0, 30.0)
    assert group.all.fence_floor(now) == round((CLOCK + 10) * 1e6), "read a moment ago"
    now += CLOCK_READING_AGE
    assert group.all.fence_floor(now) == round((CLOCK + 30 + CLOCK_READING_AGE) * 1e6)


@pytest.mark.parametrize("event", ["jump", "connection"])
@in_virtual_time
async def test_clocks_are_read_anew_when_one_jumped_or_is_another_machines(event: str) -> None:
    group, now = Group(1), _clock.now()
    group.read_clocks(0.0)
    before = group.all.fence_floor(now)
    if event == "jump":
        group.read_clocks(-60.0)
    else:
        trust = group.nodes[0].trust
        trust._as_of = 0.0
        group.read_clocks(-60.0)
        group.meet(0)
    assert group.all.fence_floor(now) == pytest.approx(before - 60_000_000, abs=5)


@in_virtual_time
async def test_a_standstill_of_ours_is_told_once_with_its_length() -> None:
    group, told = Group(), list[float]()
    group.all.on_stood_still = told.append
    group.read_clocks(0.0, 0.0, 0.0)
    await asyncio.sleep(0.1)
    group.read_clocks(5.1)
    assert told == []
    assert [link.commands for link in group.links[1:]] == [
        [group.links[1].commands[0]],
        [group.links[2].commands[0]],
    ], "the others are asked for their time"
    group.read_clocks(5.1, 5.1, 5.1)
    assert [round(seconds) for seconds in told] == [5]
    assert round(group.all.stood_still) == 5


# ---- facts


@in_virtual_time
async def test_two_addresses_of_one_server_are_a_mistake_until_they_are_not() -> None:
    group = Group()
    group.meet(0)
    group.meet(1)
    assert group.flaw() == ""
    group.nodes[1].trust.facts = replace(OLD, run_id="r0")
    group.nodes[1].on_connect(group.nodes[1])
    assert group.flaw() == "n1 and n0 are the same server"
    assert group.nodes[1].rejected is not None
    assert group.nodes[1].rejected.permanent
    group.meet(1)
    assert group.flaw() == ""
    for number in (1, 2):
        group.nodes[number].trust.facts = Facts()
        group.nodes[number].on_connect(group.nodes[number])
    assert group.flaw() == "", "servers that do not say who they are may be different ones"


@pytest.mark.parametrize("strict", [False, True])
@in_virtual_time
async def test_what_a_server_lacks_is_said_once(
    caplog: pytest.LogCaptureFixture, *, strict: bool
) -> None:
    caplog.set_level(logging.INFO, "asynclock.nodes")
    group = Group(strict=strict)
    for _ in range(2):
        group.meet(0, maxmemory_policy="allkeys-lru")
        group.meet(1, tracking=False)
        group.meet(2)
    texts = [record.getMessage() for record in caplog.records]
    policy = "n0 may evict locks: its maxmemory-policy is allkeys-lru; use noeviction"
    silent = "n1 can't wake waiters by a push: they ask at intervals"
    assert texts == ([silent] if strict else [policy, silent])
    assert group.flaw() == (policy if strict else "")
    assert (group.nodes[0].rejected is not None) is strict


@in_virtual_time
async def test_a_client_that_the_record_refuses_counts_no_reply_and_wakes_its_waiters() -> None:
    group = Group()
    now = _clock.now()
    assert group.all.counts(0, now, (0,))
    watch = group.all.wakeups.watch(("a",))
    group.all._set_guard.error = asynclock.ConfigurationError("other nodes")
    group.meet(0)
    assert not group.all.counts(0, now, (0,))
    assert watch.woken, "they learn it now"
    assert group.flaw() == "other nodes"
    group.all._set_guard.error = None
    group.meet(0)
    assert group.flaw() == ""
