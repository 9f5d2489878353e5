"""In-memory nodes without a server: `asynclock.connect("memory://")`, for fast tests.

    locks = asynclock.connect("memory://a", "memory://b", "memory://c")
    memory_node("b").freeze()

Links, handshake, guards and Lua scripts are the real ones; only the socket is replaced. A name is
one node of the running event loop. Each test has its own loop, so tests share nothing. This needs
`lupa` (`pip install asynclock[test]`; from Python 3.15 on, `pip install lupa` as well).
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import hiredis

from asynclock import _clock
from asynclock._nodes.endpoint import Endpoint, PlainSettings, redacted
from asynclock.errors import ConfigurationError
from asynclock.testing.memory.commands import (
    OK,
    Keyspace,
    ReplyError,
    StatusReply,
    Words,
    check_lua,
    execute,
    run_script,
    sha_of,
)

__all__ = ["MemoryEndpoint", "MemoryNode", "endpoint", "freeze", "memory_node", "thaw"]

# ---- Carries bytes between a link and an in-memory node, in order and with the delay of a route --


class Route:
    """The route between one client and one node; this one has no delay and never fails."""

    def delay(self) -> float:
        """Return the delay of the next piece in seconds; pieces of one direction stay in order."""
        return 0.0

    def admit(self, stream: Stream, data: bytes) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether an arrived piece may be delivered; if not, call `stream.pump` later."""
        return True


class Stream:
    """One direction of a connection, which keeps the order of bytes on every route."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        route: Route,
        deliver: Callable[[bytes], None],
        context: contextvars.Context,
    ) -> None:
        self.loop = loop
        self.context = context
        self._deliver = deliver
        self._route = route
        self._on_the_way: collections.deque[bytes] = collections.deque()
        self._arrived = 0

    def send(self, data: bytes) -> None:
        """Send `data`; empty data means the end of the connection."""
        self._on_the_way.append(data)
        delay = self._route.delay()
        if delay:
            self.loop.call_later(delay, self._arrive, context=self.context)
        else:
            self.loop.call_soon(self._arrive, context=self.context)

    def _arrive(self) -> None:
        # One more piece may be delivered; it is always the first one.
        self._arrived += 1
        self.pump()

    def pump(self) -> None:
        """Deliver the pieces that have arrived, as far as the route allows."""
        while self._arrived and self._route.admit(self, self._on_the_way[0]):
            self._arrived -= 1
            self._deliver(self._on_the_way.popleft())


class MemoryTransport(asyncio.Transport):
    """The client's end of a connection; a `Link` uses it as its transport."""

    def __init__(self, protocol: asyncio.Protocol, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._protocol = protocol
        self._send = send
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the node."""
        if not self._closed and data:
            self._send(bytes(data))

    def is_closing(self) -> bool:
        """Return whether either side has closed the connection."""
        return self._closed

    def close(self) -> None:
        """Hang up; bytes that were written are still delivered."""
        if not self._closed:
            self._send(b"")
            self.lost(None)

    def abort(self) -> None:
        """Hang up like `close`: a kernel also delivers what was written before an abort."""
        self.close()

    def received(self, data: bytes) -> None:
        """Take bytes from the node; no bytes mean that it has hung up."""
        if not self._closed:
            if data:
                self._protocol.data_received(data)
            else:
                self.lost(ConnectionResetError("reset by the node"))

    def lost(self, error: Exception | None) -> None:
        """Note that the connection has ended."""
        if not self._closed:
            self._closed = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._protocol.connection_lost, error)


class Push(list[Any]):
    """A message that a node sends without a request."""


def encode(reply: Any) -> bytes:
    """Encode a reply as RESP3."""
    kind = type(reply)
    if kind is int:
        return b":%d\r\n" % reply
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, StatusReply):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, ReplyError):
        return b"-%b\r\n" % str(reply).encode()
    if isinstance(reply, dict):
        pairs = b"".join(encode(word) for pair in reply.items() for word in pair)
        return b"%%%d\r\n%b" % (len(reply), pairs)
    mark = b">" if isinstance(reply, Push) else b"*"
    return b"%b%d\r\n%b" % (mark, len(reply), b"".join(map(encode, reply)))


# ---- The node's end of a connection without a socket ---------------------------------------------


class MemoryClient:
    """One connection, from the node's side."""

    def __init__(self, node: MemoryNode, protocol: asyncio.Protocol, route: Route) -> None:
        loop = asyncio.get_running_loop()
        self._node = node
        self._reader = hiredis.Reader()
        self.tracking = self.caching = False
        self.life: object = None
        """The node's process that this is connected to."""
        # Requests travel in an empty context; replies arrive in the context of the client.
        requests = Stream(loop, route, self._arrived, contextvars.Context())
        self.transport: MemoryTransport = MemoryTransport(protocol, requests.send)
        self._replies = Stream(loop, route, self.transport.received, contextvars.copy_context())
        self._over = False

    def _arrived(self, data: bytes) -> None:
        self._node.arrived(self, data)

    def received(self, data: bytes) -> None:
        """Execute requests, even if the client has disconnected by then, as a server does."""
        if not data:
            self._over = True
            self._node.left(self)
        self._reader.feed(data)
        replies = []
        while (words := self._reader.gets()) is not False:
            replies.append(encode(self._node.answer(self, tuple(words))))
        if replies and not self._over:
            self._replies.send(b"".join(replies))

    def push(self, words: Sequence[Any]) -> None:
        """Send the client a message without a request."""
        if not self._over:
            self._replies.send(encode(Push(words)))

    def hang_up(self) -> None:
        """Break the connection from the node's side."""
        if not self._over:
            self._over = True
            self._node.left(self)
            self._replies.send(b"")


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
        self._inbox: list[tuple[MemoryClient, bytes]] = []
        self._scripts: dict[bytes, bytes] = {}
        self._watchers: dict[bytes, dict[MemoryClient, None]] = {}
        self._current: MemoryClient | None = None
        self._born()

    def _born(self) -> None:
        self._life = object()
        """The node's present process; each restart begins a new one."""
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
        client.life = self._life
        self._clients[client] = None
        protocol.connection_made(client.transport)
        return protocol

    def left(self, client: MemoryClient) -> None:
        """Note that a connection has ended."""
        self._clients.pop(client, None)
        for watchers in self._watchers.values():
            watchers.pop(client, None)

    def arrived(self, client: MemoryClient, data: bytes) -> None:
        """Take bytes of a client; no bytes mean that it has hung up."""
        if client.life is not self._life:
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


# ---- Finds the in-memory nodes of the running event loop by their `memory://` addresses ----------


SCHEME = "memory://"
AGE = 86_400.0
"""Seconds that a node has been up when its name is first used."""


def freeze(node: str) -> None:
    """Freeze the node of a `memory://` address: it answers nothing until `thaw`."""
    memory_node(node).freeze()


def thaw(node: str) -> None:
    """Let a frozen node answer again, beginning with the requests that came in the meantime."""
    memory_node(node).thaw()


class MemoryEndpoint(Endpoint):
    """The endpoint of an in-memory node, which is found by name in the running loop, or given."""

    def __init__(
        self, name: str, node: MemoryNode | None = None, route: Route | None = None
    ) -> None:
        super().__init__(PlainSettings(name, 0, 0, None, None))
        self.name = name
        self._node = node
        self._route = route

    @property
    def address(self) -> str:
        """The name of the node in errors, logs and health."""
        return SCHEME + self.name

    @property
    def opaque(self) -> bool:
        """Return True because there is nothing that another way to connect would reach."""
        return True

    async def open(self, make: Callable[[], P]) -> P:
        """Open a connection. Raises OSError."""
        node = memory_node(self.name) if self._node is None else self._node
        return await node.open(make, self._route)


_nodes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryNode]]
_nodes = weakref.WeakKeyDictionary()


def memory_node(name: str = "") -> MemoryNode:
    """Return the node of `memory://name` in the running loop; the first call makes it."""
    nodes = _nodes.setdefault(asyncio.get_running_loop(), {})
    name = name.removeprefix(SCHEME)
    if name not in nodes:
        nodes[name] = MemoryNode(name)
        # Old enough to vote at once. After `restart` the node is young and the guard makes it wait.
        nodes[name].born_ago(AGE)
    return nodes[name]


def endpoint(url: str) -> MemoryEndpoint:
    """Return the endpoint of a `memory://` URL. Raises ConfigurationError."""
    name = url.strip().removeprefix(SCHEME)
    if any(mark in name for mark in "/?#@,"):
        raise ConfigurationError(f"{redacted(url)} must be {SCHEME} and a plain name")
    check_lua()  # raises now; later the node would seem not to answer
    return MemoryEndpoint(name)
