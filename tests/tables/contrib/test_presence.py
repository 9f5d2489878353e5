"""What a request under a lock receives, and when it is cancelled: steps of a client and a handler.

A handler's steps: "lock" (it takes a lock), "get" (it receives), "answer" (it has sent all),
"part" (it has sent a part), "wait" (nobody does anything for a moment); a message is what the
client sends, and a number is how many of them are not read yet.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from asynclock.contrib._middleware import AHEAD, PRESENCE, CancelOnDisconnect, Presence
from asynclock.contrib.aiohttp import PRESENCE_INTERVAL, while_present

GONE = {"type": "http.disconnect"}
EMPTY = {"type": "http.request", "more_body": True}
BROKEN = ValueError("broken body")


def part(body: bytes = b"x") -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": True}


LONG = part(b"x" * AHEAD)
LONGER = part(b"x" * (AHEAD + 1))
ONE, TWO, THREE = part(b"1"), part(b"2"), part(b"3")
GET2 = ["get", "get"]


class Client:
    """The other end of a request: what it sends, and whether anyone waits for more."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
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
        """Take an answer; a client that has all of it goes, before this returns."""
        if message == {"type": "http.response.body", "body": b"and goes"}:
            self.messages.put_nowait(GONE)
            await moment()


async def moment() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("steps", "received", "cancelled"),
    [
        pytest.param([ONE, GONE, "get", "get"], [ONE, GONE], False, id="without a lock"),
        pytest.param([GONE, "get", "lock"], [GONE], True, id="a lock after the disconnect"),
        pytest.param(
            [ONE, GONE, "lock", "lock", "get", "get", "get", "get"],
            [ONE, GONE, GONE, GONE],
            True,
            id="each later call gets the disconnect again",
        ),
        pytest.param(["lock", GONE, "wait", 0], [], True, id="nothing is received afterwards"),
        pytest.param(["lock", BROKEN, "get", "get"], [BROKEN, BROKEN], False, id="a layer fails"),
        pytest.param(["lock", EMPTY, ONE, "get", "get"], [EMPTY, ONE], False, id="without a body"),
        pytest.param(
            [LONG, ONE, TWO, "lock", "wait", 1, "get", "get", "get"],
            [LONG, ONE, TWO],
            False,
            id="it reads what is allowed, and one message more",
        ),
        pytest.param(
            [ONE, LONGER, TWO, THREE, "lock", "wait", 2, "get", "wait", 2, "get", "wait", 0, *GET2],
            [ONE, LONGER, TWO, THREE],
            False,
            id="not before there is room",
        ),
        pytest.param(["part", "lock", GONE, "wait"], [], True, id="gone in a streamed answer"),
        pytest.param(["answer", "lock", GONE, "wait"], [], False, id="gone after the answer"),
        pytest.param(["lock", "and goes", "get"], [GONE], False, id="gone while the answer ends"),
    ],
)
async def test_what_a_request_receives(
    steps: list[Any], received: list[Any], cancelled: bool
) -> None:
    client, got = Client(), list[Any]()
    presence = Presence(client.receive, client.send)
    for step in steps:
        match step:
            case "lock":
                presence.insist()
            case "get":
                try:
                    got.append(await asyncio.wait_for(presence.receive(), 30))
                except ValueError as error:
                    got.append(error)
            case "part" | "answer" | "and goes":
                more = {"more_body": True} if step == "part" else {}
                body = {"type": "http.response.body", "body": step.encode()}
                await presence.send({**body, **more})
            case "wait":
                await moment()
            case int():
                assert client.messages.qsize() == step, "so much is not read yet"
            case message:
                client.messages.put_nowait(message)
    assert got == received
    assert presence.scope.cancel_called is cancelled
    if GONE in got or cancelled:
        await moment()
        assert not client.readers, "a server may wait for ever then, or raise an error"
    await presence.aclose()
    assert not client.readers


async def test_a_lock_after_the_disconnect_is_cancelled_at_once() -> None:
    client = Client()
    client.messages.put_nowait(GONE)
    presence = Presence(client.receive, client.send)
    with presence.scope:
        assert await presence.receive() == GONE
        presence.insist()
        await asyncio.sleep(30)
    assert presence.scope.cancelled_caught
    await presence.aclose()


@pytest.mark.parametrize("before", [False, True])
async def test_two_tasks_that_wait_for_messages_get_one_each(before: bool) -> None:
    """Also if one waits for the body before another takes the lock."""
    client = Client()
    presence = Presence(client.receive, client.send)
    readers = [asyncio.create_task(presence.receive())] if before else []
    await moment()
    presence.insist()
    readers += [asyncio.create_task(presence.receive()) for _ in range(2 - before)]
    for message in (ONE, TWO):
        await moment()
        client.messages.put_nowait(message)
    received = await asyncio.wait_for(asyncio.gather(*readers), 30)
    assert sorted(message["body"] for message in received) == [b"1", b"2"]
    await presence.aclose()


@pytest.mark.parametrize("fails", [True, False])
async def test_no_listener_outlives_its_request(fails: bool) -> None:
    client = Client()

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        scope[PRESENCE].insist()
        while not client.readers:
            await asyncio.sleep(0)
        if fails:
            raise BROKEN

    call = CancelOnDisconnect(app)({"type": "http"}, client.receive, client.send)
    if fails:
        with pytest.raises(ValueError, match="broken"):
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
    await CancelOnDisconnect(app)({"type": "websocket"}, client.receive, client.send)
    assert seen == [(False, client.receive, client.send)]


# ---- aiohttp -------------------------------------------------------------------------------------
def transport(*, closing: bool) -> Any:
    return SimpleNamespace(is_closing=lambda: closing)


@pytest.mark.parametrize(
    ("headers", "found", "sent", "cancelled"),
    [
        ({}, transport(closing=False), 0, False),
        ({}, transport(closing=True), 0, True),
        ({}, None, 0, True),
        ({"Upgrade": "websocket"}, transport(closing=True), 0, True),
        ({"Upgrade": "websocket"}, transport(closing=True), 100, False),
        ({"Upgrade": "WebSocket"}, transport(closing=True), 100, False),
    ],
)
async def test_a_client_that_was_never_there_is_noticed_at_once(
    headers: Any, found: Any, sent: int, cancelled: bool
) -> None:
    """But a socket that is open is not watched; proxies write the header in their own ways."""
    writer = SimpleNamespace(output_size=sent)
    request: Any = SimpleNamespace(headers=headers, transport=found, writer=writer)
    with while_present(request) as scope:
        assert scope.cancel_called is cancelled
        if cancelled:
            await asyncio.sleep(30)
    assert scope.cancelled_caught is cancelled


async def test_a_handler_that_has_ended_is_not_watched_any_more() -> None:
    looks = []
    watched = SimpleNamespace(is_closing=lambda: looks.append(1))
    with while_present(SimpleNamespace(headers={}, transport=watched)):  # type: ignore[arg-type]
        pass
    await asyncio.sleep(3 * PRESENCE_INTERVAL)
    assert len(looks) == 1


def test_a_client_that_goes_is_noticed_soon() -> None:
    """A lock that nobody needs keeps others waiting, so a tenth of a second is much."""
    assert PRESENCE_INTERVAL <= 0.1
