"""The record of a set of nodes: steps, and the clients that they allow."""

import itertools
from collections.abc import Callable

import pytest

from asynclock import ConfigurationError
from asynclock._rules.nodeset import CLOSING, OPEN, SETTLED, NodeSet, apart, shown
from asynclock._rules.quorum import majority

ABC, ABCD, BCD = ("a", "b", "c"), ("a", "b", "c", "d"), ("b", "c", "d")


@pytest.mark.parametrize("size", range(3, 8))
def test_majorities_of_sets_that_differ_by_one_node_meet(size: int) -> None:
    nodes = range(size + 1)
    for one in itertools.combinations(nodes[:size], majority(size)):
        for other in itertools.combinations(nodes, majority(size + 1)):
            assert set(one) & set(other)


def test_majorities_of_sets_that_differ_by_a_replacement_may_not_meet() -> None:
    assert not apart(ABC, BCD)
    assert not {"a", "b"} & {"c", "d"}


def test_a_set_grows_by_one_node() -> None:
    record = NodeSet(1, ABC)
    opened = record.begin(ABCD)
    assert (opened.epoch, opened.usable) == (2, (ABC, ABCD))
    closing = opened.finish()
    assert (closing.epoch, closing.usable, closing.phase) == (3, (ABCD,), CLOSING)
    assert closing.settle() == NodeSet(3, ABCD)
    assert NodeSet.parse(closing.text()) == closing


def test_a_step_can_be_taken_back() -> None:
    closing = NodeSet(1, ABC).begin(ABCD).back()
    assert (closing.epoch, closing.usable, closing.phase) == (3, (ABC,), CLOSING)
    assert closing.settle() == NodeSet(3, ABC)


def test_an_interrupted_step_goes_on() -> None:
    opened = NodeSet(1, ABC).adding("d")
    assert opened.adding("d") is opened
    closing = opened.finish()
    assert closing.finish() is closing
    reopened = closing.removing("d")  # clients of the old set may work again
    assert (reopened.usable, reopened.phase) == ((ABCD, ABC), OPEN)


@pytest.mark.parametrize(
    ("record", "target", "cause"),
    [
        (NodeSet(1, ABC), BCD, "differ by more"),
        (NodeSet(1, ABC), (*ABCD, "e"), "differ by more"),
        (NodeSet(1, ABC), (*ABC, "c"), "differ by more|already"),
        (NodeSet(1, ABC), ABC, "already"),
        (NodeSet(1, ABC), ("a", "b"), "at least 3 nodes"),
        (NodeSet(1, ("a",)), ("a", "b"), "at least 3 nodes"),
        (
            NodeSet(2, ABC, ABCD, OPEN),
            (*ABC, "e"),
            r"is open, between \{a, b, c\} and \{a, b, c, d\}",
        ),
        (NodeSet(3, ABCD, ABC, CLOSING), BCD, "another step is closing"),
    ],
)
def test_steps_that_are_refused(record: NodeSet, target: tuple[str, ...], cause: str) -> None:
    with pytest.raises(ConfigurationError, match=cause):
        record.begin(target)


def test_nothing_to_finish_or_to_take_back() -> None:
    for step in (NodeSet.finish, NodeSet.back):
        with pytest.raises(ConfigurationError, match="no step is open"):
            step(NodeSet(1, ABC))
    with pytest.raises(ConfigurationError, match="closing already"):
        NodeSet(3, ABCD, ABC, CLOSING).back()


def test_a_record_is_enforced_once() -> None:
    """The epoch never falls: clients take the higher one for the newer record."""
    assert NodeSet(0, ABC).enforced() == NodeSet(1, ABC)
    assert NodeSet(5, ABC).enforced() == NodeSet(5, ABC)


def test_a_node_that_is_there_already_or_not_at_all_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"the set is \{a, b, c\} already"):
        NodeSet(1, ABC).adding("b")
    with pytest.raises(ConfigurationError, match=r"e is not one of \{a, b, c\}"):
        NodeSet(1, ABC).removing("e")


def test_the_order_in_which_nodes_are_given_makes_no_other_step() -> None:
    opened = NodeSet(1, ABC).begin(ABCD)
    assert opened.begin(("d", "c", "b", "a")) is opened
    assert opened.finish().begin(("c", "a", "b")).phase == OPEN


def test_which_node_a_step_removes() -> None:
    opened = NodeSet(1, ABCD).removing("d")
    for record in (opened, opened.finish(), NodeSet(1, ABC).adding("d").back()):
        assert [record.removes(name) for name in "abcd"] == [False, False, False, True]
    assert not any(NodeSet(1, ABCD).removes(name) for name in "abcd")


def test_a_node_whose_name_is_unknown_is_shown_as_such() -> None:
    assert shown(("a", None, "")) == "{a, ?, ?}"


def test_an_operator_with_other_nodes_changes_nothing() -> None:
    assert NodeSet(2, ABC, ABCD, OPEN).known_to(("d", "c", "b", "a")).epoch == 2
    text = r"given are \{b, c, d\}; the record \(epoch 1\) has \{a, b, c\}$"
    with pytest.raises(ConfigurationError, match=text):
        NodeSet(1, ABC).known_to(BCD)
    with pytest.raises(ConfigurationError, match=r"has \{a, b, c\} and \{a, b, c, d\}$"):
        NodeSet(2, ABC, ABCD, OPEN).known_to(BCD)


def test_which_clients_are_allowed() -> None:
    opened = NodeSet(2, ABC, ABCD, OPEN)
    for nodes in (ABC, ABCD, ("c", "a", "b")):
        assert opened.allows(nodes)
    for wrong in ("bcd", "a", "abe", "abb", "abcde"):
        assert not opened.allows(tuple(wrong))
    assert opened.allows(("a", "b", None))  # a node that was not met yet
    assert not opened.allows(("a", "e", None))
    closing = NodeSet(3, ABCD, ABC, CLOSING)
    assert closing.allows(ABCD)
    assert not closing.allows(ABC)


@pytest.mark.parametrize("text", [None, "", "x", "[]", "{}", '{"epoch": 1}', "[" * 100_000])
def test_a_text_that_is_no_record(text: str | None) -> None:
    assert NodeSet.parse(text) is None


def test_phases_are_words_in_the_data() -> None:
    """Clients of other versions read them."""
    assert (SETTLED, OPEN, CLOSING) == ("settled", "open", "closing")


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            lambda: NodeSet(1, ABC).begin(BCD),
            "a step adds or removes one node: {a, b, c} and {b, c, d} differ by more",
        ),
        (lambda: NodeSet(1, ABC).begin(("c", "a", "b")), "the set is {a, b, c} already"),
        (
            lambda: NodeSet(1, ABC).removing("c"),
            (
                "a set that changes has at least 3 nodes, and {a, b} or {a, b, c} has fewer: "
                "stop all clients, wait one max_ttl, start with the new set"
            ),
        ),
        (
            lambda: NodeSet(2, ABC, ABCD, OPEN).removing("a"),
            (
                "another step is open, between {a, b, c} and {a, b, c, d}: "
                "finish it or take it back first"
            ),
        ),
        (
            lambda: NodeSet(3, ABCD, ABC, CLOSING).back(),
            "the step is closing already: finish it, or begin the step to {a, b, c}",
        ),
        (lambda: NodeSet(1, ABC).finish(), "no step is open: the set is {a, b, c}"),
    ],
)
def test_what_an_operator_is_told_of_a_step_that_is_refused(
    step: Callable[[], NodeSet], text: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        step()
    assert str(caught.value) == text


def test_the_words_of_a_record_are_text_whatever_was_written() -> None:
    text = '{"epoch": 4, "nodes": [1, 2, 3], "other": [], "phase": "settled"}'
    assert NodeSet.parse(text) == NodeSet(4, ("1", "2", "3"))
    assert NodeSet.parse('{"epoch": 4, "nodes": ["a"], "other": []}') is None


def test_a_node_that_joins_again_is_named_once() -> None:
    """The step that removes it is closing, so it is still one of the other set."""
    closing = NodeSet(1, ABCD).removing("d").finish()
    assert closing.adding("d") == NodeSet(4, ABC, ABCD, OPEN)
