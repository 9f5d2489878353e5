"""The limit in Python: one socket per node, hiredis, and one write for all commands of a tick.

The commands are those of a plain Redlock without fences: SET NX PX, and compare-and-delete. There
is no lock logic: no checks, no deadlines, no clean-up and no waiting. Like every Redlock it goes on
at a majority of replies.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis

from . import Adapter

_FREE = b'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end'


class _Votes:
    """One request to all nodes, which counts down to the majority."""

    __slots__ = ("done", "missing")

    def __init__(self, missing: int) -> None:
        self.missing = missing
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
    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.links: list[_Link] = []
        self.queue: list[bytes] = []
        for url in self.urls:
            address = urlsplit(url)
            assert address.hostname
            assert address.port
            _, link = await loop.create_connection(_Link, address.hostname, address.port)
            self.links.append(link)
        self.quorum = len(self.links) // 2 + 1
        self.px = b"%d" % (self.ttl * 1000)
        self.sha = hashlib.sha1(_FREE, usedforsecurity=False).hexdigest().encode()
        await self._ask(len(self.links), b"SCRIPT", b"LOAD", _FREE)

    def _ask(self, quorum: int, *command: bytes) -> asyncio.Future[None]:
        votes = _Votes(quorum)
        for link in self.links:
            link.pending.append(votes)
        if not self.queue:
            votes.done.get_loop().call_soon(self._flush)
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]  # any length, says its code
        self.queue.append(packed)
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
        loop, floor = asyncio.new_event_loop(), Floor(self.urls, self.ttl, self.options)
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


ADAPTER = Floor
