"""How a survey reads replies and joins queues, and how a monitor tells ends apart: no nodes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.reports import NodeHealth
from asynclock._inspect.layout import PARTS, KeyRef
from asynclock._inspect.monitor import Monitor, _seen_node
from asynclock._inspect.states import SharedState
from asynclock._inspect.survey import Survey, _escaped, _KeyScan, _Known, _queues
from asynclock._nodes.cluster.node import ClusterNode
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import Command
from asynclock._nodes.server import ServerNode
from asynclock._primitives.kind import StateView

# ---- queues --------------------------------------------------------------------------------------


def scan(error: str | None = None, **queues: list[str]) -> Any:
    """A node that keeps these tickets in queues of many names."""
    kept = {
        KeyRef(name, suffix): [
            [ticket.encode(), b"%d" % at, b"", b"%d" % at] for at, ticket in enumerate(some)
        ]
        for suffix, some in queues.items()
        for name in NAMES
    }
    return SimpleNamespace(error=error, queues=kept)


NAMES = [f"n{number}" for number in range(30)]
"""So many that no order is right by chance."""


def tickets(*scans: Any) -> dict[tuple[str, str], list[str]]:
    return {key: [one.ticket for one in queue] for key, queue in _queues(scans).items()}


def test_queues_of_a_kind_come_in_the_order_of_its_declaration() -> None:
    found = tickets(scan(slots=["a", "b"], collectors=["c"], phases=["d"], upgraders=["e"]))
    assert found == {
        **{(name, "semaphore"): ["a", "b", "c"] for name in NAMES},
        **{(name, "rwlock"): ["d", "e"] for name in NAMES},
    }


def test_a_silent_node_has_no_say_about_queues() -> None:
    assert tickets(scan(queue=["a"]), scan("no answer"))["n0", "lock"] == ["a"]
    assert tickets(scan("no answer", queue=["a"]), scan(), scan()) == {}


def test_a_queue_of_tickets_that_most_nodes_lack_is_left_out() -> None:
    assert tickets(scan(queue=["a"]), scan(), scan()) == {}
    assert tickets(scan(), scan(queue=["a"]), scan(queue=["a"]))["n29", "lock"] == ["a"]


# ---- replies -------------------------------------------------------------------------------------

QUEUE, MUTEX, EVENT = KeyRef("a", "queue"), KeyRef("a"), KeyRef("a", "event")
AWAY, NEVER = Failure("no answer"), Failure("NOPERM not you", permanent=True)
FOREIGN = Failure("WRONGTYPE another kind of value", permanent=True)


@pytest.mark.parametrize(
    ("key", "reply", "error"),
    [
        (QUEUE, [], None),
        (QUEUE, NEVER, None),
        (QUEUE, AWAY, "no answer"),
        (MUTEX, AWAY, "no answer"),
        (MUTEX, NEVER, "NOPERM not you"),
        (EVENT, NEVER, "NOPERM not you"),
        (MUTEX, FOREIGN, None),
        (EVENT, FOREIGN, None),
    ],
    ids=[
        "a queue",
        "a queue that the user may not read",
        "a queue of a node that is away",
        "a lock of a node that is away",
        "a lock that the user may not read",
        "an event that the user may not read",
        "no lock",
        "no event",
    ],
)
def test_which_reply_is_an_error_of_the_node(key: KeyRef, reply: Any, error: str | None) -> None:
    node: Any = SimpleNamespace(address="n0")
    one = _KeyScan(node, _Known("p:", None))
    one._record(key, reply)
    assert one.error == error
    assert list(one.queues) == ([key] if key is QUEUE and error is None else [])
    assert not one.views
    assert not one.states


class NoPrimaries(ClusterNode):
    """A Cluster that answers, but whose primaries are not known, before or after."""

    def __init__(self, reply: Any) -> None:
        self.address = "cluster n0"
        self._reply = reply

    @property
    def shards(self) -> tuple[ServerNode, ...]:
        return ()

    def ask(self, command: Command, sink: Any, index: int, *, arm: bool = False) -> None:
        sink.on_reply(index, self._reply)


@pytest.mark.parametrize(
    ("reply", "error"), [([[None]], "its primaries are not known"), (AWAY, "no answer")]
)
async def test_a_cluster_without_a_known_primary_is_not_listed_as_empty(
    reply: Any, error: str
) -> None:
    one = _KeyScan(NoPrimaries(reply), _Known("p:", None))
    await one.run()
    assert one.error == error


def test_a_state_that_is_gone_is_no_state() -> None:
    """Its key went between the page of keys and the question."""
    node: Any = SimpleNamespace(address="n0")
    one = _KeyScan(node, _Known("p:", None))
    one._record(EVENT, [1, 0, None, -2, 7])
    assert not one.states
    one._record(EVENT, [1, 3, b"set", 5000, 7])
    assert one.states[EVENT] == StateView("n0", 3, "set", 5.0, 7)


@pytest.mark.parametrize(("now", "waiting"), [(5, 2), (10, 1), (20, 0)])
def test_a_party_that_crashed_at_a_barrier_waits_no_longer(now: int, waiting: int) -> None:
    """By the clock of the node that told the state."""
    text = json.dumps([3, 0, {"one": 10, "other": 20}, [], False, []])
    part: Any = PARTS["barrier"][1]
    state = SharedState("b", part, (StateView("n0", 1, text, 5.0, now),), 1).state
    assert state is not None
    assert state["waiting"] == waiting


@pytest.mark.parametrize("mark", "*?[]\\")
def test_a_mark_of_patterns_stands_for_itself(mark: str) -> None:
    assert _escaped(f"a{mark}b") == f"a\\{mark}b"


# ---- what a monitor makes of it ------------------------------------------------------------------


def held(left: float | None) -> Survey:
    view = NodeView("n0", "a" * 32, left, 1)
    return Survey([Inspection("a", (view,), 1)])


async def test_each_part_of_one_owner_is_a_lease_of_its_own() -> None:
    view = NodeView("n0", "a" * 32, 4.0, 1)
    parts = [Inspection("a", (view,), 1, "semaphore", part) for part in ("0", "1")]
    monitor = Monitor()
    await monitor._compare(Survey(parts), 0.0)
    assert [part for _, part, _ in monitor.leases] == ["0", "1"]
    await monitor._compare(Survey(parts[1:]), 1.0)
    assert monitor.counts == {"released": 1}


@pytest.mark.parametrize(
    ("looks", "end"),
    [
        ([(0.0, 4.0), (3.0, None)], "released"),
        ([(0.0, 4.0), (3.4, None)], "released"),
        ([(0.0, 4.0), (3.6, None)], "ran out"),
        ([(0.0, 10.0), (9.0, 10.0), (11.0, None)], "released"),
        ([(0.0, 10.0), (9.0, 1.0), (9.7, None)], "ran out"),
    ],
    ids=["early", "just before", "near its end", "renewed", "not renewed"],
)
async def test_a_lease_that_is_gone_ran_out_if_it_had_no_time_left(
    looks: list[tuple[float, float | None]], end: str
) -> None:
    monitor = Monitor()
    for at, left in looks:
        await monitor._compare(Survey([]) if left is None else held(left), at)
    assert monitor.counts == {end: 1}


@pytest.mark.parametrize(
    ("left", "gap", "counts"),
    [(10.0, 60.0, {}), (10.0, 5.1, {"released": 1}), (4.0, 5.0, {"ran out": 1}), (4.0, 5.1, {})],
)
async def test_a_lease_that_ended_while_nobody_looked_did_not_run_out(
    left: float, gap: float, counts: dict[str, int]
) -> None:
    """Its holder may have renewed and then released it."""
    monitor = Monitor()
    await monitor._compare(held(left), 0.0)
    await monitor._compare(Survey([]), gap)
    assert monitor.counts == counts
    assert [one.how for one in monitor.ended] == list(counts)


@pytest.mark.parametrize(
    ("cause", "reply", "shown"),
    [("", b"", ""), ("gone", b"", "gone"), ("", AWAY, "no answer"), ("gone", AWAY, "gone")],
    ids=["none", "of the node", "of the reply", "of both"],
)
def test_why_a_node_is_not_up_or_says_nothing(cause: str, reply: Any, shown: str) -> None:
    health = NodeHealth("n0", "down" if cause else "up", cause, 0.0, None, None, None)
    assert _seen_node(health, reply).cause == shown
