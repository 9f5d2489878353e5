"""The waiters of a name, put together from what the nodes keep. For people to read."""

from __future__ import annotations

from asynclock._engine.ticket import WOKEN
from asynclock._engine.waiters import MOST_WAITERS, Waiter, in_order, question
from asynclock._nodes.replies import Failure

OWN = b"0123456789abcdef" * 2 + b":web"
WAITS = b"1"


def test_waiters_are_told_in_the_order_of_their_highest_numbers() -> None:
    """Nodes may have different numbers for one that has just come."""
    first = [b"a", b"3", WAITS], [b"b", b"5", WAITS], [b"c", b"11", WAITS]
    second = [b"b", b"5", WAITS], [b"a", b"7", WAITS], [b"c", b"11", WAITS]
    expected = tuple(Waiter(name, woken=False) for name in "bac")
    assert in_order([[*first], [*second], [*first]]) == expected
    assert in_order([[*second], [*first]]) == expected


def test_only_a_waiter_that_a_majority_of_the_answers_has_is_told() -> None:
    """A ticket that just one node keeps may be left over."""
    both, one = [b"both", b"1", WAITS], [b"one", b"0", WAITS]
    assert in_order([[both, one], [both], []]) == (Waiter("both", woken=False),)
    assert in_order([[one], [], Failure("away")]) == ()
    assert in_order([[one], Failure("away"), Failure("away")]) == (Waiter("one", woken=False),)
    assert in_order([]) == ()


def test_a_waiter_was_woken_if_one_node_has_told_it() -> None:
    answers = [[[b"a", b"1", WOKEN]], [[b"a", b"1", WAITS]], [[b"a", b"1", None]]]
    assert in_order(answers) == (Waiter("a", woken=True),)


def test_of_a_waiter_people_see_its_label_and_nothing_that_is_no_text_fails() -> None:
    (ours, other) = in_order([[[OWN, b"1", WAITS], [b"\xff-of-another-library", b"2", WAITS]]])
    assert (ours.ticket, ours.label) == (OWN.decode(), "web")
    assert (other.ticket, other.label) == ("\ufffd-of-another-library", "\ufffd-of-ano…")


def test_a_node_is_asked_for_a_bounded_number_of_waiters() -> None:
    command = question("a", "a:#queue")
    assert (command.keys, command.args) == (("a", "a:#queue"), ("inspect", MOST_WAITERS))
    assert MOST_WAITERS == 1000
