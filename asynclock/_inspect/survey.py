"""Everything that is held or shared on the nodes, found by SCAN in small pages, all nodes at once.

Of one name all possible keys are known, so reading them takes no SCAN.

A page and the questions about its keys are many short commands, so no server works for the survey
longer than one of them takes. KEYS, which blocks a server until it has seen every key, is not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from .._engine.engine import Engine
from .._engine.inspection import Inspection, NodeView, Waiter, in_order
from .._engine.spec import places
from .._keys import MESSAGE, counter, derived, lock_key
from .._nodes.cluster import ClusterNode
from .._nodes.node import Node
from .._nodes.wire import Answer, Command, Failure, Script, reader
from .._primitives.base import Held, Queue
from .._primitives.kinds import PLACES, KeyRef, keys_of
from .._primitives.shared.register import State, StateView
from .._rules.quorum import majority
from ..errors import ConfigurationError, QuorumUnavailableError


@dataclass(frozen=True, slots=True)
class SharedState:
    """What all nodes keep of one state."""

    name: str
    part: State
    nodes: tuple[StateView, ...]
    quorum: int

    @property
    def kind(self) -> str:
        """The kind of primitive: "event", "latch" or "barrier"."""
        return self.part.suffix

    @property
    def last(self) -> StateView:
        """The view with the last known change; another change may be under way."""
        return max(self.nodes, key=lambda view: view.number)

    @property
    def support(self) -> int:
        """Number of nodes that know the last change."""
        return sum(view.number == self.last.number for view in self.nodes)

    @property
    def agreed(self) -> bool:
        """Whether a quorum knows the last change."""
        return self.support >= self.quorum

    @property
    def state(self) -> dict[str, Any] | None:
        """The state as JSON; None if something other than this library wrote the value."""
        return self._described[0]

    @property
    def summary(self) -> str:
        """The state in words."""
        words = self._described[1]
        return words if self.agreed else f"{words}, no quorum"

    @property
    def _described(self) -> tuple[dict[str, Any] | None, str]:
        view = self.last
        with contextlib.suppress(ConfigurationError):
            if view.value is not None:
                return self.part.describe(view.value, view.now)
        return None, "written by something else"

    def as_json(self) -> dict[str, Any]:
        """Return the state as docs/json.md describes it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "remaining": self.last.remaining,
            "agreed": self.agreed,
            "quorum": self.quorum,
            "nodes": [
                {key: getattr(view, key) for key in ("node", "value", "remaining", "error")}
                for view in self.nodes
            ],
        }


KEYS_PER_SCAN = 250
"""Number of keys per SCAN: about 50 µs of a server's time."""
LOCKS_PER_COMMAND = 50
"""Number of locks per command that asks for their owners: about as long."""
WITHOUT_SCAN = (
    "leases are found with SCAN: allow +scan to the user, or remove rename-command SCAN; "
    "inspecting one name needs no SCAN"
)
SLICE = 250
"""Number of leases that are read without a pause: a few milliseconds of an application's loop."""
Item = TypeVar("Item")
OWNERS = Script.load(__package__, "survey.lua")
_BESIDE = counter("").encode(), derived("", MESSAGE).encode()
"""The ends of the keys that are read with the lock's own."""


@dataclass(repr=False)  # asyncio.run formats its task, and so the result
class Survey:
    """What the nodes hold."""

    held: list[Inspection]
    """Every lease, sorted by name and part."""
    errors: dict[str, str] = field(default_factory=dict)
    """Node -> why it could not be asked."""
    waiting: dict[str, tuple[Waiter, ...]] = field(default_factory=dict)
    """Name -> who waits for it, first one first; no name for which nobody waits."""
    queues: dict[tuple[str, str], tuple[Waiter, ...]] = field(default_factory=dict)
    """Name and kind -> who waits, as `waiting`."""
    without_vote: dict[str, str] = field(default_factory=dict)
    """Node -> why it has no vote, although it answers."""
    states: list[SharedState] = field(default_factory=list)
    """Events, latches and barriers, sorted by name and kind."""
    keys: int = 0
    """Number of keys under the prefix, on the node with most of them."""
    unlisted: int = 0
    """Number of nodes that refuse SCAN, until a person changes that."""

    def shortfall(self, nodes: int) -> str:
        """Return why the survey can't be complete: too few of the nodes answered. Else ""."""
        answered = nodes - len(self.errors)
        enough = answered >= nodes // 2 + 1
        return "" if enough else f", but only {answered} of {nodes} nodes answered"


async def survey(engine: Engine, name: str | None = None) -> Survey:
    """Find all leases and shared states, or only those of `name`."""
    prefix, quorum = engine.settings.prefix, engine.multiplexer.quorum
    parse = cache(partial(KeyRef.parse, prefix))  # all nodes have the same keys
    scans = [_KeyScan(node, prefix, parse) for node in engine.multiplexer.nodes]
    if name is None:
        await asyncio.gather(*(scan.run() for scan in scans))
    else:
        keys = keys_of(prefix, name)
        await asyncio.gather(*(scan.read(scan.node, keys) for scan in scans))
    queues = _queues(scans)
    named: dict[str, set[tuple[KeyRef, str]]] = {}
    for scan in scans:
        async for view in in_slices(scan.views):
            named.setdefault(view[0].name, set()).add(view)
    held = []
    async for one in in_slices(sorted(named)):
        for key, holder in sorted(named[one]):
            views = tuple([scan.view(key, holder) for scan in scans])
            waiters = queues.get((key.name, key.kind), ())
            held.append(Inspection(key.name, views, quorum, key.kind, key.shown, waiting=waiters))
    waiting: dict[str, tuple[Waiter, ...]] = {}
    for (waited, _), waiters in queues.items():
        waiting[waited] = (*waiting.get(waited, ()), *waiters)
    errors = {scan.node.address: scan.error for scan in scans if scan.error is not None}
    states = [
        SharedState(key.name, part, tuple(scan.state(key) for scan in scans), quorum)
        for key in sorted({key for scan in scans for key in scan.states})
        if isinstance(part := key.part, State)
    ]
    return Survey(
        held,
        errors,
        waiting,
        queues,
        states=states,
        keys=max(scan.keys for scan in scans),
        unlisted=sum(scan.unlisted for scan in scans),
    )


def _queues(scans: Sequence[_KeyScan]) -> dict[tuple[str, str], tuple[Waiter, ...]]:
    """Return who waits for each name and kind; a kind's queues in the order of its declaration."""
    answered = [scan for scan in scans if scan.error is None]
    keys = {key for scan in answered for key in scan.queues}
    found: dict[tuple[str, str], tuple[Waiter, ...]] = {}
    for key in sorted(keys, key=lambda key: (key.name, PLACES[key.suffix])):
        waiters = in_order(scan.queues.get(key, []) for scan in answered)
        if waiters:
            found[key.name, key.kind] = (*found.get((key.name, key.kind), ()), *waiters)
    return found


async def held(engine: Engine) -> list[Inspection]:
    """Find all leases.

    Raises QuorumUnavailableError if one may be missing; ConfigurationError if the nodes refuse
    SCAN, so that one would be missing each time.
    """
    found, nodes = await survey(engine), len(engine.multiplexer.nodes)
    if found.shortfall(nodes):
        causes = "; ".join(f"{node}: {cause}" for node, cause in found.errors.items())
        if nodes - found.unlisted < majority(nodes):
            raise ConfigurationError(f"too few nodes can list leases: {causes}")
        raise QuorumUnavailableError(
            f"too few nodes answered to list leases: {causes}", nodes=found.errors
        )
    return found.held


def ask(node: Node, command: Command) -> asyncio.Future[Any]:
    """Send one command to one node; the future gets the reply or a Failure."""
    answer = Answer(asyncio.get_running_loop())
    node.ask(command, answer, 0)
    return answer.future


async def in_slices(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield `items`, and let other tasks run after each few of them: there may be 100,000."""
    for number, item in enumerate(items):
        if number % SLICE == 0:
            await asyncio.sleep(0)
        yield item


class _KeyScan:
    """The keys of one node, page by page; of a Cluster, of all its primaries at once."""

    def __init__(self, node: Node, prefix: str, parse: Callable[[bytes], KeyRef | None]) -> None:
        self.node = node
        self.views: dict[tuple[KeyRef, str], NodeView] = {}
        """By key and reader ("" for other locks)."""
        self.queues: dict[KeyRef, Any] = {}
        """The waiters in each queue, or the Failure of a user who may not read them."""
        self.states: dict[KeyRef, StateView] = {}
        self.error: str | None = None
        self.keys = 0
        """Number of keys under the prefix."""
        self.unlisted = False
        """Whether a server refuses SCAN, until a person changes that."""
        self._parse = parse
        self._prefix = prefix
        self._pattern = re.sub(r"([*?[\]\\])", r"\\\1", prefix) + "*"

    async def run(self) -> None:
        """Look at every key of every server."""
        servers: Sequence[Node] = (self.node,)
        if isinstance(self.node, ClusterNode):
            servers = await self._primaries(self.node)
        await asyncio.gather(*(self._scan(server) for server in servers))

    async def _primaries(self, cluster: ClusterNode) -> Sequence[Node]:
        cause = "its primaries are not known"
        if not cluster.shards:
            # Any command with a key waits until the slots are known, for one node timeout.
            key = lock_key(self._prefix, "any")
            reply = await ask(cluster, _owners_of([key]))
            if isinstance(reply, Failure):
                cause = reply.cause
        if not cluster.shards:
            self.error = cause
        return cluster.shards

    def view(self, key: KeyRef, reader: str) -> NodeView:
        """Return what this node holds under `key`."""
        found = self.views.get((key, reader))
        return found or NodeView(self.node.address, None, None, 0, self.error)

    def state(self, key: KeyRef) -> StateView:
        """Return the state that this node keeps under `key`."""
        return self.states.get(key) or StateView(self.node.address, error=self.error)

    async def _scan(self, server: Node) -> None:
        # The next page is requested before the keys of the last one are read.
        page: asyncio.Future[Any] | None = self._page(server, b"0")
        while page is not None:
            parsed = page_of(await page)
            if isinstance(parsed, Failure):
                self.unlisted |= parsed.permanent
                named = parsed.permanent and "scan" in parsed.cause.lower()
                self.error = f"{parsed.cause} ({WITHOUT_SCAN})" if named else parsed.cause
                return
            self.keys += len(parsed.keys)
            page = self._page(server, parsed.cursor) if parsed.cursor != b"0" else None
            await self.read(server, set(parsed.keys))

    def _page(self, server: Node, cursor: bytes) -> asyncio.Future[Any]:
        words = ("SCAN", cursor, "MATCH", self._pattern, "COUNT", KEYS_PER_SCAN)
        return ask(server, Command.plain(*words))

    async def read(self, server: Node, keys: Iterable[bytes]) -> None:
        """Read what `server` keeps under `keys`."""
        locks: list[tuple[KeyRef, str]] = []
        others: list[KeyRef] = []
        for raw in keys:
            key = None if raw.endswith(_BESIDE) else self._parse(raw)
            if key is None:
                continue
            if key.part.single:
                locks.append((key, raw.decode()))
            else:
                others.append(key)
        await asyncio.gather(self._read_owners(server, locks), self._read_each(server, others))

    async def _read_each(self, server: Node, keys: Sequence[KeyRef]) -> None:
        replies = await asyncio.gather(*(ask(server, key.inspection(self._prefix)) for key in keys))
        for key, reply in zip(keys, replies, strict=True):
            self._note(key, reply)

    async def _read_owners(self, server: Node, locks: Sequence[tuple[KeyRef, str]]) -> None:
        # In a Cluster each key has its own slot.
        size = 1 if server is not self.node else LOCKS_PER_COMMAND
        groups = [locks[at : at + size] for at in range(0, len(locks), size)]
        asked = (ask(server, _owners_of(key for _, key in group)) for group in groups)
        for group, reply in zip(groups, await asyncio.gather(*asked), strict=True):
            parsed = _rows_of(reply, len(group))
            if isinstance(parsed, Failure):
                self.error = parsed.cause
                continue
            for (key, _), (owner, pttl, fence, text) in zip(group, parsed, strict=True):
                if owner is not None:
                    named = owner.decode("utf-8", "replace")
                    left = pttl / 1000 if pttl >= 0 else None
                    view = NodeView(self.node.address, named, left, fence, raw_message=text)
                    self.views[key, ""] = view

    def _note(self, key: KeyRef, reply: Any) -> None:
        part = key.part
        if isinstance(part, Held):
            views = part.views(self.node.address, reply)
            if isinstance(views, Failure):
                self._failed(views.cause)
                return
            for view in views:
                self.views[key, view.owner or ""] = view
        elif isinstance(part, Queue):
            parsed = places(reply)
            if isinstance(parsed, Failure) and not parsed.permanent:
                self._failed(parsed.cause)
            else:
                self.queues[key] = reply  # a user who may not read queues sees all the rest
        else:
            state = StateView.parse(self.node.address, reply)
            if state.error is not None:
                self._failed(state.error)
            elif state.value is not None:
                self.states[key] = state

    def _failed(self, cause: str) -> None:
        # A foreign key under our prefix is no error; a node that stops answering is.
        if "WRONGTYPE" not in cause:
            self.error = cause


class _Page(NamedTuple):
    """The reply to SCAN."""

    cursor: bytes
    keys: list[bytes]


@reader
def page_of(reply: Any) -> _Page:
    """Return the cursor and the keys in a reply to SCAN."""
    match reply:
        case [bytes(cursor), list(keys)] if set(map(type, keys)) <= {bytes}:
            return _Page(cursor, keys)
    raise ValueError


def _owners_of(locks: Iterable[str]) -> Command:
    keys = [key for lock in locks for key in (lock, counter(lock), derived(lock, MESSAGE))]
    return Command(OWNERS, keys, ("inspect",))


@reader
def _rows_of(reply: Any, size: int) -> list[tuple[bytes | None, int, int, bytes | None]]:
    """Return owner, ttl in ms, counter and message of each lock."""
    for row in reply:
        match row:
            case [bytes() | None, int(), int(), bytes() | None]:
                pass
            case _:
                raise ValueError
    if len(reply) != size:
        raise ValueError
    return list(reply)
