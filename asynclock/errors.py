"""The error tree: each class answers "what do I do now?" and carries its evidence as data.

Nothing in an error is live: no client, no node, no lease; so errors can be kept, sent and pickled.
Holder labels come from a server and are untrusted: they stand in attributes, and in messages only
by `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping


class AsyncLockError(Exception):
    """Every error of this library, so that one `except` can name them all."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name
        """The lock the error is about, or None where it is about no single one."""


class NotAcquiredError(AsyncLockError):
    """Somebody else has it: come back later (in a web handler: 409 or 423).

    `holder` is the label the holder chose, `owner` its random id, `remaining` the seconds its lease
    has left without renewal, each None where no node said; `retry_after` is a polite pause in
    seconds; `votes` counts the nodes that granted, refused and did not answer.
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
    ) -> None:
        super().__init__(message, name=name)
        self.owner = owner
        self.holder = holder
        self.remaining = remaining
        self.retry_after = 1.0 if remaining is None else max(remaining, 0.0)
        self.votes: dict[str, int] = dict(votes or {})


class AcquireTimeoutError(NotAcquiredError, TimeoutError):
    """Somebody else had it for as long as the caller was willing to wait."""


class QuorumUnavailableError(AsyncLockError, ConnectionError):
    """Too few nodes answered to decide: an outage, not contention (in a web handler: 503).

    `nodes` says for each node what it did: `{"10.0.0.1:6379": "no answer within 0.25 s", …}`;
    `retry_after` is a pause in seconds after which trying again makes sense.
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
    """The lease was held and no longer is: abandon what it protected, commit nothing.

    `reason` says how it was lost, `owner` and `fence` which lease it was.
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
    """The calling task holds this very lock: waiting for it would wait for ever."""


class ConfigurationError(AsyncLockError, ValueError):
    """It can never work like this: mend the code or the settings; trying again is of no use."""


class UnsupportedDeploymentError(ConfigurationError):
    """This deployment cannot carry the promise that was asked of it."""
