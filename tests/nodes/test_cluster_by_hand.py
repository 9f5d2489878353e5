"""A Cluster that the test makes up: what a command does there, and what its servers tell."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.cluster.parked import ParkedCommands
from asynclock._nodes.cluster.route import ASKING, RoutedCommand
from asynclock._nodes.cluster.shards import ClusterTrust
from asynclock._nodes.cluster.slots import (
    SLOTS,
    View,
    confirmations,
    read_view,
    read_views,
    why_none,
)
from asynclock._nodes.node import NodeSettings
from asynclock._nodes.poll import SILENT
from asynclock._nodes.record import CACHING
from asynclock._nodes.replies import NOBODY, Failure
from asynclock._nodes.script import Command
from asynclock._primitives.lock import SCRIPT
from tests.nodes.test_acks_rules import Heard
from tests.waiting import in_virtual_time


class Shard:
    address = "10.0.0.1:7000"
    tracking = False
    round_trip = None
    lack: Failure | None = None

    def __init__(
        self, reply: Any = None, renews_from: float = 0.0, votes_from: float = 0.0
    ) -> None:
        self.reply = reply
        """What answers each command; None: no answer yet."""
        self.asked = self.delivered = 0
        self.commands: list[Command] = []
        self.sinks: list[Any] = []
        self.trust = SimpleNamespace(votes_from=votes_from, renews_from=renews_from)
        self.no_vote: Failure | None = None
        self.noted: list[Failure | None] = []

    def obstacle(self, _now: float) -> Failure | None:
        return self.no_vote

    def note(self, answer: Failure | None) -> None:
        self.noted.append(answer)

    def ask(self, command: Command, sink: Any, index: int) -> None:
        self.commands.append(command)
        if sink is NOBODY:
            return
        self.asked += 1
        assert self.asked < 100, "it follows redirects for ever"
        self.sinks.append(sink)
        if self.reply is not None:
            sink.on_reply(index, self.reply)

    def deliver(self, command: Command, sink: Any, index: int) -> None:
        self.delivered += 1
        self.ask(command, sink, index)


class OneShard:
    """A cluster of which every server is the same."""

    round_trip: float | None = None
    settings = NodeSettings(0.25, 10.0, restart_guard=True, guard_first=True, clock_guard=True)

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.parked = ParkedCommands(lambda: Failure("no view"))
        self.claiming: dict[Any, Any] = {}
        self.looks = 0
        self.kept: list[Command] = []

    def owner(self, _slot: int) -> Any:
        return self.shard

    def shard_at(self, _address: Any) -> Any:
        return self.shard

    def address_of(self, _shard: Any) -> tuple[str, int]:
        return "10.0.0.1", 7000

    def moved(self, slot: int, shard: Any) -> None: ...

    def look_again(self) -> None:
        self.looks += 1

    def keep_release(self, command: Command) -> None:
        self.kept.append(command)


def send(
    cluster: OneShard,
    *words: Any,
    keys: Sequence[str] = ("k",),
    release: bool = False,
    arm: bool = False,
) -> tuple[RoutedCommand, Heard]:
    """Send a command through a cluster."""
    heard, made_up = Heard(), cast("Any", cluster)
    asked = Command(SCRIPT, keys, words)
    command = RoutedCommand(made_up, asked, heard, 0, release=release, arm=arm)
    command.go()
    return command, heard


def routed(shard: Shard, *words: Any) -> Any:
    _, heard = send(OneShard(shard), *words)
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
    assert isinstance(routed(later, "raise", 1, 1, "me"), Failure)
    assert routed(later, "inspect") == [b"1", 1], "a look is no vote"


NO_VOTE = Failure("votes in 5.0 s")
MOVED = Failure("MOVED 1 10.0.0.2:7000", code="MOVED")


@pytest.mark.parametrize("operation", ["acquire", "read", "prepare", "accept"])
def test_a_server_that_has_no_vote_is_not_asked_for_one(operation: str) -> None:
    shard = Shard([1, 5, 0])
    shard.no_vote = NO_VOTE
    assert routed(shard, operation, "me").cause == "10.0.0.1:7000: votes in 5.0 s"
    assert shard.asked == 0
    for other in ("extend", "release", "inspect"):
        assert routed(shard, other, "me") == [1, 5, 0]


@pytest.mark.parametrize("operation", ["acquire", "read", "prepare", "accept"])
def test_a_grant_does_not_count_whose_server_lost_its_vote_meanwhile(operation: str) -> None:
    now = _clock.now()
    assert routed(Shard([1, 5, 0], votes_from=now - 60), operation, "me") == [1, 5, 0]
    later = Shard([1, 5, 0], votes_from=now + 60)
    assert isinstance(routed(later, operation, "me"), Failure)
    refusing = Shard([0, 100, "you"], votes_from=now + 60)
    assert routed(refusing, operation, "me") == [0, 100, "you"], "no guard makes a refusal wrong"


@pytest.mark.parametrize("operation", ["acquire", "read", "prepare", "accept"])
@in_virtual_time
async def test_a_vote_counts_that_was_asked_for_when_the_quarantine_was_over(
    operation: str,
) -> None:
    """A reply that comes later may be of a moment at which the server had no vote."""
    now = _clock.now()
    assert routed(Shard([1, 5, 0], votes_from=now), operation, "me") == [1, 5, 0]
    before = Shard(votes_from=now + 1)
    _, heard = send(OneShard(before), operation, "me")
    await asyncio.sleep(2)
    before.sinks[0].on_reply(0, [1, 5, 0])
    (answer,) = heard.answers
    assert isinstance(answer, Failure)


@in_virtual_time
async def test_a_renewal_counts_that_was_asked_for_when_the_old_primary_was_out() -> None:
    now = _clock.now()
    assert routed(Shard([1, 1], renews_from=now), "extend", "me") == [1, 1]
    before = Shard(renews_from=now + 1)
    _, heard = send(OneShard(before), "extend", "me")
    await asyncio.sleep(2)
    before.sinks[0].on_reply(0, [1, 1])
    (answer,) = heard.answers
    assert isinstance(answer, Failure)


def test_a_server_is_asked_for_a_push_only_if_it_can_send_one() -> None:
    shard = Shard([0, 100, "you"])
    send(OneShard(shard), "acquire", "me", arm=True)
    assert [command.op for command in shard.commands] == ["acquire"]
    shard.tracking = True
    send(OneShard(shard), "acquire", "me")
    assert [command.op for command in shard.commands] == ["acquire"] * 2
    send(OneShard(shard), "acquire", "me", arm=True)
    assert shard.commands[2] is CACHING
    assert shard.commands[3].op == "acquire"


def test_nothing_comes_between_the_permission_for_a_moving_slot_and_its_command() -> None:
    """A server forgets the permission with the next command, whatever it is."""
    shard = Shard()
    shard.tracking = True
    send(OneShard(shard), "acquire", "me", arm=True)
    shard.sinks[0].on_reply(0, Failure("ASK 1 10.0.0.2:7000", code="ASK"))
    assert shard.commands[-2] is ASKING
    assert shard.commands[-1].op == "acquire"
    assert shard.commands[-3] is CACHING


def test_keys_in_two_slots_are_a_mistake() -> None:
    shard = Shard([1, 5, 0])
    _, heard = send(OneShard(shard), "acquire", "me", keys=("a", "b"))
    (answer,) = heard.answers
    assert answer.permanent
    assert "different slots" in answer.cause
    assert shard.asked == 0


def test_an_owner_claims_its_key_until_the_answer() -> None:
    shard = Shard()
    cluster = OneShard(shard)
    first, _ = send(cluster, "acquire", "me")
    assert cluster.claiming == {"me": first}
    second, _ = send(cluster, "acquire", "me")
    shard.sinks[0].on_reply(0, [0, 100, "you"])
    assert cluster.claiming == {"me": second}, "an earlier answer ends no later claim"
    shard.sinks[1].on_reply(0, [0, 100, "you"])
    assert cluster.claiming == {}


def test_a_command_under_way_follows_no_redirect_after_its_release() -> None:
    shard = Shard()
    command, heard = send(OneShard(shard), "acquire", "me")
    assert not command.give_up(), "it may have been executed"
    shard.sinks[0].on_reply(0, MOVED)
    (answer,) = heard.answers
    assert answer.cause == "given up before it was executed"
    assert shard.asked == 1


def test_redirects_are_followed_a_few_times_and_not_after_the_timeout() -> None:
    shard = Shard(MOVED)
    _, heard = send(OneShard(shard), "acquire", "me")
    assert heard.answers == [MOVED]
    assert 2 < shard.asked < 10
    late = Shard()
    command, heard = send(OneShard(late), "acquire", "me")
    command.until = _clock.now() - 0.001
    late.sinks[0].on_reply(0, MOVED)
    assert heard.answers == [MOVED]
    assert late.asked == 1


def test_a_release_is_delivered_and_kept_if_it_fails() -> None:
    cluster = OneShard(Shard(MOVED))
    send(cluster, "release", "me", release=True)
    assert cluster.shard.delivered == cluster.shard.asked
    assert [kept.owner for kept in cluster.kept] == ["me"]
    send(cluster, "acquire", "me")
    assert len(cluster.kept) == 1


@pytest.mark.parametrize(
    ("failure", "operation", "noted"),
    [
        (Failure("OOM no memory", code="OOM"), "acquire", True),
        (Failure("OOM no memory", code="OOM"), "extend", False),
        (Failure("no answer within 1 s"), "acquire", False),
    ],
)
def test_an_error_is_told_with_its_server_and_makes_the_view_doubtful(
    failure: Failure, operation: str, noted: bool
) -> None:
    shard = Shard(failure)
    cluster = OneShard(shard)
    _, heard = send(cluster, operation, "me")
    assert [answer.cause for answer in heard.answers] == [f"10.0.0.1:7000: {failure.cause}"]
    assert cluster.looks == 1, "perhaps another server has its slots by now"
    assert shard.noted == [failure] * noted


def test_a_vote_ends_what_a_server_lacked() -> None:
    shard = Shard([1, 5, 0])
    shard.lack = Failure("OOM no memory", code="OOM")
    routed(shard, "extend", "me")
    assert shard.noted == []
    routed(shard, "acquire", "me")
    assert shard.noted == [None]


FIRST, SECOND, REPLICA = ("a", 1), ("b", 1), ("c", 1)


def seen(epoch: int, owner: tuple[str, int]) -> View:
    view = read_view(owner, [[0, SLOTS - 1, [owner[0].encode(), owner[1]]]], b"x:1")
    assert view is not None
    view.epoch = epoch
    return view


def test_only_primaries_confirm_a_primary() -> None:
    """Its replicas may be cut off together with it."""
    slots = [[0, 5000, [b"a", 1], [b"c", 1]], [5001, SLOTS - 1, [b"b", 1]]]
    view = read_view(FIRST, slots, b"cluster_current_epoch:4\r\n")
    assert view is not None
    assert (view.epoch, view.others) == (4, {REPLICA})
    assert view.owners[0] == view.owners[5000] == FIRST
    assert view.owners[5001] == view.owners[-1] == SECOND
    assert [shard.replicas for shard in view.shards.values()] == [1, 0]
    assert confirmations(view, {FIRST: view, REPLICA: view}) == {FIRST: 1, SECOND: 1}
    assert confirmations(view, {FIRST: view, SECOND: view}) == {FIRST: 2, SECOND: 2}
    other = seen(5, SECOND)
    assert confirmations(view, {FIRST: view, SECOND: other}) == {FIRST: 1, SECOND: 2}


@pytest.mark.parametrize("host", [None, b"", b"?"])
def test_a_server_that_does_not_know_its_host_is_the_one_that_was_asked(host: bytes | None) -> None:
    view = read_view(("asked", 7), [[0, SLOTS - 1, [host, 7]]], b"")
    assert view is not None
    assert list(view.shards) == [("asked", 7)]
    assert view.epoch == 0


def test_a_server_without_a_view_has_none() -> None:
    slots, error = [[0, SLOTS - 1, [b"a", 1]]], Failure("no answer")
    assert read_view(FIRST, [], b"") is None
    assert read_view(FIRST, error, b"") is None
    assert read_view(FIRST, slots, error) is None, "without its epoch"
    views, failures = read_views([FIRST, SECOND], [[slots, b""], [b"?", b""]])
    assert list(views) == [FIRST]
    assert ["can't be read" in failure.cause for failure in failures] == [True]


WRONG = Failure("WRONGPASS invalid", permanent=True)
LOST = Failure("connection lost")


@pytest.mark.parametrize(
    ("failures", "cause", "permanent"),
    [
        ([], "none are assigned", False),
        ([SILENT], "none are assigned", False),
        ([WRONG, WRONG], r"\(WRONGPASS invalid\)", True),
        ([WRONG, SILENT], r"\(WRONGPASS invalid\)", True),
        ([WRONG, LOST], r"\(WRONGPASS invalid; connection lost\)", False),
    ],
)
def test_why_no_server_has_a_view(failures: list[Failure], cause: str, permanent: bool) -> None:
    found = why_none(failures)
    assert re.search(cause, found.cause)
    assert found.permanent is permanent


async def test_a_server_of_a_cluster_that_connects_later_is_refused_as_well() -> None:
    locks = asynclock.connect("redis+cluster://10.255.255.1:7000")
    cluster: Any = locks._engine.multiplexer.nodes[0]
    cluster.on_connect = lambda _node: None
    cluster.rejected = Failure("one server under two addresses", permanent=True)
    shard: Any = SimpleNamespace(trust=SimpleNamespace(facts=None), rejected=None)
    cluster._shard_connected(shard)
    assert shard.rejected is cluster.rejected
