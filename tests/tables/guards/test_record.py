"""How a node keeps the record of the set: the script that tells it, and a full connection."""

import asyncio

import pytest

import asynclock
from asynclock._nodes.handshake import OWN_KEYS
from asynclock.testing.memory import MemoryNode
from tests.guards.nodes import RECORD, SETTINGS, pushed
from tests.waiting import in_virtual_time, until

FIELDS = ("promised", "by", "accepted", "value", "name")


@pytest.mark.parametrize(
    ("before", "told", "reply", "after"),
    [
        ("", "5 five a", 1, "5 - 5 five a"),
        ("5 - 5 five a", "5 five b", 1, "5 - 5 five b"),  # it has another name since
        ("5 - 5 five b", "4 four c", 0, "5 - 5 five b"),
        # what an operator was promised, nobody else may write
        ("8 operator 5 five b", "6 other c", 0, "8 operator 5 five b"),
        ("8 operator 5 five b", "8 other c", 0, "8 operator 5 five b"),
        ("8 operator 5 five b", "9 nine a", 1, "9 - 9 nine a"),
    ],
)
async def test_a_node_takes_a_record_that_nobody_has_overtaken(
    before: str, told: str, reply: int, after: str
) -> None:
    node = MemoryNode()
    for field, word in zip(FIELDS, before.split(), strict=False):
        await node.command("HSET", "r", field, word)
    script = OWN_KEYS.source
    assert await node.command("EVAL", script, 1, "r", "record", *told.split(), 90_000) == reply
    assert await node.command("HMGET", "r", *FIELDS) == after.split()
    assert not reply or 80_000 < await node.command("PTTL", "r") <= 90_000


@pytest.mark.parametrize("number", ["²", "9" * 5000])
@in_virtual_time
async def test_a_number_that_is_damaged_keeps_no_node_away(number: str) -> None:
    (server,), nodes = pushed("a")
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await locks.ready()
        await server.command("HSET", RECORD, "accepted", number)
        server.cut()
        await until(lambda: (len(server.dialled), locks.nodes()[0].state) == (2, "up"))


@in_virtual_time
async def test_the_record_is_read_behind_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    (server,), nodes = pushed("a")
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await locks.ready()
        before = len(server.asked_for("HMGET", RECORD))
        monkeypatch.setattr("asynclock._nodes.link.MAX_IN_FLIGHT", 0)
        await server.command("HSET", RECORD, "accepted", "7")
        await until(lambda: len(server.asked_for("HMGET", RECORD)) > before)
        await asyncio.sleep(0.1)
        assert (len(server.dialled), locks.nodes()[0].state) == (1, "up")
