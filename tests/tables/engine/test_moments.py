"""The moments at which grants are looked at, against a plain list of the grants."""

from __future__ import annotations

import random

import pytest

from asynclock._engine.grant import Grant
from asynclock._engine.renewal import Moments
from asynclock._engine.spec import LeaseOptions
from asynclock._primitives import lock

SPEC = lock.spec("p:", "a")


def noted(moments: Moments, at: float, grant: Grant | None = None) -> Grant:
    """Let a grant, or else a new one, be looked at then."""
    made = grant or Grant(SPEC, "me", 10, LeaseOptions(10.0), 110.0, (0, 1), 100.0, None)
    made.check_at(at)
    moments.add(made, at)
    return made


@pytest.mark.parametrize("most", [5, 15, 100])
@pytest.mark.parametrize("seed", range(5))
def test_each_grant_is_due_once_at_its_last_moment(seed: int, most: int) -> None:
    chance, moments, now = random.Random(seed), Moments(), 0.0
    alive: list[Grant] = []
    for step in range(400):
        kind = chance.randrange(8)
        if (kind < 3 and len(alive) < most) or not alive:
            alive.append(noted(moments, now + chance.randrange(1, 9)))
        elif kind < 6:
            noted(moments, now + chance.randrange(1, 9), chance.choice(alive))
        elif kind == 6:
            alive.pop(chance.randrange(len(alive))).over()
        else:
            now += chance.randrange(2)
            due = moments.take(now)
            assert len(due) == len(set(due))
            assert set(due) == {grant for grant in alive if grant.alarm <= now}
            assert moments.first == min((g.alarm for g in alive if g not in due), default=None)
            for grant in due:
                noted(moments, now + 5, grant)
        moments.tidy(len(alive))
        assert moments.entries == sum(map(len, moments._due.values())) <= max(64, 4 * len(alive))
        if step == 200:
            moments.clear()
            assert moments.first is None
            assert not moments._due
            alive.clear()


@pytest.mark.parametrize("live", [16, 17, 300, 1000])
def test_grants_come_and_go_at_a_steady_cost(live: int) -> None:
    """If each of many live grants were gone through for each, it would block the event loop."""
    moments, rebuilt = Moments(), 0
    grants = [noted(moments, number / 7) for number in range(live)]
    for step in range(10 * live):
        heap = moments._heap
        noted(moments, live + float(step), grants[step % live])
        moments.tidy(live)
        rebuilt += moments._heap is not heap
        assert moments.entries <= max(64, 4 * live)
    assert rebuilt <= 5, "each time for three times as many entries as there are grants"
