"""The timer and the writes of one link, on a real server and real sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.handshake import greet
from asynclock._nodes.link import Link
from asynclock._nodes.replies import Answer, Failure
from asynclock._nodes.script import Command
from asynclock.testing import LocalServer

PING = Command.plain("PING")


class Listener:
    """Keeps what a link says of its connection."""

    def __init__(self) -> None:
        self.ends: list[Failure] = []

    def on_clock(self, clock: float, sent: float, received: float) -> None: ...

    def on_push(self, push: list[Any]) -> None: ...

    def on_disconnect(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        self.ends.append(end)


async def test_the_time_for_a_handshake_is_not_given_to_what_follows(
    asynclock_nodes: list[LocalServer],
) -> None:
    """A first dial may take long; after it a mute node costs one node timeout."""
    node = asynclock_nodes[0]
    link = await greet(Endpoint.from_url(node.url), Listener(), 0.2, 60.0)
    try:
        assert not isinstance(await link.ask(PING), Failure)
        await node.freeze()
        async with asyncio.timeout(30):  # without the new bound: one minute
            answer = await link.ask(PING)
        assert isinstance(answer, Failure)
        assert answer.cause == "no answer within 0.2 s"
    finally:
        await node.thaw()
        link.close("the test is over")
        await link.closed


async def test_commands_in_flight_get_the_new_time_too(asynclock_nodes: list[LocalServer]) -> None:
    node = asynclock_nodes[0]
    link = await greet(Endpoint.from_url(node.url), Listener(), 60.0, 60.0)
    try:
        await node.freeze()
        asked = asyncio.ensure_future(link.ask(PING))
        await asyncio.sleep(0)
        link.answer_within(0.2)
        async with asyncio.timeout(30):
            assert isinstance(await asked, Failure)
    finally:
        await node.thaw()
        link.close("the test is over")
        await link.closed


async def test_after_a_standstill_a_silent_node_has_one_node_timeout_more(
    asynclock_nodes: list[LocalServer],
) -> None:
    """However long our own process stood still."""
    node, loop = asynclock_nodes[0], asyncio.get_running_loop()
    link = await greet(Endpoint.from_url(node.url), Listener(), 0.7, 60.0)
    try:
        assert not isinstance(await link.ask(PING), Failure)
        await node.freeze()
        asked = asyncio.ensure_future(link.ask(PING))
        await asyncio.sleep(0)
        time.sleep(3.0)  # noqa: ASYNC251 - the standstill
        woken = loop.time()
        async with asyncio.timeout(30):
            assert isinstance(await asked, Failure)
        assert 0.6 < loop.time() - woken < 2.0  # 2.3 s with its lateness
    finally:
        await node.thaw()
        link.close("the test is over")
        await link.closed


async def test_after_a_short_standstill_a_silent_node_has_as_much_time_more(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, loop = asynclock_nodes[0], asyncio.get_running_loop()
    link = await greet(Endpoint.from_url(node.url), Listener(), 1.0, 60.0)
    armed: list[float] = []
    arm = link._arm

    def noting(seconds: float) -> None:
        armed.append(seconds)
        arm(seconds)

    try:
        assert not isinstance(await link.ask(PING), Failure)
        await node.freeze()
        monkeypatch.setattr(link, "_arm", noting)
        asked, began = asyncio.ensure_future(link.ask(PING)), loop.time()
        await asyncio.sleep(0)
        time.sleep(1.2)  # noqa: ASYNC251 - the standstill
        late = loop.time() - began - 1.0
        async with asyncio.timeout(30):
            assert isinstance(await asked, Failure)
        assert armed[-1] == pytest.approx(min(late, 1.0), abs=0.3)
    finally:
        await node.thaw()
        link.close("the test is over")
        await link.closed


async def test_a_peer_that_goes_away_while_it_was_behind_ends_the_link_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio calls resume_writing amidst its own sending: a write that fails there ends it twice.

    The peer reads what we have sent until then, and is gone when the link writes the rest.
    """
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    ours, peer = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    peer.setblocking(False)
    listener = Listener()
    _, link = await loop.create_connection(lambda: Link(listener, 60.0), sock=ours)
    assert link._transport is not None
    # Resumed with an empty buffer, as when a peer reads much at once: the next write is tried at
    # once instead of being appended.
    link._transport.set_write_buffer_limits(high=65_536, low=0)
    big = Command.plain("ECHO", "x" * 4_000_000)
    answers = [asyncio.ensure_future(link.ask(big))]
    async with asyncio.timeout(20):
        while not link._paused:
            await asyncio.sleep(0)
        answers += [asyncio.ensure_future(link.ask(PING)) for _ in range(100)]
        await asyncio.sleep(0)
        resume = link.resume_writing

        def resumed() -> None:
            peer.close()  # from now on a write raises EPIPE
            resume()

        monkeypatch.setattr(link, "resume_writing", resumed)
        while link._paused:
            try:
                peer.recv(1 << 20)
            except BlockingIOError:
                await asyncio.sleep(0)
        for answer in await asyncio.gather(*answers):
            assert isinstance(answer, Failure)
        await link.closed
        for _ in range(5):
            await asyncio.sleep(0)
    assert len(listener.ends) == 1
    assert complaints == []


async def test_what_a_collection_sends_meanwhile_gets_its_own_reply(
    asynclock_nodes: list[LocalServer],
) -> None:
    """Python may collect garbage in the middle of `send`, and what that closes releases a lock."""
    link = await greet(Endpoint.from_url(asynclock_nodes[0].url), Listener(), 60.0, 60.0)
    nested: list[asyncio.Future[Any]] = []

    class Collecting(list[bytes]):
        def append(self, packed: bytes) -> None:
            super().append(packed)
            if not nested:
                answer = Answer(asyncio.get_running_loop())
                nested.append(answer.future)
                link.send(Command.plain("ECHO", "nested"), answer, 0)

    try:
        for now in (False, True):
            nested.clear()
            link._out = Collecting()
            outer = Answer(asyncio.get_running_loop())
            link.send(Command.plain("ECHO", "outer"), outer, 0, now=now)
            assert await outer.future == b"outer"
            assert await nested[0] == b"nested"
    finally:
        link.close("the test is over")
        await link.closed
