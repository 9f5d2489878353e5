"""Builds the errors that explain why there is no lease, with their evidence."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap, takewhile

from .. import _clock
from .._nodes.replicated.acks import UNSUPPORTED
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
from .context import Context
from .grant import LocalQueue
from .spec import LONGEST_MESSAGE, LockSpec, Vote, label, published, rests, stored

OUTCOMES: dict[type[AsyncLockError], str] = {
    NotAcquiredError: "refused",
    AcquireTimeoutError: "timeout",
    QuorumUnavailableError: "outage",
}
"""The outcome that an event names for each error; "error" for all others."""


def had(owner: str | None, left: float | None = None) -> str:
    """Return who has the name, in words, and for how many seconds it still rests, if known."""
    name, time = repr(label(owner)), f" for {left:.1f} s" if left else ""
    return f"rests{time} (last held by {name})" if rests(owner) else f"is held by {name}"


def refused(attempt: Attempt, *, waited: bool) -> NotAcquiredError:
    """Return the error when others have the name.

    The caller doesn't wait, or has `waited` until its timeout ended.
    """
    holder, ballot = label(attempt.holder), attempt.ballot
    kind, text = NotAcquiredError, ""
    if waited:
        kind, text = AcquireTimeoutError, "was not free in time; it "
    return kind(
        f"{attempt.spec.name!r} {text}{had(attempt.holder, attempt.remaining)}",
        name=attempt.spec.name,
        owner=attempt.holder,
        holder=holder,
        remaining=attempt.remaining,
        votes={
            "granted": len(ballot.claims),
            "refused": ballot.refused,
            "unknown": ballot.unknown,
        },
        retry_after=attempt.retry_after(),
    )


def out_of_time(context: Context, spec: LockSpec) -> NotAcquiredError:
    """Return the error for a timeout that the wait for the turn, or for other names, used up."""
    pace = context.paces.of(spec.pace_key)
    return AcquireTimeoutError(
        f"the timeout for {spec.name!r} ended before the nodes could answer",
        name=spec.name,
        retry_after=pace.pause(pace.rank, context.random(), permits=spec.permits),
    )


def held_here(context: Context, queue: LocalQueue) -> NotAcquiredError:
    """Return the error for try_acquire when this process itself has the name."""
    return _in_this_process(NotAcquiredError, "is held by this process", context, queue)


def too_long_here(
    context: Context, queue: LocalQueue, timeout: float | None, started: float
) -> NotAcquiredError:
    """Return the error for a timeout in the local queue; None: the wait was stopped before it."""
    # Waiters are in the order of their calls, and those with the same timeout end in that order.
    before = takewhile(lambda waiter: waiter[1] < started, queue.waiters.values())
    place = 1 + queue.asking + sum(1 for _ in before)
    has = "other tasks of this process hold it or wait for it"
    if queue.holder is not None and not queue.grants:
        has = f"it {had(queue.holder)}, and other tasks of this process wait for it"
    has += f", and the call was number {place} of those that wait"
    why = "the work that waits was stopped" if timeout is None else f"the timeout was {timeout:g} s"
    text = f"was not free in time; {has}; {why}"
    return _in_this_process(AcquireTimeoutError, text, context, queue)


def _in_this_process(
    kind: type[NotAcquiredError], text: str, context: Context, queue: LocalQueue
) -> NotAcquiredError:
    now, owner, remaining, ahead = _clock.now(), None, None, len(queue.waiters)
    pace = context.paces.of(queue.key)
    if queue.grants:
        grant = queue.grants[0]
        owner, remaining = grant.owner, max(0.0, grant.valid_until - now)
        if queue.permits == 1:
            pace.seen(grant.fence, grant.held_since, now)
        else:
            pace.seen_many(now)
    else:
        owner, ahead = queue.holder, ahead + pace.rank + 1  # a task of this process asks the nodes
    error = kind(
        f"{queue.name!r} {text}",
        name=queue.name,
        owner=owner,
        holder=label(owner),
        remaining=remaining,
        retry_after=pace.pause(ahead, context.random(), permits=queue.permits, remaining=remaining),
    )
    add_message(error, context, queue)
    return error


def add_message(error: NotAcquiredError, context: Context, queue: LocalQueue) -> None:
    """Add the holder's message to an error, if this process or a node's last reply has it."""
    ours = [context.messages.get(grant) for grant in queue.grants]
    found = published([*ours, *stored((queue.message_replies or {}).values())], error.owner)
    if found is not None and found[1]:
        error.holder_message = found[1]
        error.args = (f"{error}; its holder publishes {found[1][:LONGEST_MESSAGE]!r}",)


def already_held(name: str) -> AlreadyHeldError:
    """Return the error for a task that would wait for itself."""
    return AlreadyHeldError(
        f"this task or thread already holds {name!r}; waiting for it would never end: release it "
        "first, or use reentrant_lock, a reader's upgrade() or a semaphore's several()",
        name=name,
    )


def hopeless(vote: Vote) -> ConfigurationError:
    """Return the error for permanent failures that rule out a quorum."""
    unsupported = any(failure.code == UNSUPPORTED for failure in vote.failures.values())
    kind = UnsupportedDeploymentError if unsupported else ConfigurationError
    return kind(f"{vote.name!r} can't {vote.NEVER} here: {listed(vote.causes())}", name=vote.name)


def outage(vote: Vote) -> QuorumUnavailableError:
    """Return the error for too few answers or votes, with the cause at each node."""
    now, barred = _clock.now(), vote.barred
    guarded = any(failure.votes_from > now for failure in vote.failures.values())
    did = "of the nodes that answered may vote yet" if guarded else "nodes answered"
    until = f"; a quorum may in {barred:.1f} s" if barred else ""
    return QuorumUnavailableError(
        f"too few {did} to {vote.AIM} {vote.name!r}{until}: {listed(vote.causes())}",
        name=vote.name,
        nodes=vote.causes(),
        retry_after=max(1.0, barred),
    )


def listed(causes: Mapping[str, str]) -> str:
    """Return the causes at the nodes in words."""
    return "; ".join(starmap("{}: {}".format, causes.items())) or "no node answered"
