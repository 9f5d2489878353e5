"""What the reply to a request to put a key back means; the whole way: test_fate.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asynclock._engine.restoring import Restore, Restores
from tests.engine.test_grants import NOW, won


class Asked:
    """One node, and a lease with fence 10 whose key node 2 lost."""

    def __init__(self, votes_from: float) -> None:
        self.commands: list[Any] = []
        self.again: list[Any] = []
        node = SimpleNamespace(
            trust=SimpleNamespace(votes_from=votes_from),
            ask=lambda command, _sink, _index: self.commands.append(command),
        )
        self.grant = won()
        spec: Any = SimpleNamespace(write_back=lambda _owner, fence, _retention: fence)
        self.grant.spec = spec
        self.grant.check_at(NOW + 3)
        nodes: Any = SimpleNamespace(nodes=[None, None, node])
        restores = Restores(nodes, 1000, lambda grant, _at: self.again.append(grant))
        self.restore = Restore(restores, self.grant, NOW, voted=True)


@pytest.mark.parametrize(("counter", "raised"), [(9, [10]), (10, []), (12, [])])
def test_a_node_whose_counter_is_behind_is_told_the_fence(counter: int, raised: list[int]) -> None:
    asked = Asked(votes_from=NOW)
    asked.restore.on_reply(2, [1, counter, b"", 0])
    assert asked.commands == raised
    assert asked.grant.restored == {2: NOW}
    assert asked.grant.top == max(10, counter)
    assert not asked.again


def test_a_node_that_lost_its_vote_meanwhile_is_asked_again() -> None:
    asked = Asked(votes_from=NOW + 0.1)
    asked.restore.on_reply(2, [1, 10, b"", 0])
    assert asked.again == [asked.grant]
    assert not asked.grant.restored
    assert 2 not in asked.grant.voters
