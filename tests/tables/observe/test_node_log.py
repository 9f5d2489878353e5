"""What is logged of a node by its steps, and that no event is made for nobody."""

import asyncio
import logging

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.node import QUIET, NodeLog
from asynclock._nodes.wire import Failure
from asynclock._rules.trust import Trust
from asynclock.events import Event, NodeDown, NodeQuarantined, NodeUp, Observers
from asynclock.testing import LocalServer
from tests.observe.test_node_log import lines
from tests.observe.test_observers import SETTINGS
from tests.waiting import in_virtual_time


async def test_another_cause_of_the_same_outage_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = NodeLog("a:1", Trust(10.0), Observers())
    log.down("it hung up")
    log.down("it refuses connections")
    log.up()
    log.up()
    log.down("it hung up")
    assert [level for level, _ in lines(caplog)] == ["WARNING", "INFO", "WARNING"]


def answering() -> tuple[NodeLog, Trust, list[Event]]:
    """The log of a node, what is known of the node, and the events."""
    trust, heard = Trust(10.0), list[Event]()
    return NodeLog("a:1", trust, Observers([heard.append])), trust, heard


@in_virtual_time
async def test_errors_instead_of_votes_are_told_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server at its limit of memory may refuse every other request."""
    caplog.set_level(logging.INFO)
    log, _, _ = answering()
    full, busy = Failure("OOM no memory", code="OOM"), Failure("BUSY a script", code="BUSY")
    for _ in range(3):
        log.answered(full)
        log.answered(None)
        log.answered(None)
    log.answered(busy)
    told = [("WARNING", "a:1 does not vote: OOM no memory"), ("INFO", "a:1 votes again")]
    assert lines(caplog) == told
    await asyncio.sleep(QUIET + 1)
    log.answered(full)
    await asyncio.sleep(QUIET + 1)
    log.answered(full)
    log.answered(busy)
    assert lines(caplog) == [*told, told[0], ("WARNING", "a:1 does not vote: BUSY a script")]


@in_virtual_time
async def test_the_end_of_a_quarantine_is_told_when_it_has_come_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The quarantine may be prolonged, or the node go down in the middle of it."""
    caplog.set_level(logging.INFO)
    log, trust, heard = answering()
    log.quarantined(trust.quarantine(_clock.now(), 5.0, "jumped"))
    await asyncio.sleep(4)
    log.quarantined(trust.quarantine(_clock.now(), 5.0, "jumped again"))
    await asyncio.sleep(4)
    assert [level for level, _ in lines(caplog)] == ["WARNING"] * 2
    await asyncio.sleep(1.1)
    back = ("INFO", "a:1 is back and votes")
    assert lines(caplog)[2:] == [back]
    log.quarantined(trust.quarantine(_clock.now(), 5.0, "restarted"))
    log.down("it hung up")
    await asyncio.sleep(10)
    assert lines(caplog)[-1] != back, "it is away"
    log.connected()
    log.connected()
    assert lines(caplog).count(back) == 2
    kinds = [type(event) for event in heard]
    assert kinds == [*[NodeQuarantined] * 3, NodeDown, NodeUp, NodeUp]
    assert heard[0] == NodeQuarantined("a:1", "jumped", 5.0)
    assert heard[3] == NodeDown("a:1", "it hung up")


def test_a_first_connection_is_no_news_but_to_observers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log, _, heard = answering()
    log.connected()
    assert lines(caplog) == []
    assert heard == [NodeUp("a:1")]


async def test_silence_makes_no_event(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without observers, a lock creates no event object."""

    def fail(*_: object) -> None:
        raise AssertionError("an event was made for nobody")

    urls = [node.url for node in asynclock_nodes]

    async def once(locks: asynclock.LockManager) -> None:
        async with locks.lock("a") as lease:
            await lease.extend()
            assert await locks.lock("a").try_acquire() is None

    async with asynclock.connect(*urls, **SETTINGS) as locks:
        from asynclock._engine import acquire, engine, seek

        with monkeypatch.context() as without_events:
            for module in (engine, seek, acquire):
                for name in ("Acquired", "Released", "Renewed", "Contended", "Voted", "Lost"):
                    if hasattr(module, name):
                        without_events.setattr(module, name, fail)
            await once(locks)
            locks.observe(lambda _: None)
            with pytest.raises(AssertionError, match="for nobody"):
                await once(locks)
