"""What HTTP clients are told about a lock: status, headers and a body as RFC 9457 has it.

A body says nothing that a stranger should not read: no holder, no node, no cause. Those stand in
the error, and in the log where the fault is ours.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from .. import _settings
from .._reports import NodeHealth
from ..errors import (
    AsyncLockError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
)
from ..fencing._naming import fill_in
from ..fencing.stamp import StaleFenceError

_log = logging.getLogger("asynclock.web")

MEDIA_TYPE = "application/problem+json"
KEY = "asynclock"
"""Under which name a framework's own state holds the manager."""

Contended = Literal[409, 423]
"""The status for a lock that somebody else has: Conflict, or Locked (RFC 4918)."""

T = TypeVar("T")


class UnusableNameError(ConfigurationError):
    """The request's own words make a name that no lock can have: the client's fault."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer to a client."""

    status: int
    kind: str
    title: str
    lock: str | None = None
    retry_after: int | None = None
    """Whole seconds, as the header has them."""

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the body, which must not be kept by caches."""
        pause = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {"Cache-Control": "no-store", **pause}

    @property
    def body(self) -> bytes:
        """JSON."""
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
    """What to answer when `error` ended a request; what an operator must mend is logged."""
    name = error.name
    match error:
        case NotAcquiredError():
            pause = _pause(error.retry_after)
            return Problem(contended, "contended", "Somebody else has it", name, pause)
        case QuorumUnavailableError():
            _log.warning("%s", error)
            pause = _pause(error.retry_after)
            return Problem(503, "unavailable", "Locks are not available just now", name, pause)
        case StaleFenceError():
            return Problem(412, "stale-fence", "A newer holder was here first", name)
        case LeaseLostError():
            return Problem(500, "lease-lost", "The lock was lost before the work was done", name)
        case UnusableNameError():
            return Problem(400, "unusable-name", "This cannot be the name of a lock")
    _log.error("a request failed: %s", error, exc_info=error)
    return Problem(500, "misconfigured", "Locks are not set up right")


def _pause(seconds: float) -> int:
    # Never 0: a client that comes back in the same instant only adds to the crowd.
    return max(1, math.ceil(seconds))


def name_for(
    template: str | Callable[[T], str], request: T, variables: Mapping[str, object]
) -> str:
    """The lock that a request needs. Raises UnusableNameError if the client's words forbid one."""
    name = template(request) if callable(template) else fill_in(template, variables)
    try:
        return _settings.name(name)
    except ConfigurationError as error:
        raise UnusableNameError(str(error)) from None


def checked(contended: object) -> Contended:
    """`contended` as one of the two statuses."""
    if contended not in (409, 423):
        raise ConfigurationError(f"contended must be 409 or 423, not {contended!r}")
    return contended


def health_of(nodes: tuple[NodeHealth, ...]) -> tuple[int, dict[str, Any]]:
    """Status (200, or 503 without a quorum that votes) and body of a health check."""
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
