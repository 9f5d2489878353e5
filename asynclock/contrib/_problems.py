"""The HTTP answers to errors of locks: status, headers and a body as in RFC 9457.

A body contains nothing that a stranger should not read: no holder, no node, no cause. The error has
them, and the log too if the fault is on our side.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from typing import Any, Literal

from .._engine.acquire import WORK
from .._engine.engine import NodeHealth
from ..errors import (
    AcquireTimeoutError,
    AlreadyHeldError,
    AsyncLockError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
)
from ..fencing.stamp import StaleFenceError

_log = logging.getLogger("asynclock.web")

MEDIA_TYPE = "application/problem+json"
KEY = "asynclock"
"""The name of the manager in a framework's own state."""

Contended = Literal[409, 423]
"""The status for a lock that another holder has: Conflict, or Locked (RFC 4918)."""


class UnusableNameError(ConfigurationError):
    """The values in the request make a name that no lock can have, which is the client's fault."""


class ReusedKeyError(ConfigurationError):
    """The Idempotency-Key belongs to another request, which is the client's fault."""


class UnkeptAnswerError(ConfigurationError):
    """The request was answered, and its answer could not be kept."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem to report to a client."""

    status: int
    kind: str
    title: str
    lock: str | None = None
    retry_after: int | None = None
    """Whole seconds for the Retry-After header; None for no header."""

    @property
    def close_code(self) -> int:
        """The code that closes a WebSocket: 4000 + status (4000 to 4999 are for applications)."""
        return 4000 + self.status

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer, which keep caches from storing it."""
        pause = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {"Cache-Control": "no-store", **pause}

    @property
    def body(self) -> bytes:
        """The JSON of an `application/problem+json` answer."""
        members: dict[str, Any] = {
            "type": f"urn:asynclock:{self.kind}",
            "title": self.title,
            "status": self.status,
        }
        if self.lock is not None:
            members["lock"] = self.lock
        if self.retry_after is not None:
            members["retry_after"] = self.retry_after
        return json.dumps(members).encode()


def problem_of(error: AsyncLockError, contended: Contended = 409) -> Problem:
    """Return the answer to a request that `error` ended; log what an operator must fix."""
    name = error.name
    work = WORK.get()
    match error:
        case AcquireTimeoutError() if work is not None and work.stopped:
            return Problem(503, "unavailable", "The server is being stopped", name, 1)
        case NotAcquiredError():
            pause = _pause(error.retry_after)
            return Problem(contended, "contended", "Another holder has this lock", name, pause)
        case QuorumUnavailableError():
            _log.warning("%s", error)
            pause = _pause(error.retry_after)
            return Problem(503, "unavailable", "Locks are not available at present", name, pause)
        case StaleFenceError():
            return Problem(412, "stale-fence", "A newer holder was here first", name)
        case LeaseLostError():
            return Problem(500, "lease-lost", "The lock was lost before the work was done", name)
        case UnusableNameError():
            return Problem(400, "unusable-name", "This cannot be the name of a lock")
        case ReusedKeyError():
            return Problem(422, "reused-key", "This Idempotency-Key belongs to another request")
        case UnkeptAnswerError():
            return Problem(410, "unkept-answer", "This was done; its answer can't be repeated")
        case AlreadyHeldError():
            _log.error("a request waits for a lock that it holds itself: %s", error, exc_info=error)
            title = "The request holds this lock and would wait for itself"
            return Problem(500, "already-held", title, name)
    _log.error("a request failed: %s", error, exc_info=error)
    return Problem(500, "misconfigured", "Locks are misconfigured")


def _pause(seconds: float) -> int:
    # Never 0: a client that retries at once would only add load.
    return max(1, math.ceil(seconds))


def schema_of(status: int, kind: str) -> dict[str, Any]:
    """Return the OpenAPI description of an answer with this status."""
    properties = {
        "type": {"type": "string", "const": f"urn:asynclock:{kind}"},
        "title": {"type": "string"},
        "status": {"type": "integer", "const": status},
        "lock": {"type": "string", "description": "The name of the lock."},
        "retry_after": {"type": "integer", "description": "Seconds."},
    }
    required = ["type", "title", "status"]
    schema = {"type": "object", "properties": properties, "required": required}
    pause = {"description": "Seconds to wait before another try.", "schema": {"type": "integer"}}
    return {"content": {MEDIA_TYPE: {"schema": schema}}, "headers": {"Retry-After": pause}}


def checked(contended: object) -> Contended:
    """Return `contended` if it is 409 or 423. Raises ConfigurationError otherwise."""
    if contended not in (409, 423):
        raise ConfigurationError(f"contended must be 409 or 423, not {contended!r}")
    return contended


def health_of(nodes: tuple[NodeHealth, ...]) -> tuple[int, dict[str, Any]]:
    """Return the status (503 if no quorum can vote, else 200) and the body of a health check."""
    voting = sum(node.state == "up" for node in nodes)
    quorum = len(nodes) // 2 + 1
    body = {
        "status": "ok" if voting >= quorum else "unavailable",
        "voting": voting,
        "quorum": quorum,
        "nodes": [
            {
                "node": node.node,
                "state": node.state,
                "cause": node.cause,
                "votes_in": round(node.votes_in, 3),
                "round_trip": node.round_trip,
            }
            for node in nodes
        ],
    }
    return (200 if voting >= quorum else 503), body
