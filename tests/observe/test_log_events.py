"""Which events LogEvents leaves to the library's own lines."""

import logging

import pytest

from asynclock import events
from asynclock.observe import LogEvents


@pytest.mark.parametrize(
    "event",
    [
        events.Lost("a", "owner", 7, "it ran out", 4.0),
        events.NodeDown("n", "gone"),
        events.NodeQuarantined("n", "it restarted", 60.0),
        events.NodeUp("n"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_the_library_logs_itself_is_not_logged_twice(
    event: events.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        LogEvents()(event)
    assert not caplog.records


def test_a_failing_observer_is_told_as_an_error_of_the_library(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once for each observer and kind of failure, with the trace, on the documented logger."""
    failures = iter([RuntimeError("one"), RuntimeError("two"), ValueError("three")])

    def fails(_event: events.Event) -> None:
        raise next(failures)

    def fails_too(_event: events.Event) -> None:
        raise RuntimeError("four")

    observers = events.Observers([fails, fails_too])
    for _ in range(3):
        observers(events.SplitVote("a"))
    told = [(one.name, one.levelname, one.getMessage(), one.exc_info) for one in caplog.records]
    assert [line[:3] for line in told] == [
        ("asynclock", "ERROR", "an observer failed on SplitVote")
    ] * 3
    assert [str(trace[1]) for *_, trace in told if trace] == ["one", "four", "three"]
