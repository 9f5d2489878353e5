"""Grants that count only once replicas have acknowledged them.

WAIT covers only writes of its own connection and blocks all commands behind it. So a link has at
most one WAIT in flight: all writes before it share its reply, and later writes are collected for
the next WAIT (group commit). The reply to the write is looked at first: a refusal passes at once, a
grant is held back until the WAIT after it is answered. WAITAOF does the same and also counts
servers that have saved the write to disk. https://redis.io/docs/latest/commands/wait/
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from ... import _clock
from ..._rules.quorum import majority
from ...errors import ConfigurationError
from ..link import Link, LinkListener
from ..replies import NO_ACKS, NOBODY, Failure, Sink, number, parse_info, reader
from ..script import BATCH, GRANTED, GRANTED_MARK, WRITES, Command
from .mark import REPLICATION, InOrder, Term

RECOUNT = 1.0
"""Seconds between counts of the replicas, for "majority" and "all"."""
UNSUPPORTED: Final = "UNSUPPORTED"
"""Code of a Failure: this deployment doesn't support the settings."""


@dataclass(frozen=True, slots=True)
class Acks:
    """Which servers besides the primary must have a grant before it counts."""

    wanted: int | Literal["majority", "all"] = 0
    durable: bool = False
    """Whether the servers must have the grant on disk."""

    @classmethod
    def of(cls, wanted: object, durable: object) -> Acks:
        """Check the settings of `connect`. Raises ConfigurationError."""
        if isinstance(wanted, bool) or not (
            wanted in ("majority", "all") or (isinstance(wanted, int) and wanted >= 0)
        ):
            raise ConfigurationError(
                f'acks must be a number of replicas, "majority" or "all", not {wanted!r}'
            )
        return cls(wanted, bool(durable))

    def __bool__(self) -> bool:
        return bool(self.wanted) or self.durable

    def needed(self, replicas: int) -> int:
        """Return how many replicas must acknowledge, if `replicas` are connected."""
        if self.wanted == "all":
            return max(1, replicas)
        if self.wanted == "majority":
            # A majority of all members; the primary itself is one of the members that agree.
            return max(1, majority(replicas + 1) - 1)
        return self.wanted


class KnownReplicas:
    """The largest number of replicas that a primary has had while we knew it; None: unknown."""

    def __init__(self) -> None:
        self.most: int | None = None

    def counted(self, replicas: int | None) -> None:
        """Take in a number of replicas, dead or alive."""
        if replicas is not None:
            self.most = replicas if self.most is None else max(self.most, replicas)

    def lack(self, acks: Acks) -> Failure | None:
        """Return why no grant can ever be acknowledged, or None.

        A replica that was there before may come back, so its absence is an outage.
        """
        needed = acks.needed(self.most or 0)
        if self.most is None or self.most >= needed:
            return None
        has = f"only {self.most}" if self.most else "none"
        cause = f"acks={acks.wanted!r} needs {_some(needed)}, and it has {has}"
        return Failure(cause, permanent=True, code=UNSUPPORTED)


def _some(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


class AckedLink(Link):
    """A link to a primary whose grants are held back until enough replicas have them."""

    def __init__(
        self, listener: LinkListener, timeout: float, acks: Acks, node_timeout: float
    ) -> None:
        super().__init__(listener, timeout)
        self.replicas = 0
        """Number of replicas, for "majority" and "all"."""
        self.recount = True
        """Whether to ask the primary for the number; False where Sentinels or a Cluster give it."""
        self.term: Term | None = None
        """The term whose roster names replicas that must acknowledge each grant, too."""
        self._acks = acks
        # A write may have to wait for the previous WAIT: both must fit into one node timeout.
        self._patience = max(1, int(node_timeout * 1000 / 2))
        self._gathered = False
        """Whether a write was sent after the last WAIT."""
        self._waiting = False
        self._held: list[tuple[Sink, int, Any, int]] = []
        self._counted_at = 0.0
        self.before_write = self._before_write
        self.closed.add_done_callback(self._disconnected)

    def send(self, command: Command, sink: Sink, index: int, *, now: bool = False) -> None:
        """Queue `command`; `sink` gets a grant once it is acknowledged, otherwise a Failure."""
        batch = command.op == BATCH
        acquires = len(command.claims) if batch else 0
        if command.op in WRITES and (acquires or not batch):
            self._gathered = True
            sink = _Grant(self, sink, acquires)
        super().send(command, sink, index, now=now)

    def _before_write(self) -> None:
        if self._gathered and not self._waiting and not self.closed.done():
            self._wait()

    def _disconnected(self, _closed: asyncio.Future[None]) -> None:
        # Not every grant that is held back has a WAIT in flight, which would fail with the link.
        self._gathered = False
        self.settle(Failure("the connection was lost before the grant was acknowledged"))

    def _wait(self) -> None:
        now = _clock.now()
        due = self.recount and now - self._counted_at >= RECOUNT
        if due and isinstance(self._acks.wanted, str):
            self._counted_at = now
            self.send(REPLICATION, self, 1)
        needed = self._acks.needed(self.replicas)
        self._gathered, self._waiting = False, True
        sink: Sink = self
        if self.term is not None:
            sink = InOrder(4, partial(self._named, self.term))
            self.send(self.term.question, sink, 0)
            self.send(REPLICATION, sink, 0)
        if not self._acks.durable:
            command = Command.plain("WAIT", needed, self._patience)
        else:
            first = self._patience // 4 if needed else 0
            if first:
                # A replica acknowledges before it saves, so its first reply to WAITAOF would miss
                # this write, and its next unsolicited one is up to a second away.
                self.send(Command.plain("WAIT", needed, first), NOBODY, 0)
            command = Command.plain("WAITAOF", 1, needed, self._patience - first)
        self.send(command, sink, 0)
        if self.term is not None:
            self.send(REPLICATION, sink, 0)

    def hold(self, sink: Sink, index: int, reply: Any, acquires: int) -> None:
        """Hold a grant, or a batch with `acquires` acquires, back until it is acknowledged."""
        self._held.append((sink, index, reply, acquires))
        if not self._waiting and not self._gathered:
            # The EVALSHA failed with NOSCRIPT, so the grant came after the WAIT that covers it.
            self._gathered = True
            self._loop.call_soon(self.flush)

    def settle(self, count: Any, unnamed: Failure | None = None) -> None:
        """Take the reply to a WAIT, which decides all grants that are held back.

        `unnamed` is the lack of an acknowledgement that the roster demands.
        """
        self._waiting = False
        held, self._held = self._held, []
        lack = self._lack(count) or unnamed
        for sink, index, reply, acquires in held:
            sink.on_reply(index, reply if lack is None else without(reply, acquires, lack))
        if self._gathered:
            self._loop.call_soon(self.flush)

    def _named(self, term: Term, mark: Any, before: Any, count: Any, after: Any) -> None:
        self.settle(count, term.lack(mark, before, after))

    def _lack(self, reply: Any) -> Failure | None:
        said = _acknowledged(reply)
        if isinstance(said, Failure):
            return _unsupported(said)
        saved, count = said
        needed = self._acks.needed(self.replicas)
        within = f"within {self._patience / 1000:g} s"
        if not saved:
            return Failure(f"it had not saved the grant to disk {within}", code=NO_ACKS)
        if count < needed:
            did = "saved" if self._acks.durable else "acknowledged"
            return Failure(f"{count} of {needed} replicas {did} the grant {within}", code=NO_ACKS)
        return None

    def on_reply(self, index: int, reply: Any) -> None:
        """Take the reply to a WAIT (0) or to INFO (1), which has the number of replicas.

        That number never falls, as a lost one may return as the primary.
        """
        if index == 0:
            self.settle(reply)
        else:
            self.replicas = max(self.replicas, number(parse_info(reply), "connected_slaves") or 0)


@reader
def _acknowledged(reply: Any) -> tuple[int, int]:
    """Return whether the primary has saved the grant, and the number of replicas that have it."""
    match reply:
        case int(count):  # of WAIT
            return 1, count
        case [int(saved), int(count)]:  # of WAITAOF
            return saved, count
    raise ValueError(reply)


def _unsupported(failure: Failure) -> Failure:
    """Make a failed WAITAOF permanent if the server doesn't support it."""
    text = failure.cause.upper()
    if failure.code == "ERR" and "WAITAOF" in text:
        return Failure(f"durable=True: {failure.cause}", permanent=True, code=UNSUPPORTED)
    return failure


class _Grant:
    """Takes the reply to a write: holds grants back and passes everything else on."""

    __slots__ = ("_acquires", "_link", "_sink")

    def __init__(self, link: AckedLink, sink: Sink, acquires: int) -> None:
        self._link = link
        self._sink = sink
        self._acquires = acquires

    def on_reply(self, index: int, reply: Any) -> None:
        """Take the reply; that to an operation on several owners begins with a row of marks."""
        acquires, held = self._acquires, False
        match reply:
            case [int(odd), list(said), int()] if acquires:
                held = not odd or any(map(granted, said[-acquires:]))
            case [first, *_]:
                held = first == GRANTED or (type(first) is bytes and GRANTED_MARK in first)
        if held:
            self._link.hold(self._sink, index, reply, acquires)
        else:
            self._sink.on_reply(index, reply)


def granted(said: Any) -> bool:
    """Return whether a batch granted a name, by the reply for that name."""
    return type(said) is int or (type(said) is list and said[:1] == [GRANTED])


def without(reply: Any, acquires: int, lack: Failure) -> Any:
    """Return `lack` instead of a reply, or of the grants in the reply to a batch."""
    match reply:
        case [int(), list(said), int(clock)] if acquires:
            first = len(said) - acquires
            left = [lack if granted(one) else one for one in said[first:]]
            return [1, said[:first] + left, clock]
    return lack
