"""The mark that clients store in a server's data: the name of the process at this address.

The data outlive a process, or reach another server by replication. If the mark names another
process, this process was promoted or restarted since clients last connected. If there is no mark,
the server may have lost its data. Reasons: docs/decisions/0018.

The mark may have a roster, too: who must acknowledge each grant. The rule is in _rules/heirs. WAIT
counts replicas and names none. So the primary is asked around each WAIT for its mark, for the
offset of its last write, and for what each replica has acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ... import _clock
from ..._keys import MARKER, PRIMARY
from ..._rules.heirs import Look, Looks, Roster
from ..._rules.trust import Facts
from ..handshake import HandshakeError
from ..link import Link
from ..replies import NO_ACKS, NOBODY, REDIRECTS, Failure, number, parse_info, reader
from ..script import Command, Script

MARK_SCRIPT = Script.load(__package__, "mark.lua")
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
    reply = _read(
        await link.ask(Command(MARK_SCRIPT, (key,), (process, MARK_RETENTION_MS, roster)))
    )
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
ROSTER_SCRIPT = Script.load(__package__, "roster.lua")
REFRESH: Final = 3600.0
"""Seconds after which a mark that did not change is written again, so that it does not expire."""
UNKNOWN: Final = 1 << 63
"""Offset that no replica reaches, for a primary that does not tell its own."""
MARGIN: Final = 8.0
"""Added to `down-after-milliseconds`: the age of the look, the election, and the seconds for which
others may still use the old primary (`watched.CONFIRMED`)."""


@dataclass(frozen=True, slots=True)
class Term:
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
        listed = roster.listed if roster is not None else ()
        missing = sorted(name for name in listed if acknowledged.get(name, -1) < written)
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
        """Take the next reply."""
        self._replies.append(reply)
        if len(self._replies) == self._size:
            self._then(*self._replies)


class Heirs:
    """A client's looks at the present primary of a group, and what it believes of the next one."""

    def __init__(self) -> None:
        self._term: Term | None = None
        self._looks = Looks()
        self._written = 0.0

    def met(self, facts: Facts, term: Term | None, number: int, lag: float) -> bool:
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
        if term is not None:
            saw = partial(self._saw, link, term, processes, sent, sent >= votes_from)
            sink = InOrder(1 + term.keeps, saw)
            link.send(term.question, sink, 0)
            if term.keeps:
                link.send(REPLICATION, sink, 0)

    def _saw(
        self,
        link: Link,
        term: Term,
        processes: Mapping[str, str],
        sent: float,
        votes: bool,
        mark: Any,
        info: Any = None,
    ) -> None:
        """Take in the replies to a look."""
        if isinstance(mark, Failure):
            return
        found = term.read(mark)
        text, roster = found or ("", None)
        if not term.keeps:
            if roster is not None and roster.version >= 0:
                self._lost(link, "others name the replicas that must acknowledge")
        elif found is None:
            self._lost(link, "its mark is gone, or that of another process")
        elif roster is not None and not isinstance(info, Failure) and term == self._term:
            seen = Look(sent, _clock.now(), text, roster, *streamed(info), processes)
            self._take(link, term, seen, votes)

    def _take(self, link: Link, term: Term, look: Look, votes: bool) -> None:
        due = self._looks.take(look, votes=votes)
        if due is None and look.received - self._written >= REFRESH:
            due = look.roster
        if due is not None:
            self._written = look.received
            words = look.mark.split(" ")
            newer = " ".join([*words[:3], str(due)])
            change = Command(ROSTER_SCRIPT, (term.key,), (look.mark, newer, MARK_RETENTION_MS))
            link.send(change, NOBODY, 0)

    def _lost(self, link: Link, cause: str) -> None:
        """Leave a primary whose mark is not as this client left it; believe none of its heirs."""
        self._term = None
        link.close(cause)
