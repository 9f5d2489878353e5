"""An observer gets all events until it is removed, and can't break a lock."""

import asyncio

import asynclock
from asynclock.events import Event, Observers
from asynclock.testing import LocalServer
from tests import patient
from tests.waiting import until


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


async def test_a_manager_that_is_closed_asks_for_no_more_votes() -> None:
    ear = Ear()
    async with asynclock.connect("memory://") as others, others.lock("a"):
        async with asynclock.connect("memory://") as locks:
            locks.observe(ear.hear)
            waiting = asyncio.create_task(locks.lock("a").acquire())
            await until(lambda: "Voted" in ear.heard)
        await asyncio.wait([waiting])
    assert ear.heard.count("Voted") == 1


def test_an_observer_may_leave_when_it_hears() -> None:
    ear = Ear()

    def once(_event: Event) -> None:
        observers.remove(once)

    observers = Observers([once, ear.hear])
    observers(Event())
    observers(Event())
    assert ear.heard == ["Event", "Event"]
    assert observers == [ear.hear]
