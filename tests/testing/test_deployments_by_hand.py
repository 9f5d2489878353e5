"""When deployments count as ready, and how they fail over; the test plays their servers."""

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
from tests.waiting import go_through, in_virtual_time

INFO, SENTINEL = "INFO replication", "SENTINEL {} main".format
NAMED = SENTINEL("GET-MASTER-ADDR-BY-NAME")


class Server:
    """Notes what it is told in the log of all, and gives the replies that the test has set."""

    log: ClassVar[list[str]] = []

    def __init__(self, port: int = 0, **_: Any) -> None:
        self.host, self.port, self.url = "h", port, f"redis://h:{port}"
        self.alive, self.frozen, self.closed = True, False, False
        self.replies: dict[str, Any] = {}

    def __str__(self) -> str:
        return self.url

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

    def leads(self) -> None:
        self.replies |= {"ROLE": ["master"], INFO: "role:master\r\nmaster_repl_offset:100"}
        self.replies |= {f"WAIT {n} 1000": n for n in range(5)}

    def follows(self, port: int) -> None:
        self.replies |= {"ROLE": ["slave"], INFO: follows(port)}


def follows(port: int, *, link: str = "up", offset: int = 101) -> str:
    return f"master_port:{port}\r\nmaster_link_status:{link}\r\nslave_repl_offset:{offset}"


def replica(port: int, *, flags: str = "slave", link: str = "ok") -> list[str]:
    """What a Sentinel says of a replica."""
    return ["name", "x", "port", str(port), "flags", flags, "master-link-status", link]


NODES = """\
id1 h:1@10001 master - 0 0 1 connected 0-5460
id2 h:2@10002 slave id1 0 0 1 connected
id3 h:3@10003 master - 0 0 2 connected 5461-16383
id4 h:4@10004 slave id3 0 0 2 connected
id5 h:5@10005 master,fail - 0 0 4 disconnected
"""
SLOTS = [
    [0, 5460, ["h", 1, "id1"], ["h", 2, "id2"]],
    [5461, 16383, ["h", 3, "id3"], ["h", 4, "id4"]],
]


async def waits(call: Any, then: Callable[[], object]) -> Any:
    """See that a call goes on; then do what it waits for, and return its result."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.2)
    assert not task.done()
    then()
    return await task


class Played:
    """A deployment that is ready."""

    def __init__(self, kind: str) -> None:
        Server.log.clear()
        made: dict[str, Callable[[], Any]] = {
            "replicas": lambda: Replicated(4),
            "sentinels": lambda: SentinelGroup(2, service="main"),
            "cluster": lambda: RedisCluster(2, 1),
        }
        self.group = made[kind]()
        self.group.close()
        count = {"replicas": 5, "sentinels": 3, "cluster": 4}[kind]
        self.group.servers = [Server(port) for port in range(1, count + 1)]
        if kind != "cluster":
            self.group.primary = self.group.servers[0]
        self.all: dict[int, Server] = {one.port: one for one in self.group.servers}
        self.follow(1)
        if kind == "sentinels":
            self.group.sentinels = [Server(port) for port in (11, 12, 13)]
            for one in self.group.sentinels:
                self.all[one.port] = one
                one.replies = {
                    SENTINEL("CKQUORUM"): "OK 3 usable",
                    SENTINEL("REPLICAS"): [replica(2), replica(3)],
                    NAMED: ["h", "1"],
                    "INFO sentinel": "sentinel_tilt:0",
                }
        if kind == "cluster":
            self.all[3].leads()
            self.all[4].follows(3)
            for port, server in self.all.items():
                own = NODES.replace(f"@1000{port} ", f"@1000{port},name myself,")
                server.replies |= {
                    "CLUSTER INFO": "cluster_state:ok\r\ncluster_slots_assigned:16384",
                    "CLUSTER NODES": own,
                    "CLUSTER SLOTS": SLOTS,
                }

    def follow(self, port: int) -> None:
        for server in self.group.servers:
            server.follows(port)
        self.all[port].leads()


def changed(port: int, old: str, new: str) -> str:
    """What a member of a Cluster says if a word of it is different."""
    said: str = Played("cluster").all[port].replies["CLUSTER NODES"]
    assert old in said
    return said.replace(old, new)


GONE = ServerReplyError("LOADING")
HIDDEN = [SLOTS[0][:3], SLOTS[1]]
SEEN = SENTINEL("REPLICAS")


# ---- when they are ready -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "port", "command", "reply"),
    [
        ("replicas", 3, INFO, follows(1, offset=99)),
        ("replicas", 3, INFO, follows(1, link="down")),
        ("replicas", 3, INFO, follows(2)),
        ("replicas", 3, INFO, "role:master"),
        ("replicas", 1, "WAIT 4 1000", 3),
        ("replicas", 1, "WAIT 4 1000", GONE),
        ("sentinels", 3, INFO, follows(1, link="down")),
        ("sentinels", 13, SENTINEL("CKQUORUM"), GONE),
        ("sentinels", 13, SEEN, [replica(2)]),
        ("sentinels", 13, SEEN, [replica(2), replica(3, flags="slave,disconnected")]),
        ("sentinels", 13, SEEN, [replica(2), replica(3, link="err")]),
        ("sentinels", 13, NAMED, ["h", "2"]),
        ("cluster", 4, INFO, follows(3, offset=99)),
        ("cluster", 2, "CLUSTER INFO", "cluster_state:fail"),
        ("cluster", 2, "CLUSTER NODES", GONE),
        ("cluster", 2, "CLUSTER SLOTS", HIDDEN),
        ("cluster", 2, "CLUSTER NODES", changed(2, "h:4@10004 slave", "h:4@10004 slave,fail?")),
        ("cluster", 2, "CLUSTER NODES", changed(2, "2 connected 5", "2 disconnected 5")),
        ("cluster", 2, "CLUSTER NODES", changed(2, "0 0 2 connected 5", "0 0 3 connected 5")),
    ],
)
@in_virtual_time
async def test_what_a_deployment_waits_for(kind: str, port: int, command: str, reply: Any) -> None:
    played = Played(kind)
    replies = played.all[port].replies
    await played.group.ready()
    good, replies[command] = replies[command], reply
    await waits(played.group.ready(), lambda: replies.update({command: good}))


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        ("replicas", {(3, INFO): GONE}, ["4 replicas in sync with redis://h:1"]),
        ("sentinels", {(13, NAMED): ["h", "2"]}, ["all sentinels see main complete"]),
        (
            "cluster",
            {(1, "CLUSTER INFO"): "cluster_state:fail", (2, "CLUSTER SLOTS"): HIDDEN}
            | {(3, "CLUSTER NODES"): changed(3, "5461-16383", "5461-16383 [7->-id1]")}
            | {(4, "CLUSTER NODES"): changed(4, "h:2@10002 slave", "h:2@10002 slave,fail")},
            [
                "all cluster nodes are content and of one opinion",
                "h:1: cluster_state:fail",
                "h:1 says: 2 id2 slave id1 1",
                "h:1 says: 3 id3 master - 2 5461-16383",
                "h:2: does not show 2 to clients",
                "h:2 says: 2 id2 slave id1 1",
                "h:2 says: 3 id3 master - 2 5461-16383",
                "h:3 says: 2 id2 slave id1 1",
                "h:3 says: 3 id3 master - 2 5461-16383 [7->-id1]",
                "h:4: id2 h:2@10002 slave,fail id1 0 0 1 connected",
                "h:4 says: 2 id2 slave,fail id1 1",
                "h:4 says: 3 id3 master - 2 5461-16383",
            ],
        ),
    ],
    ids=["replicas", "sentinels", "cluster"],
)
@in_virtual_time
async def test_a_deployment_that_is_never_ready_says_why(
    kind: str, wrong: dict[tuple[int, str], Any], said: list[str]
) -> None:
    played = Played(kind)
    for (port, command), reply in wrong.items():
        played.all[port].replies[command] = reply
    with pytest.raises(TimeoutError, match=r"not within 30.* s: ") as caught:
        await played.group.ready()
    assert str(caught.value).partition(" s: ")[2].splitlines() == said


@in_virtual_time
async def test_a_member_of_a_cluster_that_does_not_answer_is_named() -> None:
    played = Played("cluster")
    played.all[2].replies["CLUSTER NODES"] = GONE
    with pytest.raises(TimeoutError, match="\nh:2: can't be asked: LOADING\n"):
        await played.group.ready()


@pytest.mark.parametrize("state", ["frozen", "dead"])
@pytest.mark.parametrize(
    ("kind", "port"), [("replicas", 3), ("sentinels", 3), ("sentinels", 13), ("cluster", 2)]
)
@in_virtual_time
async def test_only_servers_that_run_are_asked(kind: str, port: int, state: str) -> None:
    played = Played(kind)
    one = played.all[port]
    one.frozen, one.alive = state == "frozen", state != "dead"
    one.replies = dict.fromkeys(one.replies, GONE)
    await played.group.ready()


# ---- how they fail over --------------------------------------------------------------------------
@in_virtual_time
async def test_the_first_replica_that_runs_takes_the_place_of_a_killed_primary() -> None:
    played = Played("replicas")
    played.follow(4)
    played.all[2].alive, played.all[3].frozen = False, True
    played.all[5].replies[INFO] = follows(4, offset=99)
    heir = await waits(played.group.fail_over(), lambda: played.all[5].follows(4))
    assert heir is played.group.primary is played.all[4]
    assert Server.log == ["1 kill", "4 REPLICAOF NO ONE", "5 REPLICAOF h 4"]


@in_virtual_time
async def test_in_an_orderly_failover_the_old_primary_follows_the_new_one() -> None:
    played = Played("replicas")
    played.follow(2)
    await played.group.fail_over(kill=False)
    assert Server.log == ["2 REPLICAOF NO ONE", *(f"{n} REPLICAOF h 2" for n in (1, 3, 4, 5))]


@in_virtual_time
async def test_a_repair_thaws_starts_and_arranges_and_then_waits() -> None:
    played = Played("replicas")
    played.all[1].frozen, played.all[2].alive = True, False
    played.all[3].replies[INFO] = follows(9)
    await waits(played.group.repair(), lambda: played.all[3].follows(1))
    assert Server.log == ["1 thaw", "2 start", *(f"{n} REPLICAOF h 1" for n in (2, 3, 4, 5))]


@in_virtual_time
async def test_a_repair_starts_a_sentinel_again_that_mistrusts_its_clock() -> None:
    played = Played("sentinels")
    played.all[12].replies["INFO sentinel"] = "sentinel_tilt:1"
    await played.group.repair()
    assert [line for line in Server.log if "restart" in line] == ["12 restart"]


@in_virtual_time
async def test_servers_of_a_deployment_that_does_not_begin_are_ended() -> None:
    """And the error is that of the first step that failed."""

    async def fails() -> None:
        raise ServerStartError("no memory")

    for step in ("start", "arrange"):
        played = Played("replicas")
        if step == "start":
            played.all[2].start = fails  # type: ignore[method-assign]
        else:
            played.all[2].replies["REPLICAOF h 1"] = GONE
        with pytest.raises(ServerStartError if step == "start" else ServerReplyError):
            await go_through(played.group)
        assert all(server.closed for server in played.group.servers)


@pytest.mark.parametrize("kill", [True, False])
@in_virtual_time
async def test_a_failover_of_sentinels_ends_when_all_name_the_same_new_primary(kill: bool) -> None:
    """And when that one says so itself. A dead primary is told nothing, another one follows."""
    played = Played("sentinels")
    played.follow(2)
    heir = played.all[2]
    turns = [[1, 1, 1], [2, 1, 1], [2, 2, 3], [2, 2, 2], [2, 2, 2]]
    named: list[int] = []
    heir.replies["ROLE"] = lambda: ["slave" if turns else "master"]

    def named_by(at: int) -> Callable[[], list[str]]:
        def reply() -> list[str]:
            if at == 0:
                named[:] = turns.pop(0)
            return ["h", str(named[at])]

        return reply

    for at, one in enumerate(played.group.sentinels):
        one.replies[NAMED] = named_by(at)
    assert await played.group.fail_over(kill=kill) is heir is played.group.primary
    assert turns == []
    assert Server.log == (["1 kill"] if kill else ["11 SENTINEL FAILOVER main", "1 REPLICAOF h 2"])


@in_virtual_time
async def test_the_primary_of_a_shard_is_asked_for_and_replaced() -> None:
    played = Played("cluster")
    group, (one, two, three, four) = played.group, played.all.values()
    assert [await group.primary(shard) for shard in (0, 1)] == [one, three]
    one.replies["CLUSTER INFO"] = "cluster_state:fail"

    def content() -> None:
        one.replies["CLUSTER INFO"] = "cluster_state:ok"

    async def killed() -> None:
        three.alive = False
        four.leads()

    three.kill = killed  # type: ignore[method-assign]
    assert await waits(group.fail_over(shard=1), content) is four
    assert Server.log == [], "nobody is told anything"

    def takes_over() -> str:
        two.leads()
        one.follows(2)
        return "done"

    two.replies["CLUSTER FAILOVER"] = takes_over
    assert await group.fail_over(kill=False) is two
    two.alive = False
    with pytest.raises(TimeoutError, match="no primary in the shard"):
        await group.primary()


def test_a_group_that_ends_ends_its_sentinels() -> None:
    played = Played("sentinels")
    played.group.close()
    assert all(one.closed for one in played.all.values())
