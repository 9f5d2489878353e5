"""What web clients are told, and what a listener reads ahead: without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock import NodeHealth, NotAcquiredError, QuorumUnavailableError
from asynclock.contrib._disconnect import AHEAD, Presence
from asynclock.contrib._problems import health_of, problem_of


@pytest.mark.parametrize("kind", [NotAcquiredError, QuorumUnavailableError])
@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.2, "2")])
def test_nobody_is_told_to_come_back_at_once(kind: Any, seconds: float, header: str) -> None:
    error = kind("held", name="a")
    error.retry_after = seconds
    assert problem_of(error).headers["Retry-After"] == header


def health(*states: str) -> int:
    nodes = (NodeHealth(str(n), state, "", 0.0, None, None, None) for n, state in enumerate(states))
    return health_of(tuple(nodes))[0]


def test_a_node_without_a_vote_is_not_healthy() -> None:
    assert health("up", "up", "quarantined") == 200
    assert health("up", "quarantined", "quarantined") == 503
    assert health("up", "stalled", "connecting", "up") == 503


@pytest.mark.parametrize("up", [2, 1])
def test_health_says_what_each_node_does(up: int) -> None:
    nodes = [NodeHealth("a", "up", "", 0.0, 0.002, None, None)] * up
    nodes.append(NodeHealth("b", "quarantined", "it restarted", 1.23456, None, None, None))
    nodes += [NodeHealth("c", "connecting", "refused", 0.0, None, None, None)] * (2 - up)
    status, body = health_of(tuple(nodes))
    assert (status, body["status"]) == ((200, "ok") if up == 2 else (503, "unavailable"))
    assert (body["voting"], body["quorum"]) == (up, 2)
    first, second = body["nodes"][0], body["nodes"][up]
    assert (first["node"], first["state"], first["round_trip"]) == ("a", "up", 0.002)
    assert (second["node"], second["state"]) == ("b", "quarantined")
    assert (second["cause"], second["votes_in"]) == ("it restarted", 1.235)


async def test_a_listener_reads_only_so_much_ahead() -> None:
    """A client that sends on and on fills no memory while the handler does not read."""
    piece, read = b"x" * 10_000, 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        await asyncio.sleep(0)
        read += 1
        if read > 100:  # a listener without a bound must not run for ever
            await asyncio.Event().wait()
        return {"type": "http.request", "body": piece, "more_body": True}

    async def send(_message: Any) -> None:
        raise AssertionError

    presence = Presence(receive, send)  # type: ignore[arg-type]
    presence.insist()
    for _ in range(500):
        await asyncio.sleep(0)
    most = AHEAD // len(piece) + 1
    assert read == most
    for _ in range(5):  # it goes on as soon as the handler reads
        await presence.receive()
    for _ in range(500):
        await asyncio.sleep(0)
    assert read > most
    await presence.aclose()


@pytest.mark.parametrize("answered", [True, False])
async def test_a_client_that_goes_ends_only_what_is_not_answered_yet(*, answered: bool) -> None:
    """After the answer a server reports "disconnect" in any case."""

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None: ...

    presence = Presence(receive, send)  # type: ignore[arg-type]
    if answered:
        await presence.send({"type": "http.response.body", "body": b"done"})
    presence.insist()
    for _ in range(10):
        await asyncio.sleep(0)
    assert presence.scope.cancel_called is not answered
    await presence.aclose()
