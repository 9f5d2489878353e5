"""What happens, as frozen values for whoever listens: logs, telemetry, a live page.

The engine imports no listener. Without one, no event is even made; one that fails is logged once
per kind of failure and never breaks a lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_log = logging.getLogger("asynclock")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; times are seconds."""


@dataclass(frozen=True, slots=True)
class LeaseEvent(Event):
    """Something that happened to one lease."""

    name: str
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class Acquired(LeaseEvent):
    """A lease was granted after `waited` seconds, by `votes` nodes at the moment of decision.

    `handed_over` is True when it came from another task of this process without asking the nodes.
    """

    waited: float
    votes: int
    handed_over: bool


@dataclass(frozen=True, slots=True)
class Renewed(LeaseEvent):
    """A lease was extended and is valid for `remaining` seconds from now."""

    remaining: float


@dataclass(frozen=True, slots=True)
class Released(LeaseEvent):
    """A lease was given back after `held` seconds, with `remaining` seconds of validity left."""

    held: float
    remaining: float


@dataclass(frozen=True, slots=True)
class Lost(LeaseEvent):
    """A lease ended against the will of its holder, after `held` seconds."""

    reason: str
    held: float


@dataclass(frozen=True, slots=True)
class Contended(Event):
    """An attempt was refused: somebody else (`holder`, a label from outside) has the lock."""

    name: str
    holder: str | None
    remaining: float | None


@dataclass(frozen=True, slots=True)
class Voted(Event):
    """An attempt was decided. `votes`: node → "granted", "refused", "failed", or "open".

    "open" is a node whose answer was not needed any more.
    """

    name: str
    votes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SplitVote(Event):
    """Rivals asked at once and none got a quorum; each tries again after a random pause."""

    name: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """An acquire ended without a lease after `waited` seconds: "timeout", "refused", "outage"."""

    name: str
    outcome: str
    waited: float


@dataclass(frozen=True, slots=True)
class NodeEvent(Event):
    """Something that happened to one node, named by its address."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUp(NodeEvent):
    """A connection to the node is ready."""


@dataclass(frozen=True, slots=True)
class NodeDown(NodeEvent):
    """The node can't be used just now."""

    cause: str


@dataclass(frozen=True, slots=True)
class NodeQuarantined(NodeEvent):
    """A guard keeps the node from voting for `seconds`."""

    cause: str
    seconds: float


Observer = Callable[[Event], None]
"""Called with each event, in the event loop, synchronously: be quick, never block."""


class Observers(list[Observer]):
    """Those who listen. Falsy when there are none, so that callers need not make the event."""

    __slots__ = ("_failed",)

    def __init__(self, listeners: Iterable[Observer] = ()) -> None:
        super().__init__(listeners)
        self._failed: set[tuple[int, str]] = set()

    def __call__(self, event: Event) -> None:
        for listener in tuple(self):  # one may leave when it hears
            try:
                listener(event)
            except Exception as error:  # an observer must never break a lock
                kind = (id(listener), type(error).__name__)
                if kind not in self._failed:
                    self._failed.add(kind)
                    _log.exception("an observer failed on %s", type(event).__name__)
