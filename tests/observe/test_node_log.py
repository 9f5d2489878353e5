"""What is logged of nodes without any set-up: one WARNING per outage, one INFO at its end."""

from __future__ import annotations

import asyncio
import logging

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.node_log import QUIET, NodeLog
from asynclock._nodes.replies import Failure
from asynclock._rules.trust import Trust
from asynclock.events import Event, NodeDown, NodeQuarantined, NodeUp, Observers
from asynclock.testing import LocalServer
from tests import patient
from tests.waiting import in_virtual_time, until


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text of what was logged of nodes."""
    records = [record for record in caplog.records if record.name == "asynclock.nodes"]
    assert all(record.__dict__["asynclock_node"] in record.getMessage() for record in records)
    return [(record.levelname, record.getMessage()) for record in records]


async def test_a_node_goes_and_comes_back(
    asynclock_nodes: list[LocalServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    urls = [node.url for node in asynclock_nodes]
    async with asynclock.connect(*urls, restart_guard=False, node_timeout=2.0) as locks:
        async with locks.lock("a"):
            assert lines(caplog) == []
        for outage in (1, 2):
            await asynclock_nodes[0].kill()
            await until(lambda: locks.nodes()[0].state == "down")
            async with locks.lock("a"):
                pass
            await asynclock_nodes[0].restart()
            await until(lambda: locks.nodes()[0].state == "up")
            found = lines(caplog)
            assert [level for level, _ in found] == ["WARNING", "INFO"] * outage
        assert "is down: " in found[0][1]
        assert found[1][1].endswith("is back and votes")
    assert len(lines(caplog)) == 4, "a close is no news"


async def test_a_node_that_may_not_vote_is_back_when_it_votes(
    asynclock_nodes: list[LocalServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = asynclock_nodes[0].url
    async with patient.connect(url, ttl=1.0, max_ttl=1.5) as locks:
        async with locks.lock("a"):
            pass
        await asynclock_nodes[0].restart()
        await until(lambda: bool(lines(caplog)) and lines(caplog)[-1][0] == "INFO")
        assert locks.nodes()[0].state == "up"
    texts = [text for _, text in lines(caplog)]
    assert "does not vote" in texts[-2]
    assert sum("is back" in text for text in texts) == 1


async def test_a_node_that_was_never_there_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asynclock.connect("redis://127.0.0.1:1") as locks:
        for _ in range(3):
            with pytest.raises(asynclock.QuorumUnavailableError):
                await locks.lock("a").try_acquire()
    assert [level for level, _ in lines(caplog)] == ["WARNING"]


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
