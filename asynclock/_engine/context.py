"""What everything that acts for one manager shares: its nodes, settings, totals and random numbers.

It knows no lock and no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from .._nodes.multiplexer import Multiplexer
from .._nodes.wire import Failure
from .._process import Background
from .._rules.pacing import Paces
from ..errors import ConfigurationError
from ..events import Observers
from .spec import OwnerIds

_log = logging.getLogger("asynclock")

UNRELEASED = "a node refuses releases, so locks last for their whole ttl: %s"
UNWOKEN = "a node can't wake the waiters of a lock that was released: %s"
WRONGTYPE = "WRONGTYPE"
"""Code of a failure at a key that another program has written: by then the lock is deleted."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one manager; times in seconds."""

    node_timeout: float
    max_ttl: float
    fence_retention: float
    """Seconds that a fence counter outlives its last use."""
    turn: float
    """Seconds that a process may keep a name, or take it again, while other processes wait."""
    ticket_ttl: float
    """Seconds that the nodes keep the place of a waiter which doesn't ask again."""
    label: str | None
    """The readable part of owner ids; None stands for the host name and the process id."""
    prefix: str
    """What every key begins with."""


@dataclass(slots=True)
class Totals:
    """Numbers of what has happened since the manager was made."""

    acquired: int = 0
    released: int = 0
    lost: int = 0
    renewed: int = 0
    attempts: int = 0
    refused: int = 0
    split_votes: int = 0
    write_backs: int = 0
    handovers: int = 0
    wakeups: dict[str, int] = field(
        default_factory=lambda: {"push": 0, "expiry": 0, "pacing": 0, "turn": 0}
    )


class Context:
    """The nodes, settings, totals and random numbers of one manager."""

    def __init__(
        self,
        multiplexer: Multiplexer,
        background: Background,
        settings: EngineSettings,
        observers: Observers,
    ) -> None:
        self.multiplexer: Multiplexer = multiplexer
        self.background: Background = background
        self.settings: EngineSettings = settings
        self.observers: Observers = observers
        self.totals: Totals = Totals()
        self.paces: Paces = Paces()
        """What is known of the holds of names that were refused lately."""
        self._generator = random.Random()
        self.random: Callable[[], float] = self._generator.random
        self.owners: OwnerIds = OwnerIds(settings.label)
        self.retention: int = int(settings.fence_retention * 1000)
        self.place: tuple[int, ...] = (round(settings.ticket_ttl * 1000),)
        """Arguments with which a first acquire asks for a place in the queue."""
        self.closed: bool = False
        self.ready: Callable[[], None] = multiplexer.ready
        """Called before each request. Raises ConfigurationError if no request can succeed, or if
        the manager is closed. This is the nodes' own method, to keep each acquire fast."""
        self.seeking: dict[object, tuple[str, float] | None] = {}
        """For each call that asks the nodes again and again: once others have the name, the name
        and when the call began."""
        self.undos: dict[Any, Callable[[Any], object]] = {}
        """For each call that may leave anything on the nodes: the function that takes all of it
        back, which `close` calls with the call. A dict keeps their order, so that simulations
        repeat."""
        self.undoing: set[asyncio.Task[Any]] = set()
        """The work of such functions that takes several requests; `aclose` waits for it."""
        self.messages: dict[object, bytes] = {}
        """For each grant whose lease publishes a message: the message, as the nodes keep it."""
        self.no_quorum_since: float = 0.0
        """When attempts began to get too few answers; 0 while a quorum answers."""
        self.complaints: set[str] = set()
        """Causes of refused releases that were logged; each is logged once."""
        self.inherited: bool = False
        """Whether the connections belong to the process that this one was forked from."""

    def soon(self, act: Callable[[], object]) -> None:
        """Call `act` in the manager's loop unless it is closed.

        The garbage collector may call this in any thread and in the middle of any of our functions.
        """
        if self.multiplexer.loop is not None:
            with contextlib.suppress(RuntimeError):
                self.multiplexer.loop.call_soon_threadsafe(act)

    def clean_up(self, act: Callable[[], object]) -> None:
        """Call `act` now; if the calling coroutine is being closed, in the next round of the loop.

        A coroutine may be closed in any thread, or where no loop runs, and must send nothing there.
        Call this in an `except` or `finally`.
        """
        if isinstance(sys.exception(), GeneratorExit):
            self.soon(act)
        else:
            act()

    def undo(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[Any]:
        """Start `work`, which takes back what a call has left on the nodes."""
        task = self.background.spawn(work, name)
        self.undoing.add(task)
        task.add_done_callback(self.undoing.discard)
        return task

    def complain(self, failure: Failure) -> None:
        """Log once that a node refuses releases: no error, because the lease was ours until now."""
        if failure.cause not in self.complaints:
            self.complaints.add(failure.cause)
            _log.warning(UNWOKEN if failure.code == WRONGTYPE else UNRELEASED, failure.cause)

    def close(self) -> None:
        """Refuse every later call, and take back what calls may have left on the nodes."""
        self.closed, self.ready = True, _refuse
        while self.undos:  # a garbage collection may close one of these calls meanwhile
            call, undo = self.undos.popitem()
            undo(call)  # now, because later no connection is left to send the requests

    def forked(self) -> None:
        """In a forked child: renew the label and the random seed; refuse every later call."""
        self._generator.seed()
        self.owners.forked()
        self.multiplexer.unsent.clear()
        if self.multiplexer.loop is not None:
            self.inherited = self.closed = True
            self.multiplexer.loop = None
            self.ready = _refuse_inherited
            self.undos.clear()
            self.seeking.clear()


def _refuse_inherited() -> None:
    raise ConfigurationError(
        "this manager was used before this process was forked and belongs to the parent process: "
        "make one with connect() in each process, after the fork"
    )


def _refuse() -> None:
    raise ConfigurationError(
        "this manager is closed: enter it again and make the lock anew, or call connect()"
    )


def closed() -> ConfigurationError:
    """Return the error for a call that waited while the manager was closed."""
    return ConfigurationError("the manager was closed while this call waited")
