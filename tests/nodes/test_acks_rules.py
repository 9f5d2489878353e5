"""When a grant counts as acknowledged, told by hand; tests/replicated has the real replicas."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock._nodes.acks import AckedLink, Acks
from asynclock._nodes.link import Link
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import Command
from asynclock._primitives.lock import SCRIPT
from asynclock.testing import run_virtual
from tests.nodes.test_guards import Owner, Wire
from tests.nodes.test_handshake import Recorder
from tests.waiting import until

GRANT = b"*3\r\n:1\r\n:5\r\n:1700000000000000\r\n"
REFUSAL = b"*4\r\n:0\r\n:100\r\n$3\r\nyou\r\n:1700000000000000\r\n"


class Heard:
    """The answers that came."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def on_reply(self, _index: int, reply: Any) -> None:
        self.answers.append(reply)


ACQUIRE = Command(SCRIPT, ("k", "c"), ("acquire", "me", 1, 1, 1, 1))


async def asked(acks: Acks) -> tuple[Link, Heard]:
    """A link with two replicas on which an acquire is under way, and a WAIT behind it."""
    link, heard = Link(Owner(), 5.0), Heard()
    acked = AckedLink(link, acks, 1.0)
    acked.replicas, acked.recount = 2, False
    link.connection_made(wire := Recorder())
    acked.send(ACQUIRE, heard, 0)
    await until(lambda: b"WAIT" in wire.written, "the WAIT is sent", every=0)
    return link, heard


@pytest.mark.parametrize(("replicas", "needed"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_a_majority_is_one_of_all_members(replicas: int, needed: int) -> None:
    assert Acks("majority").needed(replicas) == needed


async def test_a_grant_is_held_back_until_it_is_acknowledged() -> None:
    link, heard = await asked(Acks(1))
    link.data_received(GRANT)
    assert heard.answers == []
    link.data_received(b":1\r\n")
    assert heard.answers[0][:2] == [1, 5]


async def test_a_grant_that_too_few_have_does_not_count() -> None:
    link, heard = await asked(Acks("all"))
    link.data_received(GRANT + b":1\r\n")
    (answer,) = heard.answers
    assert isinstance(answer, Failure)
    assert "1 of 2 replicas" in answer.cause


@pytest.mark.parametrize(("saved", "counts"), [(1, True), (0, False)])
async def test_a_grant_that_is_not_on_disk_does_not_count(saved: int, *, counts: bool) -> None:
    link, heard = await asked(Acks(0, durable=True))
    link.data_received(GRANT + b"*2\r\n:%d\r\n:0\r\n" % saved)
    assert isinstance(heard.answers[0], Failure) is not counts


async def test_a_refusal_passes_at_once() -> None:
    link, heard = await asked(Acks(1))
    link.data_received(REFUSAL)
    assert heard.answers[0][0] == 0


async def test_a_write_that_an_old_primary_executed_does_not_count() -> None:
    link, heard = Link(Owner(), 5.0), Heard()
    link.connection_made(Wire(link))
    link.send(ACQUIRE, heard, 0)
    link.doubted = lambda _now: Failure("it may have been replaced")
    link.data_received(GRANT)
    assert isinstance(heard.answers[0], Failure)


async def test_a_replica_that_left_is_still_waited_for() -> None:
    """It may come back as the primary."""
    link = AckedLink(Link(Owner(), 5.0), Acks("all"), 1.0)
    link.counted(3)
    link.counted(1)
    assert link.replicas == 3
    link.counted(4)
    assert link.replicas == 4


async def test_a_grant_that_no_wait_covers_fails_with_its_connection() -> None:
    """The script was unknown, so the grant came after the WAIT; then nothing could be written."""
    link = Link(Owner(), 5.0)
    acked = AckedLink(link, Acks(1), 1.0)
    acked.replicas, acked.recount = 2, False
    link.connection_made(Wire(link))
    first, second = Heard(), Heard()
    acked.send(ACQUIRE, first, 0)
    await asyncio.sleep(0)
    link.data_received(b"-NOSCRIPT No matching script\r\n:2\r\n")
    await asyncio.sleep(0)
    link.pause_writing()
    acked.send(Command.plain("TIME"), Heard(), 0)
    await asyncio.sleep(0)
    acked.send(ACQUIRE, second, 0)
    link.data_received(GRANT)
    assert first.answers == []
    link.connection_lost(None)
    await asyncio.sleep(0)
    assert [type(answer) for answer in first.answers + second.answers] == [Failure, Failure]


def test_replicas_are_counted_about_once_a_second() -> None:
    """One that joins must acknowledge soon."""

    async def questions() -> list[bool]:
        asked: list[bool] = []
        link = Link(Owner(), 50.0)
        acked = AckedLink(link, Acks("all"), 1.0)
        link.connection_made(wire := Recorder())
        for _ in range(3):
            wire.written = b""
            acked.send(ACQUIRE, Heard(), 0)
            await asyncio.sleep(0.6)
            asked.append(b"replication" in wire.written)
            count = b"$18\r\nconnected_slaves:1\r\n" if asked[-1] else b""
            link.data_received(GRANT + count + b":1\r\n")
        link.close("the end")
        return asked

    assert run_virtual(questions()) == [True, False, True]
