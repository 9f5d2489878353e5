"""What a primary tells around a WAIT, what a client makes of its looks at it, and its mark."""

from dataclasses import replace
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes import replicated as primaries
from asynclock._nodes.handshake import OWN_KEYS
from asynclock._nodes.node import NodeSettings
from asynclock._nodes.replicated import acks as marks
from asynclock._nodes.replicated.acks import Acks, Heirs, InOrder, Primacy
from asynclock._nodes.wire import NO_ACKS, Failure, Sink
from asynclock._rules.validity import Facts
from asynclock.testing.memory import MemoryNode
from tests.waiting import in_virtual_time

OLD = Primacy("m", "old.4", 4, keeps=True)
HEIR = Facts(run_id="heir", after="old.4")
LAG = 2.0
NO_ANSWER = Failure("no answer")


def term(run_id: str, number: int) -> Primacy:
    return Primacy("m", f"{run_id}.{number}", number, keeps=True)


def info(written: int, *replicas: tuple[int, int], state: str = "online") -> bytes:
    """A reply to INFO replication; replicas by port and offset."""
    lines = [
        f"slave{n}:ip=::1,port={port},state={state},offset={offset},lag=0"
        for n, (port, offset) in enumerate(replicas)
    ]
    return "\r\n".join(["# Replication", *lines, f"master_repl_offset:{written}"]).encode()


def mark(text: str, process: str = "old.4") -> bytes:
    return f"{process} 1700000000000000 - {text}".strip().encode()


ONE, TWO = mark("3;10;::1:7"), mark("3;10;::1:7,-::1:8")
BEFORE = info(100)
NO_OFFSET = b"slave0:ip=::1,port=7,state=online,lag=0\r\nmaster_repl_offset:130"


@pytest.mark.parametrize(
    ("replies", "lack"),
    [
        *(
            ((mark(f"{names},{minus}::1:8"), BEFORE, 2, info(130, (7, 100), (8, 120))), "")
            for names, minus in (("3;10;::1:7", ""), ("3;10;::1:7", "-"), ("-17;10;::1:7", "-"))
        ),
        *(
            ((TWO, BEFORE, 2, info(130, *replicas)), "::1:8")
            for replicas in (((7, 100), (8, 99)), ((7, 100),), ((7, 100), (9, 130)))
        ),
        ((mark(""), BEFORE, 2, info(130)), ""),
        ((mark("0;10;"), BEFORE, 2, info(130)), ""),
        ((None, BEFORE, 2, info(130)), "mark"),
        ((mark("3;10;", process="old.5"), BEFORE, 2, info(130)), "mark"),
        ((NO_ANSWER, BEFORE, 2, info(130)), NO_ANSWER),
        ((ONE, NO_ANSWER, 2, info(130)), NO_ANSWER),
        ((ONE, BEFORE, 2, NO_ANSWER), NO_ANSWER),
        ((ONE, BEFORE, 1, info(130, (7, 130), state="wait_bgsave")), "::1:7"),
        ((ONE, BEFORE, 1, NO_OFFSET), "::1:7"),
        ((ONE, b"role:master", 1, info(1 << 40, (7, 1 << 40))), "::1:7"),
    ],
)
def test_each_replica_of_the_roster_must_have_all_writes(
    replies: tuple[Any, ...], lack: Any
) -> None:
    found: list[tuple[Any, Failure | None]] = []
    around = InOrder(
        4, lambda mark, old, count, new: found.append((count, OLD.lack(mark, old, new)))
    )
    for reply in replies:
        assert not found, "it decides with the last reply"
        around.on_reply(0, reply)
    ((count, unnamed),) = found
    assert count == replies[2]
    wanted = Failure(f"{lack} did not acknowledge the grant", code=NO_ACKS)
    if lack == "mark":
        wanted = Failure("its mark is not that of this connection", code=NO_ACKS)
    assert unnamed == ((lack if lack is NO_ANSWER else wanted) if lack else None)


class Primary:
    """A link to a primary that replies to looks at once, or later."""

    stalled_since = 0.0

    def __init__(self, found: bytes | None = ONE) -> None:
        self.mark, self.offset, self.closed = found, 100, ""
        self.asked: list[str] = []
        self.late: list[tuple[Sink, int, bytes]] | None = None
        """The replies that a test lets come later; None: they come at once."""
        self.changes: list[str] = []
        self.kept: list[int] = []
        """For how many milliseconds each change keeps the mark."""

    def send(self, command: Any, sink: Sink, index: int) -> None:
        if command.script is not None:
            self.changes.append(command.args[2])
            self.kept.append(command.args[3])
            return
        self.asked.append(command.op)
        reply: Any = self.mark if command.op == "GET" else info(self.offset, (7, self.offset))
        if self.late is None:
            sink.on_reply(index, reply)
        else:
            self.late.append((sink, index, reply))

    def close(self, cause: str) -> None:
        self.closed = cause


def looked(
    primary: Any, *, looks: int = 2, votes_from: float = 0.0, keeps: bool = True
) -> tuple[Heirs, Any]:
    """Return a client's looks at a primary of the old term."""
    heirs = Heirs()
    assert not heirs.met(Facts(run_id="old"), replace(OLD, keeps=keeps), 4, LAG)
    for _ in range(looks):
        heirs.look(primary, {"::1:7": "heir"}, votes_from)
    return heirs, primary


def believed(heirs: Heirs, facts: Facts = HEIR, number: int = 5) -> bool:
    return heirs.met(facts, term(facts.run_id, number), number, LAG)


def test_a_look_at_a_primary_that_does_not_vote_yet_is_worth_nothing() -> None:
    heirs, _ = looked(Primary(), votes_from=_clock.now() + 60)
    assert not believed(heirs)


@pytest.mark.parametrize("place", [0, 1])
def test_a_look_that_failed_proves_nothing(place: int) -> None:
    """Neither that the mark or the replicas are gone nor that they are there."""
    heirs, primary = looked(Primary())
    primary.late = []
    heirs.look(primary, {"::1:7": "heir"}, 0.0)
    for number, (sink, index, reply) in enumerate(primary.late):
        sink.on_reply(index, NO_ANSWER if number == place else reply)
    assert (primary.closed, primary.changes) == ("", [])
    assert believed(heirs)


OTHERS = "others name the replicas that must acknowledge"
GONE = "its mark is gone, or that of another process"


@pytest.mark.parametrize(
    ("found", "keeps", "closed"),
    [
        *((None, False, ""), (mark(""), False, ""), (mark("-5;10;"), False, "")),
        *((mark("0;10;"), False, OTHERS), (mark("3;10;"), False, OTHERS)),
        *((None, True, GONE), (mark("", "x"), True, GONE), (mark(""), True, "")),
    ],
)
def test_a_look_may_show_a_useless_connection(
    found: bytes | None, closed: str, *, keeps: bool
) -> None:
    _, primary = looked(Primary(found), keeps=keeps)
    assert primary.closed == closed


def test_a_look_that_ends_after_its_term_counts_for_nothing() -> None:
    heirs, primary = looked(Primary(mark("3;10;")), looks=0)
    primary.late = []
    heirs.look(primary, {"::1:7": "heir"}, 0.0)
    heirs.met(Facts(run_id="next"), term("next", 5), 5, LAG)
    for sink, index, reply in primary.late:
        sink.on_reply(index, reply)
    assert (primary.changes, primary.closed) == ([], "")


def test_a_look_counts_from_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it saw may be as old as that."""
    now = _clock.now()
    monkeypatch.setattr(_clock, "now", lambda: now)
    heirs, primary = looked(Primary())
    primary.late = []
    heirs.look(primary, {"::1:7": "heir"}, 0.0)
    now += 7.0
    for sink, index, reply in primary.late:
        sink.on_reply(index, reply)
    now += 2.0  # ten seconds is how long a look counts, and others may be late by two
    assert not believed(heirs)


# ---- changes of the mark
@pytest.mark.parametrize("breaks", [False, True])
def test_a_mark_that_does_not_change_is_written_again_before_it_expires(
    monkeypatch: pytest.MonkeyPatch, *, breaks: bool
) -> None:
    """However often the connection breaks."""
    now = _clock.now()
    monkeypatch.setattr(_clock, "now", lambda: now)
    heirs, primary = looked(Primary())
    assert primary.changes == []
    for _ in range(3):
        now += marks.REFRESH / 2
        if breaks:
            assert not heirs.met(Facts(run_id="old"), OLD, 4, LAG)
        heirs.look(primary, {"::1:7": "heir"}, 0.0)
    assert primary.changes == [primary.mark.decode()]


def test_a_replica_that_is_new_is_listed_where_nobody_changed_the_mark() -> None:
    """The change keeps the mark for weeks, and its other words."""
    found = mark("3;10;").replace(b" - ", b" before.3 ")
    _, primary = looked(Primary(found))
    assert primary.changes == [found.decode().replace("3;10;", "4;10;::1:7")] * 2
    assert min(primary.kept) > 7 * 24 * 3600 * 1000


async def leave(node: MemoryNode, process: str, begins: str = "") -> list[Any]:
    """Leave a mark: return whether it was there, its age, whose it was, and its roster."""
    script = OWN_KEYS.source
    reply = await node.command("EVAL", script, 1, "m", "mark", process, 60_000, begins)
    assert 50_000 < await node.command("PTTL", "m") <= 60_000
    same, since, before, found, now = reply
    return [same, (now - since) // 1_000_000, before, found]


@in_virtual_time
async def test_a_mark_names_the_process_that_clients_know_and_since_when() -> None:
    node = MemoryNode()
    for process, begins, same, age, before in (
        ("one", "", 0, 0, "-"),
        ("one", "", 1, 40, "-"),
        ("one", "", 1, 80, "-"),
        ("two", "", 0, 0, "one"),
        ("three", "0;9;", 0, 0, "two"),
        ("three", "0;9;", 1, 40, "two"),
    ):
        found = await leave(node, process, begins)
        assert found[:3] == [same, age, before], (process, begins)
        if age or process in ("one", "three"):
            node.jump_clock(40)
        if process == "one" and age == 80:
            node.jump_clock(-40)


@in_virtual_time
async def test_a_mark_keeps_the_roster_of_its_term() -> None:
    node = MemoryNode()

    async def change(seen: str, newer: str) -> str:
        await node.command("EVAL", OWN_KEYS.source, 1, "m", "roster", seen, newer, 60_000)
        found: str = await node.command("GET", "m")
        return found

    assert (await leave(node, "one", "0;9.5;"))[::3] == [0, "0;9.5;"]
    seen = await node.command("GET", "m")
    newer = seen.replace("0;9.5;", "1;9.5;a:1,-b:2")
    assert await change(seen, newer) == newer
    assert await change(seen, "stale") == newer
    assert (await leave(node, "one", "0;8;"))[::3] == [1, "1;9.5;a:1,-b:2"]
    # This client grants without them: it must wait, as at a process that it has not known.
    same, _, _, closed = await leave(node, "one")
    assert (same, closed[0], closed.partition(";")[2]) == (0, "-", "9.5;a:1,-b:2")
    assert (await leave(node, "one", "0;8;"))[::3] == [1, closed]
    assert (await leave(node, "one"))[::3] == [1, closed], "the next waits for the rest of it"
    await node.command("SET", "m", "one 1 - 1;9.5;a:1")
    assert (await leave(node, "one"))[1] == 0, "however long the process has been known"
    assert (await leave(node, "two"))[::3] == [0, ""], "a new term has no roster"
    assert (await leave(node, "two", "0;8;"))[::3] == [1, ""], "and gets none any more"


@pytest.mark.parametrize(
    ("left", "marked", "promoted"),
    [
        (marks.Mark(True, 5.0, "-"), 5.0, False),
        (marks.Mark(False, 0.0, "x"), 0.0, True),
        (None, 0.0, True),
    ],
)
async def test_a_primary_has_on_its_disk_only_what_it_did_not_miss(
    monkeypatch: pytest.MonkeyPatch, left: marks.Mark | None, marked: float, *, promoted: bool
) -> None:
    processes = []

    async def leaves(_link: object, _key: str, process: str, _roster: str) -> marks.Mark | None:
        processes.append(process)
        return left

    monkeypatch.setattr(primaries, "leave_mark", leaves)
    settings = NodeSettings(
        0.25, 10.0, restart_guard=True, guard_first=True, clock_guard=True, disks_kept=False
    )
    dialer, link = primaries.PrimaryDialer(settings, (), Acks(), "mark"), Any
    facts, _ = await dialer._marked(link, Facts(run_id="one", durable=True), "mark", 3, "")  # type: ignore[arg-type]
    assert (facts.durable, facts.marked, facts.promoted) == (False, marked, promoted)
    assert processes == ["one.3"], "named again after a failover, it is not the same primary"
