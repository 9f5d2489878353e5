"""What one round of renewals decides from the nodes' answers, lease by lease."""

from __future__ import annotations

from collections.abc import Sequence

from asynclock._engine.grant import Grant
from asynclock._engine.round import QUARANTINED, Round
from asynclock._nodes.replies import Failure

TTL = 10.0
LOST = Failure("lost")
Said = dict[int, Failure] | None


class Renewals:
    """Notes what rounds decide about leases of three nodes."""

    quorum = 2

    def __init__(self, stood_still: float = 0.0) -> None:
        self.stood_still = stood_still
        self.quarantined: set[int] = set()
        self.decided: list[tuple[str, str]] = []
        self.extensions: list[tuple[float, int, float, float]] = []
        self.health: list[tuple[int, Failure | None]] = []
        self.told: list[Said] = []

    def granted(
        self, grant: Grant, sent: float, number: int, ttl: float, stood_still: float
    ) -> None:
        """Note it."""
        self.decided.append(("granted", grant.owner))
        self.extensions.append((sent, number, ttl, stood_still))

    def answered(self, index: int, error: Failure | None) -> None:
        """Note it."""
        self.health.append((index, error))

    def gone(self, grant: Grant) -> None:
        """Note it."""
        self.decided.append(("gone", grant.owner))
        grant.over()

    def missing(self, grant: Grant, index: int) -> None:
        """Note it."""
        self.decided.append((f"missing on {index}", grant.owner))

    def undecided(self, grant: Grant) -> None:
        """Note it."""
        self.decided.append(("undecided", grant.owner))

    def counts(self, index: int, sent: float, voters: Sequence[int]) -> bool:
        """Decide like the multiplexer."""
        return index not in self.quarantined or index in voters

    def round(self, *grants: Grant, shortened: Sequence[Grant] = (), ttl: float = TTL) -> Round:
        """Begin a round."""
        return Round(self, grants, ttl, 3, 100.0, 7, shortened, self.told.append)


def won(owner: str) -> Grant:
    """Return a live grant of nodes 0 and 1."""
    grant = Grant(None, owner, 1, TTL, 110.0, (0, 1), 0.0, None)  # type: ignore[arg-type]
    grant.check_at(103.0)
    return grant


def test_a_quorum_decides_and_the_caller_waits_for_no_more() -> None:
    renewals = Renewals()
    one = renewals.round(won("x"), won("y"))
    one.on_reply(0, [b"11", 0])
    assert not renewals.decided
    assert not renewals.told
    one.on_reply(2, [b"11", 0])
    assert renewals.decided == [("granted", "x"), ("granted", "y")]
    assert renewals.told == [None]
    one.on_reply(1, [b"11", 0])
    assert len(renewals.decided) == 2, "each is granted once"
    assert renewals.told == [None], "the caller is told once"
    assert renewals.health == [(0, None), (2, None), (1, None)]


def test_leases_of_one_batch_are_decided_each_by_itself() -> None:
    renewals = Renewals()
    one = renewals.round(won("x"), won("y"))
    one.on_reply(0, [b"10", 0])
    one.on_reply(1, [b"10", 0])
    assert renewals.decided == [("missing on 0", "y"), ("granted", "x"), ("gone", "y")]
    assert len(renewals.told) == 1
    assert renewals.told[0] is not None, "not all were extended"
    one.on_reply(2, [b"11", 0])
    assert len(renewals.decided) == 3, "what is gone is neither granted nor asked for again"


def test_the_caller_waits_until_all_leases_of_the_batch_are_decided() -> None:
    renewals = Renewals()
    one = renewals.round(won("x"), won("y"))
    one.on_reply(0, [b"11", 0])
    one.on_reply(1, [b"10", 0])
    assert renewals.decided == [("granted", "x"), ("missing on 1", "y")]
    assert not renewals.told, "another node may still extend it"
    one.on_reply(2, [b"11", 0])
    assert renewals.decided[-1] == ("granted", "y")
    assert renewals.told == [None]


def test_too_few_answers_decide_nothing_before_the_last() -> None:
    renewals = Renewals()
    one = renewals.round(won("x"), won("y"))
    one.on_reply(0, [b"11", 0])
    one.on_reply(1, LOST)
    assert not renewals.decided
    assert not renewals.told
    one.on_reply(2, LOST)
    assert renewals.decided == [("undecided", "x"), ("undecided", "y")]
    assert renewals.told == [{1: LOST, 2: LOST}]
    assert renewals.health == [(0, None), (1, LOST), (2, LOST)]


def test_a_lease_that_is_gone_is_not_asked_for_again() -> None:
    renewals = Renewals()
    one = renewals.round(won("x"), won("y"))
    one.on_reply(0, [b"01", 0])
    one.on_reply(1, [b"01", 0])
    one.on_reply(2, LOST)
    assert renewals.decided == [("missing on 0", "x"), ("gone", "x"), ("granted", "y")]


def test_one_node_that_lacks_the_key_leaves_it_open() -> None:
    renewals = Renewals()
    one = renewals.round(won("x"))
    one.on_reply(2, [b"0", 0])
    one.on_reply(0, LOST)
    assert not renewals.told
    one.on_reply(1, [b"1", 0])
    assert renewals.decided == [("missing on 2", "x"), ("undecided", "x")]
    assert renewals.told == [{0: LOST}]


def test_the_key_of_a_lease_that_has_ended_is_not_put_back() -> None:
    renewals, grant = Renewals(), won("x")
    one = renewals.round(grant)
    grant.over()
    one.on_reply(0, [b"0", 0])
    assert not renewals.decided


def test_a_node_in_quarantine_counts_for_the_leases_that_it_had_granted() -> None:
    renewals = Renewals()
    renewals.quarantined = {1, 2}
    one = renewals.round(won("x"))
    one.on_reply(0, [b"1", 0])
    one.on_reply(2, [b"1", 0])
    assert not renewals.decided
    one.on_reply(1, LOST)
    assert renewals.told == [{1: LOST, 2: QUARANTINED}]
    again = renewals.round(won("x"))
    again.on_reply(1, [b"1", 0])
    again.on_reply(0, [b"1", 0])
    assert renewals.told[-1] is None


def test_only_a_request_for_less_time_may_cut_short() -> None:
    """A node that missed a usual renewal may count again for the next one."""
    renewals, shorter, usual = Renewals(), won("x"), won("y")
    one = renewals.round(shorter, usual, shortened=[shorter], ttl=4.0)
    one.on_reply(2, LOST)
    assert shorter.cut_short == {2: 4.0}
    assert not usual.cut_short
    one.on_reply(0, [b"11", 0])
    one.on_reply(1, [b"11", 0])
    assert renewals.told == [None]
    longer = renewals.round(shorter)
    longer.on_reply(2, [b"1", 0])
    longer.on_reply(0, [b"1", 0])
    assert renewals.decided.count(("granted", "x")) == 1, "the second node may end it after 4 s"
    longer.on_reply(1, [b"1", 0])
    assert renewals.decided.count(("granted", "x")) == 2


def test_time_counts_from_the_request_and_from_the_clock_that_it_read() -> None:
    renewals = Renewals(stood_still=3.0)
    one = renewals.round(won("x"))
    renewals.stood_still = 5.0
    one.on_reply(0, [b"1", 0])
    one.on_reply(1, [b"1", 0])
    assert renewals.extensions == [(100.0, 7, TTL, 3.0)]
