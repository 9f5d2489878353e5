"""The moments at which grants are looked at, against a plain list of the grants."""

import random
from typing import Any

import pytest

from asynclock._engine.grant import Grant
from asynclock._engine.renewal import Renewals
from asynclock._engine.spec import LeaseOptions
from asynclock._primitives import lock

SPEC = lock.spec("p:", "a")


class Moments(Renewals):
    """Renewals without nodes and without a timer."""

    def __init__(self) -> None:
        nowhere: Any = None
        super().__init__(nowhere, 0, nowhere, nowhere)

    def _arm(self, at: float) -> None:
        pass


def noted(moments: Moments, at: float, grant: Grant | None = None) -> Grant:
    """Let a grant, or else a new one, be looked at then."""
    if grant is None:
        owner = str(random.random())
        grant = Grant(SPEC, owner, 10, LeaseOptions(10.0), 110.0, (0, 1), 100.0, None)
        moments._alive[owner] = grant
    moments._set(grant, at)
    return grant


@pytest.mark.parametrize("most", [5, 15, 100])
@pytest.mark.parametrize("seed", range(5))
def test_each_grant_is_due_once_at_its_last_moment(seed: int, most: int) -> None:
    chance, moments, now = random.Random(seed), Moments(), 0.0
    alive: list[Grant] = []
    for _ in range(400):
        kind = chance.randrange(8)
        if (kind < 3 and len(alive) < most) or not alive:
            alive.append(noted(moments, now + chance.randrange(1, 9)))
        elif kind < 6:
            noted(moments, now + chance.randrange(1, 9), chance.choice(alive))
        elif kind == 6:
            ended = alive.pop(chance.randrange(len(alive)))
            ended.over()
            moments.remove(ended)
        else:
            now += chance.randrange(2)
            due = moments._take(now)
            assert len(due) == len(set(due))
            assert set(due) == {grant for grant in alive if grant.alarm <= now}
            first = moments._heap[0][0] if moments._heap else None
            assert first == min((g.alarm for g in alive if g not in due), default=None)
            for grant in due:
                noted(moments, now + 5, grant)
        assert len(moments._heap) <= max(64, 4 * most)


@pytest.mark.parametrize("live", [16, 17, 300, 1000])
def test_grants_come_and_go_at_a_steady_cost(live: int) -> None:
    """If each of many live grants were gone through for each, it would block the event loop."""
    moments, rebuilt = Moments(), 0
    grants = [noted(moments, number / 7) for number in range(live)]
    for step in range(10 * live):
        before = len(moments._heap)
        noted(moments, live + float(step), grants[step % live])
        rebuilt += len(moments._heap) < before
        assert len(moments._heap) <= max(64, 4 * live)
    assert rebuilt <= 5, "each time for three times as many entries as there are grants"
