"""Checks a recorded history. It is a pure function, so tests can pass invented histories.

It reports these violations, per name:
- overlap: at some moment more bodies had a valid lease than allowed (readers share with readers,
  `permits` exclusive bodies with each other). A lease is valid from its acquisition until its body
  was left or lost, at the latest until its deadline. A body without an end (its process was killed)
  counts until its last known deadline; without a deadline it counts only for one moment.
- fence repeats: two bodies have the same fence, unless both are readers.
- fence falls: a body whose acquire began after another body was acquired has no larger fence,
  unless both are readers.
- overrun (only with `grace`): a body ended more than `grace` seconds after its lease's deadline, if
  its last event contains that deadline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from asynclock.testing.history.recorder import Event, Kind

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

    @property
    def start(self) -> float:
        return self.acquired.at

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
        spans.sort(key=lambda span: span.start)
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
        active = [other for other in active if other.valid_until > span.start]
        together = [*active, span]
        if _too_many(together, permits):
            text = " with ".join(map(str, together))
            yield Violation("overlap", span.acquired.name, _events(together), text)
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
            text = " and ".join(map(str, same))
            yield Violation("fence repeats", same[0].acquired.name, _events(same), text)


def _falls(spans: list[_Span]) -> Iterator[Violation]:
    """For each begin of an acquire, find the body with the largest fence acquired until then."""
    done = iter(spans)
    upcoming = next(done, None)
    top: dict[bool, _Span] = {}  # by shared
    for span in sorted(spans, key=lambda span: span.acquired.began):
        while upcoming and upcoming.start < span.acquired.began:
            kind = upcoming.acquired.shared
            if kind not in top or upcoming.acquired.fence > top[kind].acquired.fence:
                top[kind] = upcoming
            upcoming = next(done, None)
        for kind, earlier in top.items():
            if kind and span.acquired.shared:
                continue
            if earlier.acquired.fence >= span.acquired.fence:
                text = f"{span}, begun at {span.acquired.began:.6f}, after {earlier}"
                pair = _events([earlier, span])
                yield Violation("fence falls", span.acquired.name, pair, text)


def _overruns(spans: list[_Span], grace: float) -> Iterator[Violation]:
    for span in spans:
        if span.ended is None or span.until is None or span.ended <= span.until + grace:
            continue
        late = span.ended - span.until
        text = f"{span} went on for {late:.6f} s after its deadline"
        yield Violation("overrun", span.acquired.name, _events([span]), text)


def _events(spans: list[_Span]) -> tuple[Event, ...]:
    return tuple(span.acquired for span in spans)
