"""Each answer to an error of a lock, and to a question about the health of the nodes."""

import json
import logging
from typing import Any

import pytest

import asynclock
from asynclock import NodeHealth
from asynclock.contrib._web import MEDIA_TYPE, UnusableNameError, health_of, problem_of
from asynclock.errors import AsyncLockError, ConfigurationError
from asynclock.fencing import StaleFenceError

HELD = "Another holder has this lock"
AWAY = "Locks are not available at present"
STALE = "A newer holder was here first"
LOST = "The lock was lost before the work was done"
OWN = "The request holds this lock and would wait for itself"
NAME = "This cannot be the name of a lock"
WRONG = "Locks are misconfigured"


@pytest.mark.parametrize(
    ("error", "pause", "status", "kind", "title", "more", "logged"),
    [
        (asynclock.NotAcquiredError, 0.0, 409, "contended", HELD, {"retry_after": 1}, None),
        (asynclock.NotAcquiredError, 0.2, 409, "contended", HELD, {"retry_after": 1}, None),
        (asynclock.NotAcquiredError, 1.2, 409, "contended", HELD, {"retry_after": 2}, None),
        (asynclock.QuorumUnavailableError, 0.0, 503, "unavailable", AWAY, {"retry_after": 1}, 30),
        (asynclock.QuorumUnavailableError, 1.2, 503, "unavailable", AWAY, {"retry_after": 2}, 30),
        (StaleFenceError, None, 412, "stale-fence", STALE, {}, None),
        (asynclock.LeaseLostError, None, 500, "lease-lost", LOST, {}, None),
        (asynclock.AlreadyHeldError, None, 500, "already-held", OWN, {}, 40),
        (UnusableNameError, None, 400, "unusable-name", NAME, {"lock": None}, None),
        (ConfigurationError, None, 500, "misconfigured", WRONG, {"lock": None}, 40),
    ],
)
def test_the_whole_answer_to_each_error(
    error: type[AsyncLockError],
    pause: float | None,
    status: int,
    kind: str,
    title: str,
    more: dict[str, Any],
    logged: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has what the client must not see, if the fault is ours; an outage is one line."""
    made: Any = error("canary", name="a")
    if pause is not None:
        made.retry_after = pause
    try:
        raise made
    except AsyncLockError as raised:
        found = problem_of(raised)
    body = {"type": f"urn:asynclock:{kind}", "title": title, "status": status, "lock": "a", **more}
    assert json.loads(found.body) == {key: value for key, value in body.items() if value}
    header = {"Retry-After": str(more["retry_after"])} if "retry_after" in more else {}
    headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", **header}
    assert found.answer == (found.body, status, headers)
    assert (found.status, found.close_code) == (status, 4000 + status)
    records = [(one.name, one.levelno, one.exc_info is not None) for one in caplog.records]
    assert records == ([("asynclock.web", logged, logged == logging.ERROR)] if logged else [])
    assert ("canary" in caplog.text) == bool(logged)
    assert ("test_the_whole_answer" in caplog.text) == (logged == logging.ERROR), "with its place"


@pytest.mark.parametrize(
    ("states", "voting", "status", "text"),
    [
        (["up"], 1, 200, "ok"),
        (["up", "up", "quarantined"], 2, 200, "ok"),
        (["up", "quarantined", "connecting"], 1, 503, "unavailable"),
        (["up", "stalled", "connecting", "up"], 2, 503, "unavailable"),
    ],
)
def test_health_says_what_each_node_does(
    states: list[str], voting: int, status: int, text: str
) -> None:
    """A node without a vote is not healthy."""
    nodes = tuple(
        NodeHealth(f"n{at}", state, "why", 1.23456, 0.002, None, None)
        for at, state in enumerate(states)
    )
    each = [
        {"node": f"n{at}", "state": state, "cause": "why", "votes_in": 1.235, "round_trip": 0.002}
        for at, state in enumerate(states)
    ]
    quorum = len(states) // 2 + 1
    whole = {"status": text, "voting": voting, "quorum": quorum, "nodes": each}
    assert health_of(nodes) == (status, whole)
