"""Which events LogEvents leaves to the library's own lines."""

from __future__ import annotations

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
