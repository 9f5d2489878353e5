"""One in-memory Redis: its connections, its faults, and the commands without keys."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from typing import Any, TypeVar

from asynclock import _clock
from asynclock.testing.memory.client import MemoryClient
from asynclock.testing.memory.commands import execute
from asynclock.testing.memory.keyspace import OK, Keyspace, ReplyError, Words
from asynclock.testing.memory.lua import run_script, sha_of
from asynclock.testing.memory.wire import Route

P = TypeVar("P", bound=asyncio.Protocol)
VERSION = "7.0.0"


class MemoryNode:
    """An in-memory node that behaves like a Redis server towards a lock manager.

    clock: its wall clock in seconds since 1970 (default: this machine's). entropy: the source of
    its run id. durable: a restart keeps the data, and the node reports that it does.
    """

    def __init__(
        self,
        name: str = "",
        *,
        clock: Callable[[], float] = lambda: _clock.wall(),
        entropy: Callable[[int], bytes] = os.urandom,
        durable: bool = False,
    ) -> None:
        self.name = name
        self.durable: bool = durable
        self.alive: bool = True
        self.frozen: bool = False
        self.keys: Keyspace = Keyspace(self.wall, self._changed, self._read)
        self._true_clock = clock
        self._entropy = entropy
        self._shift = 0.0
        self._clients: dict[MemoryClient, None] = {}
        self._lives = 0
        """The number of the node's present process; each restart begins a new one."""
        self._inbox: list[tuple[MemoryClient, bytes]] = []
        self._scripts: dict[bytes, bytes] = {}
        self._watchers: dict[bytes, dict[MemoryClient, None]] = {}
        self._current: MemoryClient | None = None
        self._born()

    def _born(self) -> None:
        self._lives += 1
        self.run_id: str = self._entropy(20).hex()
        self._since = self.wall()
        self._scripts.clear()
        self._watchers.clear()

    def born_ago(self, seconds: float) -> None:
        """Set the node's uptime in seconds, for example to satisfy the restart guard."""
        self._since = self.wall() - seconds

    # ---- faults ------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop answering; connections stay open and new ones are accepted."""
        self.frozen = True

    def thaw(self) -> None:
        """Answer again, beginning with the requests that came in the meantime."""
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for client, data in inbox:
            client.received(data)

    def kill(self) -> None:
        """End the node: connections break, new ones are refused, data is lost unless durable."""
        self.alive = False
        self._inbox.clear()
        self.cut()
        if not self.durable:
            self.keys.clear()

    def restart(self, *, keep_data: bool | None = None) -> None:
        """Start again as a new process. keep_data: whether data survives (default: `durable`)."""
        durable, self.durable = self.durable, self.durable if keep_data is None else keep_data
        self.kill()
        self.durable = durable
        self.alive, self.frozen = True, False
        self._born()

    def cut(self) -> None:
        """Break all connections, without ending the node."""
        for client in list(self._clients):
            client.hang_up()

    def flush(self) -> None:
        """Remove all keys, as FLUSHALL does."""
        self.keys.clear()
        self._watchers.clear()
        for client in self._clients:
            if client.tracking:
                client.push([b"invalidate", None])

    def forget_scripts(self) -> None:
        """Forget all scripts, as SCRIPT FLUSH does."""
        self._scripts.clear()

    def jump_clock(self, seconds: float) -> None:
        """Move the node's wall clock by `seconds`, forward or backward."""
        self._shift += seconds

    def wall(self) -> float:
        """Return the node's wall clock, in seconds since 1970."""
        return self._true_clock() + self._shift

    # ---- connections -------------------------------------------------------------------------

    async def open(self, factory: Callable[[], P], route: Route | None = None) -> P:
        """Open a connection for a client. Raises OSError."""
        if not self.alive:
            raise ConnectionRefusedError(f"{self.name} is down")
        protocol = factory()
        client = MemoryClient(self, protocol, route or Route())
        client.life = self._lives
        self._clients[client] = None
        protocol.connection_made(client.transport)
        return protocol

    def left(self, client: MemoryClient) -> None:
        """Note that a connection has ended."""
        self._clients.pop(client, None)

    def arrived(self, client: MemoryClient, data: bytes) -> None:
        """Take bytes of a client; no bytes mean that it has hung up."""
        if client.life != self._lives:
            return  # the connection was to a process that has ended
        if self.frozen:
            self._inbox.append((client, data))
        elif self.alive:
            client.received(data)

    # ---- commands ----------------------------------------------------------------------------

    async def command(self, *words: str | bytes | float) -> Any:
        """Execute one command without a connection; replies contain str, as with a LocalServer."""
        packed = tuple(w if isinstance(w, bytes) else str(w).encode() for w in words)
        reply = self.answer(None, packed)
        if isinstance(reply, ReplyError):
            raise reply
        return _as_text(reply)

    def answer(self, client: MemoryClient | None, words: Words) -> Any:
        """Execute one command; return its reply, which may be an error."""
        name = words[0].upper()
        self._writer, self._current = client, None
        if client is not None:
            caching, client.caching = client.caching, False
            self._current = client if caching and client.tracking else None
        try:
            own = _OWN.get(name)
            return execute(self.keys, words) if own is None else own(self, client, words)
        except ReplyError as error:
            return error
        finally:
            self._writer = self._current = None

    def _read(self, key: bytes) -> None:
        if self._current is not None:
            self._watchers.setdefault(key, {})[self._current] = None
            self._look_again(key)

    def _look_again(self, key: bytes) -> None:
        # A server notices the expiry of a watched key by itself, up to 100 ms late.
        expiry = self.keys.expiries.get(key)
        if expiry is not None:
            later = max(0.0, expiry / 1000 - self.wall()) + 0.005
            loop = asyncio.get_running_loop()
            loop.call_later(later, self._expire, key, context=contextvars.Context())

    def _expire(self, key: bytes) -> None:
        if self.keys.get(key) is not None and key in self._watchers:
            self._look_again(key)

    def _changed(self, key: bytes) -> None:
        for client in self._watchers.pop(key, ()):
            if client is not self._writer:
                client.push([b"invalidate", [key]])

    _writer: MemoryClient | None = None

    def _eval(self, source: bytes, words: Words) -> Any:
        count = int(words[2])
        return run_script(source, words[3 : 3 + count], words[3 + count :], self._script_call)

    def _script_call(self, words: Words) -> Any:
        return _time(self) if words[0].upper() == b"TIME" else execute(self.keys, words)

    def _said(self) -> str:
        facts = {
            "redis_version": VERSION,
            "run_id": self.run_id,
            "uptime_in_seconds": int(max(0.0, self.wall() - self._since)),
            "role": "master",
            "maxmemory": 0,
            "maxmemory_policy": "noeviction",
            "aof_enabled": int(self.durable),
        }
        return "".join(f"{key}:{value}\r\n" for key, value in facts.items())


# ---- what a server does besides keys -----------------------------------------------------------

Own = Callable[[MemoryNode, Any, Words], Any]


def _as_text(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode(errors="surrogateescape")
    return [_as_text(one) for one in reply] if isinstance(reply, list) else reply


def _time(node: MemoryNode) -> list[bytes]:
    seconds, micros = divmod(int(node.wall() * 1_000_000), 1_000_000)
    return [b"%d" % seconds, b"%06d" % micros]


def _evalsha(node: MemoryNode, _client: MemoryClient, words: Words) -> Any:
    source = node._scripts.get(words[1])
    if source is None:
        raise ReplyError("NOSCRIPT No matching script. Please use EVAL.")
    return node._eval(source, words)


def _eval(node: MemoryNode, _client: MemoryClient, words: Words) -> Any:
    node._scripts[sha_of(words[1]).encode()] = words[1]
    return node._eval(words[1], words)


def _script(node: MemoryNode, _client: MemoryClient, words: Words) -> Any:
    if words[1].upper() == b"LOAD":
        sha = sha_of(words[2]).encode()
        node._scripts[sha] = words[2]
        return sha
    node.forget_scripts()
    return OK


def _client_command(node: MemoryNode, client: MemoryClient, words: Words) -> Any:
    what = words[1].upper()
    if what == b"TRACKING":
        client.tracking = words[2].upper() == b"ON"
    elif what == b"CACHING":
        client.caching = True
    elif what == b"KILL":
        node.cut()
    return OK


def _config(node: MemoryNode, _client: MemoryClient, words: Words) -> Any:
    known = {b"appendfsync": b"always" if node.durable else b"everysec"}
    return {name: known[name] for name in words[2:] if name in known}


def _flushall(node: MemoryNode, _client: MemoryClient, _words: Words) -> Any:
    node.flush()
    return OK


def _hello(_node: MemoryNode, _client: MemoryClient, _words: Words) -> dict[bytes, Any]:
    return {b"server": b"redis", b"version": VERSION.encode(), b"proto": 3}


_OWN: dict[bytes, Own] = {
    b"HELLO": _hello,
    b"AUTH": lambda *_: OK,
    b"SELECT": lambda *_: OK,
    b"PING": lambda *_: b"PONG",
    b"TIME": lambda node, *_: _time(node),
    b"INFO": lambda node, *_: node._said().encode(),
    b"CONFIG": _config,
    b"CLIENT": _client_command,
    b"SCRIPT": _script,
    b"EVAL": _eval,
    b"EVALSHA": _evalsha,
    b"FLUSHALL": _flushall,
    b"FLUSHDB": _flushall,
}
