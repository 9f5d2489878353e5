"""What is logged of a node by its steps, and who prints it."""

import asyncio
import logging

import pytest

from asynclock import _clock
from asynclock._nodes.node import QUIET, NodeLog
from asynclock._nodes.wire import Failure
from asynclock._rules.validity import Trust
from asynclock.events import Event, NodeDown, NodeQuarantined, NodeUp, Observers
from tests.observe.test_node_log import lines
from tests.waiting import in_virtual_time


def answering() -> tuple[NodeLog, Trust, list[Event]]:
    """The log of a node, what is known of the node, and the events."""
    trust, heard = Trust(10.0), list[Event]()
    return NodeLog("a:1", trust, Observers([heard.append])), trust, heard


@in_virtual_time
async def test_errors_instead_of_votes_are_told_at_times(caplog: pytest.LogCaptureFixture) -> None:
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
async def test_the_end_of_a_quarantine_is_told_then_and_once(
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


def test_a_warning_that_no_handler_gets_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The handlers of pytest are at the root."""
    log = logging.getLogger("asynclock")
    monkeypatch.setattr(log, "handlers", log.handlers[:1])  # not those of a command in this process
    for passed_on, printed in ((True, ""), (False, "asynclock: no\n")):
        monkeypatch.setattr(log, "propagate", passed_on)
        logging.getLogger("asynclock.nodes").warning("no")
        assert capsys.readouterr().err == printed
