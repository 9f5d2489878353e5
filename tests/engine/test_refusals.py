"""What each error of a call in vain says and carries, from the first word to the last field."""

from __future__ import annotations

from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine import refusals
from asynclock._engine.grant import Grant
from asynclock._engine.local_queue import LocalQueue
from asynclock._engine.refusals import OUTCOMES, is_owner_id, label
from asynclock._nodes.acks import UNSUPPORTED
from asynclock._nodes.replies import Failure
from tests.engine.attempts import SPEC, around
from tests.engine.test_grants import won
from tests.engine.test_tally import FOR_EVER, Asked
from tests.waiting import in_virtual_time

OWNER = "0123456789abcdef" * 2 + ":web 1"


def lost() -> Asked:
    """An attempt that one node granted, three refused and one failed."""
    attempt = Asked(5)
    attempt.grant(0)
    attempt.refuse(1, OWNER, left=4000)
    attempt.refuse(2, OWNER, left=3000)
    attempt.refuse(3, "another", left=5000)
    attempt.fail(4)
    return attempt


def carried(error: Any) -> dict[str, Any]:
    """What a refusal carries."""
    names = ("name", "owner", "holder", "remaining", "votes", "retry_after")
    return {name: getattr(error, name) for name in names}


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (refusals.refused, asynclock.NotAcquiredError, "'a' is held by 'web 1'"),
        (
            refusals.too_long,
            asynclock.AcquireTimeoutError,
            "'a' was not free in time; it is held by 'web 1'",
        ),
    ],
)
def test_a_refusal_by_others_carries_all_that_the_nodes_said(
    make: Any, kind: type[Exception], text: str
) -> None:
    error = make(lost())
    assert (type(error), str(error)) == (kind, text)
    assert carried(error) == {
        "name": "a",
        "owner": OWNER,
        "holder": "web 1",
        "remaining": 4.0,
        "votes": {"granted": 1, "refused": 3, "unknown": 1},
        "retry_after": 0.25,
    }


@in_virtual_time
async def test_a_refusal_by_this_process_carries_how_long_its_lease_lasts() -> None:
    grant, queue, context = won(), LocalQueue[Grant]("a", "p:a", 1, 0.0), around()[1]
    grant.owner = OWNER
    queue.grants.append(grant)
    for left, remaining, pause in ((4.0, 4.0, 1.5), (-1.0, 0.0, 0.0)):
        grant.valid_until, grant.held_since = _clock.now() + left, _clock.now() - 2.0
        known = {
            "name": "a",
            "owner": OWNER,
            "holder": "web 1",
            "remaining": pytest.approx(remaining),
            "votes": {},
            "retry_after": pytest.approx(pause),
        }
        here = refusals.held_here(context, queue)
        assert (type(here), str(here)) == (
            asynclock.NotAcquiredError,
            "'a' is held by this process",
        )
        assert carried(here) == known
        assert carried(refusals.too_long_here(context, queue)) == known
    unknown = refusals.too_long_here(around()[1], LocalQueue[Grant]("a", "p:a", 1, 0.0))
    assert type(unknown) is asynclock.AcquireTimeoutError
    facts = {"name": "a", "votes": {}, "retry_after": 1.5}  # a hold of 1 s, and one that asks
    assert carried(unknown) == {**dict.fromkeys(known), **facts}


def test_a_timeout_before_any_answer_and_a_wait_for_oneself_name_the_lock() -> None:
    late, own = refusals.out_of_time(around()[1], SPEC), refusals.already_held("a")
    assert type(late) is asynclock.AcquireTimeoutError
    assert str(late) == "the timeout for 'a' ended before the nodes could answer"
    assert type(own) is asynclock.AlreadyHeldError
    assert str(own) == (
        "this task or thread already holds 'a'; waiting for it would never end "
        "(reentrant_lock may be nested)"
    )
    assert (late.name, own.name) == ("a", "a")
    assert str(refusals.closed()) == "the manager was closed while this call waited"


@in_virtual_time
async def test_an_outage_names_each_node_and_when_to_ask_again() -> None:
    attempt = Asked(3)
    for index, votes_in in ((2, 30), (0, 20)):
        cause = f"started {votes_in} s too late"
        attempt.fail(index, Failure(cause, votes_from=_clock.now() + votes_in))
    error = refusals.outage(attempt)
    assert type(error) is asynclock.QuorumUnavailableError
    causes = {"a": "started 20 s too late", "c": "started 30 s too late"}
    listed = "; ".join(f"{node}: {cause}" for node, cause in causes.items())
    assert str(error) == f"too few nodes answered to decide on 'a': {listed}"
    assert (error.name, error.nodes) == ("a", causes)
    assert error.retry_after == pytest.approx(20.0)
    silent = refusals.outage(Asked(3))
    assert str(silent).endswith(": no node answered")
    assert (silent.nodes, silent.retry_after) == ({}, 1.0)


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ((FOR_EVER, FOR_EVER), asynclock.ConfigurationError),
        (
            (FOR_EVER, Failure("no right", permanent=True, code=UNSUPPORTED)),
            asynclock.UnsupportedDeploymentError,
        ),
    ],
)
def test_what_a_person_must_mend_is_an_error_of_the_configuration(
    failures: tuple[Failure, ...], kind: type[asynclock.AsyncLockError]
) -> None:
    attempt = Asked(3)
    for index, failure in enumerate(failures):
        attempt.fail(index, failure)
    error = refusals.hopeless(attempt)
    assert (type(error), error.name) == (kind, "a")
    assert str(error) == "'a' can't be locked here: a: no right; b: no right"


@in_virtual_time
async def test_an_answer_was_discarded_if_its_node_may_vote_again_by_now() -> None:
    now = _clock.now()
    for votes_from, discarded in ((0.0, False), (now - 1, True), (now, True), (now + 1, False)):
        attempt = Asked(3)
        attempt.fail(1, Failure("a guard took its vote", votes_from=votes_from))
        assert refusals.discarded(attempt) is discarded


@pytest.mark.parametrize(
    ("owner", "ours", "shown"),
    [
        (None, False, None),
        ("", False, ""),
        (OWNER, True, "web 1"),
        (OWNER[:33], True, ""),
        (OWNER[:33] + "a:b", True, "a:b"),
        (OWNER[:32], False, "01234567…"),
        ("host:4711", False, "host:471…"),
        ("12345678", False, "12345678"),
    ],
)
def test_what_people_see_of_an_owner(owner: str | None, shown: str | None, *, ours: bool) -> None:
    """Whole ids of other libraries stay hidden: anyone could release the lock with them."""
    assert is_owner_id(owner) is ours
    assert label(owner) == shown


def test_each_outcome_has_a_word() -> None:
    """Dashboards and alarms select events by them."""
    assert {
        asynclock.NotAcquiredError: "refused",
        asynclock.AcquireTimeoutError: "timeout",
        asynclock.QuorumUnavailableError: "outage",
    } == OUTCOMES
