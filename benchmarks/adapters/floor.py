"""The limit in Python: one socket per node, hiredis, and one write for all commands of a tick.

The commands are those of a plain Redlock without fences: SET NX PX, and compare-and-delete. There
is no lock logic: no checks, no deadlines, no clean-up and no waiting. Like every Redlock it goes on
at a majority of replies. The same for what else is measured: a primary with replicas, a Cluster,
and the hand-over from one process to another.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from binascii import crc_hqx
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis

from . import Adapter

VECTORS = Path(__file__).parents[2] / "tests" / "interop" / "vectors.json"
"""Names the files of our scripts: see docs/protocol.md."""
MOST_NAMES = 64
"""Number of names in one command, as asynclock's client has it."""
_FREE = b'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end'


def _packed(*words: bytes) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # any length, says its code
    return packed


class _Votes:
    """One request to all nodes, which counts down to the majority."""

    __slots__ = ("done", "granted", "missing")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.granted = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Link(asyncio.Protocol):
    def __init__(self) -> None:
        self.reader = hiredis.Reader()
        self.pending: deque[_Votes] = deque()
        self.transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's class is not a subclass

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        while (reply := self.reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            votes = self.pending.popleft()
            votes.missing -= 1
            if not votes.missing and not votes.done.done():
                votes.done.set_result(None)


class Floor(Adapter):
    free = _FREE
    """The script that releases a name."""

    def link(self) -> _Link:
        return _Link()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.links: list[_Link] = []
        self.queue: list[bytes] = []
        for url in self.urls:
            address = urlsplit(url)
            assert address.hostname
            assert address.port
            _, link = await loop.create_connection(self.link, address.hostname, address.port)
            self.links.append(link)
        self.quorum = len(self.links) // 2 + 1
        self.px = b"%d" % (self.ttl * 1000)
        self.sha = hashlib.sha1(self.free, usedforsecurity=False).hexdigest().encode()
        await self._ask(len(self.links), b"SCRIPT", b"LOAD", self.free)

    def _ask(self, quorum: int, *command: bytes) -> asyncio.Future[None]:
        votes = _Votes(quorum)
        for link in self.links:
            link.pending.append(votes)
        if not self.queue:
            votes.done.get_loop().call_soon(self._flush)
        self.queue.append(_packed(*command))
        return votes.done

    def _flush(self) -> None:
        data = b"".join(self.queue)
        self.queue.clear()
        for link in self.links:
            link.transport.write(data)

    async def acquire(self, name: str) -> tuple[bytes, bytes]:
        key, owner = name.encode(), os.urandom(16).hex().encode()
        await self._ask(self.quorum, b"SET", key, owner, b"NX", b"PX", self.px)
        return key, owner

    def blocking(self) -> tuple[Callable[[str], Any], Callable[[Any], object]]:
        """Return calls of threads into a floor whose loop runs in another thread."""
        loop, floor = asyncio.new_event_loop(), type(self)(self.urls, self.ttl, self.options)
        threading.Thread(target=loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(floor.open(), loop).result()

        def call(work: Callable[[Any], Awaitable[Any]], what: Any) -> Any:
            done, result = threading.Lock(), []

            async def run() -> None:
                result.append(await work(what))
                done.release()

            done.acquire()
            loop.call_soon_threadsafe(loop.create_task, run())
            done.acquire()
            return result[0]

        return lambda name: call(floor.acquire, name), lambda lease: call(floor.release, lease)

    async def release(self, lease: Any) -> None:
        await self._ask(self.quorum, b"EVALSHA", self.sha, b"1", *lease)

    async def close(self) -> None:
        for link in self.links:
            link.transport.close()


class _Buffered(_Link, asyncio.BufferedProtocol):
    """A link with a buffer, as asynclock's links have it: no memory is mapped for each read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = bytearray(16_384)

    def get_buffer(self, _: int) -> bytearray:
        return self.bytes

    def buffer_updated(self, size: int) -> None:
        self.data_received(memoryview(self.bytes)[:size])  # type: ignore[arg-type]  # hiredis takes it


class Scripted(Floor):
    """The floor of asynclock's protocol: the commands of its mutex, and nothing else of its client.

    All names of a tick are one command. The clocks of all nodes are ours here, so the floor of the
    fences needs no reply.
    """

    group: _Votes | None = None
    """The request of this tick."""

    def link(self) -> _Link:
        return _Buffered()

    async def open(self) -> None:
        import asynclock  # other floors run without it

        files = json.loads(VECTORS.read_text("utf-8"))["scripts"]["mutex"]
        folder = Path(asynclock.__file__).parent / "_primitives"
        self.free = b"\n".join((folder / file).read_bytes() for file in files)
        self.releases: list[tuple[bytes, bytes]] = []
        self.acquires: list[tuple[bytes, bytes]] = []
        await super().open()

    def _join(self, names: list[tuple[bytes, bytes]], name: bytes, owner: bytes) -> _Votes:
        if self.group is None:
            self.group = _Votes(self.quorum)
            self.group.done.get_loop().call_soon(self._flush)
        names.append((b"asynclock:{%b}" % name, owner))
        group = self.group
        if len(self.releases) + len(self.acquires) == MOST_NAMES:
            self._flush()
        return group

    def _flush(self) -> None:
        group, self.group = self.group, None
        if group is None:
            super()._flush()
            return
        releases, acquires = self.releases, self.acquires
        both = releases + acquires
        counters = [key + b":#fence" for key, _ in acquires]
        queues = [key + b":#queue" for key, _ in both]
        now = int(time.time() * 1_000_000)
        terms = self.px, b"%d" % now, b"%d" % (now + 1_000_000), b"86400000", b"2000"
        owners = [owner for _, owner in both]
        if len(both) > 1:
            keys = [*(key for key, _ in both), *queues, *counters]
            words = [b"batch", b"%d" % len(releases), *terms, *owners]
        else:
            keys = [both[0][0], *(counters or [both[0][0] + b":#fence"]), *queues]
            words = [b"acquire", *owners, *terms] if acquires else [b"release", *owners]
        self.releases, self.acquires = [], []
        command = _packed(b"EVALSHA", self.sha, b"%d" % len(keys), *keys, *words)
        for link in self.links:
            link.pending.append(group)
            link.transport.write(command)

    async def acquire(self, name: str) -> tuple[bytes, bytes]:
        key, owner = name.encode(), os.urandom(16).hex().encode()
        await self._join(self.acquires, key, owner).done
        return key, owner

    async def release(self, lease: Any) -> None:
        await self._join(self.releases, *lease).done


class Acked(Floor):
    """The floor on a primary: a grant counts once the WAIT behind all SET of its tick is answered.

    The SET itself is answered before that.
    """

    group: _Votes | None = None
    """The acquires of this tick."""

    async def acquire(self, name: str) -> tuple[bytes, bytes]:
        key, owner = name.encode(), os.urandom(16).hex().encode()
        self._ask(1, b"SET", key, owner, b"NX", b"PX", self.px)
        if self.group is None:
            self.group = _Votes(1)
        await self.group.done
        return key, owner

    def _flush(self) -> None:
        if self.group is not None:
            self.queue.append(_packed(b"WAIT", b"%d" % self.options["acks"], b"1000"))
            self.links[0].pending.append(self.group)
            self.group = None
        super()._flush()


class Sharded(Floor):
    """The floor on a Cluster whose primaries, in the order of the URL, have equal shares of slots.

    All commands of a tick to one shard are one write.
    """

    async def open(self) -> None:
        address = urlsplit(self.urls[0])
        self.urls = [f"redis://{one}" for one in address.netloc.split(",")]
        await super().open()
        self.queues: list[list[bytes]] = [[] for _ in self.links]

    def _shard(self, key: bytes) -> int:
        return (crc_hqx(key, 0) % 16_384 * len(self.links)) // 16_384

    def _send(self, key: bytes, *command: bytes) -> asyncio.Future[None]:
        shard, votes = self._shard(key), _Votes(1)
        self.links[shard].pending.append(votes)
        if not any(self.queues):
            votes.done.get_loop().call_soon(self._flush_all)
        self.queues[shard].append(_packed(*command))
        return votes.done

    def _flush_all(self) -> None:
        for link, queue in zip(self.links, self.queues, strict=True):
            if queue:
                link.transport.write(b"".join(queue))
                queue.clear()

    async def acquire(self, name: str) -> tuple[bytes, bytes]:
        key, owner = name.encode(), os.urandom(16).hex().encode()
        await self._send(key, b"SET", key, owner, b"NX", b"PX", self.px)
        return key, owner

    async def release(self, lease: Any) -> None:
        await self._send(lease[0], b"EVALSHA", self.sha, b"1", *lease)


class _Hearing(_Link):
    """A link that also counts the grants, and the messages that a name is free."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__()
        self.waiting = waiting

    def data_received(self, data: bytes) -> None:
        quorum = self.waiting.quorum
        self.reader.feed(data)
        while (reply := self.reader.gets()) is not False:
            push = isinstance(reply, hiredis.PushNotification)
            if push and reply[0] != b"message":
                continue  # the reply to SUBSCRIBE
            votes = self.waiting.heard[reply[1]] if push else self.pending.popleft()
            votes.missing -= 1
            votes.granted += reply == b"OK"
            if not votes.done.done() and (votes.granted == quorum or not votes.missing):
                votes.done.set_result(None)


class Waiting(Floor):
    """The floor of a hand-over: each release publishes, and the next process asks all nodes then.

    It asks once a majority of the nodes has published. One task of a process waits for a name.
    """

    free = _FREE.replace(b"then return", b'then redis.call("publish",KEYS[1],1) return')

    async def open(self) -> None:
        self.heard: dict[bytes, _Votes] = {}
        await super().open()
        await self._ask(len(self.links), b"HELLO", b"3")

    def link(self) -> _Link:
        return _Hearing(self)

    async def acquire(self, name: str) -> tuple[bytes, bytes]:
        key, owner = name.encode(), os.urandom(16).hex().encode()
        if key not in self.heard:
            for link in self.links:
                link.transport.write(_packed(b"SUBSCRIBE", key))
        while True:
            heard = self.heard[key] = _Votes(self.quorum)
            done = self._ask(len(self.links), b"SET", key, owner, b"NX", b"PX", self.px)
            votes = self.links[0].pending[-1]
            await done
            if votes.granted >= self.quorum:
                return key, owner
            await heard.done


def _made(urls: Sequence[str], ttl: float, options: Mapping[str, Any]) -> Floor:
    cluster = "+cluster" in urls[0]
    waits = options.get("waits")
    kind = Acked if options.get("acks") else Sharded if cluster else Waiting if waits else Floor
    if options.get("scripts"):
        kind = Scripted
    return kind(urls, ttl, options)


ADAPTER = _made
