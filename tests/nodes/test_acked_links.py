"""What a link to a primary sends around its grants, and what becomes of them; told by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis
import pytest

import asynclock
from asynclock._nodes.acks import RECOUNT, UNSUPPORTED, AckedLink, Acks, KnownReplicas
from asynclock._nodes.link import Link
from asynclock._nodes.replies import NO_ACKS, Failure
from asynclock._nodes.roster import Term
from asynclock._nodes.script import Command
from asynclock._primitives.lock import SCRIPT
from tests.nodes.test_acks_rules import ACQUIRE, GRANT, Heard
from tests.nodes.test_guards import Owner
from tests.nodes.test_handshake import Recorder
from tests.nodes.test_one_link import TIMEOUT, opened, release
from tests.waiting import in_virtual_time

EXTEND = Command(SCRIPT, ("k", "c"), ("extend", "me", 1, 1))
SEVERAL = b"*3\r\n$2\r\n10\r\n*1\r\n:5\r\n:1700000000000000\r\n"
"""The reply to an operation on two owners, of which the first was granted."""


class Primary:
    """A link to a primary that replies what a test says, and what it was sent."""

    def __init__(self, acks: Acks, *, replicas: int = 1) -> None:
        self.link = Link(Owner(), 5.0)
        self.acked = AckedLink(self.link, acks, 1.0)
        self.acked.replicas, self.acked.recount = replicas, False
        self._wire = Recorder()
        self.link.connection_made(self._wire)

    def write(self, command: Command = ACQUIRE) -> Heard:
        heard = Heard()
        self.acked.send(command, heard, 0)
        return heard

    def reply(self, *replies: bytes) -> None:
        self.link.data_received(b"".join(replies))

    async def sent(self) -> list[list[Any]]:
        """Return the commands since the last call; of a script, its name."""
        for _ in range(3):
            await asyncio.sleep(0)
        reader = hiredis.Reader()
        reader.feed(self._wire.written)
        self._wire.written = b""
        found = []
        while (words := reader.gets()) is not False:
            words = [word.decode() for word in words]
            found.append(words[:1] if words[0].startswith("EVAL") else words)
        return found


WAIT = ["WAIT", "1", "500"]
"""For half of the node timeout: a write may have to wait for the WAIT before its own."""


@in_virtual_time
async def test_writes_during_a_wait_share_the_next_one() -> None:
    primary = Primary(Acks(1))
    first = primary.write()
    assert await primary.sent() == [["EVALSHA"], WAIT]
    others = [primary.write(), primary.write()]
    assert await primary.sent() == [["EVALSHA"], ["EVALSHA"]]
    primary.reply(GRANT, b":1\r\n")
    assert len(first.answers) == 1
    assert await primary.sent() == [WAIT], "without another write"
    primary.reply(GRANT, GRANT)
    assert [one.answers for one in others] == [[], []]
    primary.reply(b":1\r\n")
    assert [len(one.answers) for one in (first, *others)] == [1, 1, 1]
    assert await primary.sent() == []


@in_virtual_time
async def test_a_command_that_writes_nothing_is_not_waited_for() -> None:
    primary = Primary(Acks(1))
    heard = primary.write(Command.plain("GET", "k"))
    assert await primary.sent() == [["GET", "k"]]
    primary.reply(b":1\r\n")
    assert heard.answers == [1]


OTHERS = [Command(SCRIPT, ("k", "c"), (op, "me", 1)) for op in ("raise", "prepare", "accept")]


@pytest.mark.parametrize(
    ("command", "reply"),
    [(EXTEND, GRANT), (ACQUIRE, SEVERAL), *((command, GRANT) for command in OTHERS)],
    ids=["extend", "batch", "raise", "prepare", "accept"],
)
@in_virtual_time
async def test_each_kind_of_grant_is_held_back(command: Command, reply: bytes) -> None:
    primary = Primary(Acks(1))
    heard = primary.write(command)
    assert await primary.sent() == [["EVALSHA"], WAIT]
    primary.reply(reply)
    assert heard.answers == []
    primary.reply(b":0\r\n")
    (answer,) = heard.answers
    assert answer == Failure("0 of 1 replicas acknowledged the grant within 0.5 s", code=NO_ACKS)


@in_virtual_time
async def test_a_grant_that_came_after_its_wait_gets_another_one() -> None:
    """The script was unknown, so it was sent again."""
    primary = Primary(Acks(1))
    heard = primary.write()
    assert await primary.sent() == [["EVALSHA"], WAIT]
    primary.reply(b"-NOSCRIPT No matching script\r\n", b":1\r\n")
    assert await primary.sent() == [["EVAL"]]
    primary.reply(GRANT)
    assert heard.answers == []
    assert await primary.sent() == [WAIT]
    primary.reply(b":1\r\n")
    assert heard.answers[0][:2] == [1, 5]


@pytest.mark.parametrize(
    ("acks", "replicas", "sent"),
    [
        (Acks("all"), 2, [["WAIT", "2", "500"]]),
        (Acks("all"), 0, [["WAIT", "1", "500"]]),
        (Acks("majority"), 4, [["WAIT", "2", "500"]]),
        (Acks(0, durable=True), 0, [["WAITAOF", "1", "0", "500"]]),
        (Acks(2, durable=True), 2, [["WAIT", "2", "125"], ["WAITAOF", "1", "2", "375"]]),
    ],
)
@in_virtual_time
async def test_what_is_waited_for(acks: Acks, replicas: int, sent: list[list[str]]) -> None:
    primary = Primary(acks, replicas=replicas)
    primary.write()
    assert await primary.sent() == [["EVALSHA"], *sent]


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (b"*2\r\n:1\r\n:2\r\n", ""),
        (b"*2\r\n:1\r\n:1\r\n", "1 of 2 replicas saved the grant within 0.5 s"),
        (b"*2\r\n:0\r\n:2\r\n", "it had not saved the grant to disk within 0.5 s"),
    ],
)
@in_virtual_time
async def test_a_grant_must_be_on_each_disk(reply: bytes, cause: str) -> None:
    primary = Primary(Acks("all", durable=True), replicas=2)
    heard = primary.write()
    await primary.sent()
    primary.reply(GRANT, b":2\r\n", reply)
    (answer,) = heard.answers
    assert (answer.cause if isinstance(answer, Failure) else "") == cause


@pytest.mark.parametrize(
    ("error", "permanent", "code"),
    [
        ("ERR unknown command 'WAITAOF'", True, UNSUPPORTED),
        (
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
            True,
            UNSUPPORTED,
        ),
        ("ERR something else", False, "ERR"),
        ("NOPERM User me has no permissions to run the 'waitaof' command", True, "NOPERM"),
        ("LOADING the data", False, "LOADING"),
    ],
)
@in_virtual_time
async def test_a_wait_that_fails_fails_the_grant(error: str, permanent: bool, code: str) -> None:
    primary = Primary(Acks(0, durable=True))
    heard = primary.write()
    await primary.sent()
    primary.reply(GRANT, f"-{error}\r\n".encode())
    (answer,) = heard.answers
    assert (answer.permanent, answer.code) == (permanent, code)
    assert error in answer.cause


@pytest.mark.parametrize(
    ("acks", "recount", "counts"),
    [(Acks("all"), True, 3), (Acks("all"), False, 0), (Acks(1), True, 0)],
)
@in_virtual_time
async def test_who_counts_the_replicas(acks: Acks, recount: bool, counts: int) -> None:
    """Only a client that needs their number, and that nobody else tells it; about once a second."""
    primary, asked = Primary(acks), 0
    primary.acked.recount = recount
    for _ in range(30):
        primary.write()
        words = [words[0] for words in await primary.sent()]
        asked += words.count("INFO")
        primary.reply(GRANT, *[b"$18\r\nconnected_slaves:1\r\n"] * words.count("INFO"), b":1\r\n")
        await asyncio.sleep(RECOUNT / 10)
    assert asked == counts


@in_virtual_time
async def test_a_replica_that_joins_must_acknowledge() -> None:
    primary = Primary(Acks("all"))
    primary.acked.recount = True
    primary.write()
    await primary.sent()
    primary.reply(GRANT, b"$18\r\nconnected_slaves:2\r\n", b":1\r\n")
    primary.write()
    assert ["WAIT", "2", "500"] in await primary.sent()


@in_virtual_time
async def test_each_grant_is_answered_once_when_its_connection_is_lost() -> None:
    primary = Primary(Acks(1))
    heard = [primary.write()]
    await primary.sent()
    heard.append(primary.write())
    await primary.sent()
    primary.reply(GRANT)
    primary.link.connection_lost(None)
    assert await primary.sent() == []
    assert [[type(answer) for answer in one.answers] for one in heard] == [[Failure], [Failure]]
    assert not primary.acked.releasing


@in_virtual_time
async def test_a_connection_can_be_ended_while_it_waits_for_replicas() -> None:
    primary = Primary(Acks(1))
    heard = primary.write()
    assert await primary.sent() == [["EVALSHA"], WAIT]
    primary.reply(GRANT)
    primary.acked.close("another primary was named")
    primary.link.connection_lost(None)
    assert heard.answers == [Failure("another primary was named")]


MARK = "one.4 1700000000000000 - 3;10;10.0.0.2:7"


def info(written: int, acknowledged: int) -> bytes:
    text = (
        f"role:master\r\nslave0:ip=10.0.0.2,port=7,state=online,offset={acknowledged},lag=0\r\n"
        f"master_repl_offset:{written}\r\n"
    )
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


@pytest.mark.parametrize(
    ("after", "cause"), [(100, ""), (99, "10.0.0.2:7 did not acknowledge the grant")]
)
@in_virtual_time
async def test_the_replicas_of_the_roster_must_have_the_grant(after: int, cause: str) -> None:
    """What the primary had written before the WAIT, they must have after it."""
    primary = Primary(Acks("all"))
    primary.acked.term = Term("m", "one.4", 4, keeps=True)
    heard = primary.write()
    asked = ["INFO", "replication"]
    assert await primary.sent() == [["EVALSHA"], ["GET", "m"], asked, WAIT, asked]
    mark = b"$%d\r\n%b\r\n" % (len(MARK), MARK.encode())
    primary.reply(GRANT, mark, info(100, 0), b":1\r\n")
    assert heard.answers == []
    primary.reply(info(130, after))
    (answer,) = heard.answers
    assert (answer.cause if isinstance(answer, Failure) else "") == cause


def test_a_primary_that_never_had_enough_replicas_needs_a_person() -> None:
    known = KnownReplicas()
    assert known.lack(Acks(1)) is None, "nobody has told their number"
    known.counted(None)
    assert known.lack(Acks(1)) is None
    known.counted(0)
    lack = known.lack(Acks("all"))
    assert lack == Failure(
        "acks='all' needs 1 replica, and it has none", permanent=True, code=UNSUPPORTED
    )
    known.counted(2)
    known.counted(1)
    assert known.lack(Acks(2)) is None, "the other one may come back"
    lack = known.lack(Acks(3))
    assert lack is not None
    assert lack.cause == "acks=3 needs 3 replicas, and it has only 2"


@pytest.mark.parametrize("acks", [True, False, 1.5, None, "none"])
def test_acks_of_another_type_are_refused(acks: Any) -> None:
    with pytest.raises(asynclock.ConfigurationError, match="acks must be"):
        asynclock.connect("redis://127.0.0.1:1", acks=acks)


@pytest.mark.parametrize(("node_timeout", "milliseconds"), [(0.5, "250"), (0.001, "1")])
@in_virtual_time
async def test_no_wait_is_without_a_limit(node_timeout: float, milliseconds: str) -> None:
    """0 would mean for ever to the server."""
    primary = Primary(Acks(1))
    primary.acked = AckedLink(primary.link, Acks(1), node_timeout)
    primary.acked.recount = False
    primary.write()
    assert await primary.sent() == [["EVALSHA"], ["WAIT", "1", milliseconds]]


@in_virtual_time
async def test_a_link_that_waits_for_replicas_tells_of_its_connection_what_the_connection_is() -> (
    None
):
    """The node reconnects, ends and lets its releases out by what the link tells."""
    link, _, peer = opened()
    acked, heard = AckedLink(link, Acks(1), TIMEOUT), Heard()
    assert (acked.stalled_since, acked.releasing) == (0.0, False)
    acked.send(release(), heard, 0)
    assert acked.releasing
    await asyncio.sleep(1.1 * TIMEOUT)
    assert acked.stalled_since == link.stalled_since > 0
    link.data_received(b"*1\r\n:1\r\n")
    assert (acked.stalled_since, acked.releasing) == (0.0, False)
    peer.stuck = True
    assert not acked.closed.done()
    await acked.finish()
    assert acked.closed.done()
