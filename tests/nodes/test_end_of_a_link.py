"""The end of one link: what is written before it, and who learns what. In virtual time."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from asynclock import _clock, _forks
from asynclock._nodes.link import Link
from asynclock._nodes.replies import NO_TRUST, Failure
from asynclock._nodes.script import BATCH, BatchCommand
from asynclock._primitives.lock import SCRIPT
from tests.nodes.by_hand import acquire
from tests.nodes.test_one_link import PING, TIMEOUT, Owner, Peer, Sink, opened, release
from tests.waiting import in_virtual_time


@pytest.mark.parametrize("leave", ["close", "finish"])
@in_virtual_time
async def test_what_was_queued_is_written_before_the_connection_ends(leave: str) -> None:
    link, owner, peer = opened()
    command = release()
    link.send(command, Sink(owner), 0)
    if leave == "close":
        link.close("enough")
        await link.closed
    else:
        await link.finish()
    assert peer.writes == [command.packed]


@in_virtual_time
async def test_a_peer_that_is_stuck_delays_an_end_by_one_timeout() -> None:
    link, _, peer = opened()
    peer.stuck = True
    began = _clock.now()
    async with asyncio.timeout(10 * TIMEOUT):
        await link.finish()
    assert _clock.now() - began == pytest.approx(TIMEOUT, abs=0.01)


@in_virtual_time
async def test_at_the_end_the_node_learns_of_all_that_has_no_reply_and_each_sink_has_one() -> None:
    """The node learns it first: a sink may ask again, and is told that there is no link."""
    link, owner, _ = opened()
    commands = [release("late"), release("new")]
    overdue, waiting = Sink(owner, "overdue"), Sink(owner, "waiting")
    link.send(commands[0], overdue, 0)
    await asyncio.sleep(1.1 * TIMEOUT)
    link.send(commands[1], waiting, 0)
    assert link.releasing
    link.connection_lost(ConnectionResetError("reset"))
    assert owner.lost == commands
    assert owner.heard == ["overdue", "end", "waiting"]
    assert waiting.answers == [Failure("connection lost: reset")]
    assert not link.releasing
    await asyncio.sleep(3 * TIMEOUT)
    assert (len(overdue.answers), len(waiting.answers)) == (1, 1)


@pytest.mark.parametrize("known", [False, True])
@in_virtual_time
async def test_a_refused_certificate_needs_a_person_unless_the_server_took_it_before(
    *, known: bool
) -> None:
    owner = Owner()
    link, refused, sink = Link(owner, TIMEOUT), ssl.SSLError(1, "alert"), Sink(owner)
    refused.reason = "TLSV1_ALERT_UNKNOWN_CA"
    link.connection_made(Peer(link))
    if known:
        link.answer_within(TIMEOUT)
    link.send(PING, sink, 0)
    link.connection_lost(refused)
    (end,) = sink.answers
    assert (end.permanent, end.code) == ((False, "") if known else (True, NO_TRUST))


@in_virtual_time
async def test_a_release_is_under_way_until_its_reply() -> None:
    link, owner, _ = opened()
    link.send(PING, Sink(owner), 0)
    assert not link.releasing
    link.send(release(), Sink(owner), 0)
    link.data_received(b"+PONG\r\n")
    assert link.releasing
    link.data_received(b"*1\r\n:1\r\n")
    assert not link.releasing


@in_virtual_time
async def test_a_forked_child_closes_its_copy_and_sends_nothing() -> None:
    link, owner, peer = opened()
    sink, copies = Sink(owner), list[int]()

    class Socket:
        def fileno(self) -> int:
            return 12345

    peer._extra["socket"] = Socket()  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_forks, "close_copy", copies.append)
        link.send(release(), sink, 0)
        link.forked()
    await asyncio.sleep(2 * TIMEOUT)
    link.flush()
    assert (copies, peer.writes, sink.answers) == ([12345], [], [])


@in_virtual_time
async def test_a_release_inside_a_batch_is_under_way_until_the_reply_to_the_batch() -> None:
    link, owner, _ = opened()
    for parts in ([acquire("a")], [acquire("a"), release("b")]):
        batch = BatchCommand(SCRIPT, ("a",), (BATCH,), lambda parts=parts: parts)  # type: ignore[misc]
        link.send(batch, Sink(owner), 0)
        assert link.releasing is (len(parts) == 2)
        link.data_received(b"*1\r\n:0\r\n")
        assert not link.releasing


@in_virtual_time
async def test_what_was_queued_when_the_connection_was_lost_is_written_nowhere() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: complaints.append(what))
    link, owner, peer = opened()
    sink = Sink(owner)
    link.send(PING, sink, 0)
    link.connection_lost(None)
    await asyncio.sleep(0.1)
    assert sink.answers == [Failure("the server closed the connection")]
    assert (peer.writes, complaints) == ([], [])
