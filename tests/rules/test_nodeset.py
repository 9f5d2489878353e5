"""The record of a set of nodes: steps, and the clients that they allow."""

import itertools
from collections.abc import Callable

import pytest

from asynclock import ConfigurationError
from asynclock._rules.nodeset import CLOSING, OPEN, SETTLED, Copy, NodeSet, apart, shown
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


def test_a_set_grows_by_one_node_or_the_step_is_taken_back() -> None:
    record = NodeSet(1, ABC)
    opened = record.begin(ABCD)
    assert (opened.epoch, opened.usable) == (2, (ABC, ABCD))
    closing = opened.finish()
    assert (closing.epoch, closing.usable, closing.phase) == (3, (ABCD,), CLOSING)
    assert closing.settle() == NodeSet(3, ABCD)
    assert NodeSet.parse(closing.text()) == closing
    back = opened.back()
    assert (back.epoch, back.usable, back.phase) == (3, (ABC,), CLOSING)
    assert back.settle() == NodeSet(3, ABC)


def test_an_interrupted_step_goes_on() -> None:
    opened = NodeSet(1, ABC).adding("d")
    assert opened.adding("d") is opened
    closing = opened.finish()
    assert closing.finish() is closing
    reopened = closing.removing("d")  # clients of the old set may work again
    assert (reopened.usable, reopened.phase) == ((ABCD, ABC), OPEN)


MORE = "a step adds or removes one node: {{a, b, c}} and {} differ by more"
FEW = (
    "a set that changes has at least 3 nodes, and {{a, b}} or {} has fewer: "
    "stop all clients, wait one max_ttl, start with the new set"
)
OPENED, CLOSES = NodeSet(2, ABC, ABCD, OPEN), NodeSet(3, ABCD, ABC, CLOSING)
ANOTHER = "another step is {}, between {} and {}: finish it or take it back first"
OF_OPEN = ANOTHER.format("open", "{a, b, c}", "{a, b, c, d}")


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda: NodeSet(1, ABC).begin(BCD), MORE.format("{b, c, d}")),
        (lambda: NodeSet(1, ABC).begin((*ABCD, "e")), MORE.format("{a, b, c, d, e}")),
        (lambda: NodeSet(1, ABC).begin(("c", "a", "b")), "the set is {a, b, c} already"),
        (lambda: NodeSet(1, ABC).begin((*ABC, "c")), "the set is {a, b, c} already"),
        (lambda: NodeSet(1, ABC).adding("b"), "the set is {a, b, c} already"),
        (lambda: NodeSet(1, ABC).removing("e"), "e is not one of {a, b, c}"),
        (lambda: NodeSet(1, ABC).removing("c"), FEW.format("{a, b, c}")),
        (lambda: NodeSet(1, ("a",)).begin(("a", "b")), FEW.format("{a}")),
        (lambda: OPENED.removing("a"), OF_OPEN),
        (lambda: OPENED.begin((*ABC, "e")), OF_OPEN),
        (lambda: CLOSES.begin(BCD), ANOTHER.format("closing", "{a, b, c, d}", "{a, b, c}")),
        (CLOSES.back, "the step is closing already: finish it, or begin the step to {a, b, c}"),
        (NodeSet(1, ABC).finish, "no step is open: the set is {a, b, c}"),
        (NodeSet(1, ABC).back, "no step is open: the set is {a, b, c}"),
    ],
)
def test_what_an_operator_is_told_of_a_refused_step(step: Callable[[], NodeSet], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        step()
    assert str(caught.value) == text


def test_a_record_is_enforced_once() -> None:
    """The epoch never falls: clients take the higher one for the newer record."""
    assert NodeSet(0, ABC).enforced() == NodeSet(1, ABC)
    assert NodeSet(5, ABC).enforced() == NodeSet(5, ABC)


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
    assert (closing.allows(ABCD), closing.allows(ABC)) == (True, False)


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"epoch": 1}', "[" * 100_000])
def test_a_text_that_is_no_record(text: str) -> None:
    assert NodeSet.parse(text) is None


def test_phases_are_words_in_the_data() -> None:
    """Clients of other versions read them."""
    assert Copy() == (0, "", ""), "of a node without a record"
    assert (SETTLED, OPEN, CLOSING) == ("settled", "open", "closing")


def test_the_words_of_a_record_are_text_whatever_was_written() -> None:
    text = '{"epoch": 4, "nodes": [1, 2, 3], "other": [], "phase": "settled"}'
    assert NodeSet.parse(text) == NodeSet(4, ("1", "2", "3"))
    assert NodeSet.parse('{"epoch": 4, "nodes": ["a"], "other": []}') is None


def test_a_node_that_joins_again_is_named_once() -> None:
    """The step that removes it is closing, so it is still one of the other set."""
    closing = NodeSet(1, ABCD).removing("d").finish()
    assert closing.adding("d") == NodeSet(4, ABC, ABCD, OPEN)
