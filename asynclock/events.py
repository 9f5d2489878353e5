"""Events for observers such as logs, telemetry and a live page, as frozen values.

The engine imports no observer. Without observers no event is created. An observer that fails is
logged once per kind of failure and never breaks a lock.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol
from weakref import WeakKeyDictionary

_log = logging.getLogger("asynclock")


class _Named(logging.Handler):
    """Prints warnings with the library's name where logging isn't set up.

    Without any handler Python prints them, but not which part of the program they come from.
    """

    def emit(self, record: logging.LogRecord) -> None:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # closed, or a broken pipe
                sys.stderr.write(f"asynclock: {self.format(record)}\n")


_log.addHandler(_Named(logging.WARNING))

NOT_RENEWED = "no quorum renewed it before its ttl ran out"
NO_LONGER = "the nodes no longer hold it for us"
UNNOTICED = "its time ran out while the event loop was busy or the machine slept"
GONE = "the nodes no longer held it for us when it was released"
HELD_TOO_LONG = "its max_hold is over"
RAN_OUT = "its ttl ran out (renew=False)"
DROPPED = "its Lease was dropped without being released"
CLOSED = "the manager was closed"
LOSS_REASONS = (
    NOT_RENEWED, NO_LONGER, UNNOTICED, GONE, HELD_TOO_LONG, RAN_OUT, DROPPED, CLOSED
)  # fmt: skip
"""All reasons of a loss. docs/runbook.md says what to do about each."""


def holder_id(owner: str) -> str:
    """Return a digest of an owner id for traces, with which nobody can release a lock."""
    return sha256(owner.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of all events; all times are in seconds."""


@dataclass(frozen=True, slots=True)
class LeaseEvent(Event):
    """The base class of events of one lease."""

    name: str
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class Acquired(LeaseEvent):
    """A lease was granted after `waited` seconds, by `votes` nodes when the vote was decided.

    `handed_over` is True if another task of this process handed the lock over, without a vote.
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
    """A lease was released after `held` seconds, with `remaining` seconds of validity left.

    If the nodes' replies show that it was lost before, `Lost` follows.
    """

    held: float
    remaining: float


@dataclass(frozen=True, slots=True)
class Lost(LeaseEvent):
    """A lease was lost after `held` seconds. `reason` is one of `LOSS_REASONS`."""

    reason: str
    held: float


@dataclass(frozen=True, slots=True)
class Contended(Event):
    """An attempt was refused: another holder has the lock. `holder` is its label, untrusted.

    `holder_id` is the digest that the function of that name makes of the holder's owner id; None
    if another library made the id.
    """

    name: str
    holder: str | None
    remaining: float | None
    holder_id: str | None = None


@dataclass(frozen=True, slots=True)
class Voted(Event):
    """An attempt was decided. `votes` maps each node to "granted", "refused", "failed" or "open".

    "open" means that the node's answer was no longer needed.
    """

    name: str
    votes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SplitVote(Event):
    """Rivals asked at the same time and none got a quorum; each retries after a random pause."""

    name: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """An acquire ended without a lease after `waited` seconds.

    `outcome` is "timeout" (others had the lock for too long), "refused" (try_acquire found it
    held), "outage" (too few nodes answered, or may vote) or "error" (AlreadyHeldError or
    ConfigurationError).
    """

    name: str
    outcome: str
    waited: float


@dataclass(frozen=True, slots=True)
class NodeEvent(Event):
    """The base class of events of one node; `node` is its address."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUp(NodeEvent):
    """A connection to the node is ready."""


@dataclass(frozen=True, slots=True)
class NodeDown(NodeEvent):
    """The node can't be used at present."""

    cause: str


@dataclass(frozen=True, slots=True)
class NodeQuarantined(NodeEvent):
    """A guard keeps the node from voting for `seconds`."""

    cause: str
    seconds: float


Observer = Callable[[Event], None]
"""Called with each event, synchronously in the event loop: it must be quick and never block."""


class Waits(Protocol):
    """A manager, as far as a `Watcher` needs it."""

    def waits(self) -> dict[str, list[float]]:
        """Return the seconds that each task has waited so far, by name, longest first."""


class Watcher(ABC):
    """The base class of an observer that knows its managers: their waits, and their prefixes."""

    def __init__(self) -> None:
        self._managers: WeakKeyDictionary[Waits, None] = WeakKeyDictionary()

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Take an event."""

    def note(self, event: Event, prefix: str) -> None:  # noqa: ARG002 - for those that override it
        """Take an event of a manager with this prefix."""
        self(event)

    def watch(self, manager: Waits) -> None:
        """Begin to look at `manager`; it calls this when it gets the observer."""
        self._managers[manager] = None

    def unwatch(self, manager: Waits) -> None:
        """Look at `manager` no longer."""
        self._managers.pop(manager, None)

    @property
    def watched(self) -> list[Waits]:
        """The managers that this observes now; any thread may ask."""
        managers = (reference() for reference in self._managers.keyrefs())
        return [manager for manager in managers if manager is not None]


class Observers(list[Observer]):
    """The observers of a manager; false without observers, so that no event need be created."""

    __slots__ = ("_failed", "_prefix")

    def __init__(self, listeners: Iterable[Observer] = (), prefix: str = "") -> None:
        super().__init__(listeners)
        self._prefix = prefix
        self._failed: set[tuple[int, str]] = set()

    def __call__(self, event: Event) -> None:
        """Call each observer; the first failure of each kind is logged and none is raised."""
        for listener in tuple(self):  # an observer may remove itself when it is called
            try:
                if isinstance(listener, Watcher):
                    listener.note(event, self._prefix)
                else:
                    listener(event)
            # An observer must never break a lock, not even with an error that cancels a task or
            # ends the event loop.
            except BaseException as error:
                kind = (id(listener), type(error).__name__)
                if kind not in self._failed:
                    self._failed.add(kind)
                    _log.exception("an observer failed on %s", type(event).__name__)
