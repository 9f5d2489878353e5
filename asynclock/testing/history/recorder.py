"""A recorder of critical sections.

    history = History(tmp_path / "history.jsonl")          # every process opens the same file
    began = history.now()
    async with locks.lock("orders:42") as lease:
        with history.body(lease, began=began):
            ...
    assert check(history) == []

Times are seconds on the boot-time clock, which all processes of a machine share. An acquisition is
recorded a little late and a body's end a little early, so every overlap that is found is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

Kind = Literal["acquired", "entered", "extended", "left", "lost"]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LeaseLike(Protocol):
    """The attributes of a lease that the recorder uses; leases of other libraries can have them."""

    @property
    def name(self) -> str:
        """Name of the lock."""

    @property
    def owner(self) -> str:
        """Random id in Redis of this holding."""

    @property
    def fence(self) -> int:
        """Number that rises with every lease on the name."""

    @property
    def held(self) -> bool:
        """Whether the lease is still held, as its holder can know."""

    def remaining(self) -> float:
        """Return the number of seconds for which the lease is valid without renewal."""


@dataclass(frozen=True, slots=True)
class Event:
    """One step of one body.

    body: the id of the body; a lease handed over inside a process keeps its owner but is a new
    body. at: when the step was recorded. began: when the acquire was called. until: the lease's
    deadline as known then. shared: True for readers. permits: the maximum number of exclusive
    bodies of this name at once.
    """

    kind: Kind
    body: str
    name: str
    owner: str
    fence: int
    at: float
    began: float
    until: float | None = None
    shared: bool = False
    permits: int = 1
    pid: int = 0
    task: str = ""


class History:
    """Records events in memory, or in a file that any number of processes append to.

    path: a file of JSON lines. Each event is one O_APPEND write, which is complete or absent, so a
    process may be killed at any moment. Iterating yields the events of all processes by time.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._memory: list[Event] = []
        self._file = None
        if self._path is not None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @staticmethod
    def now() -> float:
        """Return the time in seconds, on the clock of all events."""
        return time.clock_gettime(_CLOCK)

    def append(self, event: Event) -> None:
        """Record one event; usually `acquired` and `body` do this."""
        if self._file is None:
            self._memory.append(event)
        else:
            os.write(self._file, json.dumps(asdict(event)).encode() + b"\n")

    def __iter__(self) -> Iterator[Event]:
        return iter(sorted(self._read(), key=lambda event: event.at))

    def _read(self) -> Iterable[Event]:
        if self._path is None:
            return self._memory
        return [Event(**json.loads(line)) for line in self._path.read_bytes().splitlines()]

    def acquired(
        self,
        name: str,
        owner: str,
        fence: int,
        *,
        began: float | None = None,
        until: float | None = None,
        shared: bool = False,
        permits: int = 1,
    ) -> Body:
        """Record an acquisition that has just succeeded; record its later steps with the Body."""
        now = self.now()
        body = f"{os.getpid()}-{next(_numbers)}"
        event = Event(
            kind="acquired",
            body=body,
            name=name,
            owner=owner,
            fence=fence,
            at=now,
            began=now if began is None else began,
            until=until,
            shared=shared,
            permits=permits,
            pid=os.getpid(),
            task=_task_name(),
        )
        self.append(event)
        return Body(self, event)

    @contextlib.contextmanager
    def body(
        self, lease: LeaseLike, *, began: float, shared: bool = False, permits: int = 1
    ) -> Iterator[Body]:
        """Record the critical section that runs under `lease`, whose acquire was called at `began`.

        The body is recorded as lost if the lease is no longer held at the end. Renewals are not
        recorded; call `Body.extended` to have them in the history.
        """
        until = self.now() + lease.remaining()
        body = self.acquired(
            lease.name,
            lease.owner,
            lease.fence,
            began=began,
            until=until,
            shared=shared,
            permits=permits,
        )
        body.entered()
        try:
            yield body
        finally:
            if lease.held:
                body.left(until=self.now() + lease.remaining())
            else:
                body.lost()

    def close(self) -> None:
        """Close the file, if there is one; the events can still be read."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Body:
    """One critical section that is being recorded."""

    def __init__(self, history: History, acquired: Event) -> None:
        self._history = history
        self._last = acquired

    def entered(self) -> None:
        """Record that the critical section begins."""
        self._step("entered", self._last.until)

    def extended(self, until: float) -> None:
        """Record that the lease ends at `until` now."""
        self._step("extended", until)

    def left(self, *, until: float | None = None) -> None:
        """Record that the critical section has ended; call this before the release."""
        self._step("left", self._last.until if until is None else until)

    def lost(self, *, until: float | None = None) -> None:
        """Record that the critical section has ended by a loss; `until` is None if unknown."""
        self._step("lost", until)

    def _step(self, kind: Kind, until: float | None) -> None:
        now = self._history.now()
        changes = {"kind": kind, "at": now, "until": until, "task": _task_name()}
        self._last = Event(**{**asdict(self._last), **changes})
        self._history.append(self._last)


_numbers = itertools.count(1)


def _task_name() -> str:
    with contextlib.suppress(RuntimeError):
        if task := asyncio.current_task():
            return task.get_name()
    return threading.current_thread().name
