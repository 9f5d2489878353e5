"""Grants that count once replicas have acknowledged them.

WAIT counts only writes of its own connection and holds up whatever is behind it, so one WAIT is
out at a time: all writes that went before it share its answer, and those that arrive meanwhile
gather for the next one (group commit). The write's own answer is judged first: a refusal passes
at once, a grant is held back until the WAIT behind it is answered. WAITAOF does the same and also
counts what has reached the disk. https://redis.io/docs/latest/commands/wait/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from .. import _clock
from .._rules.quorum import majority
from ..errors import ConfigurationError
from .link import NOBODY, Failure, Link, Owner, Sink
from .script import Command

WRITES: Final = frozenset({"acquire", "raise", "extend", "prepare", "accept"})
"""The operations whose effect must not be forgotten. A forgotten release ends with its ttl."""
REPLICATION = Command.plain("INFO", "replication")
RECOUNT = 1.0
"""Replicas come and go: "majority" and "all" are counted anew after so many seconds."""
UNSUPPORTED: Final = "UNSUPPORTED"
"""The code of a Failure that means: this deployment can't keep what was asked of it."""


@dataclass(frozen=True, slots=True)
class Acks:
    """Who besides the primary must have a grant before it counts."""

    wanted: int | Literal["majority", "all"] = 0
    durable: bool = False
    """Whether having it means: on disk."""

    @classmethod
    def of(cls, wanted: object, durable: object) -> Acks:
        """Checked. Raises ConfigurationError."""
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
        """How many replicas must acknowledge, of so many that there are."""
        if self.wanted == "all":
            return max(1, replicas)
        if self.wanted == "majority":
            # Of all members; the primary itself is one of those that agree.
            return max(1, majority(replicas + 1) - 1)
        return self.wanted


class AckedLink(Link):
    """A link to a primary whose grants are held back until enough replicas have them."""

    def __init__(self, owner: Owner, timeout: float, acks: Acks, node_timeout: float) -> None:
        super().__init__(owner, timeout)
        self.replicas = 0
        """How many there are: what "majority" and "all" mean."""
        self.recount = True
        """Whether the primary is asked for them; no where somebody watches over all of them."""
        self._acks = acks
        # A write may wait for the WAIT before its own: both fit into one node timeout.
        self._patience = max(1, int(node_timeout * 1000 / 2))
        self._gathered = False
        """Whether a write was sent after the last WAIT."""
        self._waiting = False
        self._held: list[tuple[Sink, int, Any]] = []
        self._counted_at = 0.0

    def send(self, command: Command, sink: Sink, index: int) -> None:
        """Queue `command`; a grant is cast once it was acknowledged, else a Failure is."""
        if self._acks and command.script is not None and command.args[0] in WRITES:
            self._gathered = True
            sink = _Grant(self, sink)
        super().send(command, sink, index)

    def _flush(self) -> None:
        if self._gathered and not self._waiting and self._transport is not None:
            self._wait()
        super()._flush()

    def _wait(self) -> None:
        now = _clock.now()
        due = self.recount and now - self._counted_at >= RECOUNT
        if due and isinstance(self._acks.wanted, str):
            self._counted_at = now
            super().send(REPLICATION, _Count(self), 0)
        needed = self._acks.needed(self.replicas)
        self._gathered, self._waiting = False, True
        if not self._acks.durable:
            command = Command.plain("WAIT", needed, self._patience)
        else:
            first = self._patience // 4 if needed else 0
            if first:
                # A replica saves a write after it has said what it has saved: asked for the first
                # time it does not count the write, and it speaks unasked once a second only.
                super().send(Command.plain("WAIT", needed, first), NOBODY, 0)
            command = Command.plain("WAITAOF", 1, needed, self._patience - first)
        super().send(command, _Verdict(self), 0)

    def hold(self, sink: Sink, index: int, reply: Any) -> None:
        """Keep a grant until it is known to be acknowledged."""
        self._held.append((sink, index, reply))
        if not self._waiting and not self._gathered:
            # Its EVALSHA was answered by NOSCRIPT: the grant came after the WAIT behind that.
            self._gathered = True
            self._loop.call_soon(self._flush)

    def settle(self, reply: Any) -> None:
        """The WAIT was answered: so are all grants that came in before its answer."""
        self._waiting = False
        held, self._held = self._held, []
        lack = self._lack(reply)
        for sink, index, grant in held:
            sink.cast(index, grant if lack is None else lack)
        if self._gathered:
            self._loop.call_soon(self._flush)

    def _lack(self, reply: Any) -> Failure | None:
        if isinstance(reply, Failure):
            return _unsupported(reply)
        saved, count = reply if self._acks.durable else (1, reply)
        needed = self._acks.needed(self.replicas)
        within = f"within {self._patience / 1000:g} s"
        if not saved:
            return Failure(f"it had not saved the grant to disk {within}")
        if count < needed:
            did = "saved" if self._acks.durable else "acknowledged"
            return Failure(f"{count} of {needed} replicas {did} the grant {within}")
        return None

    def counted(self, replicas: int) -> None:
        """So many replicas are connected now. One that left may come back as the primary."""
        self.replicas = max(self.replicas, replicas)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the connection has ended; grants that still wait for a WAIT get none."""
        super().connection_lost(error)
        self.settle(Failure("the connection was lost before the grant was acknowledged"))

    def _refused(self, error: Exception, sink: Sink, index: int, command: Command) -> None:
        super()._refused(error, sink, index, command)
        if "READONLY" in str(error):  # 6.2 wraps what a script meets in words of its own
            self.close("it is no longer the primary")


def _unsupported(failure: Failure) -> Failure:
    """An answer to WAITAOF that will not change."""
    said = failure.cause.upper()
    if failure.code == "ERR" and "WAITAOF" in said:
        return Failure(f"durable=True: {failure.cause}", permanent=True, code=UNSUPPORTED)
    return failure


def connected_replicas(info: object) -> int | None:
    """The number in a reply to INFO; None if it doesn't say."""
    if isinstance(info, bytes):
        for line in info.splitlines():
            if line.startswith(b"connected_slaves:"):
                return int(line.partition(b":")[2])
    return None


class _Grant:
    """Judges the answer to a write: what is no grant passes."""

    __slots__ = ("_link", "_sink")

    def __init__(self, link: AckedLink, sink: Sink) -> None:
        self._link = link
        self._sink = sink

    def cast(self, index: int, reply: Any) -> None:
        """A reply begins with 1, or with a row of digits for a batch."""
        if type(reply) is list and (
            reply[0] == 1 or (type(reply[0]) is bytes and b"1" in reply[0])
        ):
            self._link.hold(self._sink, index, reply)
        else:
            self._sink.cast(index, reply)


class _Verdict:
    """The answer to a WAIT."""

    __slots__ = ("_link",)

    def __init__(self, link: AckedLink) -> None:
        self._link = link

    def cast(self, _index: int, reply: Any) -> None:
        """Hand it over."""
        self._link.settle(reply)


class _Count:
    """The answer to INFO replication."""

    __slots__ = ("_link",)

    def __init__(self, link: AckedLink) -> None:
        self._link = link

    def cast(self, _index: int, reply: Any) -> None:
        """Hand it over, if there is one."""
        count = connected_replicas(reply)
        if count is not None:
            self._link.counted(count)
