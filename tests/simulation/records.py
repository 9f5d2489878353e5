"""What happened in a run, and whether it may have: who held what, and what was reported.

Overlaps and fences are judged twice: from the recorded history by the library's own checker, and
while the run goes on, by what each process would say of its leases at that moment.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from asynclock._engine.lease import Lease, grants_of
from asynclock.testing import Event, check
from tests.simulation.world import Process, World

NOTICED = 0.9
"""Seconds after which a process has noticed that its clock stood still: it asks an idle node for
its clock a third of max_ttl after the last reply, and the others as soon as one tells of a jump.
Two round trips and 0.67 s: so no piece may be later than 0.04 s where clocks stand still. That also
keeps round trips shorter than each stand-still, which would hide in a longer one (docs/threats.md).
"""


@dataclass
class Findings:
    """What one run showed."""

    seed: int
    plan: str
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each operation, fault and outcome took place."""
    trace: int = 0
    log: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Body:
    """A critical section that is open."""

    process: Process
    lease: Any
    name: str
    began: float
    number: int
    shared: bool = False


class Records:
    """The bodies of a run, open and closed."""

    def __init__(self, world: World, found: Findings, *, timely: bool) -> None:
        self.found = found
        self.forgetful = False
        """Whether a node has lost keys or its clock jumped, so that less than a quorum may have
        the keys of a valid lease."""
        self._world = world
        self._timely = timely
        """Whether one holder at a time is promised, or fences only."""
        self._open: dict[str, list[Body]] = {}
        self._history: list[Event] = []
        self._numbers = 0
        self._stood_still = False

    def accuse(self, text: str) -> None:
        """Something happened that must not."""
        self._world.say(f"VIOLATION {text}")
        self.found.violations.append(text)

    def clock_stood_still(self) -> None:
        """From now on check only what processes report after they have noticed."""
        self._stood_still = True

    def entered(
        self, process: Process, lease: Any, name: str, began: float, *, shared: bool = False
    ) -> Body:
        """A body begins: `acquire`, called at `began`, has just returned `lease`."""
        self._numbers += 1
        self.found.counts["leases"] += 1
        body = Body(process, lease, name, began, self._numbers, shared)
        self._world.say(f"{process.name} got {name} fence {lease.fence}")
        if not process.looks(lease):
            self.accuse(f"{process.name} got {name} fence {lease.fence}, which is not held")
        self._record(body, "acquired")
        self._open.setdefault(name, []).append(body)
        self._check_overlap(name)
        return body

    def extended(self, lease: Any, most: float = float("inf")) -> None:
        """A lease ends at another time now; or may, after `most` seconds, once it is asked to."""
        for body in self._open.get(lease.name, []):
            if body.lease is lease:
                self._record(body, "extended", most)

    def leaves(self, body: Body) -> None:
        """A body ends; nothing if it has."""
        bodies = self._open.get(body.name, [])
        if body in bodies:
            kind = "left" if body.process.looks(body.lease) else "lost"
            self._check_overlap(body.name)
            bodies.remove(body)
            self._world.say(f"{body.process.name} {kind} {body.name} {body.lease.fence}")
            self._record(body, kind)

    def _record(self, body: Body, kind: Any, most: float = float("inf")) -> None:
        lease, now = body.lease, self._world.loop.now
        # It is unknown when a lost one ended, only that it had ended by then.
        held = body.process.looks(lease)
        until = now + min(most, lease.remaining()) if held else None
        self._history.append(
            Event(
                kind=kind,
                body=str(body.number),
                name=body.name,
                owner=lease.owner,
                fence=lease.fence,
                at=now,
                began=body.began,
                until=until,
                shared=body.shared,
            )
        )

    # ---- judged while it goes on ---------------------------------------------------------------

    def look(self) -> None:
        """Judge everything that is open."""
        for name in list(self._open):
            self._check_overlap(name)
            if not self.forgetful:
                self._check_claims(name)

    def _believers(self, name: str) -> list[Body]:
        now = self._world.loop.now
        return [
            body
            for body in self._open[name]
            if now - body.process.stood_still_until >= NOTICED and body.process.looks(body.lease)
        ]

    def _check_overlap(self, name: str) -> None:
        holders = self._believers(name) if self._timely else []
        if len(holders) > 1 and not all(body.shared for body in holders):
            who = ", ".join(f"{body.process.name} {body.lease.fence}" for body in holders)
            self.accuse(f"{name} is held by {who} at once")

    def _check_claims(self, name: str) -> None:
        """A lease that is held is kept by a quorum of the nodes."""
        for body in self._believers(name) if self._timely else []:
            key, owner = lock_key_of(body.lease), body.lease.owner.encode()
            if key is None:
                continue
            nodes = range(len(self._world.nodes))
            keepers = sum(owner in self._world.owners(number, key) for number in nodes)
            if keepers <= len(nodes) // 2:
                self.accuse(
                    f"{body.process.name} says that it holds {name} fence {body.lease.fence},"
                    f" which {keepers} of {len(nodes)} nodes keep"
                )

    # ---- judged in the end ---------------------------------------------------------------------

    def close(self, *, falls: bool) -> None:
        """Judge the whole history; `falls`: whether fences must rise, or only differ."""
        for one in check(self._history):
            if one.rule == "overlap" and (self._stood_still or not self._timely):
                continue
            if one.rule == "fence falls" and not falls:
                continue
            self.found.violations.append(str(one))


def lock_key_of(lease: Any) -> bytes | None:
    """The key that a lease stands on; None once it has ended, or stands on several."""
    keys = [grant.spec.keys for grant in grants_of(lease)] if isinstance(lease, Lease) else []
    return keys[0][0].encode() if len(keys) == 1 and len(keys[0]) == 2 else None
