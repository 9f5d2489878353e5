"""Servers in memory that behave like those of a Cluster or behind Sentinels, in virtual time.

Each server has a host and a port, tells what a test lets it tell, and keeps what it was asked.
"""

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
from redis.crc import key_slot

import asynclock
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.commands import OK, ReplyError, Words
from tests.engine.virtual_nodes import Way
from tests.tables import inside
from tests.waiting import go_through, in_virtual_time

SLOTS = 16_384
Reply = Callable[[Words], Any]
WITH_SCRIPT = (b"EVALSHA", b"EVAL")
WITH_KEYS = {b"EVALSHA": 3, b"EVAL": 3, b"GET": 1, b"SET": 1, b"DEL": 1}
"""The place of the first key in a command."""


class Noting(MemoryNode):
    """A node that notes what it is asked, and whose replies a test may change."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.info: dict[str, object] = {}
        """What INFO tells besides the usual."""
        self.instead: dict[bytes, Reply] = {}
        """By a command's first word: what replies to it."""
        self.asked: list[Words] = []
        self.asked_at: list[float] = []
        self.dialled: list[float] = []
        """When somebody tried to connect."""
        self.talking: set[Any] = set()
        """Those that have asked something and are still connected."""
        self._left: set[Any] = set()
        self._opened = 0
        self.born_ago(3600)

    async def open(self, factory: Any, route: Any = None) -> Any:
        self.dialled.append(inside.now())
        protocol = await super().open(factory, route)
        self._opened += 1
        return protocol

    def left(self, client: Any) -> None:
        super().left(client)
        self.talking.discard(client)
        self._left.add(client)

    @property
    def connections(self) -> int:
        return self._opened - len(self._left)

    def answer(self, client: Any, words: Words) -> Any:
        if client is None:
            return super().answer(client, words)
        self.talking.add(client)
        self.asking = client
        self.asked.append(words)
        self.asked_at.append(inside.now())
        name = words[0].upper()
        if (instead := self.instead.get(name)) is not None:
            return instead(words)
        reply = super().answer(client, words)
        more = "".join(f"{key}:{value}\r\n" for key, value in self.info.items())
        return reply + more.encode() if name == b"INFO" else reply

    def asked_for(self, *first: str) -> list[Words]:
        """Return the commands that began with these words."""
        wanted = tuple(word.encode() for word in first)
        return [words for words in self.asked if words[: len(wanted)] == wanted]

    def operations(self, *some: str) -> list[str]:
        """Return the operations of scripts that were asked for, with their owners."""
        found = (words[3 + int(words[2]) :] for words in self.asked if words[0] in WITH_SCRIPT)
        return [b" ".join(words[:2]).decode() for words in found if words[0].decode() in some]


class Server(Noting):
    """One server at an address."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port}")
        self.host, self.port = host, port
        self.way, self.deaf = Way(), False


class ClusterServer(Server):
    """A server of a Cluster, with its own view of it."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.epoch = 1
        self.shards: list[tuple[int, int, list[ClusterServer]]] = []
        """The first and the last slot of each shard, its primary, and the replicas."""
        self.odd: dict[int, str] = {}
        """By slot: the error that a command gets."""
        self._asking = False

    def answer(self, client: Any, words: Words) -> Any:
        name = words[0].upper()
        asking, self._asking = self._asking, name == b"ASKING"
        place = WITH_KEYS.get(name)
        if client is None or place is None or (place == 3 and words[2] == b"0"):
            return super().answer(client, words)
        slot = key_slot(words[place])
        owner = self.owner(slot)
        error = self.odd.get(slot)
        if asking:
            error = None
        elif error is None and owner is not self:
            where = "" if owner is None else f"{owner.host}:{owner.port}"
            error = f"MOVED {slot} {where}" if where else "CLUSTERDOWN Hash slot not served"
        if error is not None:
            self.asked.append(words)
            return ReplyError(error)
        return super().answer(client, words)

    def owner(self, slot: int) -> "ClusterServer | None":
        found = (servers[0] for first, last, servers in self.shards if first <= slot <= last)
        return next(found, None)

    def view(self) -> list[Any]:
        """What CLUSTER SLOTS tells."""
        return [
            [first, last, *([one.host.encode(), one.port, b"id"] for one in servers)]
            for first, last, servers in self.shards
        ]


def _tells(server: ClusterServer) -> Reply:
    def reply(words: Words) -> Any:
        if words[1].upper() == b"SLOTS":
            return server.view()
        return b"cluster_current_epoch:%d\r\n" % server.epoch

    return reply


class VirtualCluster:
    """A Cluster whose servers are told their view by the test."""

    def __init__(self, patch: pytest.MonkeyPatch, *, primaries: int = 3, replicas: int = 0) -> None:
        self.primaries = [ClusterServer(f"c{n}", 7000) for n in range(primaries)]
        self.replicas = [
            [ClusterServer(f"r{n}-{m}", 7000) for m in range(replicas)] for n in range(primaries)
        ]
        self.servers: list[ClusterServer] = [*self.primaries, *itertools.chain(*self.replicas)]
        self.spare = ClusterServer("spare", 7000)
        """A server that is not in the Cluster at first."""
        size = SLOTS // primaries
        self.tell(
            [
                (n * size, SLOTS - 1 if n == primaries - 1 else (n + 1) * size - 1, [one, *others])
                for n, (one, others) in enumerate(zip(self.primaries, self.replicas, strict=True))
            ],
            to=[*self.servers, self.spare],
        )
        for server in (*self.servers, self.spare):
            server.instead[b"CLUSTER"] = _tells(server)
            server.instead[b"ASKING"] = lambda _words: OK
        reach(patch, [*self.servers, self.spare])
        self.url = "redis+cluster://" + ",".join(f"{one.host}:7000" for one in self.primaries)

    @property
    def shards(self) -> list[tuple[int, int, list[ClusterServer]]]:
        return list(self.primaries[0].shards)

    def tell(
        self,
        shards: list[tuple[int, int, list[ClusterServer]]],
        *,
        epoch: int = 1,
        to: Sequence[ClusterServer] | None = None,
    ) -> None:
        """Give servers (all) another view."""
        for server in to if to is not None else (*self.servers, self.spare):
            server.shards, server.epoch = list(shards), epoch

    def replaced(self, old: ClusterServer, new: ClusterServer) -> list[Any]:
        """Return the shards with another primary in one of them."""
        return [
            (first, last, [new if one is old else one for one in servers if one is not new])
            for first, last, servers in self.shards
        ]

    def moved(self, slot: int, to: ClusterServer) -> list[tuple[int, int, list[ClusterServer]]]:
        """Return the shards after one slot has moved."""
        parts: list[tuple[int, int, list[ClusterServer]]] = []
        for first, last, servers in self.shards:
            if first <= slot <= last:
                parts += [(first, slot - 1, servers), (slot, slot, [to]), (slot + 1, last, servers)]
            else:
                parts.append((first, last, servers))
        return [part for part in parts if part[0] <= part[1]]

    def without(self, slot: int) -> list[tuple[int, int, list[ClusterServer]]]:
        """Return the shards after nobody serves a slot any more."""
        return [part for part in self.moved(slot, self.spare) if part[2] != [self.spare]]


class Sentinel(Server):
    """A Sentinel that names whatever the test lets it name."""

    def __init__(self, host: str, port: int = 26379) -> None:
        super().__init__(host, port)
        self.primary: Server | None = None
        self.epoch = 1
        self.down_after = 1000
        """Milliseconds."""
        self.replicas: dict[Server, str] = {}
        """The flags of each replica."""
        self.instead[b"SENTINEL"] = self._tell

    def _tell(self, words: Words) -> Any:
        if self.primary is None:
            return ReplyError("ERR No such master with that name")
        if words[1].upper() == b"GET-MASTER-ADDR-BY-NAME":
            return [self.primary.host.encode(), b"%d" % self.primary.port]
        if words[1].upper() == b"MASTER":
            pairs = {"config-epoch": self.epoch, "down-after-milliseconds": self.down_after}
            return _words(pairs)
        return [
            _words({"ip": one.host, "port": one.port, "runid": one.run_id, "flags": flags})
            for one, flags in self.replicas.items()
        ]


def _words(pairs: dict[str, object]) -> list[bytes]:
    return [str(word).encode() for pair in pairs.items() for word in pair]


class VirtualService:
    """Some servers behind three Sentinels; the first is the primary."""

    def __init__(self, patch: pytest.MonkeyPatch, *, servers: int = 2) -> None:
        self.sentinels = [Sentinel(f"s{n}") for n in range(3)]
        self.servers = [Server(f"p{n}", 6379) for n in range(servers)]
        self.acknowledge(1)
        self.name(self.servers[0], epoch=1, replicas={self.servers[1]: "slave"})
        reach(patch, [*self.sentinels, *self.servers])
        self.url = "redis+sentinel://s0,s1,s2/mymaster"

    def name(
        self,
        primary: Server | None,
        *,
        epoch: int,
        replicas: dict[Server, str] | None = None,
        by: Sequence[Sentinel] | None = None,
    ) -> None:
        """Let Sentinels (all) name another primary."""
        for sentinel in self.sentinels if by is None else by:
            sentinel.primary, sentinel.epoch = primary, epoch
            sentinel.replicas = {} if replicas is None else replicas

    def acknowledge(self, replicas: int) -> None:
        """Let this many replicas acknowledge each write."""
        for server in self.servers:
            server.instead[b"WAIT"] = lambda _words: replicas


def name_on(shard: int, of: int = 3, *, number: int = 0) -> str:
    """Return a name whose slot is that shard's; another one for each number."""
    names = (f"name-{n}" for n in range(10_000))
    found = (name for name in names if slot_of(name) * of // SLOTS == shard)
    return next(itertools.islice(found, number, None))


async def met(locks: asynclock.LockManager) -> None:
    """Let the manager know all three servers."""
    for number in range(3):
        await go_through(locks.lock(f"warm-{name_on(number)}"))


def kept() -> list[str]:
    """Return the servers that tasks keep connected, each once per task."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return sorted(
        name.split()[-1].split(":")[0]
        for name in names
        if name.startswith("asynclock: keep ") and "cluster" not in name
    )


def slot_of(name: str) -> int:
    return key_slot(f"asynclock:{{{name}}}".encode())


def key_of(name: str) -> bytes:
    return f"asynclock:{{{name}}}".encode()


def alone(patch: pytest.MonkeyPatch, *, replicas: int = 0) -> Server:
    """One server at redis://p0 with this many replicas, each of which acknowledges everything."""
    server = Server("p0", 6379)
    server.info["connected_slaves"] = replicas
    server.instead[b"WAIT"] = lambda _words: server.info["connected_slaves"]
    reach(patch, [server])
    return server


def reach(patch: pytest.MonkeyPatch, servers: Sequence[Server]) -> None:
    """Let addresses lead to these servers."""
    inside.reach(patch, {(server.host, server.port): server for server in servers})


def connect(cluster: VirtualCluster, **settings: Any) -> asynclock.LockManager:
    """Connect to a Cluster, without the restart guard: its servers were never met before."""
    usual = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0, "restart_guard": False}
    return asynclock.connect(cluster.url, **{**usual, **settings})


@contextlib.asynccontextmanager
async def meeting(cluster: VirtualCluster, **settings: Any) -> AsyncIterator[asynclock.LockManager]:
    """Connect to a Cluster, and let the manager know all three servers."""
    async with connect(cluster, **settings) as locks:
        await met(locks)
        yield locks


def played_on(make: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Make a test in virtual time whose first parameter is what `make` makes, by default `kind`."""

    def decorate(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        async def play(monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
            if "monkeypatch" in wanted:
                given["monkeypatch"] = monkeypatch
            on = make(monkeypatch, **options) if make else given.pop("kind")(monkeypatch)
            await scenario(on, **given)

        wanted = inspect.signature(scenario).parameters
        names = {"monkeypatch", *list(wanted)[1:], *([] if make else ["kind"])}
        play.__name__, play.__doc__ = scenario.__name__, scenario.__doc__
        play.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(names)]
        )
        return in_virtual_time(play)

    return decorate
