"""When a node is asked to take a lease's key back, and with which command. By hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asynclock import _clock
from asynclock._engine.grant import Grant
from asynclock._engine.restoring import Restores
from asynclock._nodes.link import LATE_TIMER_FACTOR
from asynclock._nodes.replies import Failure
from asynclock._primitives import lock
from asynclock._rules import validity
from tests.waiting import in_virtual_time

TTL, NODE_TIMEOUT = 10.0, 0.25
SPEC = lock.spec("p:", "a")


class Place:
    """Three nodes, of which node 2 lacks the key of a lease with fence 10."""

    def __init__(self, *, forgot: float = 1.0, votes: float = 0.0, guard: bool = True) -> None:
        now = _clock.now()
        self.sent: list[tuple[tuple[Any, ...], int]] = []
        self.sinks: list[Any] = []
        self.again: list[float] = []
        self.limits: list[float] = []
        self.known = True
        self.node = SimpleNamespace(
            settings=SimpleNamespace(restart_guard=guard, node_timeout=NODE_TIMEOUT),
            trust=SimpleNamespace(remembers_from=now + forgot, votes_from=now + votes),
            obstacle=lambda _now: self.obstacle,
            ask=self.ask,
        )
        self.obstacle: Failure | None = None
        nodes: Any = SimpleNamespace(
            nodes=[None, None, self.node],
            fence_floor=lambda _now: self.limits.append(0.0),
            not_after=self.not_after,
        )
        self.grant = Grant(SPEC, "me", 10, TTL, now + TTL, (0, 1), now, None)
        self.grant.check_at(now + 3)
        self.restores = Restores(nodes, 5000, lambda _grant, at: self.again.append(at))

    def ask(self, command: Any, sink: Any, index: int) -> None:
        self.sent.append((command.args, index))
        self.sinks.append(sink)

    def not_after(self, until: float) -> int:
        self.limits.append(until)
        return 77 if self.known else 0

    def missing(self) -> None:
        self.restores.missing(self.grant, 2)


@in_virtual_time
async def test_a_node_that_forgot_the_key_is_sent_the_owners_acquire_again() -> None:
    place, now = Place(), _clock.now()
    place.missing()
    acquire = ("acquire", "me", 10_000, 10, 77, 5000, 0, "me", 0, 1)
    assert place.sent == [(acquire, 2)]
    assert place.limits == [0.0, now + LATE_TIMER_FACTOR * NODE_TIMEOUT], "clocks are read first"
    assert place.restores.under_way == {("me", 2)}
    place.missing()
    assert len(place.sent) == 1, "a request is under way"
    place.sinks[0].on_reply(2, [1, 12, b"", 0])
    assert place.restores.under_way == set()
    assert place.grant.restored == {2: now}
    assert (place.grant.top, place.again) == (12, [])


@in_virtual_time
async def test_the_request_is_too_late_when_the_lease_is_over() -> None:
    place = Place()
    place.grant.valid_until = _clock.now() + NODE_TIMEOUT
    place.missing()
    assert place.limits[1] == place.grant.valid_until


@pytest.mark.parametrize(
    ("forgot", "votes", "settings"),
    [(-1.0, -2.0, {}), (0.0, 0.0, {}), (1.0, 0.0, {"guard": False})],
    ids=["before the lease", "at its first moment", "without the guard"],
)
def test_a_key_that_was_deleted_by_hand_stays_deleted(
    forgot: float, votes: float, settings: dict[str, bool]
) -> None:
    @in_virtual_time
    async def test() -> None:
        place = Place(forgot=forgot, votes=votes, **settings)
        place.missing()
        assert (place.sent, place.again) == ([], [])

    test()


@in_virtual_time
async def test_a_node_without_a_vote_is_asked_when_it_has_one() -> None:
    """It was no voter when the lease was won, or forgot it since."""
    place = Place(forgot=-5.0, votes=2.0)
    place.missing()
    assert place.sent == []
    assert place.again == [_clock.now() + 2.0]


@in_virtual_time
async def test_a_node_that_can_be_asked_for_nothing_is_asked_at_the_next_renewal() -> None:
    for unable in ("obstacle", "clocks"):
        place = Place()
        if unable == "obstacle":
            place.obstacle = Failure("away")
        else:
            place.known = False
        place.missing()
        assert (place.sent, place.again) == ([], [])
        assert place.restores.under_way == set()


@in_virtual_time
async def test_a_node_that_took_the_key_back_once_is_not_asked_for_the_same_loss() -> None:
    place = Place()
    place.missing()
    place.sinks[0].on_reply(2, [1, 10, b"", 0])
    place.grant.restored[2] = place.node.trust.remembers_from
    place.missing()
    assert len(place.sent) == 1
    place.node.trust.remembers_from += 1.0
    place.missing()
    assert len(place.sent) == 2, "it forgot the key again"


@in_virtual_time
async def test_a_node_that_refused_or_did_not_answer_is_asked_again_soon() -> None:
    for reply in ([0, 12], Failure("away")):
        place = Place()
        place.missing()
        place.sinks[0].on_reply(2, reply)
        assert place.again == [validity.retry_at(_clock.now(), TTL)]
        assert place.restores.under_way == set()
        assert place.grant.restored == {}


@in_virtual_time
async def test_an_answer_that_comes_after_the_lease_changes_nothing() -> None:
    for reply in ([1, 12, b"", 0], [0, 12], Failure("away")):
        place = Place()
        place.missing()
        place.grant.over()
        place.sinks[0].on_reply(2, reply)
        assert (place.again, place.grant.restored, place.grant.top) == ([], {}, 10)
        assert place.restores.under_way == set()


@pytest.mark.parametrize("voter", [True, False])
def test_a_node_whose_first_grant_counted_may_count_again(*, voter: bool) -> None:
    """Any other one has at most this request, whose grant counts as a first one."""

    @in_virtual_time
    async def test() -> None:
        place = Place()
        place.grant.voters = (0, 2) if voter else (0, 1)
        place.missing()
        assert place.sinks[0].voted is voter

    test()
