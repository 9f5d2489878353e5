"""What a request under a lock receives, and when it is cancelled: without a server around it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock.contrib._disconnect import AHEAD, PRESENCE, CancelOnDisconnect, Presence

GONE = {"type": "http.disconnect"}


def part(body: bytes = b"x") -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": True}


class Client:
    """The other end of a request: what it sends, and whether anyone waits for more."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        for message in messages:
            self.messages.put_nowait(message)
        self.readers = 0

    async def receive(self) -> Any:
        assert not self.readers, "two tasks receive at once"
        self.readers += 1
        try:
            message = await self.messages.get()
        finally:
            self.readers -= 1
        if isinstance(message, Exception):
            raise message
        return message

    async def send(self, message: Any) -> None:
        pass


async def test_without_a_lock_messages_are_passed_on_and_nothing_is_cancelled() -> None:
    client = Client(part(), GONE)
    presence = Presence(client.receive, client.send)
    with presence.scope:
        assert await presence.receive() == part()
        assert await presence.receive() == GONE
        await asyncio.sleep(0)
    assert not presence.scope.cancel_called


async def test_a_lock_after_the_disconnect_is_cancelled_at_once() -> None:
    client = Client(GONE)
    presence = Presence(client.receive, client.send)
    with presence.scope:
        assert await presence.receive() == GONE
        presence.insist()
        await asyncio.sleep(30)
    assert presence.scope.cancelled_caught
    await presence.aclose()


async def test_every_later_call_gets_the_disconnect_again() -> None:
    client = Client(part(), GONE)
    presence = Presence(client.receive, client.send)
    presence.insist()
    presence.insist()  # a second lock of the request starts no second listener
    async with asyncio.timeout(5):
        received = [await presence.receive() for _ in range(4)]
    assert received == [part(), GONE, GONE, GONE]
    assert presence.scope.cancel_called
    await presence.aclose()


async def test_the_listener_reads_only_a_little_ahead() -> None:
    parts = [part(b"x" * AHEAD), part(b"y"), part(b"z")]
    client = Client(*parts)
    presence = Presence(client.receive, client.send)
    presence.insist()
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.messages.qsize() == 1, "it has read what is allowed, and one message more"
    assert [await presence.receive() for _ in parts] == parts
    await presence.aclose()
    assert not client.readers


async def test_an_error_of_a_layer_around_reaches_the_application() -> None:
    client = Client(ValueError("broken body"))
    presence = Presence(client.receive, client.send)
    presence.insist()
    with pytest.raises(ValueError, match="broken body"):
        await presence.receive()
    await presence.aclose()


async def test_a_lock_that_is_taken_while_the_application_waits_for_the_body() -> None:
    """In another task of the request; then a second task must not receive as well."""
    client = Client()
    presence = Presence(client.receive, client.send)
    first = asyncio.create_task(presence.receive())
    await asyncio.sleep(0)
    presence.insist()
    for _ in range(5):
        await asyncio.sleep(0)
    client.messages.put_nowait(part(b"1"))
    client.messages.put_nowait(part(b"2"))
    assert [await asyncio.wait_for(one, 30) for one in (first, presence.receive())] == [
        part(b"1"),
        part(b"2"),
    ]
    await presence.aclose()


async def test_nothing_is_received_after_a_disconnect() -> None:
    """A server may wait for ever then, or raise an error."""
    client = Client(GONE)
    presence = Presence(client.receive, client.send)
    presence.insist()
    for _ in range(10):
        await asyncio.sleep(0)
    assert presence.scope.cancel_called
    assert not client.readers
    await presence.aclose()


@pytest.mark.parametrize("fails", [True, False])
async def test_no_listener_outlives_its_request(fails: bool) -> None:
    client = Client()

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        scope[PRESENCE].insist()
        while not client.readers:
            await asyncio.sleep(0)
        if fails:
            raise ValueError("wrong")

    call = CancelOnDisconnect(app)({"type": "http"}, client.receive, client.send)
    if fails:
        with pytest.raises(ValueError, match="wrong"):
            await call
    else:
        await call
    assert not client.readers
    assert not [task for task in asyncio.all_tasks() if "client gone" in task.get_name()]


async def test_other_connections_have_no_presence() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((PRESENCE in scope, receive, send))

    client = Client()
    middleware = CancelOnDisconnect(app)
    await middleware({"type": "websocket"}, client.receive, client.send)
    assert seen == [(False, client.receive, client.send)]


async def test_a_client_that_goes_during_a_streamed_answer_ends_it() -> None:
    client = Client(GONE)
    presence = Presence(client.receive, client.send)
    await presence.send({"type": "http.response.body", "body": b"a part", "more_body": True})
    presence.insist()
    for _ in range(10):
        await asyncio.sleep(0)
    assert presence.scope.cancel_called
    await presence.aclose()


async def test_two_tasks_that_wait_for_messages_get_one_each() -> None:
    client = Client()
    presence = Presence(client.receive, client.send)
    presence.insist()
    readers = [asyncio.create_task(presence.receive()) for _ in range(2)]
    for body in (b"1", b"2"):
        for _ in range(10):
            await asyncio.sleep(0)
        client.messages.put_nowait(part(body))
    received = await asyncio.wait_for(asyncio.gather(*readers), 30)
    assert sorted(message["body"] for message in received) == [b"1", b"2"]
    await presence.aclose()


async def test_a_client_that_goes_while_its_answer_ends_cancels_nothing() -> None:
    """It has all of the answer, and a server says so before `send` returns."""
    client = Client()

    async def send(_message: Any) -> None:
        client.messages.put_nowait(GONE)
        while not client.messages.empty():
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)

    presence = Presence(client.receive, send)
    presence.insist()
    await presence.send({"type": "http.response.body", "body": b"done"})
    assert await presence.receive() == GONE
    assert not presence.scope.cancel_called
    await presence.aclose()


async def test_a_message_without_a_body_is_passed_on_like_others() -> None:
    """A server may leave an empty body out."""
    empty = {"type": "http.request", "more_body": True}
    client = Client(empty, part(), GONE)
    presence = Presence(client.receive, client.send)
    presence.insist()
    received = [await asyncio.wait_for(presence.receive(), 30) for _ in range(3)]
    assert received == [empty, part(), GONE]
    await presence.aclose()


async def test_a_listener_does_not_read_on_before_there_is_room() -> None:
    parts = [part(b"1"), part(b"x" * (AHEAD + 1)), part(b"2"), part(b"3")]
    client = Client(*parts)
    presence = Presence(client.receive, client.send)
    presence.insist()

    async def left() -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        return client.messages.qsize()

    assert await left() == 2
    assert await presence.receive() == parts[0]
    assert await left() == 2, "the long part is still there"
    assert await presence.receive() == parts[1]
    assert await left() == 0
    assert [await presence.receive() for _ in range(2)] == parts[2:]
    await presence.aclose()
