"""The errors: each class says what the caller can do, and carries the evidence as data.

No error contains a live object such as a client, a node or a lease, so errors can be kept, sent and
pickled. Holder labels come from a server and are untrusted: attributes contain them as they are,
messages only by `repr`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping


class AsyncLockError(Exception):
    """The base class of all errors of this library."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name
        """The name of the lock, or None if the error concerns no particular lock."""


class NotAcquiredError(AsyncLockError):
    """Another holder has the lock: try again later (in a web handler: 409 or 423).

    `holder` is the holder's label, `owner` its random id, `remaining` the seconds that its lease
    has left without renewal; each is None if no node reported it. `retry_after` is a good pause
    before another try, in seconds: an estimate from the recent holds of the name and the number of
    waiters, at random between half of it and all, and never more than `remaining`. `votes` has the
    number of nodes by vote: "granted", "refused" and "unknown" (no answer). `holder_message` is
    what the holder publishes, as known at the timeout: at most 0.4 `ticket_ttl` and a renewal old.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        owner: str | None = None,
        holder: str | None = None,
        remaining: float | None = None,
        votes: Mapping[str, int] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, name=name)
        self.owner = owner
        self.holder = holder
        self.remaining = remaining
        if retry_after is None:
            retry_after = 1.0 if remaining is None else max(remaining, 0.0)
        self.retry_after: float = retry_after
        self.votes: dict[str, int] = dict(votes or {})
        self.holder_message: str | None = None


class AcquireTimeoutError(NotAcquiredError, TimeoutError):
    """Others had the lock until the caller's timeout ended."""


class QuorumUnavailableError(AsyncLockError, ConnectionError):
    """Too few nodes answered, or may vote: an outage, not contention (in a web handler: 503).

    `nodes` has the cause at each node: `{"10.0.0.1:6379": "no answer within 0.25 s", …}`.
    `retry_after` is the pause in seconds after which another try makes sense.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        nodes: Mapping[str, str] | None = None,
        retry_after: float = 1.0,
    ) -> None:
        super().__init__(message, name=name)
        self.nodes: dict[str, str] = dict(nodes or {})
        self.retry_after = retry_after


class LeaseLostError(AsyncLockError):
    """The lease was lost: abandon the work that it protected, and commit nothing.

    `reason` says why it was lost; `owner` and `fence` say which lease it was.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        reason: str = "",
        owner: str = "",
        fence: int = 0,
    ) -> None:
        super().__init__(message, name=name)
        self.reason = reason
        self.owner = owner
        self.fence = fence


class AlreadyHeldError(AsyncLockError, RuntimeError):
    """The calling task is inside an `async with` on this very lock and would wait for itself."""


class BrokenBarrierError(AsyncLockError, asyncio.BrokenBarrierError):
    """The barrier was aborted, or it was reset while the party waited: not all will arrive.

    An aborted barrier raises this until `reset`. Also an `asyncio.BrokenBarrierError`.
    """


class ConfigurationError(AsyncLockError, ValueError):
    """The call can never succeed as configured: fix the code or the settings; don't retry."""


class UnsupportedDeploymentError(ConfigurationError):
    """This deployment can't give the guarantee that the call or the settings ask for."""
