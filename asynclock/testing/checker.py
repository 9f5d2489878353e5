"""Judges a recorded history; pure, so that it can be tested with histories that never happened.

Rules, per name:
- overlap: at no moment do more bodies hold a valid lease than may (readers share with readers,
  `permits` exclusive bodies with each other). A lease is valid from its acquisition until its body
  was left or lost, at the latest until its deadline. Of a body that never ended (its process was
  killed) nobody knows more than the last deadline; without one it counts as a moment.
- fence repeats: no two bodies have one fence, unless both are readers.
- fence falls: a body whose acquire began after another was acquired has the larger fence, unless
  both are readers.
- overrun (only if asked for): a body ended more than `grace` seconds after its lease's deadline,
  where its last event knows that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from asynclock.testing.history import Event, Kind

__all__ = ["Rule", "Violation", "check"]

_STEPS = get_args(Kind)

Rule = Literal["overlap", "fence repeats", "fence falls", "overrun"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, and by which acquisitions."""

    rule: Rule
    name: str
    events: tuple[Event, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.name!r}: {self.text}"


@dataclass(frozen=True, slots=True)
class _Span:
    """One body: its acquisition, the end of its validity, and its own end if it had one."""

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
    """Return every violation in `history`, in no promised order; an empty list is a clean history.

    permits: how many exclusive bodies may run at once, if not what the events say themselves.
    fences: False for locks that have none. grace: see the rule "overrun".
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
        # Steps of one moment in the order of life, however they were written.
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
    """Sweep over the moments of beginning; by then, who was acquired with the largest fence?"""
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
