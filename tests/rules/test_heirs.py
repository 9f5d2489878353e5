"""Which replicas are believed to have every grant. tests/model shows why each rule is needed."""

from dataclasses import replace

import pytest

from asynclock._rules.heirs import Look, Looks, Roster
from asynclock._rules.validity import Facts, Trust, quarantine

LAG = 2.0
BOTH = frozenset({"a:1", "b:2"})
ROSTER = Roster(3, 10.0, BOTH)


def look(at: float, *, roster: Roster = ROSTER, a: int = 100, b: int = 100) -> Look:
    """A look at a primary whose stream is as far as `at` times 100."""
    offset = int(at * 100)
    seen = {"a:1": a, "b:2": b}
    return Look(at, at + 0.1, f"mark {roster}", roster, offset, seen, {"a:1": "A", "b:2": "B"})


def looked(*looks: Look, votes: bool = True) -> Looks:
    made = Looks()
    for one in looks:
        made.take(one, votes=votes)
    return made


@pytest.mark.parametrize(
    "text",
    ["0;9.5;", "3;10;a:1,b:2", "12;10;a:1,-b:2", "1;10;-::1:7,-b:2", "-1700000000000000;10;-a:1"],
)
def test_a_roster_is_written_as_it_was_read(text: str) -> None:
    assert str(Roster.parse(text)) == text


def test_a_closed_roster_has_no_members_but_names_all_who_acknowledge() -> None:
    closed = Roster.parse("-17;10;a:1,-b:2")
    assert closed == Roster(-17, 10.0, frozenset(), BOTH)
    assert closed.listed == BOTH
    assert closed.towards(frozenset({"c:3"}), 0.0) is None
    assert closed.towards(BOTH, quarantine(10)) == Roster(-17, 10.0)
    assert Roster.parse("") is None


def test_joining_and_leaving() -> None:
    left = Roster(4, 10.0, frozenset({"a:1"}), frozenset({"b:2"}))
    assert ROSTER.towards(BOTH, 99.0) is None
    assert ROSTER.towards(frozenset({"a:1"}), 99.0) == left
    assert left.listed == BOTH, "a name that leaves must acknowledge"
    assert left.towards(BOTH, 0.0) == Roster(5, 10.0, BOTH)
    assert left.towards(frozenset({"a:1", "c:3"}), 99.0) == Roster(
        5, 10.0, frozenset({"a:1", "c:3"}), frozenset({"b:2"})
    )


def test_a_name_is_dropped_once_no_look_can_count_that_named_it() -> None:
    left, present = Roster(4, 10.0, frozenset({"a:1"}), frozenset({"b:2"})), frozenset({"a:1"})
    assert left.towards(present, quarantine(10.0) - 0.001) is None
    assert left.towards(present, quarantine(10.0)) == Roster(5, 10.0, frozenset({"a:1"}))


def test_the_time_for_that_runs_from_the_reply_that_first_had_the_roster() -> None:
    left = Roster(4, 10.0, frozenset({"a:1"}), frozenset({"b:2"}))
    looks, first = Looks(), replace(look(0.0, roster=left), processes={"a:1": "A"})

    def dropped(received: float) -> bool:
        return looks.take(replace(first, received=received), votes=True) is not None

    assert not dropped(5.0)
    assert not dropped(5.0 + quarantine(10.0) - 0.001)
    assert dropped(5.0 + quarantine(10.0))


def test_only_replicas_that_are_attached_and_alive_stay_or_join() -> None:
    """One that hangs acknowledges nothing more, so no grant would count."""
    hangs = replace(look(1.0), processes={"a:1": "A"})
    detached = replace(look(1.0), acknowledged={"a:1": 100})
    for one in (hangs, detached):
        found = Looks().take(one, votes=True)
        assert found == Roster(4, 10.0, frozenset({"a:1"}), frozenset({"b:2"}))
    neither = replace(look(1.0, roster=Roster(0, 10.0)), processes={}, acknowledged={"a:1": 100})
    assert Looks().take(neither, votes=True) is None


def test_an_heir_is_believed_for_a_window_from_the_last_look_that_proved_it() -> None:
    looks = looked(look(1.0), look(2.0))
    last = 2.0 + 10.0 * 0.99 - quarantine(LAG)
    assert looks.believes("A", last, LAG)
    assert not looks.believes("A", last + 0.001, LAG)
    assert not looks.believes("C", 2.0, LAG)
    assert not looks.believes(None, 2.0, LAG)
    assert looks.take(look(3.0, a=200, b=200), votes=True) is None
    assert looks.believes("A", last + 1.0, LAG)


def test_one_look_proves_nothing() -> None:
    assert not looked(look(1.0)).believes("A", 1.0, LAG)


def test_only_who_has_acknowledged_what_there_was_at_an_earlier_look_is_proved() -> None:
    looks = looked(look(1.0), look(2.0, b=99))
    assert looks.believes("A", 2.0, LAG)
    assert not looks.believes("B", 2.0, LAG)
    # The earlier look stays the base for all until each has reached it.
    looks.take(look(3.0, a=150, b=100), votes=True)
    assert looks.believes("B", 3.0, LAG)


def test_the_roster_must_be_the_same_at_both_looks() -> None:
    again = replace(ROSTER, version=5)
    looks = looked(look(1.0), look(2.0, roster=again, a=900, b=900))
    assert not looks.believes("A", 2.0, LAG)


def test_a_process_counts_from_the_look_before_on() -> None:
    """It restarted in between: it acknowledges, but may have lost what came before."""
    restarted = replace(look(2.0), processes={"a:1": "A2", "b:2": "B"})
    looks = looked(look(1.0), restarted)
    assert not looks.believes("A2", 2.0, LAG)
    assert looks.believes("B", 2.0, LAG)


def test_who_leaves_is_not_proved() -> None:
    left = Roster(4, 10.0, frozenset({"a:1"}), frozenset({"b:2"}))
    looks = looked(look(1.0, roster=left), look(2.0, roster=left))
    assert looks.believes("A", 2.0, LAG)
    assert not looks.believes("B", 2.0, LAG)


def test_a_look_at_a_primary_without_a_vote_proves_nothing() -> None:
    assert not looked(look(1.0), look(2.0), votes=False).believes("A", 2.0, LAG)


@pytest.mark.parametrize(("complete", "wait"), [(True, LAG), (False, 60.0 + LAG)])
def test_a_complete_heir_waits_for_users_of_the_old_primary(*, complete: bool, wait: float) -> None:
    trust = Trust(60.0)
    old = Facts(run_id="P", uptime=999.0, marked=999.0, lag=LAG)
    trust.met(old, 0.0, guard=True, guard_first=True)
    heir = Facts(run_id="A", uptime=999.0, marked=0.0, promoted=True, lag=LAG, complete=complete)
    assert trust.met(heir, 0.0, guard=True, guard_first=True) == quarantine(wait)
    assert trust.renews_from == quarantine(LAG)


def test_the_first_roster_of_a_term_is_open() -> None:
    """Its version is 0: only a version below that is closed."""
    assert Roster.parse("0;10;a:1,-b:2") == Roster(0, 10.0, frozenset({"a:1"}), frozenset({"b:2"}))
    assert Roster(0, 10.0).towards(BOTH, 0.0) == Roster(1, 10.0, BOTH)


def test_a_member_that_is_not_attached_any_more_is_not_proved() -> None:
    """It is alive, but the primary says nothing of what it has acknowledged."""
    looks = looked(look(1.0), replace(look(2.0), acknowledged={"a:1": 900}))
    assert looks.believes("A", 2.0, LAG)
    assert not looks.believes("B", 2.0, LAG)


def test_a_process_that_came_between_two_looks_is_believed_after_the_next_one() -> None:
    """Once all members have reached what there was, the later look is the one to reach."""
    after = {"a:1": "A2", "b:2": "B"}
    looks = looked(look(1.0), replace(look(2.0), processes=after))
    looks.take(replace(look(3.0, a=200, b=200), processes=after), votes=True)
    assert looks.believes("A2", 3.0, LAG)
    assert looks.believes("B", 3.0, LAG)
