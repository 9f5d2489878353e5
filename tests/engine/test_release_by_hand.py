"""What each node's reply means for a release, and what a node is sent; told by hand."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asynclock import _clock
from asynclock._engine.grant import Grant
from asynclock._engine.left import leave
from asynclock._engine.release import GONE, UNRELEASED, UNWOKEN, Release
from asynclock._nodes.replies import Failure
from tests.engine.attempts import AWAY, SPEC, TTL, around
from tests.waiting import in_virtual_time

NOW = 1 << 50
OURS, THEIRS = [1, b"", NOW], [0, b"", NOW]
DENIED = Failure("NOPERM no right", permanent=True, code="NOPERM")
WRONG = Failure("WRONGTYPE of the queue", permanent=True, code="WRONGTYPE")


class Told:
    """A lease that keeps what it is told."""

    def __init__(self) -> None:
        self.losses: list[str] = []

    def _was_lost(self, reason: str) -> None:
        self.losses.append(reason)


class Made:
    """A release, and what comes of it."""

    def __init__(self, *, kept: bool = False, size: int = 3) -> None:
        self.peers, context = around(size=size)
        self.complaints = context.complaints = set()
        context.multiplexer.loop = asyncio.get_running_loop()
        self.lease, self.certain = Told(), 0
        grant = Grant(SPEC, "me", 7, TTL, 50.0, (0, 1), 3.0, None)
        lease: Any = self.lease
        self.release = Release(context, grant, 40.0, lease=lease, kept=kept)
        self.release.on_certain = self._certain
        self._waiting = self.release.done()

    def _certain(self) -> None:
        self.certain += 1

    def hear(self, *replies: Any) -> list[bool]:
        """Let the nodes reply in turn; return after each whether the release is done."""
        done = []
        for index, reply in enumerate(replies):
            self.release.on_reply(index, reply)
            done.append(self._waiting.done())
        return done


@pytest.mark.parametrize(
    ("replies", "done", "losses"),
    [
        ((OURS, OURS, OURS), [False, True, True], []),
        ((OURS, THEIRS, OURS), [False, False, True], []),
        ((OURS, AWAY, AWAY), [False, False, True], []),
        ((AWAY, AWAY, AWAY), [False, False, True], []),
        ((THEIRS, AWAY, OURS), [False, False, True], []),
        ((THEIRS, AWAY, AWAY), [False, False, True], []),
        ((THEIRS, THEIRS, THEIRS), [False, True, True], [GONE]),
        ((THEIRS, OURS, THEIRS), [False, False, True], [GONE]),
        ((OURS, OURS, THEIRS, THEIRS), [False, False, False, True], [GONE]),
        ((OURS, OURS, OURS, THEIRS), [False, False, True, True], []),
    ],
)
@in_virtual_time
async def test_a_release_is_done_once_its_outcome_is_certain_and_tells_it_once(
    replies: tuple[Any, ...], done: list[bool], losses: list[str]
) -> None:
    made = Made(size=len(replies))
    assert made.hear(*replies) == done
    assert made.lease.losses == losses
    assert made.certain == 1
    assert made.release.done().done(), "who asks later waits for nothing"


@in_virtual_time
async def test_nodes_that_agree_together_end_a_release() -> None:
    made = Made()
    waiting = made.release.done()
    assert not waiting.done()
    made.release.agreed(2)
    assert waiting.done()
    assert made.release.done().done()
    made.release.agreed(1)
    assert made.lease.losses == []


@in_virtual_time
async def test_a_node_that_refuses_is_complained_of_once_and_by_what_it_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "asynclock")
    made = Made(size=5)
    made.hear(DENIED, AWAY, DENIED, WRONG, WRONG)
    assert caplog.messages == [UNRELEASED % DENIED.cause, UNWOKEN % WRONG.cause]
    assert made.complaints == {DENIED.cause, WRONG.cause}


@in_virtual_time
async def test_a_release_wakes_the_waiter_of_this_process_that_a_node_names() -> None:
    made = Made()
    made.hear([1, b"next", NOW], [1, b"", NOW], [0, b"other", NOW])
    keys = [SPEC.ticket_key(name) for name in ("next", "other")]
    assert made.peers.woken == [(keys[0], 0), (keys[1], 2)]


@pytest.mark.parametrize(("kept", "more"), [(False, ()), (True, (1,))])
@in_virtual_time
async def test_a_release_is_sent_again_until_the_key_has_died_by_itself(
    kept: bool, more: tuple[int, ...]
) -> None:
    command = Made(kept=kept).release.command()
    assert command.args == ("release", "me", *more)
    assert (command.asked_since, command.retry_until) == (3.0, 40.0 + TTL)


@in_virtual_time
async def test_a_ticket_that_leaves_is_sent_again_until_it_has_died_by_itself() -> None:
    peers, _ = around()
    nodes: Any = peers
    leave(nodes, SPEC, "ticket", 3.0, [2, 0])
    assert peers.delivered == [("leave", "ticket", [0, 2])]
    (command,), (sink,) = peers.commands, peers.sinks
    assert command.asked_since == 3.0
    assert command.retry_until == _clock.now() + SPEC.ticket_ttl
    assert command.unlimited, "however many commands are open"
    sink.on_reply(2, AWAY)
    sink.on_reply(0, [1, b"next", NOW])
    assert peers.woken == [(SPEC.ticket_key("next"), 0)]
    assert peers.counted == []
