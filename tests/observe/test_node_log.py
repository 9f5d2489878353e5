"""What is logged of nodes without any set-up: one WARNING per outage, one INFO at its end."""

import asyncio
import logging
import sys

import pytest

import asynclock
from asynclock.testing import LocalServer
from tests import patient
from tests.waiting import go_through, until


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text of what was logged of nodes."""
    records = [record for record in caplog.records if record.name == "asynclock.nodes"]
    assert all(record.__dict__["asynclock_node"] in record.getMessage() for record in records)
    return [(record.levelname, record.getMessage()) for record in records]


WARNED = """
import asyncio, logging, sys, asynclock
exec(sys.argv[1])
async def main():
    async with asynclock.connect("redis://127.0.0.1:1") as locks:
        try:
            await locks.lock("a").try_acquire()
        except asynclock.QuorumUnavailableError:
            pass
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("setup", "begins"),
    [
        ("", "asynclock: 127.0.0.1:1 is down: "),
        ("logging.basicConfig()", "WARNING:asynclock.nodes:127.0.0.1:1 is down: "),
        ("logging.getLogger('asynclock.nodes').addHandler(logging.NullHandler())", ""),
        ("import sys; sys.stderr.close()", ""),
    ],
)
async def test_a_warning_has_the_librarys_name_also_where_logging_is_not_set_up(
    setup: str, begins: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WARNED, setup), stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    lines = said.decode().splitlines()
    assert process.returncode == 0
    assert len(lines) == bool(begins), lines
    assert all(line.startswith(begins) for line in lines)


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
            await go_through(locks.lock("a"))
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
        await go_through(locks.lock("a"))
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
