"""What an error is, what it carries, and what it means to callers who know Python's own errors."""

import asyncio
import pickle

import pytest

from asynclock import errors


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (errors.AcquireTimeoutError, (errors.NotAcquiredError, TimeoutError)),
        (errors.QuorumUnavailableError, (ConnectionError, OSError)),
        (errors.AlreadyHeldError, (RuntimeError,)),
        (errors.BrokenBarrierError, (asyncio.BrokenBarrierError,)),
        (errors.ConfigurationError, (ValueError,)),
        (errors.UnsupportedDeploymentError, (errors.ConfigurationError, ValueError)),
        (errors.LeaseLostError, ()),
        (errors.NotAcquiredError, ()),
    ],
)
def test_each_error_is_caught_as_what_callers_know(
    error: type[errors.AsyncLockError], kinds: tuple[type[BaseException], ...]
) -> None:
    made = error("why", name="a")
    assert all(isinstance(made, kind) for kind in (errors.AsyncLockError, *kinds))
    assert (str(made), made.name) == ("why", "a")
    assert error("why").name is None
    copy = pickle.loads(pickle.dumps(made))
    assert (type(copy), str(copy), vars(copy)) == (error, "why", vars(made))


@pytest.mark.parametrize(("remaining", "pause"), [(None, 1.0), (0.0, 0.0), (-3.0, 0.0), (2.5, 2.5)])
def test_a_good_pause_before_another_try(remaining: float | None, pause: float) -> None:
    error = errors.NotAcquiredError("held", remaining=remaining)
    assert (error.remaining, error.retry_after) == (remaining, pause)


def test_what_an_error_knows_does_not_change_with_its_source() -> None:
    votes, causes = {"granted": 1}, {"n": "no answer"}
    refused = errors.AcquireTimeoutError("held", owner="o", holder="web", votes=votes)
    outage = errors.QuorumUnavailableError("outage", nodes=causes, retry_after=3.0)
    votes["granted"], causes["n"] = 2, "it came back"
    assert (refused.owner, refused.holder, refused.votes) == ("o", "web", {"granted": 1})
    assert (outage.nodes, outage.retry_after) == ({"n": "no answer"}, 3.0)
    assert errors.NotAcquiredError("held").votes == {}
    assert errors.QuorumUnavailableError("outage").nodes == {}
    assert errors.QuorumUnavailableError("outage").retry_after == 1.0


def test_a_loss_says_which_lease_and_why() -> None:
    lost = errors.LeaseLostError("lost", name="a", reason="it ran out", owner="o", fence=7)
    assert (lost.name, lost.reason, lost.owner, lost.fence) == ("a", "it ran out", "o", 7)
