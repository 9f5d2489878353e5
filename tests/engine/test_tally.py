"""What the replies to one attempt mean together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asynclock import _clock
from asynclock._engine.said import Refused, acquired
from asynclock._engine.spec import LockSpec
from asynclock._engine.tally import Tally
from asynclock._engine.vote import CUT
from asynclock._nodes.replies import Failure
from asynclock._primitives import lock

DOWN, FOR_EVER = Failure("down"), Failure("no right", permanent=True)


class Asked(Tally):
    """An attempt at one name that `size` nodes were asked for."""

    def __init__(self, size: int = 3, spec: LockSpec | None = None) -> None:
        self.woken: list[tuple[str, int]] = []
        nodes: Any = SimpleNamespace(
            nodes=[SimpleNamespace(address=name, lack=None) for name in "abcde"[:size]],
            quorum=size // 2 + 1,
            wakeups=SimpleNamespace(wake=lambda key, node: self.woken.append((key, node))),
        )
        super().__init__(spec or lock.spec("p:", "a"), nodes)
        self._open = (1 << size) - 1

    def grant(self, index: int) -> None:
        self._open ^= 1 << index
        self.ballot.granted(index, 7)

    def refuse(
        self, index: int, holder: str = "x", left: int = 1000, *, free: int = 0, more: Any = ()
    ) -> None:
        self._open ^= 1 << index
        said = acquired([0, left, holder.encode(), 0, 0, free, *more, 1 << 50])
        assert isinstance(said, Refused)
        self._refused(index, said)

    def fail(self, index: int, failure: Failure = DOWN) -> None:
        self._open ^= 1 << index
        self._failed(index, failure)

    def on_raise_reply(self, index: int, reply: Any) -> None: ...

    def retry_after(self) -> float:
        return 0.25


def test_too_few_answers_are_an_outage() -> None:
    attempt = Asked()
    for index, outage in enumerate((False, True, True)):
        attempt.fail(index)
        assert attempt.outage is outage
    assert not attempt.hopeless, "each may be back at any time"


def test_only_what_rules_out_a_quorum_for_ever_is_hopeless() -> None:
    attempt = Asked()
    attempt.fail(0, FOR_EVER)
    attempt.fail(1)
    assert not attempt.hopeless
    attempt.fail(2, FOR_EVER)
    assert attempt.hopeless


def test_each_failure_is_told_with_the_address_of_its_node() -> None:
    attempt = Asked()
    attempt.fail(2, FOR_EVER)
    attempt.fail(1)
    assert attempt.causes() == {"b": "down", "c": "no right"}
    assert list(attempt.causes()) == ["b", "c"]


def test_one_node_that_could_not_answer_in_time_makes_a_timeout() -> None:
    attempt = Asked()
    attempt.fail(0)
    assert not attempt.cut
    attempt.fail(1, CUT)
    assert attempt.cut


@pytest.mark.parametrize(("lack", "told"), [(None, CUT), (FOR_EVER, CUT), (DOWN, DOWN)])
def test_what_a_node_said_before_stands_for_its_answer_if_it_may_have_passed(
    lack: Failure | None, told: Failure
) -> None:
    """An operator may have mended the permanent cause since: then only time was short."""
    attempt = Asked()
    node: Any = attempt._nodes[1]
    node.lack = lack
    assert attempt._unanswered(1) == told


def test_votes_come_when_the_guards_let_a_quorum_vote() -> None:
    now = _clock.now()
    attempt = Asked()
    attempt.fail(0, Failure("started", votes_from=now + 50))
    assert attempt.barred == 0, "the two others are a quorum"
    attempt.fail(1, Failure("started", votes_from=now + 20))
    assert attempt.barred == pytest.approx(20, abs=5)


def test_the_time_until_enough_nodes_are_free() -> None:
    attempt = Asked()
    attempt.refuse(0, left=5000)
    assert attempt.remaining == 5.0, "two nodes may still grant"
    attempt.refuse(1, left=3000)
    assert attempt.remaining == 3.0, "one that refused must be free"
    attempt.fail(2)
    assert attempt.remaining == 5.0, "both must be free"


def test_a_grant_leaves_fewer_nodes_to_be_free() -> None:
    attempt = Asked()
    attempt.grant(0)
    attempt.refuse(1, left=5000)
    attempt.refuse(2, left=3000)
    assert attempt.remaining == 3.0


def test_a_key_without_a_ttl_has_no_end() -> None:
    attempt = Asked(1)
    attempt.refuse(0, left=-1)
    assert attempt.remaining is None


def test_the_owner_that_most_nodes_name_is_the_holder() -> None:
    attempt = Asked()
    assert attempt.holder is None
    for index, owner in enumerate("xyy"):
        attempt.refuse(index, owner)
    assert attempt.holder == "y"
    assert (attempt.held, attempt.split, attempt.owners) == (True, False, ["x", "y", "y"])


def test_a_vote_is_split_if_we_have_a_part_and_nobody_a_quorum() -> None:
    one, other, lost = Asked(), Asked(), Asked()
    for attempt, owners in ((one, "xy"), (other, "xx")):
        attempt.grant(0)
        for index, owner in enumerate(owners, 1):
            attempt.refuse(index, owner)
    for index, owner in enumerate("xyz"):
        lost.refuse(index, owner)
    assert (one.split, other.split, lost.split) == (True, False, False)


def test_a_name_that_is_left_to_a_waiter_is_not_held_by_it() -> None:
    attempt = Asked()
    for index in range(3):
        attempt.refuse(index, "waiter", free=1)
    assert not attempt.held
    assert attempt.owners == []


def test_a_waiter_that_a_refusal_woke_is_told_of_the_node() -> None:
    attempt = Asked()
    attempt.refuse(0, "holder")
    attempt.refuse(2, "waiter", free=1)
    assert attempt.woken == [(attempt.spec.ticket_key("waiter"), 2)]


def test_the_reports_of_all_nodes_about_other_slots_count() -> None:
    attempt = Asked()
    attempt.refuse(0, more=(b"10",))
    attempt.refuse(1, more=(b"01",))
    assert attempt.slot_votes == (b"10", b"01")


def test_answers_that_a_ticket_needs_are_waited_for_while_they_may_come() -> None:
    """Each quorum must have a node that named a number or granted."""
    attempt = Asked()
    attempt.refuse(0)
    assert attempt.incomplete
    attempt.fail(1)
    assert attempt.incomplete, "the third node's answer is enough"
    attempt.refuse(2)
    assert not attempt.incomplete
    granted, hopeless = Asked(), Asked()
    granted.grant(0)
    granted.refuse(1)
    assert not granted.incomplete, "a grant is an answer"
    hopeless.refuse(0)
    for index in (1, 2):
        hopeless.fail(index)
    assert not hopeless.incomplete, "nobody is left to answer"


def test_what_each_node_has_voted() -> None:
    attempt = Asked(5)
    attempt.grant(0)
    attempt.refuse(2)
    attempt.fail(3)
    assert attempt.votes() == {
        "a": "granted",
        "b": "open",
        "c": "refused",
        "d": "failed",
        "e": "open",
    }


def test_a_holder_whose_time_is_over_is_gone_now() -> None:
    attempt = Asked(1)
    attempt.refuse(0, left=0)
    assert attempt.remaining == 0.0
