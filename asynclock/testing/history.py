"""A recorder of critical sections, and a checker that finds violations in the recorded history.

history = History(tmp_path / "history.jsonl")          # every process opens the same file
began = history.now()
async with locks.lock("orders:42") as lease:
    with history.body(lease, began=began):
        ...
assert check(history) == []
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

__all__ = ["Body", "Event", "History", "Violation", "check"]


# ---- The recorder --------------------------------------------------------------------------------
# Times are seconds on the boot-time clock, which all processes of a machine share. An acquisition
# is recorded a little late and a body's end a little early, so every overlap that is found is real.


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
        # A read may see a part of a line that is being written just now.
        whole, _, _ = self._path.read_bytes().rpartition(b"\n")
        return [Event(**json.loads(line)) for line in whole.splitlines()]

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


# ---- Checks a recorded history. It is a pure function, so tests can pass invented histories ------
# It reports these violations, per name:
# - overlap: at some moment more bodies had a valid lease than allowed (readers share with readers,
#   `permits` exclusive bodies with each other). A lease is valid from its acquisition until its
#   body was left or lost, at the latest until its deadline. A body without an end (its process was
#   killed) counts until its last known deadline; without a deadline it counts only for one moment.
# - fence repeats: two bodies have the same fence, unless both are readers.
# - fence falls: a body whose acquire began after another body was acquired has no larger fence,
#   unless both are readers.
# - overrun (only with `grace`): a body ended more than `grace` seconds after its lease's deadline,
#   if its last event contains that deadline.


_STEPS = get_args(Kind)

Rule = Literal["overlap", "fence repeats", "fence falls", "overrun"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule, and the acquisitions that violated it."""

    rule: Rule
    name: str
    events: tuple[Event, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.name!r}: {self.text}"


@dataclass(frozen=True, slots=True)
class _Span:
    """One body: its acquisition, the end of its validity, and its own end if there is one."""

    acquired: Event
    valid_until: float
    until: float | None
    ended: float | None

    def __str__(self) -> str:
        event = self.acquired
        return (
            f"fence {event.fence} of process {event.pid} {event.task!r}"
            f" [{event.at:.6f} to {self.valid_until:.6f}]"
        )


def check(
    history: Iterable[Event],
    *,
    permits: int | None = None,
    fences: bool = True,
    grace: float | None = None,
) -> list[Violation]:
    """Return all violations in `history`, in any order; the list is empty if there are none.

    permits: the maximum number of exclusive bodies at once (default: as in the events). fences:
    False for locks without fences. grace: see "overrun".
    """
    violations: list[Violation] = []
    for spans in _spans_by_name(history).values():
        violations += _overlaps(spans, permits)
        if fences:
            violations += _repeats(spans)
            violations += _falls(spans)
        if grace is not None:
            violations += _overruns(spans, grace)
    return violations


def _spans_by_name(history: Iterable[Event]) -> dict[str, list[_Span]]:
    bodies: defaultdict[str, list[Event]] = defaultdict(list)
    for event in history:
        bodies[event.body].append(event)
    by_name: defaultdict[str, list[_Span]] = defaultdict(list)
    for events in bodies.values():
        # Sort steps of the same moment in the order of a body's life, however they were recorded.
        span = _span(sorted(events, key=lambda event: (event.at, _STEPS.index(event.kind))))
        by_name[span.acquired.name].append(span)
    for spans in by_name.values():
        spans.sort(key=lambda span: span.acquired.at)
    return dict(by_name)


def _span(events: list[Event]) -> _Span:
    first, last = events[0], events[-1]
    if first.kind != "acquired":
        raise ValueError(f"body {first.body!r} was never acquired: {first}")
    ended = last.at if last.kind in ("left", "lost") else None
    known = [event.until for event in events if event.until is not None]
    ends = [end for end in (ended, *known[-1:]) if end is not None]
    return _Span(first, max(first.at, min(ends, default=first.at)), last.until, ended)


def _overlaps(spans: list[_Span], permits: int | None) -> Iterator[Violation]:
    active: list[_Span] = []
    for span in spans:
        active = [other for other in active if other.valid_until > span.acquired.at]
        together = [*active, span]
        if _too_many(together, permits):
            yield _violation("overlap", together, " with ".join(map(str, together)))
        active.append(span)


def _too_many(together: list[_Span], permits: int | None) -> bool:
    exclusive = [span for span in together if not span.acquired.shared]
    if not exclusive:
        return False
    allowed = permits if permits is not None else max(s.acquired.permits for s in exclusive)
    return len(exclusive) > allowed or len(exclusive) < len(together)


def _repeats(spans: list[_Span]) -> Iterator[Violation]:
    by_fence: defaultdict[int, list[_Span]] = defaultdict(list)
    for span in spans:
        by_fence[span.acquired.fence].append(span)
    for same in by_fence.values():
        if len(same) > 1 and not all(span.acquired.shared for span in same):
            yield _violation("fence repeats", same, " and ".join(map(str, same)))


def _falls(spans: list[_Span]) -> Iterator[Violation]:
    """For each begin of an acquire, find the body with the largest fence acquired until then."""
    done = iter(spans)
    upcoming = next(done, None)
    top: dict[bool, _Span] = {}  # by shared
    for span in sorted(spans, key=lambda span: span.acquired.began):
        while upcoming and upcoming.acquired.at < span.acquired.began:
            kind = upcoming.acquired.shared
            if kind not in top or upcoming.acquired.fence > top[kind].acquired.fence:
                top[kind] = upcoming
            upcoming = next(done, None)
        for kind, earlier in top.items():
            if kind and span.acquired.shared:
                continue
            if earlier.acquired.fence >= span.acquired.fence:
                text = f"{span}, begun at {span.acquired.began:.6f}, after {earlier}"
                yield _violation("fence falls", [earlier, span], text)


def _overruns(spans: list[_Span], grace: float) -> Iterator[Violation]:
    for span in spans:
        if span.ended is None or span.until is None or span.ended <= span.until + grace:
            continue
        late = span.ended - span.until
        yield _violation("overrun", [span], f"{span} went on for {late:.6f} s after its deadline")


def _violation(rule: Rule, spans: list[_Span], text: str) -> Violation:
    return Violation(rule, spans[0].acquired.name, tuple(span.acquired for span in spans), text)
