"""What `asynclock doctor` says of nodes in memory: a planted mistake per row."""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from asynclock.fleet import Fleet
from asynclock.testing import MemoryNode, memory_node
from asynclock.testing.memory import Route
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import instead

from .conftest import Here, Outcome

ONE, THREE = ("localhost",), ("localhost", "127.0.0.2", "127.0.0.3")
"""Nodes of this machine, which need neither passwords nor TLS."""
KEPT = {"aof_enabled": "1", "config_file": "/redis.conf", "connected_slaves": "0"}
CONFIG = {"appendfsync": "always"}
CLI = "redis-cli -h localhost -p 0"
LATER = f"{CLI} CONFIG REWRITE"
ALSO = "(and in what it is started with: it has no file for CONFIG REWRITE)"


@dataclass
class Plant:
    """What is wrong, with the first node unless it says another."""

    info: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    says: Mapping[str, Any] = field(default_factory=dict)
    """Pattern of a command -> its reply; a text is an error, and a function makes the reply."""
    nodes: Sequence[str] = ONE
    away: Sequence[str] = ()
    options: Sequence[str] = ()
    settings: str = ""
    """Lines of a file."""
    ahead: float = 0.0
    """Seconds that the clock is ahead."""
    way: float = 0.0
    """Seconds that each way takes."""

    async def __call__(self) -> None:
        for name in set(self.nodes):
            node = memory_node(name)
            first = name == self.nodes[0]
            node.jump_clock(self.ahead if first else 0.0)
            answers(node, self if first else Plant())
            if first and self.way:
                slow(node, self.way)
            if name in self.away:
                node.kill()


def answers(node: MemoryNode, plant: Plant) -> None:
    """Let a node answer as a healthy server with these mistakes does."""
    answer, config = node.answer, {**CONFIG, **plant.config}

    def changed(words: Any) -> Any:
        said = b" ".join(words).decode("utf-8", "replace")
        for pattern, reply in plant.says.items():
            if re.match(pattern, said):
                made = reply(node, words) if callable(reply) else reply
                return ReplyError(made) if isinstance(made, str) else made
        if words[0] == b"INFO":
            lines = "".join(f"{key}:{value}\r\n" for key, value in {**KEPT, **plant.info}.items())
            return answer(None, words) + lines.encode()
        if words[:2] == (b"CONFIG", b"GET"):
            return {
                name.encode(): config[name].encode()
                for name in map(bytes.decode, words[2:])
                if name in config
            }
        if words[:2] == (b"CLIENT", b"LIST"):
            return b""
        if words[0] == b"WAIT":
            return 0
        return None

    instead(node, changed)


def slow(node: MemoryNode, seconds: float) -> None:
    class Long(Route):
        def delay(self) -> float:
            return seconds

    open_ = node.open
    node.open = lambda make, _=None: open_(make, Long())  # type: ignore[method-assign,assignment]


def doctor(here: Here, plant: Plant, *options: str, file: Any = None, scene: Any = None) -> Outcome:
    named = [word for name in plant.nodes for word in ("--node", f"memory://{name}")]
    if file is not None:
        file.write_text(plant.settings)
        named += ["--config", str(file)]
    return here("doctor", *plant.options, *options, *named, scene=scene or plant)


TEXTS = ("node", "what", "why", "fix")


def found(ended: Outcome) -> list[tuple[str, str, str]]:
    """Return severity, code and text of each finding."""
    return [
        (one["severity"], one["code"], "\n".join(str(one[key]) for key in TEXTS))
        for one in json.loads(ended.out)["findings"]
    ]


def matches(seen: list[tuple[str, str, str]], wanted: Sequence[str]) -> None:
    """Assert that these findings, with these parts of their texts, were found and no other."""
    rest = list(seen)
    for line in wanted:
        begin, _, texts = line.partition(": ")
        fits = (
            one
            for one in rest
            if f"{one[0]} {one[1]}" == begin and all(text in one[2] for text in texts.split(" … "))
        )
        one = next(fits, None)
        assert one is not None, (line, rest)
        rest.remove(one)
    assert not rest


# ---- clocks, pages and connections ---------------------------------------------------------------
class Clock:
    """A clock that jumps by 30 s at some of its readings, or runs at another rate."""

    def __init__(self, *jumps: int, rate: float = 0.0) -> None:
        self.jumps, self.rate, self.read, self.began = jumps, rate, 0, 0.0

    def __call__(self, node: MemoryNode, _: Any) -> list[bytes]:
        self.read += 1
        self.began = self.began or node.wall()
        if self.read in self.jumps:
            node.jump_clock(30.0)
        moment = node.wall() + (node.wall() - self.began) * self.rate
        return [b"%d" % int(moment), b"%06d" % int(moment % 1 * 1_000_000)]


class Greets:
    """A server that greets this many connections, and says why it greets no more."""

    def __init__(self, most: int, said: str) -> None:
        self.left, self.said = most, said

    def __call__(self, *_: Any) -> Any:
        self.left -= 1
        return self.said if self.left < 0 else {b"server": b"redis", b"version": b"7.0.0"}


def page(keys: Sequence[bytes], last: int | None = None) -> Callable[..., Any]:
    """Answer SCAN with these keys again and again, `last` times (None: for ever)."""

    def reply(_: MemoryNode, words: Any) -> list[Any]:
        number = int(words[1]) + 1
        return [b"0" if number == last else b"%d" % number, list(keys)]

    return reply


NO, UNKNOWN = "NOPERM no", "ERR unknown command 'X'"
KEYS = "NOPERM no permissions to access one of the keys"
FULL = "ERR max number of clients reached"
COUNTERS = [b"asynclock:%d:#fence" % number for number in range(5)]
NUMBERS = ("redis_version", "uptime_in_seconds", "maxmemory", "used_memory", "connected_slaves")
YOUNG, OLD = ({"uptime_in_seconds": seconds} for seconds in ("5", "20"))
READ = ("CONFIG GET", "INFO", "SCAN", "TIME")
MANY = [*COUNTERS, b"asynclock:a", b"else:1:#fence"]

INFO: list[tuple[dict[str, str], list[str]]] = [
    # what it is
    ({"redis_version": "6.2.0"}, []),
    ({"redis_version": "10.0.1"}, []),
    ({"redis_version": "7.beta"}, []),
    (
        {"redis_version": "6.0.16"},
        ["error version: its version is 6.0.16; 6.2 is the oldest supported"],
    ),
    (
        {"role": "slave", "master_host": "p", "master_port": "9"},
        [
            (
                "error replica: it is a replica of p:9\n … "
                f"\nname p:9 instead, or make it independent: {CLI} REPLICAOF NO ONE"
            )
        ],
    ),
    ({"role": "slave"}, ["error replica: it is a replica of ?:?\n"]),
    ({"redis_mode": "sentinel"}, ["error sentinel: redis+sentinel://memory://localhost/SERVICE"]),
    ({"server_mode": "sentinel"}, ["error sentinel"]),  # Valkey 9 has no other word
    ({"redict_mode": "sentinel"}, ["error sentinel"]),
    (
        {"cluster_enabled": "1"},
        ['error cluster: redis+cluster://memory://localhost; … connect(..., prefix="{locks}:")'],
    ),
    ({"cluster_enabled": "0"}, []),
    # memory and disks
    ({"maxmemory": "1000", "used_memory": "900"}, []),
    (
        {"maxmemory": "1000", "used_memory": "950"},
        [f"warning memory: 95% of its maxmemory … {CLI} CONFIG SET maxmemory 2000"],
    ),
    ({"maxmemory": "100", "used_memory": "91"}, ["warning memory"]),
    ({"maxmemory": "0", "used_memory": "91"}, []),
    ({"maxmemory": "100", "used_memory": "95k"}, []),
    (dict.fromkeys(NUMBERS, "²"), []),
    ({"maxmemory_policy": "allkeys-lru"}, ["warning evicts: is allkeys-lru"]),
    ({"maxmemory_policy": "allkeys-lru", "maxmemory": "100"}, ["error evicts"]),
    (
        {"aof_enabled": "0"},
        [
            (
                "warning no-persistence: can't know that locks are gone … "
                f"\n{CLI} CONFIG SET appendfsync always; {CLI} CONFIG SET appendonly yes"
            )
        ],
    ),
    ({"aof_last_write_status": "err"}, ["warning disk: it can't write its append-only file\n"]),
    (
        {"aof_last_bgrewrite_status": "err"},
        ["warning disk: its last rewrite of the append-only file failed\n"],
    ),
    ({"rdb_last_bgsave_status": "err"}, ["warning disk: its last snapshot failed\n"]),
    ({"rdb_last_bgsave_status": "ok"}, []),
    # replicas
    (
        {"connected_slaves": "1"},
        [
            (
                "warning replicas-without-acks: it has 1 replicas … "
                "\nadd a second replica, then connect(..., acks=1): with one replica alone"
            )
        ],
    ),
    (
        {"connected_slaves": "2"},
        ["warning replicas-without-acks: \nconnect(..., acks=1), or acks = 1 in the TOML"],
    ),
]

CASES: dict[str, tuple[Plant, list[str]]] = {
    **{",".join(f"{k}={v}" for k, v in info.items()): (Plant(info), w) for info, w in INFO},
    "another server the second time": (
        Plant(says={"INFO server": b"run_id:another\r\n"}),
        ["error proxy"],
    ),
    "the same server without INFO": (Plant(says={"INFO server": NO}), []),
    "anyone may enter": (
        Plant(nodes=("a",)),
        ["warning open: ACL SETUSER default '>SECRET'", "note plain"],
    ),
    # rights
    "no pushes": (
        Plant(says={"CLIENT (TRACKING|CACHING)": NO}),
        [
            (
                "warning tracking: it refuses CLIENT TRACKING: NOPERM no … "
                f"{CLI} ACL SETUSER default +client|tracking +client|caching"
            )
        ],
    ),
    "no caching": (
        Plant(says={"CLIENT CACHING": "ERR no"}),
        ["warning tracking: it refuses CLIENT CACHING: ERR no"],
    ),
    "commands that are needed, and others": (
        Plant(says={"SET ": KEYS, "EVAL ": NO, "CONFIG": NO, "SCAN": NO, "GET": "OOM no"}),
        [
            "error rights: EVAL, SET … the user default the rights +eval +set ~asynclock:* where",
            "warning rights-config-get: the user default the rights +config|get where",
            "note rights-scan: the user default the rights +scan where",
        ],
    ),
    "other commands that are needed": (
        Plant(says={"GET |PTTL |PEXPIRE |DEL ": NO}),
        ["error rights: DEL, GET, PEXPIRE, PTTL … +del +get +pexpire +pttl"],
    ),
    "a command, and all keys": (
        Plant(says={"SET ": NO}),
        [f"error rights: {CLI} ACL SETUSER default +set; {LATER}"],
    ),
    "a user of a file": (
        Plant({"config_file": "/r"}, {"aclfile": "/a"}, {"SET ": NO}),
        [f"error rights: {CLI} ACL SETUSER default +set; {CLI} ACL SAVE"],
    ),
    "a user of the configuration": (
        Plant({"config_file": "/r"}, {"aclfile": ""}, {"SET ": NO}),
        [f"error rights: {CLI} ACL SETUSER default +set; {LATER}"],
    ),
    "a user of a server without a file": (
        Plant({"config_file": ""}, {"aclfile": ""}, {"SET ": NO}),
        [f"error rights: {CLI} ACL SETUSER default +set  {ALSO}"],
    ),
    "commands that were renamed": (
        Plant(says={"SCRIPT LOAD|EVAL |SCAN|CLIENT TRACKING": UNKNOWN}),
        [
            "error renamed: it does not know EVAL: … The scripts of a lock need it.",
            "error renamed: it does not know EVALSHA:",  # a server loads no script for it
            "warning renamed: SCRIPT LOAD … `rename-command SCRIPT …` … sent whole",
            "warning tracking",
            "note renamed: SCAN … `asynclock inspect --all` and `top` find nothing",
        ],
    ),
    "INFO was renamed": (Plant(says={"INFO": UNKNOWN}), ["warning renamed: stays unknown"]),
    "acknowledgements were renamed": (
        Plant(says={"WAIT": UNKNOWN}, settings="acks = 1\ndurable = true"),
        [
            "warning renamed: WAIT: … Acknowledgements of replicas",
            "warning renamed: WAITAOF: … Whether a grant is on disk",
            "error too-few-replicas",
        ],
    ),
    "acknowledgements of the disk": (
        Plant({"redis_version": "7.2"}, says={"WAITAOF": [1, 0]}, settings="durable = true"),
        [],
    ),
    # writes
    "out of memory": (
        Plant(says={"SET ": "OOM no room"}),
        [
            (
                "error refuses-writes: it refuses writes: OOM no room\n … "
                f"\n{CLI} CONFIG SET maxmemory 0; {LATER}  (or more memory)"
            )
        ],
    ),
    "a full disk": (
        Plant(says={"SET ": "MISCONF no"}),
        [f"error refuses-writes: \nfree its disk; then: {CLI} BGSAVE"],
    ),
    "too few replicas": (
        Plant(says={"SET ": "NOREPLICAS no"}),
        [
            (
                "error refuses-writes: "
                f"\n{CLI} CONFIG SET min-replicas-to-write 0; {LATER}  (or repair the replicas)"
            )
        ],
    ),
    "loading": (
        Plant(says={"SET ": "LOADING no"}),
        ["error refuses-writes: \nwait until it has loaded its data"],
    ),
    "strange": (Plant(says={"SET ": "STRANGE no"}), ["error refuses-writes: \nlook at"]),
    "writes that go elsewhere": (Plant(says={"SET ": "MOVED 1 h:1"}), []),
    "writes of a replica": (Plant(says={"SET ": "READONLY no"}), []),
    # the trial
    "no lock": (
        Plant(says={"EVALSHA .*-lock": "ERR odd"}),
        ["error cannot-lock: a lock could not be taken: ERR odd"],
    ),
    "nothing is tried on a node that is wrong": (
        Plant({"role": "slave"}, says={"EVALSHA .*-lock": "ERR odd"}),
        ["error replica"],
    ),
    "no fair lock": (
        Plant(says={"EVALSHA .*-fair_lock": "ERR odd"}),
        ["warning cannot-fair-lock: locks work, but fair_lock() does not: ERR odd"],
    ),
    "no locks of several names": (
        Plant(says={"EVALSHA .*-multi_lock": "ERR odd"}),
        ["warning cannot-multi-lock: multi_lock()"],
    ),
    "no election": (
        Plant(says={"EVALSHA .*-election": "ERR odd"}),
        ["warning cannot-election: election()"],
    ),
    # counters
    "counters of 100 MB": (Plant(says={"SCAN": page(MANY, 1), "MEMORY": 20_000_000}), []),
    "counters of more": (
        Plant(says={"SCAN": page(MANY, 1), "MEMORY": 20_000_001}),
        ["note counters: it keeps 5 (100.0 MB) fence counters"],
    ),
    # replicas
    "writes wait for a replica that is away": (
        Plant(config={"min-replicas-to-write": "1"}),
        ["error min-replicas: min-replicas-to-write is 1, connected are 0"],
    ),
    "writes wait for a replica": (
        Plant({"connected_slaves": "1"}, {"min-replicas-to-write": "1"}),
        ["warning replicas-without-acks"],
    ),
    "writes wait for none of two": (
        Plant({"connected_slaves": "2"}, {"min-replicas-to-write": "0"}, nodes=THREE),
        [f"warning min-replicas-unset: \n{CLI} CONFIG SET min-replicas-to-write 1; {LATER}"],
    ),
    "writes wait for none of one": (
        Plant({"connected_slaves": "1"}, {"min-replicas-to-write": "0"}, nodes=THREE),
        ["warning min-replicas-unset: \nadd a second replica first"],
    ),
    "two replicas of a node of three": (Plant({"connected_slaves": "2"}, nodes=THREE), []),
    "grants wait for a second replica": (
        Plant({"connected_slaves": "1"}, says={"WAIT": 1}, settings="acks = 2"),
        ["error too-few-replicas: acks=2 needs 2 replicas, connected are 1"],
    ),
    "grants wait for all": (
        Plant(config={"min-replicas-to-write": "2"}, says={"WAIT": 0}, settings='acks = "all"'),
        [
            f"error min-replicas: CONFIG SET min-replicas-to-write 0; {LATER}  (or repair",
            "error too-few-replicas: acks=all needs 1 replicas, connected are 0 … REPLICAOF",
        ],
    ),
    # restarts
    "young": (
        Plant({"uptime_in_seconds": "5", "aof_enabled": "0"}, nodes=THREE),
        [
            "note no-persistence: this costs availability, not safety",
            "note young: it does not vote for another  … keep grants over restarts",
        ],
    ),
    "young with a disk": (Plant(YOUNG, nodes=THREE), ['note young: restart_guard="disk"']),
    "young with a disk that is kept": (
        Plant(YOUNG, nodes=THREE, settings='restart_guard = "disk"'),
        [],
    ),
    "young but alone": (Plant(YOUNG), []),
    "old enough": (Plant(OLD, nodes=THREE), []),
    "young for a long ttl": (Plant(OLD, nodes=THREE, options=("--max-ttl", "60")), ["note young"]),
    "young for the longest ttl of the file": (
        Plant(OLD, nodes=THREE, settings="max_ttl = 60"),
        ["note young"],
    ),
    "young for the ttl of the file": (Plant(OLD, nodes=THREE, settings="ttl = 60"), ["note young"]),
    "old enough for a short ttl": (Plant(YOUNG, nodes=THREE, settings="ttl = 2\nmax_ttl = 2"), []),
    # disks
    "fsync": (
        Plant(config={"appendfsync": "everysec"}),
        [f"warning fsync: appendfsync is everysec … \n{CLI} CONFIG SET appendfsync always"],
    ),
    "a configuration that is hidden": (Plant(says={"CONFIG": NO}), ["warning rights-config-get"]),
    "a setting that a service does not show": (
        Plant(says={"CONFIG": "ERR unsupported parameter"}),
        ["warning renamed: CONFIG GET … a managed service decides which commands there are"],
    ),
    "a service that nobody can configure": (
        Plant(
            {
                "maxmemory": "100",
                "used_memory": "95",
                "maxmemory_policy": "volatile-lru",
                "aof_enabled": "0",
                "aof_last_write_status": "err",
                "connected_slaves": "2",
            },
            says={"CONFIG|CLIENT TRACKING|WAIT": UNKNOWN, "SET ": "OOM no"},
            nodes=("a",),
        ),
        [
            "error evicts: set maxmemory-policy to noeviction where the server is configured: in",
            "error refuses-writes: a larger size (OOM)",
            "warning renamed: CONFIG GET … docs/managed.md",
            "warning memory: choose a larger size",
            "warning no-persistence: turn on persistence in the console",
            "warning disk: ask the support",
            "warning tracking: it does not know CLIENT TRACKING … docs/managed.md",
            "warning replicas-without-acks: it refuses WAIT … docs/fencing.md",
            "warning open: turn on passwords or users in the console",
            "note plain: turn on TLS",
        ],
    ),
    # clocks
    "a clock a second ahead": (Plant(ahead=0.99), []),
    "a clock more ahead": (
        Plant(ahead=1.1),
        ["warning clock-offset: its clock is +1.1 s off ours"],
    ),
    "a clock behind": (Plant(ahead=-1.1), ["warning clock-offset: -1.1 s off"]),
    "a clock a minute ahead": (Plant(ahead=59.9), ["warning clock-offset"]),
    "a clock a minute behind": (Plant(ahead=-61.04), ["error clock-offset: -61.0 s off"]),
    "a clock that jumps": (
        Plant(says={"TIME": Clock(4)}),
        ["error clock-jumped: +30.000 s", "warning clock-offset"],
    ),
    "a clock that jumps in every second": (
        Plant(says={"TIME": Clock(4, 8)}),
        ["error clock-rate", "warning clock-offset"],
    ),
    "INFO that says nothing": (Plant(says={"INFO": lambda *_: b""}), []),
    "a clock that is a bit fast": (Plant(says={"TIME": Clock(rate=0.0009)}), []),
    "a fast clock": (
        Plant(says={"TIME": Clock(rate=0.021)}),
        ["error clock-rate: its clock runs +2.1% against ours"],
    ),
    "a slow clock": (
        Plant(says={"TIME": Clock(rate=-0.021)}),
        ["error clock-rate: its clock runs -2.1% against ours"],
    ),
    "replies of odd forms": (
        Plant(says=dict.fromkeys(READ, lambda *_: [[b"x"], 0])),
        [f"warning odd-reply: memory://localhost\nits reply to {one} has an" for one in READ],
    ),
    # speed and connections
    "a way that is short enough": (Plant(way=0.031), []),
    "a long way": (
        Plant(way=0.0325),
        ["warning slow: a round trip takes 65 ms; node_timeout is 0.25 s … node_timeout=0.52"],
    ),
    "a way that is too long": (Plant(way=0.13), ["error slow: node_timeout=2.1"]),
    "a way for a long timeout": (Plant(way=0.0325, options=("--node-timeout", "1")), []),
    "a way for a short timeout": (
        Plant(way=0.013, settings="node_timeout = 0.1"),
        ["warning slow: takes 26 ms; node_timeout is 0.1 s … node_timeout=0.25"],
    ),
    "room for some": (Plant({"connected_clients": "900"}, {"maxclients": "1000"}), []),
    "room for few": (
        Plant({"connected_clients": "901"}, {"maxclients": "1000"}),
        [f"warning maxclients: 901 of 1000 connections … {CLI} CONFIG SET maxclients 10000"],
    ),
    "room for sixteen": (Plant({"connected_clients": "84"}, {"maxclients": "100"}), []),
    "room for fifteen": (
        Plant({"connected_clients": "85"}, {"maxclients": "100"}),
        ["warning maxclients"],
    ),
    "room for none of many": (
        Plant({"connected_clients": "20000"}, {"maxclients": "20000"}),
        [f"warning maxclients: {CLI} CONFIG SET maxclients 40000"],
    ),
    "a number that is none": (Plant({"connected_clients": "85"}, {"maxclients": "odd"}), []),
    "the last connection": (
        Plant(config={"maxclients": "20000"}, says={"HELLO": Greets(1, FULL)}),
        ["error maxclients: it accepts no more connections … CONFIG SET maxclients 40000"],
    ),
    "idle connections": (Plant(config={"timeout": "30"}), ["warning idle-timeout: idle for 30 s"]),
    # on the way to it
    "no connection": (
        Plant(says={"HELLO": FULL}),
        ["error maxclients: CONFIG SET maxclients 10000", "error no-quorum"],
    ),
    "a wrong password": (
        Plant(says={"HELLO": "WRONGPASS no"}),
        ["error login: it refuses our login: WRONGPASS no", "error no-quorum"],
    ),
    "a process without a name": (
        Plant({"run_id": ""}),
        ["warning no-run-id: INFO does not name its process … three nodes, and a short max_ttl"],
    ),
    "a Cluster all of whose keys lie in one slot": (
        Plant({"cluster_enabled": "1"}, options=("--prefix", "{locks}:")),
        [],
    ),
    "no RESP3": (
        Plant(says={"HELLO": "NOPROTO unsupported protocol version"}),
        ["warning resp2: connections speak RESP2: NOPROTO unsupported … waiters poll"],
    ),
    "no password": (Plant(says={"HELLO": "NOAUTH no"}), ["error login", "error no-quorum"]),
    "a user without rights": (Plant(says={"HELLO": NO}), ["error login", "error no-quorum"]),
    # the set
    "one of one is away": (Plant(away=ONE), ["error no-quorum: 0 of 1 nodes", "error unreachable"]),
    "two nodes": (Plant(nodes=THREE[:2]), ["error two-nodes"]),
    "one of two is away": (
        Plant(nodes=THREE[:2], away=ONE),
        ["error two-nodes", "error unreachable"],
    ),
    "one of three is away": (Plant(nodes=THREE, away=ONE), ["error unreachable"]),
    "two of three are away": (
        Plant(nodes=THREE, away=THREE[1:]),
        [
            "error no-quorum: 1 of 3 nodes can be reached; a majority is 2",
            "error unreachable",
            "error unreachable",
        ],
    ),
    "four nodes": (
        Plant(nodes=(*THREE, "127.0.0.4")),
        ["note even-number: 4 nodes survive the loss of 1, as 3 would … 3 or 5"],
    ),
    "one server twice": (
        Plant(nodes=("localhost", "127.0.0.2", "localhost")),
        ["error duplicate: it is the same server as memory://localhost"],
    ),
    "two on one machine": (
        Plant(nodes=("localhost", "h", "h")),
        [
            "error duplicate",
            "warning one-machine: 2 nodes run on h",
            "warning open",
            "warning open",
            "note plain",
            "note plain",
        ],
    ),
    "versions that differ": (
        Plant({"redis_version": "7.2"}, nodes=THREE),
        ["note versions-differ: 7.0.0, 7.2"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_named_with_its_reason_and_what_fixes_it(
    case: str, here: Here, tmp_path: Any
) -> None:
    """Each finding with its severity, all of them, the worst first; their worst is the status."""
    plant, wanted = CASES[case]
    ended = doctor(here, plant, "--json", file=tmp_path / "a.toml")
    several = len(plant.nodes) > 2
    seen = found(ended)
    matches(seen, [*wanted, *["note set-unrecorded"] * several])
    order = ["error", "warning", "note"]
    places = [order.index(severity) for severity, *_ in seen]
    assert places == sorted(places)
    assert ended.status == (2 - min(places, default=2))


# ---- the record ----------------------------------------------------------------------------------
NAMES = [f"memory://{name}" for name in THREE]
QUICK: dict[str, Any] = {"restart_guard": False, "ttl": 1.0, "max_ttl": 4.0}
LISTED = "".join(f"id={n} name=asynclock:{n:08x}:w{n:02} age=3\n" for n in range(25))


async def settled(_: Plant) -> None:
    async with Fleet(*NAMES, **QUICK) as fleet:
        await fleet.record()


async def lags(plant: Plant) -> None:
    await settled(plant)
    await memory_node(THREE[0]).command("DEL", "asynclock::#set")


async def opened(plant: Plant) -> None:
    await settled(plant)
    async with Fleet(*NAMES, **QUICK) as fleet:
        await fleet.add("memory://127.0.0.4")


async def older(plant: Plant) -> None:
    """The first node knows only the record of before."""
    await settled(plant)
    memory_node(THREE[0]).freeze()
    async with Fleet(*NAMES, **QUICK) as fleet:
        await fleet.add("memory://127.0.0.4")
    memory_node(THREE[0]).restart(keep_data=True)
    memory_node(THREE[0]).born_ago(100.0)


OTHER = ("127.0.0.2", "127.0.0.3", "127.0.0.5")
STEP = "warning set-step: a step is open: it leads to … 127.0.0.4 … finish --node … back --node"
RECORDS: dict[str, tuple[Any, Plant, list[str]]] = {
    "kept by all": (settled, Plant(nodes=THREE), []),
    "of other nodes": (
        settled,
        Plant(nodes=OTHER),
        [
            "error set-differs: (epoch 1) … `asynclock nodes show --node memory://127.0.0.2 --node",
            "warning set-lags: memory://127.0.0.5\nit keeps no record; the newest is",
        ],
    ),
    "lost by a node": (
        lags,
        Plant(nodes=THREE),
        ["warning set-lags: it keeps no record; the newest is epoch 1"],
    ),
    "in a step": (opened, Plant(nodes=THREE), [STEP]),
    "older on a node": (
        older,
        Plant(nodes=THREE),
        [STEP, "warning set-lags: it keeps epoch 1 of the record; the newest is epoch 2"],
    ),
    "unknown to clients": (
        settled,
        Plant(says={"CLIENT LIST": LISTED.encode()}, nodes=THREE),
        ["warning set-clients: 25 clients use … : w00, w01, … , w18, w19, …\n"],
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_what_is_said_of_a_record(case: str, here: Here) -> None:
    scene, plant, wanted = RECORDS[case]

    async def recorded() -> None:
        await scene(plant)
        await plant()

    ended = doctor(here, plant, "--json", scene=recorded)
    matches(found(ended), wanted)


# ---- what is shown -------------------------------------------------------------------------------
def test_a_healthy_server_is_shown_and_well(here: Here) -> None:
    told = Plant(says={"SCAN": page(MANY, 1), "MEMORY": 8_000_000}, way=0.0017, ahead=0.5)
    titles, row, *lines = doctor(here, told).out.splitlines()
    assert lines == ["", "all is well"]
    assert re.split("  +", titles) == [
        *("node", "version", "role", "up for", "round trip", "clock", "keeps", "counters", "epoch"),
        "vote",
    ]
    assert re.split("  +", row) == [
        *("memory://localhost", "7.0.0", "master", "86400 s", "3.4 ms", "+500 ms", "all"),
        *("5 (40.0 MB)", "now"),
    ]


@pytest.mark.parametrize(
    ("plant", "cells"),
    [
        (Plant(config={"appendfsync": "no"}), ["no", "0 (0.0 MB)", "now"]),
        (Plant(config={"appendfsync": "no"}, says={"CONFIG": NO}), ["?", "0 (0.0 MB)", "now"]),
        (Plant({"aof_enabled": "0"}), ["nothing", "0 (0.0 MB)", "now"]),
        (Plant(says={"SCAN": NO}), ["all", "?", "now"]),
        (Plant(says={"SCAN": page(MANY, 1), "MEMORY": NO}), ["all", "5", "now"]),
        (Plant({"role": "slave"}), ["all", "0 (0.0 MB)", "none: a slave"]),
        (Plant({"uptime_in_seconds": "3"}, nodes=THREE), ["all", "0 (0.0 MB)", "in 9 s"]),
        (Plant(away=ONE), ["none: can't connect: localhost is down"]),
        (Plant(says={"INFO": NO}), ["?", "?", "?", "0.0 ms", "+0 ms", "?", "0 (0.0 MB)", "now"]),
    ],
)
def test_a_row_says_what_is_known(plant: Plant, cells: list[str], here: Here) -> None:
    row = doctor(here, plant).out.splitlines()[1]
    assert re.split("  +", row)[-len(cells) :] == cells


@pytest.mark.parametrize(
    ("scan", "size", "count", "weight"),
    [
        (page(MANY, 100), lambda *_: 72, 500, 500 * 72),
        (page([b"asynclock:a"], 1), lambda *_: 72, 0, 0),
        # "Five of seven keys are counters."
        (page(MANY, 101), lambda *_: 72, 50_000, 50_000 * 72),
        (page([]), lambda *_: 72, 0, 0),
    ],
    ids=["all", "none", "a part", "none in a part"],
)
def test_counters_are_counted_or_estimated(
    scan: Any, size: Any, count: int, weight: int, here: Here
) -> None:
    says = {"SCAN": scan, "MEMORY": size, "DBSIZE": 70_000}
    (node,) = json.loads(doctor(here, Plant(says=says), "--json").out)["nodes"]
    assert (node["counters"], node["counters_bytes"]) == (count, weight)


def test_of_many_counters_a_sample_is_weighed(here: Here) -> None:
    asked: list[str] = []

    def size(_: MemoryNode, words: Any) -> int:
        asked.append(words)
        return len(asked)

    says = {"SCAN": page(MANY, 20), "MEMORY": size}
    (node,) = json.loads(doctor(here, Plant(says=says), "--json").out)["nodes"]
    assert 10 <= len(asked) <= 20
    assert (node["counters"], node["counters_bytes"]) == (100, round((len(asked) + 1) / 2 * 100))


def test_the_json_has_every_figure(here: Here) -> None:
    plant = Plant(
        {"run_id": "id"},
        says={"SCAN": page(MANY, 1), "MEMORY": 72},
        way=0.0017,
        ahead=-0.25,
        nodes=(*THREE[:2], "away"),
        away=("away",),
    )
    shown = json.loads(doctor(here, plant, "--json").out)
    first, _, gone = shown["nodes"]
    assert first == {
        "node": "memory://localhost",
        "reachable": True,
        "cause": None,
        "version": "7.0.0",
        "role": "master",
        "run_id": "id",
        "uptime": pytest.approx(86400.0, abs=1.0),
        "durable": True,
        "tracking": True,
        "round_trip": pytest.approx(0.0034),
        "clock_offset": pytest.approx(-0.25),
        "clock_rate": 0.0,
        "votes_in": 0.0,
        "counters": 5,
        "counters_bytes": 360,
        "epoch": None,
    }
    jumped = json.loads(doctor(here, Plant(says={"TIME": Clock(4)}), "--json").out)["nodes"]
    assert [node["clock_rate"] for node in jumped] == [0.0], "a jump is no wrong rate"
    assert gone.keys() == first.keys()
    assert (gone["reachable"], gone["cause"], gone["counters"]) == (
        False,
        "can't connect: away is down",
        None,
    )
    assert shown["findings"] == [
        {
            "code": "unreachable",
            "severity": "error",
            "node": "memory://away",
            "what": "it can't be reached: can't connect: away is down",
            "why": "It doesn't vote, and a majority of all configured nodes must.",
            "fix": "redis-cli -h away -p 0 PING; check that the server runs, is not frozen and "
            "not behind a firewall",
        },
        {
            "code": "set-unrecorded",
            "severity": "note",
            "node": None,
            "what": "the nodes keep no record of their set",
            "why": UNRECORDED,
            "fix": f"asynclock nodes record {HERE} --node memory://away",
        },
    ]


HERE = "--node memory://localhost --node memory://127.0.0.2"
UNRECORDED = "Nothing notices a client that uses other nodes; two such clients hold the same lock."
NASTY = Plant({"cluster_enabled": "1"}, says={"SET ": "STRANGE \x1b[31m\x07"}, nodes=THREE)


def test_findings_for_people(here: Here) -> None:
    """What a server says commands no terminal. In a pipe no line is broken."""
    here.patch.setenv("COLUMNS", "40")
    lines = doctor(here, NASTY).out.splitlines()
    assert lines[4:] == [
        "",
        "error   memory://localhost: it belongs to a cluster  [cluster]",
        "        why:  It serves only the keys of its own slots and redirects all others (MOVED).",
        (
            "        fix:  name the cluster: redis+cluster://memory://localhost; where CLUSTER is "
            'refused, keep all keys in one slot: connect(..., prefix="{locks}:")'
        ),
        "",
        "error   memory://localhost: it refuses writes: STRANGE \\x1b[31m\\x07  [refuses-writes]",
        "        why:  It can't grant anything.",
        "        fix:  look at its log",
        "",
        "note    the nodes keep no record of their set  [set-unrecorded]",
        f"        why:  {UNRECORDED}",
        f"        fix:  asynclock nodes record {HERE} --node memory://127.0.0.3",
        "",
        "2 errors, 1 note",
    ]


def test_on_a_terminal_severities_have_colours_and_a_long_fix_stays_in_its_column(
    here: Here,
) -> None:
    here.patch.setenv("FORCE_COLOR", "1")
    here.patch.setenv("TERM", "xterm")
    here.patch.setenv("COLUMNS", "40")
    idle = Plant(NASTY.info, {"timeout": "30"}, nodes=THREE)
    out = doctor(here, idle).out
    for begin in ("\x1b[1;31merror", "\x1b[33mwarning", "\x1b[36mnote"):
        assert begin in out
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in out.splitlines()]
    at = lines.index("        fix:  redis-cli -h localhost -p")
    assert lines[at + 1 : at + 4] == [
        "        0 CONFIG SET timeout 0;",
        "        redis-cli -h localhost -p 0",
        "        CONFIG REWRITE",
    ]


# ---- the trial -----------------------------------------------------------------------------------
def scripts_of(said: list[tuple[bytes, ...]]) -> Iterator[tuple[str, str, bool]]:
    """Yield of each script: its first name, its step, and whether it has a ttl of 5 s."""
    for words in said:
        if words[0] != b"EVALSHA":
            continue
        name = words[3].decode().partition(":doctor-")[2].partition("-")[2]
        if name:
            yield name, words[3 + int(words[2])].decode(), b"5000" in words


def test_each_primitive_is_used_and_its_keys_are_deleted(here: Here) -> None:
    said: list[tuple[bytes, ...]] = []

    @contextlib.asynccontextmanager
    async def noted() -> AsyncIterator[None]:
        await Plant()()
        node = memory_node("localhost")
        instead(node, lambda words: said.append(tuple(words)))
        yield
        assert await node.command("KEYS", "*") == ["shop::#primary"], "of the guard"

    here("doctor", "--node", "memory://localhost", "--prefix", "shop:", scene=noted)
    found: dict[str, list[str]] = {}
    for name, step, short in scripts_of(said):
        found.setdefault(name, []).append(step + "*" * short)
    assert {name: " ".join(steps) for name, steps in found.items()} == {
        "lock": "acquire* extend* release",
        **dict.fromkeys(("multi_lock", "semaphore:#0"), "acquire* release"),
        **dict.fromkeys(("rwlock:#readers", "rwlock:#write"), "acquire* release"),
        "fair_lock:#fair": "acquire* release",
        "election:#leader": "acquire* publish* publish* publish* release",
        **dict.fromkeys(("event:#event", "latch:#latch", "barrier:#barrier"), "prepare* accept*"),
        "once": "acquire* release",
        "once:#once": "read prepare* accept*",
    }
    keys = {key.decode() for words in said if words[0] == b"EVALSHA" for key in words[3:5]}
    for key in keys:
        assert re.match(r"shop:doctor-[0-9a-f]{16}|shop::#|[^:]+$", key)


NO_LOCK = ["error cannot-lock: a lock could not be taken: "]
USED_LATER = "multi-lock semaphore rwlock fair-lock election event latch barrier once".split()


@pytest.mark.parametrize(
    ("settings", "at", "wanted", "seconds"),
    [
        ("", "lock", NO_LOCK, 5.0),
        ("node_timeout = 0.25\nmax_ttl = 90", "lock", NO_LOCK, 5.0),
        ("node_timeout = 3", "lock", NO_LOCK, 10.0),
        ("", "multi_lock", [f"warning cannot-{one}: : no answer" for one in USED_LATER], 21.0),
    ],
)
def test_a_node_that_is_mute_ends_the_trial(
    settings: str, at: str, wanted: list[str], seconds: float, here: Here, tmp_path: Any
) -> None:
    """Nothing else is tried where no lock can be taken; each other primitive has two seconds."""

    def freeze(node: MemoryNode, _: Any) -> int:
        node.freeze()
        return 1

    plant = Plant(says={f"EVALSHA .*-{at}": freeze}, settings=settings)
    ended = doctor(here, plant, "--json", file=tmp_path / "a.toml")
    matches(found(ended), wanted)
    assert here.seconds == pytest.approx(seconds)
