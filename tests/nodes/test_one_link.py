"""One link, the other side of which is the test: what is sent, who gets which answer, and the end.

In virtual time.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes import link as link_module
from asynclock._nodes import record
from asynclock._nodes.link import WRITE_AT, Link
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import BATCH, Command
from asynclock._primitives.lock import SCRIPT
from tests.waiting import in_virtual_time

TIMEOUT = 1.0
PING = Command.plain("PING")
CLOCK = 1_700_000_000
"""What the server's clock shows, in seconds since 1970."""


class Owner:
    """Keeps what a link says of its connection, in the order in which it says it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.clocks: list[tuple[float, float, float]] = []
        self.lost: list[Command] = []

    def on_clock(self, clock: float, sent: float, received: float) -> None:
        self.heard.append("clock")
        self.clocks.append((clock, sent, received))

    def on_push(self, push: list[Any]) -> None:
        self.heard.append(push)

    def on_disconnect(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        self.heard.append("end")
        self.lost = unanswered


class Sink:
    """Keeps its answers, and tells the owner's story when they came."""

    def __init__(self, owner: Owner, name: str = "reply") -> None:
        self.answers: list[Any] = []
        self._owner, self._name = owner, name

    def on_reply(self, index: int, reply: Any) -> None:
        self._owner.heard.append(self._name)
        self.answers.append(reply)


class Peer(asyncio.Transport):
    """The other side: keeps what is written, and can refuse to let the connection close."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link, self.writes, self.stuck, self.ended = link, list[bytes](), False, False

    def write(self, data: Any) -> None:
        if not self.ended:  # what is written later is dropped
            self.writes.append(bytes(data))

    def close(self) -> None:
        if not self.stuck:
            self.abort()

    def abort(self) -> None:
        self.ended = True
        asyncio.get_running_loop().call_soon(self.link.connection_lost, None)


def opened() -> tuple[Link, Owner, Peer]:
    """An open link, as after its handshake."""
    owner = Owner()
    link = Link(owner, TIMEOUT)
    peer = Peer(link)
    link.connection_made(peer)
    link.answer_within(TIMEOUT)
    return link, owner, peer


def release(owner: str = "me") -> Command:
    return Command.release(SCRIPT, ("asynclock:a",), owner, 0.0, _clock.now() + 60)


def with_clock(seconds: float) -> bytes:
    """A script's reply with the server's clock."""
    return b"*2\r\n:1\r\n:%d\r\n" % int((CLOCK + seconds) * 1_000_000)


# ---- what is sent


@in_virtual_time
async def test_what_a_tick_asks_for_is_one_write() -> None:
    link, owner, peer = opened()
    for _ in range(3):
        link.send(PING, Sink(owner), 0)
    assert peer.writes == []
    await asyncio.sleep(0)
    assert peer.writes == [3 * PING.packed]


@in_virtual_time
async def test_the_node_can_begin_with_the_first_commands_of_many() -> None:
    link, owner, peer = opened()
    for _ in range(WRITE_AT):
        link.send(PING, Sink(owner), 0)
    assert peer.writes == [WRITE_AT * PING.packed]


@in_virtual_time
async def test_what_is_sent_now_is_written_now_behind_what_waits() -> None:
    link, owner, peer = opened()
    before, asked = Command.plain("TIME"), list[None]()
    link.before_write = lambda: asked.append(None)
    link.send(before, Sink(owner), 0)
    link.send(PING, Sink(owner), 0, now=True)
    assert peer.writes == [before.packed + PING.packed]
    assert asked == [None]


@in_virtual_time
async def test_a_peer_that_is_behind_is_sent_nothing_more_until_it_has_caught_up() -> None:
    link, owner, peer = opened()
    link.pause_writing()
    link.send(PING, Sink(owner), 0)
    await asyncio.sleep(0.1)
    link.send(PING, Sink(owner), 0, now=True)
    assert peer.writes == []
    link.resume_writing()
    await asyncio.sleep(0)
    link.send(PING, Sink(owner), 0)
    await asyncio.sleep(0)
    assert peer.writes == [2 * PING.packed, PING.packed]


@in_virtual_time
async def test_a_link_that_is_full_takes_only_what_must_not_be_lost() -> None:
    link, owner, _ = opened()
    full = Sink(owner)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_module, "MAX_IN_FLIGHT", 2)
        for _ in range(3):
            link.send(PING, full, 0)
        assert full.answers == [Failure("backlog")]
        for command in (release(), *record.reading("asynclock:#set")):
            taken = Sink(owner)
            link.send(command, taken, 0)
            assert taken.answers == []


@in_virtual_time
async def test_all_that_was_queued_for_a_peer_that_was_behind_is_written_later() -> None:
    """Also if nothing more is asked."""
    link, owner, peer = opened()
    link.pause_writing()
    for _ in range(WRITE_AT + 1):
        link.send(PING, Sink(owner), 0)
    await asyncio.sleep(0.1)
    link.resume_writing()
    assert peer.writes == [], "not while asyncio still writes"
    await asyncio.sleep(0)
    assert peer.writes == [(WRITE_AT + 1) * PING.packed]


# ---- who gets which answer


@in_virtual_time
async def test_a_mute_node_costs_each_command_its_timeout_and_no_more() -> None:
    link, owner, _ = opened()
    began, first, second = _clock.now(), Sink(owner), Sink(owner)
    link.send(PING, first, 0)
    await asyncio.sleep(TIMEOUT / 4)
    link.send(PING, second, 0)
    for sink, seconds in ((first, TIMEOUT), (second, 1.25 * TIMEOUT)):
        async with asyncio.timeout(10 * TIMEOUT):
            while not sink.answers:
                await asyncio.sleep(0.001)
        assert _clock.now() - began == pytest.approx(seconds, abs=0.01)
        assert sink.answers == [Failure(f"no answer within {TIMEOUT:g} s")]


@in_virtual_time
async def test_one_timer_serves_all_that_is_under_way() -> None:
    link, owner, _ = opened()
    loop, timers = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def counted(seconds: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timers.append(seconds)
        return call_later(seconds, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", counted)
        for _ in range(10):
            link.send(PING, Sink(owner), 0)
            await asyncio.sleep(0)
    assert timers == [TIMEOUT]


@in_virtual_time
async def test_replies_that_come_late_go_to_nobody_and_the_next_one_to_its_own_command() -> None:
    link, owner, _ = opened()
    late, own = [Sink(owner), Sink(owner)], Sink(owner)
    for sink in late:
        link.send(PING, sink, 0)
    await asyncio.sleep(TIMEOUT + 0.01)
    since = link.stalled_since
    assert since
    link.send(PING, own, 0)
    link.data_received(b"+late\r\n")
    assert link.stalled_since == since, "one reply is still missing"
    link.data_received(b"+late\r\n")
    assert not link.stalled_since
    link.data_received(b"+own\r\n")
    assert own.answers == [b"own"]
    assert [len(sink.answers) for sink in late] == [1, 1]


@pytest.mark.parametrize(
    ("replies", "number", "clock"),
    [
        (with_clock(1) + with_clock(2), 1, 2),
        (with_clock(1) + b"+OK\r\n", 0, 1),
        (b"*2\r\n:1\r\n:7\r\n" + with_clock(2), 1, 2),
        (with_clock(1) + b"*2\r\n:1\r\n:7\r\n", 0, 1),
        (with_clock(1) + b"*2\r\n:0\r\n:100000000000000\r\n", 0, 1),
        (with_clock(1) + b"*0\r\n", 0, 1),
    ],
)
@in_virtual_time
async def test_a_clock_is_that_of_the_last_reply_with_one(
    replies: bytes, number: int, clock: int
) -> None:
    """With the moment at which that reply's request was sent; small numbers are no clock."""
    link, owner, _ = opened()
    sent = []
    for _ in range(3):
        sent.append(_clock.now())
        link.send(PING, Sink(owner), 0)
        await asyncio.sleep(TIMEOUT / 5)
    link.data_received(replies)
    assert owner.clocks == [(CLOCK + clock, sent[number], _clock.now())]
    assert owner.heard == ["clock", "reply", "reply"], "known before a reply is counted"


@in_virtual_time
async def test_pushes_are_passed_on_and_are_nobodys_reply() -> None:
    link, owner, _ = opened()
    sink = Sink(owner)
    link.send(PING, sink, 0)
    link.data_received(b">2\r\n+invalidate\r\n*1\r\n+asynclock:a\r\n+PONG\r\n")
    assert owner.heard == [[b"invalidate", [b"asynclock:a"]], "reply"]
    assert sink.answers == [b"PONG"]


@in_virtual_time
async def test_more_replies_than_requests_are_all_worth_nothing() -> None:
    """Which of them belongs to the request is unknown."""
    link, owner, _ = opened()
    sink = Sink(owner)
    link.send(PING, sink, 0)
    link.data_received(b"+1\r\n+2\r\n")
    await link.closed
    assert sink.answers == [Failure("it sent a reply without a request")]


@in_virtual_time
async def test_an_error_that_nobody_asked_for_needs_no_person_once_the_server_is_known() -> None:
    link, owner, _ = opened()
    sink = Sink(owner)
    link.data_received(b"-NOAUTH Authentication required.\r\n")
    await link.closed
    link.send(PING, sink, 0)
    assert sink.answers == [Failure("it sent a reply without a request")]


@in_virtual_time
async def test_an_error_before_the_login_is_the_servers_refusal() -> None:
    owner = Owner()
    link = Link(owner, TIMEOUT)
    link.connection_made(Peer(link))
    link.data_received(b"-NOPERM this host may not connect\r\n")
    await link.closed
    sink = Sink(owner)
    link.send(PING, sink, 0)
    (end,) = sink.answers
    assert (end.code, end.permanent) == ("NOPERM", True)


@in_virtual_time
async def test_a_sink_that_could_not_read_its_reply_gets_a_failure() -> None:
    link, owner, _ = opened()

    class Strict(Sink):
        def on_reply(self, index: int, reply: Any) -> None:
            if not isinstance(reply, Failure):
                raise TypeError("what is this?")
            super().on_reply(index, reply)

    sinks = [Strict(owner), Strict(owner)]
    for sink in sinks:
        link.send(PING, sink, 0)
    with pytest.raises(TypeError) as odd:
        link.data_received(b"+odd\r\n")
    link.connection_lost(odd.value)  # so does asyncio
    assert [[type(one) for one in sink.answers] for sink in sinks] == [[Failure], [Failure]]


@pytest.mark.parametrize(
    ("op", "counts"),
    [
        *((op, False) for op in ("acquire", BATCH, "raise", "extend", "prepare", "accept")),
        *((op, True) for op in ("release", "leave", "inspect")),
    ],
)
@in_virtual_time
async def test_a_write_counts_only_if_the_server_is_the_primary_when_the_reply_comes(
    op: str, *, counts: bool
) -> None:
    """When the request was sent, it was. A paused process finds such a reply in its socket."""
    link, owner, _ = opened()
    until, doubt, sink = _clock.now() + TIMEOUT / 2, Failure("who knows"), Sink(owner)
    link.doubted = lambda now: doubt if now > until else None
    link.send(Command(SCRIPT, ("asynclock:a",), (op, "me")), sink, 0)
    await asyncio.sleep(0.9 * TIMEOUT)
    link.data_received(b"*2\r\n:1\r\n*0\r\n")
    assert sink.answers == [[1, []] if counts else doubt]


@in_virtual_time
async def test_the_answer_of_a_timer_has_no_context_of_the_task_that_set_it() -> None:
    """Log records and traces of one task would name the request of another one."""
    link, owner, _ = opened()
    request = contextvars.ContextVar("request", default="")
    seen: list[str] = []

    class Looking(Sink):
        def on_reply(self, index: int, reply: Any) -> None:
            seen.append(request.get())

    async def ask() -> None:
        request.set("mine")
        link.send(PING, Looking(owner), 0)

    await asyncio.create_task(ask())
    await asyncio.sleep(1.1 * TIMEOUT)
    assert seen == [""]


@in_virtual_time
async def test_the_answer_to_a_task_that_no_longer_waits_goes_to_nobody() -> None:
    link, owner, _ = opened()
    left, next_one = link.ask(PING), Sink(owner)
    link.send(PING, next_one, 0)
    left.cancel()
    link.data_received(b"+1\r\n+2\r\n")
    assert next_one.answers == [b"2"]
