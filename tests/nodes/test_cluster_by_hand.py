"""A Cluster that the test makes up: what a command does there, and what its servers tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import asynclock
from asynclock import _clock
from asynclock._nodes.cluster.parked import ParkedCommands
from asynclock._nodes.cluster.route import RoutedCommand
from asynclock._nodes.cluster.shards import ClusterTrust
from asynclock._nodes.node import NodeSettings
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import Command
from asynclock._primitives.lock import SCRIPT
from tests.nodes.test_acks_rules import Heard


class Shard:
    address = "10.0.0.1:7000"
    tracking = False
    round_trip = None
    lack = None

    def __init__(self, reply: Any, renews_from: float = 0.0) -> None:
        self.reply = reply
        self.asked = 0
        self.trust = SimpleNamespace(votes_from=0.0, renews_from=renews_from)

    def obstacle(self, _now: float) -> None: ...

    def note(self, _answer: Any) -> None: ...

    def ask(self, _command: Command, sink: Any, index: int) -> None:
        self.asked += 1
        assert self.asked < 100, "it follows redirects for ever"
        sink.on_reply(index, self.reply)

    deliver = ask


class OneShard:
    """A cluster of which every server is the same."""

    round_trip: float | None = None
    settings = NodeSettings(0.25, 10.0, restart_guard=True, guard_first=True, clock_guard=True)

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.parked = ParkedCommands(lambda: Failure("no view"))
        self.claiming: dict[Any, Any] = {}

    def owner(self, _slot: int) -> Any:
        return self.shard

    def shard_at(self, _address: Any) -> Any:
        return self.shard

    def address_of(self, _shard: Any) -> tuple[str, int]:
        return "10.0.0.1", 7000

    def moved(self, slot: int, shard: Any) -> None: ...

    def look_again(self) -> None: ...


def routed(shard: Shard, *words: Any) -> Any:
    heard, cluster = Heard(), OneShard(shard)
    RoutedCommand(cluster, Command(SCRIPT, ("k",), words), heard, 0).go()  # type: ignore[arg-type]
    (answer,) = heard.answers
    return answer


async def test_a_release_that_is_tried_again_is_not_done() -> None:
    parked = ParkedCommands(lambda: Failure("no view"))
    release: Any = SimpleNamespace(release=True, go=lambda: None)
    assert not parked.releases
    parked.retry(release)
    assert parked.releases
    assert parked.drop(release)
    assert not parked.releases


def test_the_clock_of_a_cluster_is_that_of_the_server_most_ahead() -> None:
    """So no server takes a request for late that comes in time."""
    nodes: Any = {n: SimpleNamespace(trust=SimpleNamespace(offset=n / 10)) for n in range(3)}
    assert ClusterTrust(10.0, nodes).offset == 0.2
    nodes[3] = SimpleNamespace(trust=SimpleNamespace(offset=None))
    assert ClusterTrust(10.0, nodes).offset is None


def test_a_renewal_on_a_server_that_was_promoted_a_moment_ago_does_not_count() -> None:
    """Others may still be granted the name by the primary before."""
    assert routed(Shard([b"1", 1]), "extend", 1, 1, "me") == [b"1", 1]
    later = Shard([b"1", 1], renews_from=_clock.now() + 60)
    assert isinstance(routed(later, "extend", 1, 1, "me"), Failure)


async def test_a_server_of_a_cluster_that_connects_later_is_refused_as_well() -> None:
    locks = asynclock.connect("redis+cluster://10.255.255.1:7000")
    cluster: Any = locks._engine.multiplexer.nodes[0]
    cluster.on_connect = lambda _node: None
    cluster.rejected = Failure("one server under two addresses", permanent=True)
    shard: Any = SimpleNamespace(trust=SimpleNamespace(facts=None), rejected=None)
    cluster._shard_connected(shard)
    assert shard.rejected is cluster.rejected
