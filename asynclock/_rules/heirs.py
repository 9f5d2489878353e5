"""Decides whether a promoted replica has every grant, so that it need not wait for a max_ttl.

A primary's mark keeps a roster: the names of the replicas that must acknowledge each grant. A
client trusts a promoted replica only if this client saw, at the old primary, that the replica had
every grant. A name leaves the roster in two steps that are further apart than a look counts: until
then, nothing is granted without a replica that a client may still trust. docs/decisions/0029 has
the reasons; tests/model (cases F9 to F15, G12 to G24) takes each part away, and finds two holders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from .validity import DRIFT, quarantine


@dataclass(frozen=True, slots=True)
class Roster:
    """The replicas that must acknowledge each grant of a term."""

    version: int
    """Rises with each change. Below 0 for a closed roster: when it was closed (µs), negative."""
    window: float
    """Seconds for which a look counts; the same for all clients of the term."""
    members: frozenset[str] = frozenset()
    """Replicas that a client may believe once they are promoted."""
    leaving: frozenset[str] = frozenset()
    """Replicas that no client believes if it looks from now on."""

    @classmethod
    def parse(cls, text: str) -> Roster | None:
        """Read `version;window;name,-name`; a dash is before each name that leaves. "" is None."""
        if not text:
            return None
        version, window, names = text.split(";")
        found = set(filter(None, names.split(",")))
        leaving = {name for name in found if name.startswith("-")}
        members, gone = found - leaving, {name[1:] for name in leaving}
        if int(version) < 0:
            members, gone = set(), members | gone
        return cls(int(version), float(window), frozenset(members), frozenset(gone))

    def __str__(self) -> str:
        names = [*sorted(self.members), *(f"-{name}" for name in sorted(self.leaving))]
        return f"{self.version};{self.window:g};{','.join(names)}"

    @property
    def listed(self) -> frozenset[str]:
        """The replicas that must acknowledge."""
        return self.members | self.leaving

    def towards(self, present: frozenset[str], unchanged: float) -> Roster | None:
        """Return the roster that should replace this one, or None.

        `present` are the replicas that are attached and alive. `unchanged` is the number of seconds
        for which this client has certainly seen this very roster.
        """
        closed = self.version < 0
        newer = replace(self, version=self.version + (not closed))
        joining, lost = present - self.members, self.members - present
        if not closed and (joining or lost):
            members, leaving = (self.members | joining) - lost, (self.leaving | lost) - joining
            return replace(newer, members=members, leaving=leaving)
        if self.leaving and unchanged >= quarantine(self.window):
            return replace(newer, leaving=frozenset())
        return None


@dataclass(frozen=True, slots=True)
class Look:
    """What a client saw at a primary; moments are on its own boot-time clock."""

    sent: float
    received: float
    mark: str
    """The whole mark, which never has the same text again after it changed."""
    roster: Roster
    offset: int
    """Where the primary's stream of writes was."""
    acknowledged: Mapping[str, int]
    """How far each attached replica has acknowledged the stream, by name."""
    processes: Mapping[str, str]
    """The run_id that each replica which is alive had before the look was sent, by name."""


class Looks:
    """A client's looks at the primary of one term."""

    def __init__(self) -> None:
        self._base: Look | None = None
        self._unchanged_from = 0.0
        self._believed_until: dict[str, float] = {}

    def take(self, look: Look, *, votes: bool) -> Roster | None:
        """Take in a look; return the roster that should replace the one that it saw, or None.

        It proves the members that have acknowledged all that the primary had at an earlier look, if
        nobody changed the roster in between. Everything later counts only with them. `votes` tells
        whether the primary has a vote; before that it may lack grants itself.
        """
        base, roster = self._base, look.roster
        if base is None or base.mark != look.mark:
            self._base, self._unchanged_from = look, look.received
        else:
            reached = {n for n in roster.members if look.acknowledged.get(n, -1) >= base.offset}
            for name in reached & base.processes.keys() if votes else ():
                until = look.sent + roster.window * (1 - DRIFT)
                self._believed_until[base.processes[name]] = until
            if reached == roster.members:
                self._base = look
        present = frozenset(look.acknowledged.keys() & look.processes.keys())
        return roster.towards(present, look.received - self._unchanged_from)

    def believes(self, process: str | None, now: float, lag: float) -> bool:
        """Return whether a replica's process, promoted at `now` or before, has every grant.

        Others may go on using the primary before for `lag` seconds. Until then, none of their
        grants may count without this replica.
        """
        return now + quarantine(lag) <= self._believed_until.get(process or "", -inf)
