"""What becomes of one command to a Cluster, by the replies and the states of its servers."""

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.cluster import ParkedCommands, RoutedCommand
from asynclock._nodes.node import NodeSettings
from asynclock._nodes.wire import Command, Failure
from asynclock._primitives.lock import SCRIPT
from tests.waiting import in_virtual_time

NODE_TIMEOUT = 0.25
MOVED = Failure("MOVED 1 10.0.0.2:7000", code="MOVED")
ASK = Failure("ASK 1 10.0.0.2:7000", code="ASK")
OOM = Failure("OOM no memory", code="OOM")
NO_VOTE = Failure("votes in 5.0 s")
GRANT, REFUSAL = [1, 5, 0], [0, 100, "you"]
VOTES = ("acquire", "read", "prepare", "accept")


class Cluster:
    """A Cluster of which every server is the same one."""

    round_trip: float | None = None
    settings = NodeSettings(
        NODE_TIMEOUT, 10.0, restart_guard=True, guard_first=True, clock_guard=True, disks_kept=False
    )
    address = "10.0.0.1:7000"

    def __init__(
        self,
        reply: Any = None,
        *,
        votes_in: float = 0.0,
        renews_in: float = 0.0,
        no_vote: Failure | None = None,
    ) -> None:
        now = _clock.now()
        self.reply = reply
        """What answers each command; None: no answer yet."""
        self.trust = SimpleNamespace(votes_from=now + votes_in, renews_from=now + renews_in)
        self.no_vote = no_vote
        self.asked: list[str] = []
        self.sinks: list[Any] = []
        self.kept: list[Any] = []
        self.looks = 0
        self.pending = SimpleNamespace(keep=self._keep)
        self.parked = ParkedCommands()
        self.claiming: dict[Any, Any] = {}
        self.owners: dict[int, Any] = {}
        here = dict.fromkeys((("10.0.0.1", 7000), ("10.0.0.2", 7000)), self)
        self.primaries: dict[Any, Any] = {("10.0.0.9", 9): None, **here}

    # a server

    def obstacle(self, _now: float) -> Failure | None:
        return self.no_vote

    def ask(self, command: Command, sink: Any, index: int) -> None:
        self.asked += [str(one.op) for one in (command.first, command) if one is not None]
        assert len(self.asked) < 100, "it follows redirects for ever"
        self.sinks.append(sink)
        if self.reply is not None:
            sink.on_reply(index, self.reply)

    def deliver(self, command: Command, sink: Any, index: int) -> None:
        self.asked.append("to be delivered")
        self.ask(command, sink, index)

    # the Cluster

    def home(self, _keys: tuple[str, ...]) -> Any:
        return self

    def look_again(self) -> None:
        self.looks += 1

    def park(self, command: RoutedCommand) -> None:
        until, why = command.until - _clock.now(), Failure("no view")
        self.parked.keep(command, until, lambda: command.fail(why))

    def _keep(self, command: Command) -> Any:
        self.kept.append(command.owner)
        return SimpleNamespace(retry_later=lambda: None)

    def send(
        self, op: str, *, keys: tuple[str, ...] = ("k",), **how: bool
    ) -> tuple[RoutedCommand, list[Any]]:
        """Send an operation; return the command, and the list of its answers."""
        answers: list[Any] = []
        sink: Any = SimpleNamespace(on_reply=lambda _index, reply: answers.append(reply))
        cluster: Any = self
        command = RoutedCommand(cluster, Command(SCRIPT, keys, (op, "me")), sink, 0, **how)
        command.go()
        return command, answers


TOLD = Failure("10.0.0.1:7000: votes in 5.0 s")


@pytest.mark.parametrize(
    ("op", "reply", "state", "answer"),
    [
        *((op, GRANT, {"no_vote": NO_VOTE}, TOLD) for op in VOTES),
        *((op, GRANT, {"no_vote": NO_VOTE}, GRANT) for op in ("extend", "release", "inspect")),
        *((op, GRANT, {"votes_in": -60}, GRANT) for op in VOTES),
        *((op, GRANT, {}, GRANT) for op in VOTES),
        *((op, GRANT, {"votes_in": 60}, None) for op in VOTES),
        *((op, REFUSAL, {"votes_in": 60}, REFUSAL) for op in VOTES),
        *((op, GRANT, {"renews_in": 60}, None) for op in ("extend", "raise")),
        *((op, GRANT, {}, GRANT) for op in ("extend", "raise")),
        ("inspect", GRANT, {"renews_in": 60}, GRANT),
    ],
)
@in_virtual_time
async def test_a_reply_counts_only_from_a_server_that_may_give_it(
    op: str, reply: Any, state: dict[str, Any], answer: Any
) -> None:
    """No guard makes a refusal wrong, and a look is no vote."""
    cluster = Cluster(reply, **state)
    _, (found,) = cluster.send(op)
    assert isinstance(found, Failure) if answer is None else found == answer
    assert len(cluster.asked) == (0 if answer is TOLD else 1)


@pytest.mark.parametrize(
    ("op", "state"), [*((op, {"votes_in": 1}) for op in VOTES), ("extend", {"renews_in": 1})]
)
@in_virtual_time
async def test_a_vote_asked_for_after_the_quarantine_counts(op: str, state: dict[str, Any]) -> None:
    """A reply that comes later may be of a moment at which the server had no vote."""
    cluster = Cluster(**state)
    _, answers = cluster.send(op)
    await asyncio.sleep(2)
    cluster.sinks[0].on_reply(0, GRANT)
    assert [type(one) for one in answers] == [Failure]


@in_virtual_time
async def test_nothing_comes_between_the_permission_for_a_moving_slot_and_its_command() -> None:
    """A server forgets the permission with the next command, whatever it is."""
    cluster = Cluster()
    cluster.send("acquire", arm=True)
    cluster.sinks[0].on_reply(0, ASK)
    assert cluster.asked[-3:] == ["acquire", "ASKING", "acquire"]


@in_virtual_time
async def test_an_owner_claims_its_key_until_the_answer() -> None:
    cluster = Cluster()
    first, _ = cluster.send("acquire")
    assert cluster.claiming == {"me": first}
    second, _ = cluster.send("acquire")
    cluster.sinks[0].on_reply(0, REFUSAL)
    assert cluster.claiming == {"me": second}, "an earlier answer ends no later claim"
    cluster.sinks[1].on_reply(0, REFUSAL)
    assert cluster.claiming == {}


@in_virtual_time
async def test_an_error_makes_the_view_doubtful() -> None:
    """Perhaps another server has its slots by now."""
    cluster = Cluster(OOM)
    _, (answer,) = cluster.send("acquire")
    assert (answer.cause, cluster.looks) == (f"10.0.0.1:7000: {OOM.cause}", 1)
    cluster.reply = GRANT
    cluster.send("acquire")
    assert cluster.looks == 1


def unmet() -> Any:
    return asynclock.connect("redis+cluster://10.255.255.1:7000")._engine.multiplexer.nodes[0]


@in_virtual_time
async def test_a_server_of_a_cluster_that_connects_later_is_refused_as_well() -> None:
    cluster = unmet()
    cluster.on_connect = lambda _node: None
    cluster.rejected = Failure("one server under two addresses", permanent=True)
    assert cluster.obstacle(_clock.now()) is cluster.rejected
    shard: Any = SimpleNamespace(trust=SimpleNamespace(facts=None), rejected=None)
    cluster._shard_connected(shard)
    assert shard.rejected is cluster.rejected


@in_virtual_time
async def test_a_redirect_is_not_followed_after_a_release() -> None:
    cluster = Cluster()
    command, answers = cluster.send("acquire")
    assert not command.give_up(), "it may have been executed"
    cluster.sinks[0].on_reply(0, MOVED)
    assert [one.cause for one in answers] == ["given up before it was executed"]
    assert len(cluster.asked) == 1


@in_virtual_time
async def test_only_the_present_servers_of_a_cluster_have_clocks() -> None:
    cluster = unmet()
    heard: list[Any] = []
    here, gone = (SimpleNamespace(check_clock=lambda: heard.append("asked")) for _ in range(2))
    cluster.primaries["h", 1] = here
    cluster.on_jump = lambda *jump: heard.append(jump)
    cluster._shard_jumped(gone, 1.0)
    assert heard == []
    cluster.check_clock()
    assert heard == ["asked"]


@in_virtual_time
async def test_a_view_that_cannot_be_read_is_read_again() -> None:
    cluster = unmet()
    cluster._look = list[Any]().pop
    keeping = asyncio.create_task(cluster.keep())
    await asyncio.sleep(3)
    assert "IndexError" in cluster.cause(_clock.now())
    cluster.pending.keep(Command(SCRIPT, ("k",), ("release", "me")).resent(0.0, inf))
    assert keeping.cancel(), "it goes on"
    await asyncio.wait([keeping])
    assert len(cluster.pending) == 0, "no timer stays"


@pytest.mark.parametrize(
    ("redirect", "asked", "looks"),
    [("MOVED 1 10.0.0.3:7", 1, 0), ("ASK 1 10.0.0.3:7", 1, 0), ("MOVED 1 :7000", 6, 5)],
)
@in_virtual_time
async def test_only_redirects_in_the_view_are_followed(
    redirect: str, asked: int, looks: int
) -> None:
    cluster = Cluster(Failure(redirect, code=redirect.split(maxsplit=1)[0]))
    command, _ = cluster.send("acquire")
    assert (len(cluster.asked), cluster.looks) == (asked, looks)
    assert (cluster.parked.drop(command), bool(cluster.owners)) == (asked == 1, asked > 1)
