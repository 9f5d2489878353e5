"""What a primary tells around a WAIT, and what a client makes of its looks at a primary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes import roster
from asynclock._nodes.replies import NO_ACKS, Failure, Sink
from asynclock._nodes.roster import Around, Heirs, Term
from asynclock._rules.trust import Facts

OLD = Term("m", "old.4", 4, keeps=True)
HEIR = Facts(run_id="heir", after="old.4")
LAG = 2.0


def term(run_id: str, number: int) -> Term:
    return Term("m", f"{run_id}.{number}", number, keeps=True)


def info(written: int, **replicas: int) -> bytes:
    """A reply to INFO replication; replicas are at ports."""
    lines = [
        f"slave{n}:ip=::1,port={port[1:]},state=online,offset={offset},lag=0"
        for n, (port, offset) in enumerate(replicas.items())
    ]
    return "\r\n".join(["# Replication", *lines, f"master_repl_offset:{written}"]).encode()


def mark(text: str, process: str = "old.4") -> bytes:
    return f"{process} 1700000000000000 - {text}".strip().encode()


def told(*replies: Any) -> tuple[Any, Failure | None]:
    found: list[tuple[Any, Failure | None]] = []
    around = Around(OLD, lambda count, lack: found.append((count, lack)))
    for reply in replies:
        assert not found, "it decides with the last reply"
        around.on_reply(0, reply)
    ((count, lack),) = found
    return count, lack


@pytest.mark.parametrize("names", ["3;10;::1:7,::1:8", "3;10;::1:7,-::1:8", "-17;10;::1:7,-::1:8"])
def test_each_replica_of_the_roster_must_have_the_grant(names: str) -> None:
    before = info(100)
    assert told(mark(names), before, 2, info(130, p7=100, p8=120)) == (2, None)
    for behind in ({"p7": 100, "p8": 99}, {"p7": 100}, {"p7": 100, "p9": 130}):
        _, lack = told(mark(names), before, 2, info(130, **behind))
        assert lack == Failure("::1:8 did not acknowledge the grant", code=NO_ACKS)


def test_without_a_roster_the_count_decides_alone() -> None:
    assert told(mark(""), info(100), 2, info(130)) == (2, None)
    assert told(mark("0;10;"), info(100), 2, info(130)) == (2, None)


@pytest.mark.parametrize("found", [None, mark("3;10;", process="old.5")])
def test_without_the_mark_of_this_term_no_grant_counts(found: bytes | None) -> None:
    _, lack = told(found, info(100), 2, info(130))
    assert lack is not None
    assert lack.code == NO_ACKS


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_reply_that_is_missing_is_no_acknowledgement(place: int) -> None:
    replies = [mark("3;10;"), info(100), 2, info(130)]
    replies[place] = lost = Failure("no answer")
    assert told(*replies)[1] == lost


def test_a_replica_that_is_still_copying_or_tells_no_offset_has_nothing() -> None:
    line = "slave0:ip=::1,port=7,state={state},offset=130,lag=0"
    copying = "\r\n".join([line.format(state="wait_bgsave"), "master_repl_offset:130"]).encode()
    silent = b"slave0:ip=::1,port=7,state=online,lag=0\r\nmaster_repl_offset:130"
    for after in (copying, silent):
        assert told(mark("3;10;::1:7"), info(100), 1, after)[1]


def test_a_primary_that_tells_no_offset_has_none_that_anybody_reaches() -> None:
    assert told(mark("3;10;::1:7"), b"role:master", 1, info(1 << 40, p7=1 << 40))[1]


class Primary:
    """A link to a primary that replies to looks at once; `changes` has the rosters it was sent."""

    stalled_since = 0.0

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.kept: list[int] = []
        """For how many milliseconds each change keeps the mark."""
        self.late: list[tuple[Sink, int, bytes]] | None = None
        """The replies that a test lets come later; None: they come at once."""
        self.mark: bytes | None = mark("3;10;::1:7")
        self.offset = 100
        self.changes: list[str] = []
        self.closed = ""

    def send(self, command: Any, sink: Sink, index: int) -> None:
        if command.script is not None:
            self.changes.append(command.args[1])
            self.kept.append(command.args[2])
            return
        self.asked.append(command.op)
        reply: Any = self.mark if command.op == "GET" else info(self.offset, p7=self.offset)
        if self.late is None:
            sink.on_reply(index, reply)
        else:
            self.late.append((sink, index, reply))

    def close(self, cause: str) -> None:
        self.closed = cause


def looked(primary: Any, *, votes_from: float = 0.0) -> Heirs:
    """Two looks at a primary of the old term."""
    heirs = Heirs()
    assert not heirs.met(Facts(run_id="old"), OLD, 4, LAG)
    for _ in range(2):
        heirs.look(primary, {"::1:7": "heir"}, votes_from)
    return heirs


def test_an_heir_is_believed_because_of_the_looks_at_the_term_before() -> None:
    assert looked(Primary()).met(HEIR, term("heir", 5), 5, LAG)


def test_an_heir_of_a_later_term_is_not_believed() -> None:
    assert not looked(Primary()).met(HEIR, term("heir", 6), 6, LAG)


def test_an_heir_whose_data_have_another_mark_is_not_believed() -> None:
    other = replace(HEIR, after="other.4")
    assert not looked(Primary()).met(other, term("heir", 5), 5, LAG)


def test_another_process_is_not_believed() -> None:
    other = replace(HEIR, run_id="restarted")
    assert not looked(Primary()).met(other, term("restarted", 5), 5, LAG)


def test_a_look_at_a_primary_that_does_not_vote_yet_is_worth_nothing() -> None:
    heirs = looked(Primary(), votes_from=_clock.now() + 60)
    assert not heirs.met(HEIR, term("heir", 5), 5, LAG)


def test_the_looks_go_on_over_a_new_connection_in_the_same_term() -> None:
    heirs = looked(Primary())
    assert not heirs.met(Facts(run_id="old"), OLD, 4, LAG)
    assert heirs.met(HEIR, term("heir", 5), 5, LAG)
    again = replace(HEIR, after="heir.5")
    assert not heirs.met(again, term("heir", 6), 6, LAG), "and end with it"


def test_a_look_that_finds_another_mark_ends_the_connection_and_all_belief() -> None:
    primary = Primary()
    heirs = looked(primary)
    primary.mark = None
    heirs.look(primary, {}, 0.0)  # type: ignore[arg-type]  # a link, for this purpose
    assert "mark" in primary.closed
    assert not heirs.met(HEIR, term("heir", 5), 5, LAG)


def test_a_mark_that_had_to_be_left_anew_ends_all_belief() -> None:
    heirs = looked(Primary())
    assert not heirs.met(Facts(run_id="old", promoted=True), OLD, 4, LAG)
    assert not heirs.met(HEIR, term("heir", 5), 5, LAG)


@pytest.mark.parametrize(
    ("names", "left"), [("3;10;::1:7", True), ("-17;10;-::1:7", False), ("", False)]
)
def test_who_does_not_keep_to_a_roster_leaves_a_primary_with_an_open_one(
    names: str, *, left: bool
) -> None:
    """It began after this client had connected, because the mark was lost."""
    primary: Any = Primary()
    primary.mark = mark(names)
    heirs = Heirs()
    heirs.met(Facts(run_id="old"), replace(OLD, keeps=False), 4, LAG)
    heirs.look(primary, {}, 0.0)
    assert bool(primary.closed) is left


def test_a_mark_that_does_not_change_is_written_again_before_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    primary: Any = Primary()
    heirs = looked(primary)
    assert primary.changes == []
    later = _clock.now() + roster.REFRESH
    monkeypatch.setattr(_clock, "now", lambda: later)
    for _ in range(2):
        heirs.look(primary, {"::1:7": "heir"}, 0.0)
    assert primary.changes == [primary.mark.decode()]


def test_a_replica_that_is_new_is_listed_where_nobody_changed_the_mark() -> None:
    primary = Primary()
    primary.mark = mark("3;10;")
    looked(primary)
    assert primary.changes == [mark("4;10;::1:7").decode()] * 2


def test_a_change_keeps_the_mark_for_weeks_and_its_other_words() -> None:
    primary: Any = Primary()
    primary.mark = mark("3;10;").replace(b" - ", b" before.3 ")
    looked(primary)
    (first, *_) = primary.changes
    assert first == primary.mark.decode().replace("3;10;", "4;10;::1:7")
    assert min(primary.kept) > 7 * 24 * 3600 * 1000


def test_a_client_without_a_roster_asks_for_the_mark_alone() -> None:
    primary: Any = Primary()
    primary.mark = mark("")
    heirs = Heirs()
    heirs.met(Facts(run_id="old"), replace(OLD, keeps=False), 4, LAG)
    heirs.look(primary, {}, 0.0)
    assert primary.asked == ["GET"]


def test_a_look_that_ends_after_its_term_counts_for_nothing() -> None:
    primary: Any = Primary()
    primary.mark = mark("3;10;")
    heirs = Heirs()
    heirs.met(Facts(run_id="old"), OLD, 4, LAG)
    primary.late = []
    heirs.look(primary, {"::1:7": "heir"}, 0.0)
    heirs.met(Facts(run_id="next"), term("next", 5), 5, LAG)
    for sink, index, reply in primary.late:
        sink.on_reply(index, reply)
    assert primary.changes == []
    assert primary.closed == ""


@pytest.mark.parametrize("place", [0, 1])
def test_a_look_that_failed_proves_nothing(place: int) -> None:
    """Neither that the mark or the replicas are gone nor that they are there."""
    primary: Any = Primary()
    heirs = looked(primary)
    primary.late = []
    heirs.look(primary, {"::1:7": "heir"}, 0.0)
    for number, (sink, index, reply) in enumerate(primary.late):
        sink.on_reply(index, Failure("no answer") if number == place else reply)
    assert primary.closed == ""
    assert primary.changes == []
    assert heirs.met(HEIR, term("heir", 5), 5, LAG)


def test_a_look_counts_from_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it saw may be as old as that."""
    primary: Any = Primary()
    now = _clock.now()
    monkeypatch.setattr(_clock, "now", lambda: now)
    heirs = looked(primary)
    primary.late = []
    heirs.look(primary, {"::1:7": "heir"}, 0.0)
    now += 7.0
    for sink, index, reply in primary.late:
        sink.on_reply(index, reply)
    now += 2.0  # ten seconds is how long a look counts, and others may be late by two
    assert not heirs.met(HEIR, term("heir", 5), 5, LAG)


def test_a_mark_is_written_again_however_often_the_connection_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    primary: Any = Primary()
    now = _clock.now()
    monkeypatch.setattr(_clock, "now", lambda: now)
    heirs = looked(primary)
    for _ in range(3):
        now += roster.REFRESH / 2
        assert not heirs.met(Facts(run_id="old"), OLD, 4, LAG)
        heirs.look(primary, {"::1:7": "heir"}, 0.0)
    assert primary.changes == [primary.mark.decode()]
