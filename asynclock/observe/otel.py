"""Turns events into OpenTelemetry spans and metrics (extra `[otel]`).

Only spans contain the names of locks: in metrics each name would create a time series of its own.
Metrics have the first of the user's patterns that fits the name.
"""

from __future__ import annotations

import functools
import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from .. import _settings

with _settings.imports("asynclock.observe.otel", "otel"):
    from opentelemetry import metrics, trace
    from opentelemetry.trace import Link, SpanKind, StatusCode

from ..errors import ConfigurationError
from ..events import (
    LOSS_REASONS,
    Acquired,
    Contended,
    Event,
    Failed,
    LeaseEvent,
    Lost,
    NodeDown,
    NodeEvent,
    NodeQuarantined,
    NodeUp,
    Released,
    Renewed,
    SplitVote,
    Voted,
    Watcher,
    holder_id,
)

SCOPE = "asynclock"
# A hand-over takes microseconds and a wait may take minutes, but the usual buckets begin at 5 ms.
SECONDS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5]
SECONDS += [1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
_STATES = {NodeUp: "up", NodeDown: "down", NodeQuarantined: "quarantined"}


OUTCOMES = ("acquired", "timeout", "refused", "outage", "error")
HOLDER_ID = "asynclock.holder_id"
"""Attribute of a hold, and of a wait: the id of the holder that refused it last."""
OTHER = "other"
"""The pattern of a name that fits none of the user's."""
KEPT_HOLDS = 1000
"""Maximum number of names whose last hold is known."""
_longest = functools.partial(max, default=0.0)
_refused: ContextVar[tuple[float, str, Contended] | None] = ContextVar("refused", default=None)
"""When the calling task was refused last, by which prefix, and what it learned of the holder."""


@dataclass(slots=True)
class Hold:
    """The last hold of a name in this process; `ended` is a moment, or None."""

    span: trace.Span
    fence: int
    ended: float | None = None


class Telemetry(Watcher):
    """An observer that makes spans and metrics, by default with the global providers.

    The spans are `asynclock.acquire`, a child of the waiting task's span, from the call to its end,
    and `asynclock.hold`, from the grant to the release or the loss. A wait has a link to the hold
    of this process that it waited for, and the `asynclock.holder_id` of a hold of another one.
    docs/observability.md lists the metrics. One object may observe any number of managers.

    Args:
        tracer_provider: makes the tracer (default: the global one).
        meter_provider: makes the meter (default: the global one).
        patterns: patterns of names such as `orders:*`, with the wildcards of the shell. Metrics of
            waits have the first that fits a name as an attribute, or "other".
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        patterns: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if isinstance(patterns, str):
            raise ConfigurationError("patterns is a list of patterns, such as ['orders:*']")
        self._patterns = [(one, re.compile(translate(one))) for one in patterns]
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._holds: dict[tuple[str, int], Hold] = {}
        self._last: OrderedDict[tuple[str, str], Hold] = OrderedDict()
        """By prefix and name."""
        self._wait = _seconds(meter, "acquire.duration", "From the call to a lease or an error.")
        self._hold = _seconds(meter, "hold.duration", "From the grant to the release or loss.")
        self._left = _seconds(meter, "lease.remaining", "Validity left at the release.")
        self._active = meter.create_up_down_counter(
            "asynclock.lease.active", "{lease}", "Leases that are held."
        )

        def counter(name: str, unit: str, text: str) -> metrics.Counter:
            return meter.create_counter(f"asynclock.{name}", unit, text)

        self._renewals = counter("lease.renewals", "{renewal}", "Extensions by a quorum.")
        self._handovers = counter("lease.handovers", "{handover}", "Passed on in the process.")
        self._outcomes = counter("acquire.outcomes", "{acquire}", "Calls that ended.")
        self._losses = counter("lease.losses", "{loss}", "Ended against the holder's will.")
        # A series that begins with 1 is no increase for Prometheus, so each begins with 0.
        for pattern in (*patterns, OTHER):
            for outcome in OUTCOMES:
                self._outcomes.add(0, _kind(pattern, outcome))
        for reason in LOSS_REASONS:
            self._losses.add(0, {"asynclock.loss.reason": reason})
        self._refusals = counter("acquire.refusals", "{refusal}", "Attempts that others won.")
        self._splits = counter("acquire.split_votes", "{vote}", "Attempts that nobody won.")
        for plain in (self._renewals, self._handovers, self._refusals, self._splits):
            plain.add(0)
        self._votes = counter(
            "node.votes", "{vote}", "What nodes had answered when it was decided."
        )
        self._changes = counter("node.state_changes", "{change}", "Nodes that came or went.")
        self._nodes: dict[str, tuple[bool, float]] = {}
        """For each node: whether its last connection is ready, and until when it is quarantined."""
        for name, text, read in (
            ("node.up", "1 while a connection to the node is ready.", lambda up, _barred: up),
            ("node.voting", "1 while the node is up and no guard bars it.", _votes),
        ):
            observe = functools.partial(self._observe, read)
            meter.create_observable_gauge(f"asynclock.{name}", [observe], "{node}", text)
        for name, unit, text, figure in (
            ("acquire.waiting", "{task}", "Tasks that wait now for a name that is held.", len),
            ("acquire.longest_wait", "s", "How long the first of them has waited.", _longest),
        ):
            observe = functools.partial(self._waits, figure)
            meter.create_observable_gauge(f"asynclock.{name}", [observe], unit, text)

    def __call__(self, event: Event) -> None:
        """Record `event` as spans and figures."""
        self.note(event, "")

    def note(self, event: Event, prefix: str) -> None:
        """Record an event of a manager with this prefix: others may use the same names."""
        match event:
            case Acquired():
                self._acquired(event, prefix)
            case Released():
                self._left.record(event.remaining)
                self._ended(event, event.held)
            case Lost():
                self._losses.add(1, {"asynclock.loss.reason": event.reason})
                self._ended(event, event.held, event.reason)
            case Renewed():
                self._renewals.add(1)
            case Failed():
                known = {"asynclock.lock.name": event.name}
                error = {"error.type": event.outcome}
                self._waited(event.waited, event.outcome, prefix, known, error)
            case Voted():
                for node, vote in event.votes.items():
                    self._votes.add(1, {**_server(node), "asynclock.vote": vote})
            case Contended():
                self._refusals.add(1)
                _refused.set((time.monotonic(), prefix, event))
            case SplitVote():
                self._splits.add(1)
            case NodeEvent():
                state = _STATES.get(type(event), "unknown")
                self._changes.add(1, {**_server(event.node), "asynclock.node.state": state})
                self._note(event)

    def _note(self, event: NodeEvent) -> None:
        up, barred = self._nodes.get(event.node, (False, 0.0))
        match event:
            case NodeUp():
                up = True
            case NodeDown():
                up = False
            case NodeQuarantined():
                barred = time.monotonic() + event.seconds
        self._nodes[event.node] = up, barred

    def _observe(
        self, read: Callable[[bool, float], bool], _options: metrics.CallbackOptions
    ) -> Iterable[metrics.Observation]:
        return [
            metrics.Observation(int(read(*known)), _server(node))
            for node, known in list(self._nodes.items())
        ]

    def _waits(
        self, figure: Callable[[list[float]], float], _options: metrics.CallbackOptions
    ) -> Iterable[metrics.Observation]:
        found: dict[str, list[float]] = defaultdict(list)
        for manager in self.watched:
            for name, waited in manager.waits().items():
                found[self._pattern(name)] += waited
        return [
            metrics.Observation(figure(found[pattern]), {"asynclock.lock.pattern": pattern})
            for pattern in (*(one for one, _ in self._patterns), OTHER)
        ]

    def _pattern(self, name: str) -> str:
        return next((one for one, fits in self._patterns if fits.match(name)), OTHER)

    def _acquired(self, event: Acquired, prefix: str) -> None:
        known: dict[str, str | int] = {
            "asynclock.lock.name": event.name,
            "asynclock.lease.fence": event.fence,
            "asynclock.lease.handed_over": event.handed_over,
        }
        self._waited(event.waited, "acquired", prefix, {**known}, {})
        self._active.add(1)
        if event.handed_over:
            self._handovers.add(1)
        known[HOLDER_ID] = holder_id(event.owner)
        hold = Hold(self._tracer.start_span("asynclock.hold", attributes=known), event.fence)
        self._holds[event.owner, event.fence] = self._last[prefix, event.name] = hold
        self._last.move_to_end((prefix, event.name))
        if len(self._last) > KEPT_HOLDS:
            self._last.popitem(last=False)

    def _waited(
        self, waited: float, outcome: str, prefix: str, known: dict[str, Any], error: dict[str, str]
    ) -> None:
        name, began = known["asynclock.lock.name"], time.monotonic() - waited
        links, last, refused = [], self._last.get((prefix, name)), _refused.get()
        # Beside a hold that goes on, this lease did not wait for it: they share a semaphore, say.
        waits_on = outcome != "acquired" and last is not None and last.ended is None
        if last is not None and (waits_on or (last.ended or 0.0) >= began):
            links.append(Link(last.span.get_span_context(), {"asynclock.lease.fence": last.fence}))
        if refused and refused[0] >= began and (prefix, name) == (refused[1], refused[2].name):
            known["asynclock.holder"] = refused[2].holder or ""
            if refused[2].holder_id is not None:
                known[HOLDER_ID] = refused[2].holder_id
        # The event comes when the wait has ended, so the span gets its start time afterwards.
        now = time.time_ns()
        span = self._tracer.start_span(
            "asynclock.acquire",
            kind=SpanKind.CLIENT,
            start_time=now - int(waited * 1e9),
            attributes={**known, "asynclock.outcome": outcome, **error},
            links=links,
        )
        if outcome in ("outage", "error"):
            span.set_status(StatusCode.ERROR, outcome)
        span.end(now)
        self._wait.record(waited, {"asynclock.outcome": outcome, **error})
        self._outcomes.add(1, _kind(self._pattern(name), outcome))

    def _ended(self, event: LeaseEvent, held: float, loss: str | None = None) -> None:
        hold = self._holds.pop((event.owner, event.fence), None)
        if hold is None:
            return  # the release revealed a loss: the span has ended already
        hold.ended, span = time.monotonic(), hold.span
        if loss is not None:
            span.set_attribute("error.type", "lease_lost")
            span.set_status(StatusCode.ERROR, loss)
        span.end()
        self._active.add(-1)
        self._hold.record(held)


def _kind(pattern: str, outcome: str) -> dict[str, str]:
    return {"asynclock.lock.pattern": pattern, "asynclock.outcome": outcome}


def _votes(up: bool, barred: float) -> bool:
    return up and time.monotonic() >= barred


def _seconds(meter: metrics.Meter, name: str, text: str) -> metrics.Histogram:
    return meter.create_histogram(
        f"asynclock.{name}", "s", text, explicit_bucket_boundaries_advisory=SECONDS
    )


def _server(node: str) -> dict[str, str | int]:
    host, _, port = node.rpartition(":")
    if host and port.isdecimal():
        return {"server.address": host, "server.port": int(port)}
    return {"server.address": node}
