"""When deployments count as ready, and how they fail over; the test plays their servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from asynclock.testing import (
    RedisCluster,
    Replicated,
    SentinelGroup,
    ServerReplyError,
    ServerStartError,
)
from asynclock.testing.topology.cluster import _differences, _moving, _NodeReport, _view
from asynclock.testing.topology.replicated import in_sync
from tests.waiting import in_virtual_time

Replies = dict[str, Any]


class Server:
    """Notes what it is asked in the log of all, and gives the replies that the test has set."""

    log: ClassVar[list[str]] = []

    def __init__(self, port: int = 1, *, alive: bool = True, **_: Any) -> None:
        self.host, self.port = "h", port
        self.alive, self.frozen = alive, False
        self.replies: Replies = {}
        self.closed = False

    @property
    def url(self) -> str:
        return f"redis://h:{self.port}"

    def close(self) -> None:
        self.closed = True

    async def kill(self) -> None:
        self.note("kill")
        self.alive = False

    async def thaw(self) -> None:
        self.note("thaw")
        self.frozen = False

    async def start(self) -> None:
        if not self.alive:
            self.note("start")
        self.alive = True

    async def restart(self) -> None:
        self.note("restart")

    def note(self, what: str) -> None:
        self.log.append(f"{self.port} {what}")

    async def command(self, *words: Any) -> Any:
        said = " ".join(map(str, words))
        reply = self.replies.get(said, "OK")
        if reply == "OK":
            self.note(said)
        reply = reply() if callable(reply) else reply
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture(autouse=True)
def log() -> list[str]:
    """The log of a test is its own."""
    Server.log.clear()
    return Server.log


def several(*ports: int) -> list[Any]:
    return [Server(port) for port in ports]


def primary_of(*replicas: Server, offset: int = 100, port: int = 1) -> Any:
    primary = Server(port)
    info = f"role:master\r\nmaster_repl_offset:{offset}"
    primary.replies = {"INFO replication": info, f"WAIT {len(replicas)} 1000": len(replicas)}
    return primary


def follows(replica: Server, port: int = 1, *, link: str = "up", offset: int = 100) -> None:
    text = f"master_port:{port}\r\nmaster_link_status:{link}\r\nslave_repl_offset:{offset}"
    replica.replies = {"INFO replication": text}


# ---- replicas -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_replica_is_in_sync_once_it_has_all_and_its_primary_knows() -> None:
    wrong: list[Callable[[Any, Any], None]] = [
        lambda _, other: follows(other, offset=99),
        lambda _, other: follows(other, link="down"),
        lambda _, other: follows(other, 3),
        lambda _, other: other.replies.update({"INFO replication": "role:master"}),
        lambda primary, _: primary.replies.update({"WAIT 2 1000": 1}),
        lambda primary, _: primary.replies.update({"WAIT 2 1000": ServerReplyError("no")}),
    ]
    for change in wrong:
        one, other = several(2, 3)
        follows(one)
        follows(other, offset=101)
        primary = primary_of(one, other)
        good = [dict(server.replies) for server in (primary, other)]
        change(primary, other)
        waiting = asyncio.ensure_future(in_sync(primary, [one, other]))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        primary.replies, other.replies = good
        await waiting


@in_virtual_time
async def test_replicas_that_are_never_in_sync_are_counted_in_the_error() -> None:
    one, other = several(2, 3)
    with pytest.raises(TimeoutError, match=r"30.* s: 2 replicas in sync with redis://h:1"):
        await in_sync(Server(1), [one, other])  # type: ignore[arg-type, list-item]  # played


class Group(Replicated):
    """A deployment whose servers are played."""

    _server = Server  # type: ignore[assignment]  # it has what is used of a LocalServer


def group_of(count: int) -> Any:
    group = Group(count - 1)
    for number, server in enumerate(group.servers, 1):
        server.__init__(number)  # type: ignore[misc]  # a new one with a number
    return group


def all_follow(group: Any, port: int) -> None:
    for server in group.servers:
        follows(server, port)
        if server.port == port:
            info = {"INFO replication": "master_repl_offset:100"}
            counts = {f"WAIT {n} 1000": n for n in range(5)}
            server.replies = {**info, **counts}


@in_virtual_time
async def test_the_first_replica_that_runs_takes_the_place_of_a_killed_primary() -> None:
    group = group_of(5)
    group.servers[1].alive = False
    group.servers[2].frozen = True
    all_follow(group, 4)
    assert await group.fail_over() is group.servers[3]
    assert group.primary is group.servers[3]
    assert Server.log == ["1 kill", "4 REPLICAOF NO ONE", "5 REPLICAOF h 4"]


@in_virtual_time
async def test_in_an_orderly_failover_the_old_primary_follows_the_new_one() -> None:
    group = group_of(3)
    all_follow(group, 2)
    await group.fail_over(kill=False)
    assert Server.log == ["2 REPLICAOF NO ONE", "1 REPLICAOF h 2", "3 REPLICAOF h 2"]


@in_virtual_time
async def test_a_repair_thaws_starts_and_arranges_and_then_waits() -> None:
    group = group_of(3)
    all_follow(group, 1)
    follows(group.servers[2], 9)
    group.servers[0].frozen, group.servers[1].alive = True, False
    repair = asyncio.ensure_future(group.repair())
    await asyncio.sleep(0.2)
    assert Server.log == ["1 thaw", "2 start", "2 REPLICAOF h 1", "3 REPLICAOF h 1"]
    assert not repair.done()
    follows(group.servers[2])
    await repair


@in_virtual_time
async def test_servers_of_a_deployment_that_does_not_begin_are_ended() -> None:
    group = group_of(2)
    group.servers[1].replies["REPLICAOF h 1"] = ServerReplyError("no")
    with pytest.raises(ServerReplyError):
        async with group:
            pass
    assert [server.closed for server in group.servers] == [True] * 2


@in_virtual_time
async def test_a_start_that_fails_is_the_error_of_its_deployment() -> None:
    group = group_of(3)

    async def fails() -> None:
        raise ServerStartError("no memory")

    group.servers[1].start = fails
    with pytest.raises(ServerStartError, match="no memory"):
        async with group:
            pass
    assert [server.closed for server in group.servers] == [True] * 3


@in_virtual_time
async def test_a_failover_is_over_once_those_who_run_are_in_sync() -> None:
    """A replica that is dead is none that must be."""
    group = group_of(4)
    all_follow(group, 2)
    group.servers[3].alive, group.servers[3].replies = False, {}
    follows(group.servers[2], 2, offset=99)
    moves = asyncio.ensure_future(group.fail_over())
    await asyncio.sleep(0.2)
    assert not moves.done()
    follows(group.servers[2], 2)
    assert await moves is group.servers[1]


# ---- Sentinels ----------------------------------------------------------------------------------


def replica_line(port: int, *, flags: str = "slave", link: str = "ok") -> list[str]:
    return ["name", "x", "port", str(port), "flags", flags, "master-link-status", link]


def sentinel(port: int, names: int = 1, *replicas: list[str]) -> Any:
    made = Server(port)
    made.replies = {
        "SENTINEL CKQUORUM main": "OK 3 usable",
        "SENTINEL REPLICAS main": list(replicas),
        "SENTINEL GET-MASTER-ADDR-BY-NAME main": ["h", str(names)],
        "INFO sentinel": "sentinel_tilt:0",
    }
    return made


@pytest.fixture
def watched() -> Any:
    """A group whose servers and Sentinels are played."""
    group: Any = SentinelGroup(2, 3, service="main")
    group.close()
    group.servers = several(1, 2, 3)
    group.primary = group.servers[0]
    lines = replica_line(2), replica_line(3)
    group.sentinels = [sentinel(port, 1, *lines) for port in (11, 12, 13)]
    return group


@in_virtual_time
async def test_sentinels_agree_once_each_that_runs_sees_all_and_could_fail_over() -> None:
    group: Any = SentinelGroup(2, 3, service="main")
    group.close()
    group.servers = several(1, 2, 3)
    group.primary = group.servers[0]
    good = replica_line(2), replica_line(3)
    group.sentinels = [sentinel(port, 1, *good) for port in (11, 12, 13)]
    assert await group._agreed()
    last = group.sentinels[2]
    for bad in (
        sentinel(13, 1, replica_line(2)),
        sentinel(13, 1, replica_line(2), replica_line(3, flags="slave,disconnected")),
        sentinel(13, 1, replica_line(2), replica_line(3, link="err")),
        sentinel(13, 2, *good),
    ):
        group.sentinels[2] = bad
        assert not await group._agreed()
        bad.frozen = True
        assert await group._agreed(), "it is asked only while it runs"
    group.sentinels[2] = last
    last.replies["SENTINEL CKQUORUM main"] = ServerReplyError("NOQUORUM")
    with pytest.raises(ServerReplyError):
        await group._agreed()
    group.servers[2].alive = False
    group.sentinels = [sentinel(11, 1, replica_line(2))]
    assert await group._agreed(), "a dead replica is none that must be seen"


def test_a_failover_of_sentinels_ends_when_all_name_the_same_new_primary(watched: Any) -> None:
    @in_virtual_time
    async def play() -> None:
        all_follow(watched, 2)
        watched.servers[1].replies["ROLE"] = ["master"]
        turns = iter([[1, 1, 1], [2, 1, 1], [2, 2, 3], [2, 2, 2]])
        now: list[int] = []

        def name(at: int) -> Callable[[], list[str]]:
            def reply() -> list[str]:
                if at == 0:
                    now[:] = next(turns)
                return ["h", str(now[at])]

            return reply

        for at, one in enumerate(watched.sentinels):
            one.replies["SENTINEL GET-MASTER-ADDR-BY-NAME main"] = name(at)
        assert await watched.fail_over() is watched.servers[1]
        assert list(turns) == []
        assert watched.primary is watched.servers[1]
        assert Server.log == ["1 kill"], "a dead primary is told nothing"

    play()


def test_an_ordered_failover_asks_one_sentinel_and_the_old_primary_follows(watched: Any) -> None:
    @in_virtual_time
    async def play() -> None:
        all_follow(watched, 3)
        watched.servers[2].replies["ROLE"] = ["master"]
        for one in watched.sentinels:
            one.replies["SENTINEL GET-MASTER-ADDR-BY-NAME main"] = ["h", "3"]
        assert await watched.fail_over(kill=False) is watched.servers[2]
        assert Server.log == ["11 SENTINEL FAILOVER main", "1 REPLICAOF h 3"]

    play()


@in_virtual_time
async def test_a_group_is_ready_once_its_sentinels_agree_too(watched: Any) -> None:
    all_follow(watched, 1)
    good = watched.sentinels[1]
    watched.sentinels[1] = sentinel(12, 1, replica_line(2))
    ready = asyncio.ensure_future(watched.ready())
    await asyncio.sleep(0.2)
    assert not ready.done()
    watched.sentinels[1] = good
    await ready


@in_virtual_time
async def test_a_replica_that_sentinels_name_is_not_the_primary_before_it_says_so(
    watched: Any,
) -> None:
    all_follow(watched, 2)
    heir = watched.servers[1]
    heir.replies["ROLE"] = ["slave"]
    for one in watched.sentinels:
        one.replies["SENTINEL GET-MASTER-ADDR-BY-NAME main"] = ["h", "2"]
    moves = asyncio.ensure_future(watched.failed_over(watched.servers[0]))
    await asyncio.sleep(0.2)
    assert not moves.done()
    heir.replies["ROLE"] = ["master"]
    assert await moves is heir


def test_a_group_that_ends_ends_its_sentinels(watched: Any) -> None:
    watched.close()
    assert all(one.closed for one in (*watched.servers, *watched.sentinels))


# ---- a Cluster ----------------------------------------------------------------------------------

NODES = """\
id1 h:1@10001,name myself,master - 0 0 1 connected 0-5460 [7->-id2]
id2 h:2@10002 master - 0 0 2 connected 5461-16383
id3 h:3@10003 slave id1 0 0 1 connected
id4 h:4@10004 master,fail - 0 0 4 disconnected
"""
SLOTS = [[0, 5460, ["h", 1, "id1"], ["h", 3, "id3"]], [5461, 16383, ["h", 2, "id2"]]]


def member(nodes: str = NODES, state: str = "ok", slots: Any = SLOTS) -> Any:
    made = Server(1)
    made.replies = {
        "CLUSTER INFO": f"cluster_state:{state}\r\ncluster_slots_assigned:16384",
        "CLUSTER NODES": nodes,
        "CLUSTER SLOTS": slots,
    }
    return made


FACTS = frozenset(
    {
        "1 id1 master - 1 0-5460 [7->-id2]",
        "2 id2 master - 2 5461-16383",
        "3 id3 slave id1 1",
    }
)


@in_virtual_time
async def test_a_member_is_believed_that_sees_all_who_run() -> None:
    running = {1, 2, 3}
    assert await _view(member(), running) == _NodeReport("h:1", FACTS)
    failed = "cluster_state:fail"
    assert await _view(member(state="fail"), running) == _NodeReport("h:1", FACTS, (failed,))
    hidden = [SLOTS[0][:3], SLOTS[1]]
    doubt = "does not show 3 to clients"
    assert await _view(member(slots=hidden), running) == _NodeReport("h:1", FACTS, (doubt,))
    gone = member()
    gone.replies["CLUSTER NODES"] = ServerReplyError("LOADING")
    assert await _view(gone, running) == _NodeReport("h:1", doubts=("can't be asked: LOADING",))
    for line, bad in (
        (
            "id3 h:3@10003 slave id1 0 0 1 connected",
            "id3 h:3@10003 slave,fail? id1 0 0 1 connected",
        ),
        (
            "id2 h:2@10002 master - 0 0 2 connected 5461-16383",
            "id2 h:2@10002 master - 0 0 2 disconnected 5461-16383",
        ),
    ):
        assert (await _view(member(NODES.replace(line, bad)), running)).doubts == (bad,)
    found = await _view(member(), {1, 2, 3, 4})
    assert found.doubts == (NODES.splitlines()[3], "does not show 4 to clients")


def test_slots_that_a_member_moves_are_named_by_itself() -> None:
    assert _moving(NODES) == ["7"]
    assert _moving(NODES.replace("[7->-id2]", "[7->-id2] [12-<-id2]")) == ["7", "12"]
    assert _moving(NODES.replace(" [7->-id2]", "")) == []


def test_members_that_disagree_are_named_with_what_only_they_say() -> None:
    views = [
        _NodeReport("a", frozenset({"x", "y"}), ("odd",)),
        _NodeReport("b", frozenset({"x", "w", "z"})),
        _NodeReport("c", frozenset({"x"})),
    ]
    assert list(_differences(views)) == ["a: odd", "a says: y", "b says: w", "b says: z"]
    assert list(_differences([])) == []


def test_the_primary_of_a_shard_is_asked_for_and_replaced() -> None:
    @in_virtual_time
    async def play() -> None:
        cluster: Any = RedisCluster(2, 1)
        cluster.close()
        cluster.servers = several(1, 2, 3, 4)
        one, two, three, four = cluster.servers
        for server, role in ((one, "slave"), (two, "master"), (three, "master"), (four, "slave")):
            server.replies["ROLE"] = [role]
        assert await cluster.primary() is two
        assert await cluster.primary(1) is three
        ready: list[str] = []

        async def noted() -> None:
            ready.append("ready")

        cluster.ready = noted

        async def promoted(server: Server) -> None:
            server.note("promoted")
            server.replies["ROLE"] = ["master"]

        three_killed, three.kill = three.kill, lambda: _both(three, four)

        async def _both(old: Any, heir: Any) -> None:
            await three_killed()
            await promoted(heir)

        assert await cluster.fail_over(shard=1) is four
        assert (Server.log, ready) == (["3 kill", "4 promoted"], ["ready"])
        Server.log.clear()
        two.replies["ROLE"], one.replies["ROLE"] = ["master"], ["slave"]

        def takes_over() -> str:
            one.replies["ROLE"], two.replies["ROLE"] = ["master"], ["slave"]
            one.note("told")
            return "OK"

        one.replies["CLUSTER FAILOVER"] = takes_over
        assert await cluster.fail_over(kill=False) is one
        assert (Server.log, ready) == (["1 told"], ["ready"] * 2)
        one.alive = False
        with pytest.raises(TimeoutError, match="no primary in the shard"):
            await cluster.primary()

    play()


@in_virtual_time
async def test_a_repair_of_a_cluster_calls_off_each_move() -> None:
    cluster: Any = RedisCluster(1, 1)
    cluster.close()
    cluster.servers = several(1, 2)
    for server, moves in zip(cluster.servers, (" [7->-id2] [9-<-id2]", ""), strict=True):
        server.replies["CLUSTER NODES"] = f"id h:1@2 myself,master - 0 0 1 connected 0-9{moves}\n"
    await cluster._arrange()
    assert Server.log == ["1 CLUSTER SETSLOT 7 STABLE", "1 CLUSTER SETSLOT 9 STABLE"]
