"""An observer gets all events until it is removed, and can't break a lock."""

from __future__ import annotations

import logging

import pytest

import asynclock
from asynclock.events import Event, Observers
from asynclock.testing import LocalServer
from tests import patient


class Ear:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def hear(self, event: Event) -> None:
        self.heard.append(type(event).__name__)


async def test_an_observer_comes_and_goes(asynclock_nodes: list[LocalServer]) -> None:
    ear = Ear()
    urls = [node.url for node in asynclock_nodes]
    async with patient.connect(*urls, restart_guard=False) as locks:
        locks.observe(ear.hear)
        async with locks.lock("a"):
            pass
        assert [name for name in ear.heard if name in ("Acquired", "Released")] == [
            "Acquired",
            "Released",
        ]
        # A bound method is a new object each time it is written down: equal, not the same.
        locks.unobserve(ear.hear)
        locks.unobserve(ear.hear)
        ear.heard.clear()
        async with locks.lock("a"):
            pass
    assert "Acquired" not in ear.heard


async def test_a_manager_that_opens_again_keeps_its_observers() -> None:
    ear = Ear()
    locks = asynclock.connect("memory://", restart_guard=False)
    locks.observe(ear.hear)
    for opened in (1, 2):
        async with locks, locks.lock("a"):
            pass
        assert ear.heard.count("Acquired") == opened


def test_an_observer_that_fails_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_event: Event) -> None:
        raise ValueError("no")

    ear = Ear()
    observers = Observers([fail, ear.hear])
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            observers(Event())
    assert ear.heard == ["Event"] * 3
    assert len(caplog.records) == 1


def test_an_observer_may_leave_when_it_hears() -> None:
    ear = Ear()

    def once(_event: Event) -> None:
        observers.remove(once)

    observers = Observers([once, ear.hear])
    observers(Event())
    observers(Event())
    assert ear.heard == ["Event", "Event"]
    assert observers == [ear.hear]


def test_each_failure_of_each_observer_is_told_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def one(_event: Event) -> None:
        raise kinds.pop(0)("no")

    def other(_event: Event) -> None:
        raise ValueError("neither")

    kinds = [ValueError, KeyError, ValueError]
    observers = Observers([one, other])
    while kinds:
        observers(Event())
    told = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert list(map(repr, told)) == ["ValueError('no')", "ValueError('neither')", "KeyError('no')"]


def test_an_observer_that_removes_itself_hides_nothing_from_the_next() -> None:
    ear = Ear()
    observers = Observers()

    def once(_event: Event) -> None:
        observers.remove(once)

    observers += [once, ear.hear]
    observers(Event())
    observers(Event())
    assert ear.heard == ["Event"] * 2
