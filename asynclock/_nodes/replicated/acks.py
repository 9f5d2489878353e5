"""Grants that count only once replicas have acknowledged them, and the mark that names a primary.

A link has at most one WAIT in flight: all writes before it share its reply, and later writes are
collected for the next WAIT (docs/decisions/0017). A grant is held back until the WAIT after it is
answered. WAITAOF also counts servers that have saved the write to disk. WAIT names no replicas: so
with a roster (0029) the primary is asked around each WAIT for its mark, for the offset of its last
write, and for what each replica has acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from ... import _clock
from ..._keys import MARKER, PRIMARY
from ..._rules.heirs import Look, Looks, Roster
from ..._rules.quorum import majority
from ..._rules.validity import Facts
from ...errors import ConfigurationError
from ..handshake import OWN_KEYS, HandshakeError
from ..link import Link, LinkListener
from ..wire import (
    BATCH,
    GRANTED,
    GRANTED_DIGIT,
    NO_ACKS,
    NOBODY,
    REDIRECTS,
    WRITES,
    Command,
    Failure,
    Sink,
    Take,
    number,
    parse_info,
    reader,
)

MARK_KEY: Final = MARKER + PRIMARY
"""The key of the mark, without the prefix."""
MARK_RETENTION_MS = 30 * 24 * 3600 * 1000
"""Milliseconds that a mark outlives the last connection; then a client waits out a quarantine."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark that this client found when it connected to the process."""

    same: bool
    """Whether the mark named this process already."""
    age: float
    """Seconds since the mark first named this process, by the server's clock; for a client without
    a roster at most those since the roster was closed."""
    before: str
    """The process that the mark named before, or "-"."""
    roster: str = ""
    """The replicas that must acknowledge each grant; "" if nobody keeps to a roster."""


async def leave_mark(link: Link, key: str, process: str, roster: str = "") -> Mark | None:
    """Make the mark name `process`. Return None if the server forbids it or has no memory left.

    `roster` begins a new term's roster; a client without one closes the roster that it finds.
    Raises HandshakeError if the server doesn't answer, is still loading its data, or names another
    server of its Cluster.
    """
    words = ("mark", process, MARK_RETENTION_MS, roster)
    reply = _read(await link.ask(Command(OWN_KEYS, (key,), words)))
    if isinstance(reply, Failure):
        forbidden = reply.permanent and reply.code not in REDIRECTS
        if forbidden or "OOM" in reply.cause:
            return None
        raise HandshakeError(reply)
    return reply


@reader
def _read(reply: Any) -> Mark:
    same, since, before, found, now = reply
    return Mark(bool(same), (now - since) / 1_000_000, before.decode(), found.decode())


# the roster

REPLICATION = Command.plain("INFO", "replication")
REFRESH: Final = 3600.0
"""Seconds after which a mark that did not change is written again, so that it does not expire."""
UNKNOWN: Final = 1 << 63
"""Offset that no replica reaches, for a primary that does not tell its own."""
MARGIN: Final = 8.0
"""Added to `down-after-milliseconds`: the age of the look, the election, and the seconds for which
others may still use the old primary (`__init__.py: CONFIRMED`)."""


@dataclass(frozen=True, slots=True)
class Primacy:
    """One term of a primary that Sentinels name."""

    key: str
    """The key of the mark."""
    process: str
    """The process of this term, as the mark names it."""
    number: int
    """The term's number, which rises by at least one with each failover."""
    keeps: bool
    """Whether this client keeps to the roster."""

    def read(self, mark: object) -> tuple[str, Roster | None] | None:
        """Return the mark and its roster; None unless it is the mark of this term."""
        text = mark.decode() if isinstance(mark, bytes) else ""
        words = text.split(" ")
        if words[0] != self.process:
            return None
        return text, Roster.parse(words[3] if len(words) > 3 else "")

    @property
    def question(self) -> Command:
        """The command that reads the mark."""
        return Command.plain("GET", self.key, keys=(self.key,))

    def lack(self, mark: Any, before: Any, after: Any) -> Failure | None:
        """Return why a grant doesn't count, from the replies around its WAIT; None if it does."""
        failed = next((one for one in (mark, before, after) if isinstance(one, Failure)), None)
        if failed is not None:
            return failed
        found = self.read(mark)
        if found is None:
            return Failure("its mark is not that of this connection", code=NO_ACKS)
        roster, (written, _), (_, acknowledged) = found[1], streamed(before), streamed(after)
        listed = roster.listed if roster is not None else frozenset[str]()
        missing = sorted(listed - {name for name, at in acknowledged.items() if at >= written})
        if not missing:
            return None
        return Failure(f"{', '.join(missing)} did not acknowledge the grant", code=NO_ACKS)


def streamed(info: object) -> tuple[int, dict[str, int]]:
    """Return the primary's offset, and that of each attached replica, from INFO replication."""
    fields = parse_info(info)
    replicas = [
        dict(part.partition("=")[::2] for part in text.split(","))
        for key, text in fields.items()
        if key.startswith("slave") and "state=online" in text
    ]
    offsets = {f"{one.get('ip')}:{one.get('port')}": number(one, "offset") for one in replicas}
    written = number(fields, "master_repl_offset")
    known = {name: offset for name, offset in offsets.items() if offset is not None}
    return UNKNOWN if written is None else written, known


class InOrder:
    """Takes `size` replies, in their order; with the last one, calls `then` with all of them."""

    __slots__ = ("_replies", "_size", "_then")

    def __init__(self, size: int, then: Callable[..., None]) -> None:
        self._size = size
        self._then = then
        self._replies: list[Any] = []

    def on_reply(self, _index: int, reply: Any) -> None:
        self._replies.append(reply)
        if len(self._replies) == self._size:
            self._then(*self._replies)


class Heirs:
    """A client's looks at the present primary of a group, and what it believes of the next one."""

    def __init__(self) -> None:
        self._term: Primacy | None = None
        self._looks = Looks()
        self._written = 0.0

    def met(self, facts: Facts, term: Primacy | None, number: int, lag: float) -> bool:
        """Begin a term; return whether its primary has every grant of the terms before."""
        before, now = self._term, _clock.now()
        if before is not None and before == term and not facts.promoted:
            return False
        complete = (
            before is not None
            and number == before.number + 1
            and facts.after == before.process
            and self._looks.believes(facts.run_id, now, lag)
        )
        self._term, self._looks, self._written = term, Looks(), now
        return complete

    def look(self, link: Link, processes: Mapping[str, str], votes_from: float) -> None:
        """Look at the primary, and change its roster if that is due."""
        term, sent = self._term, _clock.now()
        if term is None:
            return

        def saw(mark: Any, info: Any = None) -> None:
            if isinstance(mark, Failure):
                return
            found = term.read(mark)
            roster = None if found is None else found[1]
            if not term.keeps:
                if roster is not None and roster.version >= 0:
                    self._lost(link, "others name the replicas that must acknowledge")
            elif found is None:
                self._lost(link, "its mark is gone, or that of another process")
            elif roster is not None and not isinstance(info, Failure) and term == self._term:
                look = Look(sent, _clock.now(), found[0], roster, *streamed(info), processes)
                self._take(link, term, look, votes=sent >= votes_from)

        sink = InOrder(1 + term.keeps, saw)
        link.send(term.question, sink, 0)
        if term.keeps:
            link.send(REPLICATION, sink, 0)

    def _take(self, link: Link, term: Primacy, look: Look, *, votes: bool) -> None:
        due = self._looks.take(look, votes=votes)
        if due is None and look.received - self._written >= REFRESH:
            due = look.roster
        if due is not None:
            self._written = look.received
            words = look.mark.split(" ")
            newer = " ".join([*words[:3], str(due)])
            change = ("roster", look.mark, newer, MARK_RETENTION_MS)
            link.send(Command(OWN_KEYS, (term.key,), change), NOBODY, 0)

    def _lost(self, link: Link, cause: str) -> None:
        """Leave a primary whose mark is not as this client left it; believe none of its heirs."""
        self._term = None
        link.close(cause)


# ---- Acknowledgements ---------------------------------------------------------------------------


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
        """Return why no grant can ever be acknowledged; None if a replica may come back."""
        needed = acks.needed(0)  # any number is enough for "majority" and "all"
        if self.most is None or self.most >= needed:
            return None
        has = f"only {self.most}" if self.most else "none"
        some = "1 replica" if needed == 1 else f"{needed} replicas"
        cause = f"acks={acks.wanted!r} needs {some}, and it has {has}"
        return Failure(cause, permanent=True, code=UNSUPPORTED)


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
        self.term: Primacy | None = None
        """The term whose roster names replicas that must acknowledge each grant, too."""
        self._acks = acks
        # A write may have to wait for the previous WAIT: both must fit into one node timeout.
        self._patience = max(1, int(node_timeout * 1000 / 2))
        self._gathered = False
        """Whether a write was sent after the last WAIT."""
        self._waiting = False
        self._held: list[tuple[Sink, int, Any, Command]] = []
        self._counted_at = 0.0
        self.before_write = self._before_write
        self.closed.add_done_callback(self._disconnected)

    def send(self, command: Command, sink: Sink, index: int, *, write: bool = False) -> None:
        """Queue `command`; `sink` gets a grant once it is acknowledged, otherwise a Failure."""
        if command.op in WRITES and (command.claims or command.op != BATCH):
            self._gathered = True
            sink = Take(partial(self._answered, command, sink))
        super().send(command, sink, index, write=write)

    def _before_write(self) -> None:
        if self._gathered and not self._waiting:
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
            self.send(REPLICATION, InOrder(1, self._recounted), 0)
        needed = self._acks.needed(self.replicas)
        self._gathered, self._waiting = False, True
        sink = InOrder(1, self.settle)
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

    def _hear(self, command: Command, answer: Any) -> None:
        # `settle` tells of a grant, once it is acknowledged.
        if not needs_acks(command, answer):
            super()._hear(command, answer)

    def _answered(self, command: Command, sink: Sink, index: int, answer: Any) -> None:
        """Hold a grant back until it is acknowledged; pass everything else on."""
        if not needs_acks(command, answer):
            sink.on_reply(index, answer)
            return
        self._held.append((sink, index, answer, command))
        if not self._waiting and not self._gathered:
            # The EVALSHA failed with NOSCRIPT, so the grant came after the WAIT that covers it.
            self._gathered = True
            self._loop.call_soon(self.flush)

    def settle(self, count: Any, unnamed: Failure | None = None) -> None:
        """Take the reply to a WAIT, which decides all grants held back, and the roster's lack."""
        self._waiting = False
        held, self._held = self._held, []
        lack = self._lack(count) or unnamed
        for sink, index, reply, command in held:
            answer = reply if lack is None else without(reply, command, lack)
            if self._transport is not None:  # otherwise the lack is the end of the connection
                super()._hear(command, answer)
            sink.on_reply(index, answer)
        if self._gathered:
            self._loop.call_soon(self.flush)

    def _named(self, term: Primacy, mark: Any, before: Any, count: Any, after: Any) -> None:
        self.settle(count, term.lack(mark, before, after))

    def _lack(self, reply: Any) -> Failure | None:
        parsed = _acknowledged(reply)
        if isinstance(parsed, Failure):
            return _unsupported(parsed)
        saved, count = parsed
        needed = self._acks.needed(self.replicas)
        within = f"within {self._patience / 1000:g} s"
        if not saved:
            return Failure(f"it had not saved the grant to disk {within}", code=NO_ACKS)
        if count < needed:
            did = "saved" if self._acks.durable else "acknowledged"
            return Failure(f"{count} of {needed} replicas {did} the grant {within}", code=NO_ACKS)
        return None

    def _recounted(self, info: Any) -> None:
        # The number never falls, as a lost replica may return as the primary.
        self.replicas = max(self.replicas, number(parse_info(info), "connected_slaves") or 0)


@reader
def _acknowledged(reply: Any) -> tuple[int, int]:
    """Return whether the primary has saved the grant, and the number of replicas that have it."""
    match reply:
        case int(count):  # of WAIT
            return 1, count
        case [int(saved), int(count)]:  # of WAITAOF
            return saved, count
    raise ValueError


def _unsupported(failure: Failure) -> Failure:
    """Make a failed WAITAOF permanent if the server doesn't support it."""
    text = failure.cause.upper()
    if failure.code == "ERR" and "WAITAOF" in text:
        return Failure(f"durable=True: {failure.cause}", permanent=True, code=UNSUPPORTED)
    return failure


def needs_acks(command: Command, reply: Any) -> bool:
    """Return whether replicas must acknowledge what the node did; some replies begin with marks."""
    match reply:
        case [int(), list(parsed), int()] if command.op == BATCH:
            return any(map(granted, parsed[len(parsed) - len(command.claims) :]))
        case [first, *_] if command.op in WRITES:
            return first == GRANTED or (type(first) is bytes and GRANTED_DIGIT in first)
    return False


def granted(parsed: Any) -> bool:
    """Return whether a reply grants a name: its own, or its part of a batch's."""
    return type(parsed) is int or (type(parsed) is list and parsed[:1] == [GRANTED])


def without(reply: Any, command: Command, lack: Failure) -> Any:
    """Return `lack` instead of a reply, or of the grants in the reply to a batch."""
    match reply:
        case [int(), list(parsed), int(clock)] if command.op == BATCH:
            first = len(parsed) - len(command.claims)
            left = [lack if granted(one) else one for one in parsed[first:]]
            return [1, parsed[:first] + left, clock]
    return lack
