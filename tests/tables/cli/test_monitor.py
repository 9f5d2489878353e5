"""How a monitor tells ends apart, and how a survey reads replies: tables of looks and replies."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock._engine.engine import NodeHealth
from asynclock._engine.inspection import Inspection, NodeView
from asynclock._inspect.monitor import Monitor, _seen_node, doubts
from asynclock._inspect.survey import SharedState, Survey, _KeyScan, held
from asynclock._nodes.cluster import ClusterNode
from asynclock._nodes.wire import Failure
from asynclock._primitives.kinds import PARTS, KeyRef
from asynclock._primitives.shared.register import StateView
from asynclock.cli.inspect import with_missing_votes
from asynclock.fleet import clients_of
from asynclock.manager import engine_of
from asynclock.testing import memory_node
from tests.engine.virtual_nodes import instead
from tests.waiting import in_virtual_time

NODES = ("memory://a", "memory://b", "memory://c")
AWAY, NEVER = Failure("no answer"), Failure("NOPERM not you", permanent=True)
FOREIGN = Failure("WRONGTYPE another kind of value", permanent=True)


# ---- what has changed ----------------------------------------------------------------------------
def look(*parts: tuple[str, float]) -> Survey:
    """Parts of a name with the seconds that are left of each."""
    return Survey(
        [
            Inspection("a", (NodeView("n0", "a" * 32, left, 1),), 1, "semaphore", part)
            for part, left in parts
        ]
    )


@pytest.mark.parametrize(
    ("looks", "ends"),
    [
        ([(0.0, [("0", 4.0)]), (3.0, [])], ["released"]),
        ([(0.0, [("0", 4.0)]), (3.4, [])], ["released"]),
        ([(0.0, [("0", 10.0)]), (9.0, [("0", 10.0)]), (11.0, [])], ["released"]),
        ([(0.0, [("0", 10.0)]), (9.0, [("0", 1.0)]), (9.7, [])], ["ran out"]),
        ([(0.0, [("0", 4.0)]), (3.0, [("0", 1.0)]), (8.0, [])], ["ran out"]),
        ([(0.0, [("0", 9.0), ("1", 9.0)]), (1.0, [("1", 9.0)])], ["released"]),
        # Its holder renewed it each time, so it was probably released between two looks.
        ([(0.0, [("0", 1.0)]), (0.6, [("0", 0.7)]), (1.6, [])], ["ended"]),
        # It was seen once, so nobody knows whether its holder has renewed it.
        ([(0.0, [("0", 4.0)]), (3.6, [])], ["ended"]),
        # Its holder may have renewed and then released it while nobody looked.
        ([(0.0, [("0", 10.0)]), (60.0, [])], []),
        ([(0.0, [("0", 10.0)]), (9.0, [("0", 1.0)]), (60.0, [])], []),
        ([(0.0, [("0", 10.0)]), (5.1, [])], ["released"]),
    ],
    ids=[
        *("early", "just before", "renewed", "not renewed", "soon enough", "each part"),
        *("short", "once", "nobody_looked", "nobody looked at its end", "long ago"),
    ],
)
async def test_how_a_lease_that_is_gone_has_ended(
    looks: list[tuple[float, list[tuple[str, float]]]], ends: list[str]
) -> None:
    monitor = Monitor()
    for at, parts in looks:
        await monitor._compare(look(*parts), at)
    assert monitor.totals == dict.fromkeys(ends, 1)
    assert [one.how for one in monitor.ended] == ends


@in_virtual_time
async def test_what_happened_between_two_looks_is_counted() -> None:
    monitor, quick = Monitor(), {"restart_guard": False, "ttl": 10.0, "node_timeout": 0.2}
    async with (
        asynclock.connect(*NODES, **quick) as others,
        asynclock.connect(*NODES, **quick) as locks,
    ):

        async def seen(**counts: int) -> None:
            await monitor.refresh(locks)
            assert monitor.totals == {name.replace("_", " "): n for name, n in counts.items()}

        before = await locks.lock("before").acquire()
        await seen()  # what was held at the start was not acquired since
        first = await locks.lock("first").acquire()
        await locks.lock("dies", renew=False).acquire()
        await asyncio.sleep(1.0)
        await seen(acquired=2)
        await first.release()
        await seen(acquired=2, released=1)
        await seen(acquired=2, released=1)
        await before.release()
        before = await others.lock("before").acquire()  # another lease of the same name
        await seen(acquired=3, released=2)
        await (await locks.lock("rests", at_least=11.0).acquire()).release()
        await seen(acquired=3, released=2)
        assert doubts(monitor, "asynclock:", 10.0) == [], "a rest may be longer than a lease"
        assert len(monitor.leases) == 3
        for _ in range(13):
            await asyncio.sleep(1.0)
            await monitor.refresh(locks)
        await seen(acquired=3, released=2, ran_out=1)
        (one,) = monitor.leases.values()
        assert one.last_seen - one.first_seen == pytest.approx(13.0, abs=0.1)
        # While no node answers nothing is known to have changed.
        for url in NODES:
            memory_node(url).freeze()
        await seen(acquired=3, released=2, ran_out=1)
        assert len(monitor.leases) == 1
        assert monitor.trouble is not None
        assert monitor.trouble.level == "red"
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await held(engine_of(locks))
        assert caught.value.nodes.keys() == {*NODES}
        for url in NODES[1:]:
            memory_node(url).thaw()
        await before.release()
        await seen(acquired=3, released=3, ran_out=1)  # two of three nodes are enough to tell


@in_virtual_time
async def test_what_a_server_says_of_itself() -> None:
    monitor = Monitor()
    async with asynclock.connect(*NODES) as locks:
        answer, more = memory_node("a").answer, b"tracking_total_keys:5\r\nconnected_clients:9\r\n"

        def tells(words: Any) -> Any:
            return answer(None, words) + more if words[0] == b"INFO" else None

        instead(memory_node("a"), tells)
        await locks.ready()
        await monitor.refresh(locks)
    one, other, _ = monitor.nodes
    assert (one.health.node, one.cause, one.watched, one.clients) == ("memory://a", "", "5", "9")
    assert (other.watched, other.clients) == ("", "")


@pytest.mark.parametrize(
    ("cause", "reply", "shown"),
    [("", b"", ""), ("gone", b"", "gone"), ("", AWAY, "no answer"), ("gone", AWAY, "gone")],
)
def test_why_a_node_is_not_up_or_says_nothing(cause: str, reply: Any, shown: str) -> None:
    health = NodeHealth("n0", "down" if cause else "up", cause, 0.0, None, None, None)
    assert _seen_node(health, reply).cause == shown


def test_which_nodes_have_no_vote() -> None:
    """A node that does not answer is named for that alone."""
    states = ("up", "quarantined", "rejected", "down", "stalled", "connecting", "rejected")
    health = [
        NodeHealth(f"n{at}", state, f"why {at}", 0.0, None, None, None)
        for at, state in enumerate(states)
    ]
    locks: Any = SimpleNamespace(nodes=lambda: health)
    found = with_missing_votes(Survey([], {"n6": "no answer"}), locks)
    assert found.without_vote == {"n1": "why 1", "n2": "why 2"}


@pytest.mark.parametrize(
    ("replies", "clients"),
    [
        ([None, ValueError()], None),
        ([b""], ()),
        ([b"id=1 name=asynclock:0a1b:web-1 age=3\n"], [("web-1", "other")]),
    ],
)
def test_clients_that_nobody_may_list_are_not_none(replies: Any, clients: Any) -> None:
    found = clients_of(None, replies)
    assert (found and [(one.label, one.uses) for one in found]) == clients


# ---- replies -------------------------------------------------------------------------------------
QUEUE, MUTEX, EVENT = KeyRef("a", "queue"), KeyRef("a"), KeyRef("a", "event")


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
        # Its key went between the page of keys and the question.
        (EVENT, [1, 0, None, -2, 7], None),
    ],
)
def test_which_reply_is_an_error_of_the_node(key: KeyRef, reply: Any, error: str | None) -> None:
    node: Any = SimpleNamespace(address="n0")
    one = _KeyScan(node, "p:", dict[bytes, KeyRef]().get)
    one._note(key, reply)
    assert one.error == error
    assert list(one.queues) == ([key] if key is QUEUE and error is None else [])
    assert not one.views
    assert not one.states
    one._note(EVENT, [1, 3, b"set", 5000, 7])
    assert one.states[EVENT] == StateView("n0", 3, "set", 5.0, 7)


class NoPrimaries(ClusterNode):
    """A Cluster that answers, but whose primaries are not known, before or after."""

    shards = ()  # type: ignore[assignment]

    def __init__(self, reply: Any) -> None:
        self.address = "cluster n0"
        self._reply = reply

    def ask(self, command: Any, sink: Any, index: int, *, arm: bool = False) -> None:
        sink.on_reply(index, self._reply)


@pytest.mark.parametrize(
    ("reply", "error"), [([[None]], "its primaries are not known"), (AWAY, "no answer")]
)
async def test_a_cluster_without_known_primaries_is_not_empty(reply: Any, error: str) -> None:
    one = _KeyScan(NoPrimaries(reply), "p:", dict[bytes, KeyRef]().get)
    await one.run()
    assert one.error == error


@pytest.mark.parametrize(("now", "waiting"), [(5, 2), (10, 1), (20, 0)])
def test_a_party_that_crashed_at_a_barrier_waits_no_longer(now: int, waiting: int) -> None:
    """By the clock of the node that told the state."""
    text = json.dumps([3, 0, {"one": 10, "other": 20}, [], False, []])
    part: Any = PARTS["barrier"][1]
    state = SharedState("b", part, (StateView("n0", 1, text, 5.0, now),), 1).state
    assert state is not None
    assert state["waiting"] == waiting
