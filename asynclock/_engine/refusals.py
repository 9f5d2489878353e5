"""What is said when there is no lease, and why: errors with their evidence."""

from __future__ import annotations

from .. import _clock
from .._nodes.acks import UNSUPPORTED
from ..errors import (
    AcquireTimeoutError,
    AlreadyHeldError,
    AsyncLockError,
    ConfigurationError,
    NotAcquiredError,
    QuorumUnavailableError,
    UnsupportedDeploymentError,
)
from .attempt import Attempt
from .lease import Holding

OUTCOMES: dict[type[AsyncLockError], str] = {
    NotAcquiredError: "refused",
    AcquireTimeoutError: "timeout",
    QuorumUnavailableError: "outage",
}
"""How events call the ways in which an acquire fails."""


def label(owner: str | None) -> str | None:
    """The holder's label in an owner id; untrusted text. The whole id where it isn't ours."""
    return None if owner is None else owner.partition(":")[2] or owner


def refused(attempt: Attempt) -> NotAcquiredError:
    """Others had it, and the caller would not wait."""
    return _contended(NotAcquiredError, "is held by", attempt)


def too_long(attempt: Attempt) -> NotAcquiredError:
    """Others had it for as long as the caller would wait."""
    return _contended(AcquireTimeoutError, "was not free in time; it is held by", attempt)


def _contended(kind: type[NotAcquiredError], text: str, attempt: Attempt) -> NotAcquiredError:
    holder, ballot = label(attempt.holder), attempt.ballot
    return kind(
        f"{attempt.recipe.name!r} {text} {holder!r}",
        name=attempt.recipe.name,
        owner=attempt.holder,
        holder=holder,
        remaining=attempt.remaining,
        votes={
            "granted": len(ballot.claims),
            "refused": ballot.refused,
            "unknown": ballot.unknown,
        },
    )


def held_here(name: str, holding: Holding) -> NotAcquiredError:
    """This process has it: no node need be asked."""
    return _in_this_process(NotAcquiredError, f"{name!r} is held by this process", name, holding)


def too_long_here(name: str, holding: Holding | None) -> NotAcquiredError:
    """Others of this process stood before the caller in the line."""
    text = f"{name!r} was not free in time; others of this process want it too"
    return _in_this_process(AcquireTimeoutError, text, name, holding)


def _in_this_process(
    kind: type[NotAcquiredError], text: str, name: str, holding: Holding | None
) -> NotAcquiredError:
    if holding is None:
        return kind(text, name=name)
    left = max(0.0, holding.valid_until - _clock.now())
    owner = holding.owner
    return kind(text, name=name, owner=owner, holder=label(owner), remaining=left)


def already_held(name: str) -> AlreadyHeldError:
    """The caller would wait for itself."""
    return AlreadyHeldError(
        f"this task already holds {name!r}; waiting for it would never end "
        "(reentrant_lock may be nested)",
        name=name,
    )


def hopeless(attempt: Attempt, size: int) -> ConfigurationError | None:
    """So many nodes will never grant it that trying again is of no use; None if it may be."""
    never = [failure for failure in attempt.failures.values() if failure.permanent]
    if size - len(never) >= attempt.ballot.quorum:
        return None
    unsupported = any(failure.code == UNSUPPORTED for failure in never)
    kind = UnsupportedDeploymentError if unsupported else ConfigurationError
    name = attempt.recipe.name
    return kind(f"{name!r} can't be locked here: {_listed(attempt.causes())}", name=name)


def outage(attempt: Attempt) -> QuorumUnavailableError:
    """Too few nodes answered."""
    causes, name = attempt.causes(), attempt.recipe.name
    return QuorumUnavailableError(
        f"too few nodes answered to decide on {name!r}: {_listed(causes)}",
        name=name,
        nodes=causes,
        retry_after=max(1.0, attempt.barred),
    )


def closed() -> ConfigurationError:
    """The manager was closed meanwhile."""
    return ConfigurationError("the manager was closed while this waited")


def _listed(causes: dict[str, str]) -> str:
    return "; ".join(f"{node}: {cause}" for node, cause in causes.items()) or "no node answered"
