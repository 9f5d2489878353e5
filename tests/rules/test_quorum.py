"""The verdict is total, early and never wrong, for every N and every order of answers."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclock._rules.quorum import Ballot, Verdict, majority

GRANT, REFUSE, UNKNOWN = "grant", "refuse", "unknown"


def play(answers: Sequence[tuple[str, int]], raises: Sequence[str]) -> tuple[Ballot, list[int]]:
    """Cast `answers` (kind, fence) node by node, raises answered at once in the order of need."""
    size = len(answers)
    ballot = Ballot(size, majority(size))
    raised_to: list[int] = []
    replies = iter(raises)
    for node, (kind, fence) in enumerate(answers):
        if kind == GRANT:
            ballot.granted(node, fence)
        elif kind == REFUSE:
            ballot.refuse()
        else:
            ballot.abstain()
        for behind in ballot.take_behind():
            raised_to.append(ballot.fence)
            reply = next(replies, GRANT)
            if reply == GRANT:
                ballot.raised(behind)
            elif reply == REFUSE:
                ballot.refuse()
            else:
                ballot.abstain()
    return ballot, raised_to


def test_majority() -> None:
    assert [majority(n) for n in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("size", range(1, 8))
def test_never_open_after_the_last_answer_and_right(size: int) -> None:
    """And as early as that, either way."""
    quorum = majority(size)
    for kinds in product((GRANT, REFUSE, UNKNOWN), repeat=size):
        ballot = Ballot(size, quorum)
        for node, kind in enumerate(kinds):
            if kind == GRANT:
                ballot.granted(node, 7)
            elif kind == REFUSE:
                ballot.refuse()
            else:
                ballot.abstain()
            grants = kinds[: node + 1].count(GRANT)
            left = size - node - 1
            won, lost = grants >= quorum, grants + left < quorum
            expected = Verdict.WON if won else Verdict.LOST if lost else Verdict.OPEN
            assert ballot.verdict is expected, kinds[: node + 1]
        assert ballot.open == 0
        assert ballot.verdict is not Verdict.OPEN
        if ballot.verdict is Verdict.WON:
            assert ballot.fence == 7


@pytest.mark.parametrize("size", [3, 4, 5])
def test_disagreeing_fences_end_in_one_that_a_quorum_claims(size: int) -> None:
    for kinds in product((GRANT, REFUSE, UNKNOWN), repeat=size):
        for fences in product((5, 6, 7), repeat=size):
            answers = list(zip(kinds, fences, strict=True))
            ballot, raised_to = play(answers, [])
            granted = [fence for kind, fence in answers if kind == GRANT]
            assert ballot.open == 0
            if ballot.verdict is Verdict.WON:
                claims = list(ballot.claims.values())
                assert claims.count(ballot.fence) >= ballot.quorum
                assert ballot.fence in granted
            else:
                assert ballot.verdict is Verdict.LOST
            assert all(fence == ballot.fence for fence in raised_to)
            first = granted[: ballot.quorum]
            if len(first) == ballot.quorum:
                # Nothing refused a raise, so a quorum of grants always ends in a fence: the
                # largest of those that were in when the quorum was.
                assert ballot.verdict is Verdict.WON
                assert ballot.fence >= max(first) or granted.count(ballot.fence) >= ballot.quorum


def disagreeing() -> Ballot:
    """Five nodes, of which three have granted, and two of these with a lower fence."""
    ballot = Ballot(5, 3)
    for node, fence in enumerate((5, 5, 7)):
        ballot.granted(node, fence)
    return ballot


def verdict(ballot: Ballot) -> Verdict:
    """For type checkers, which don't see that it changes."""
    return ballot.verdict


def test_a_late_grant_with_a_lower_fence_is_raised_too() -> None:
    ballot = disagreeing()
    ballot.granted(3, 6)
    assert ballot.take_behind() == (0, 1, 3)
    ballot.raised(0)
    ballot.abstain()
    assert verdict(ballot) is Verdict.OPEN
    ballot.raised(3)
    assert verdict(ballot) is Verdict.WON
    assert ballot.fence == 7


def test_a_late_grant_of_the_same_fence_counts_once() -> None:
    ballot = disagreeing()
    ballot.granted(3, 7)
    assert verdict(ballot) is Verdict.OPEN
    ballot.raised(0)
    assert verdict(ballot) is Verdict.WON


def test_grants_that_claim_other_fences_do_not_add_up() -> None:
    ballot = disagreeing()
    ballot.granted(3, 9)
    ballot.granted(4, 9)
    assert ballot.take_behind() == (0, 1)
    assert verdict(ballot) is Verdict.OPEN
    ballot.abstain()
    assert verdict(ballot) is Verdict.LOST  # one claim, and one raise at most: no quorum


kinds = st.sampled_from([GRANT, REFUSE, UNKNOWN])


@given(
    answers=st.lists(st.tuples(kinds, st.integers(1, 4)), min_size=1, max_size=9),
    raises=st.lists(kinds, max_size=12),
)
def test_whatever_is_answered(answers: list[tuple[str, int]], raises: list[str]) -> None:
    ballot, _ = play(answers, raises)
    assert ballot.open == 0
    assert ballot.verdict is not Verdict.OPEN
    if ballot.verdict is Verdict.WON:
        assert list(ballot.claims.values()).count(ballot.fence) >= ballot.quorum
        grants = [fence for kind, fence in answers if kind == GRANT]
        assert ballot.fence == max(grants[: ballot.quorum])


@given(
    first=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    second=st.lists(st.sampled_from([0, 1, 2]), min_size=5, max_size=5),
)
def test_a_later_holder_gets_a_larger_fence(first: list[int], second: list[int]) -> None:
    # Five nodes with arbitrary counters; two holders, one after the other, each meeting some
    # majority, write-backs included. The maximum without write-back fails here at once.
    counters = dict(enumerate(first))
    fence_1 = _hold(counters, [n for n in range(5) if second[n] != 1])
    fence_2 = _hold(counters, [n for n in range(5) if second[n] != 2])
    if fence_1 and fence_2:
        assert fence_2 > fence_1


def _hold(counters: dict[int, int], reachable: list[int]) -> int:
    ballot = Ballot(5, 3)
    for node in range(5):
        if node not in reachable:
            ballot.abstain()
            continue
        counters[node] += 1
        ballot.granted(node, counters[node])
        for behind in ballot.take_behind():
            counters[behind] = ballot.fence
            ballot.raised(behind)
        if ballot.verdict is not Verdict.OPEN:
            break
    return ballot.fence if ballot.verdict is Verdict.WON else 0


def test_what_the_nodes_replied_is_counted_for_the_error() -> None:
    ballot = Ballot(5, 3)
    ballot.granted(0, 7)
    ballot.abstain()
    ballot.refuse()
    ballot.refuse()
    assert (len(ballot.claims), ballot.refused, ballot.unknown, ballot.open) == (1, 2, 1, 1)
    assert ballot.verdict is Verdict.LOST


def test_a_node_that_took_the_fence_that_was_written_back_is_a_voter() -> None:
    ballot = Ballot(3, 2)
    ballot.granted(0, 7)
    ballot.granted(2, 9)
    assert ballot.take_behind() == (0,)
    assert ballot.take_behind() == ()
    ballot.raised(0)
    assert ballot.verdict is Verdict.WON
    assert ballot.claims == {0: 9, 2: 9}


def test_a_later_grant_with_the_agreed_fence_counts_before_any_write_back() -> None:
    ballot = Ballot(5, 3)
    for node, fence in enumerate((7, 9, 9)):
        ballot.granted(node, fence)
    assert (ballot.fence, ballot.take_behind(), ballot.verdict) == (9, (0,), Verdict.OPEN)
    ballot.granted(3, 9)
    assert ballot.verdict is Verdict.WON
    assert ballot.claims == {1: 9, 2: 9, 3: 9}
