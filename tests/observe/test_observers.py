"""What observers make of events, on real servers; and that they can break nothing."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import asynclock
from asynclock import blocking, events
from asynclock.fleet import Fleet
from asynclock.observe import LogEvents
from asynclock.observe.otel import Telemetry
from asynclock.testing import LocalServer
from tests import patient
from tests.docs.blocks import ROOT
from tests.waiting import call_off, go_through, until

FENCE = "asynclock.lease.fence"
SETTINGS: dict[str, Any] = {"restart_guard": False, "node_timeout": 2.0}


class Otel:
    """Providers that keep what they are told."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.telemetry = Telemetry(
            tracer_provider=self.tracers, meter_provider=self.meters, patterns=patterns
        )

    def beside(self) -> "Otel":
        """Return the telemetry of another process, with the same exporter."""
        other = Otel()
        other.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        return other

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def metrics(self) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            metric
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        return [
            (dict(point.attributes or {}), point)
            for metric in self.metrics()
            if metric.name == name
            for point in metric.data.data_points
        ]

    def counted(self, name: str) -> dict[tuple[Any, ...], float]:
        """Return what a counter counted, by the values of its attributes in order."""
        points = self.points(f"asynclock.{name}")
        return {
            tuple(value for _, value in sorted(known.items())): point.value
            for known, point in points
            if point.value
        }

    def total(self, name: str, **wanted: Any) -> float:
        return sum(
            getattr(point, "value", getattr(point, "count", 0))
            for attributes, point in self.points(name)
            if wanted.items() <= attributes.items()
        )


@pytest.fixture
def otel() -> Otel:
    return Otel()


@pytest.fixture
async def locks(urls: list[str], otel: Otel) -> AsyncIterator[asynclock.LockManager]:
    async with asynclock.connect(*urls, **SETTINGS, observers=[otel.telemetry]) as locks:
        yield locks


async def test_waits_and_holds(locks: asynclock.LockManager, otel: Otel) -> None:
    tracer = otel.tracers.get_tracer("test")
    with tracer.start_as_current_span("handler") as handler:
        async with locks.lock("a") as lease:
            assert otel.total("asynclock.lease.active") == 1
    (wait,), (hold,) = otel.spans("asynclock.acquire"), otel.spans("asynclock.hold")
    for span in (wait, hold):
        assert span.parent is not None
        assert span.parent.span_id == handler.get_span_context().span_id
        assert span.attributes["asynclock.lock.name"] == "a"
        assert span.attributes["asynclock.lease.fence"] == lease.fence
    assert wait.end_time <= hold.start_time + 1_000_000
    assert otel.total("asynclock.acquire.duration", **{"asynclock.outcome": "acquired"}) == 1
    assert otel.total("asynclock.hold.duration") == 1
    assert otel.total("asynclock.lease.active") == 0
    ((_, left),) = otel.points("asynclock.lease.remaining")
    assert 0 < left.sum <= 10
    votes = otel.points("asynclock.node.votes")
    assert len({(a["server.address"], a["server.port"]) for a, _ in votes}) == 3
    assert otel.total("asynclock.node.votes", **{"asynclock.vote": "granted"}) >= 2
    assert otel.total("asynclock.node.votes") == 3


BARS = re.compile(r" +├─*┤ *")
"""What is drawn between the name of a span and what it knows."""


async def test_the_picture_of_spans_in_the_docs(urls: list[str], otel: Otel) -> None:
    """Two tasks of one process and one of another want a name: what a viewer of traces shows."""
    theirs, tracer = otel.beside(), otel.tracers.get_tracer("test")
    here, there = (
        asynclock.connect(*urls, **SETTINGS, label=label, observers=[one.telemetry])
        for label, one in (("web-1", otel), ("web-2", theirs))
    )

    async def handle(locks: asynclock.LockManager, request: str, timeout: float) -> None:
        with tracer.start_as_current_span(request), contextlib.suppress(TimeoutError):
            async with locks.lock("orders:42", timeout=timeout):
                while locks is here and not theirs.spans("asynclock.acquire"):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)

    async with here, there:
        first = asyncio.create_task(handle(here, "POST /orders/42", 60))
        await until(here.leases, "the first has it")
        second = asyncio.create_task(handle(here, "POST /orders/42", 60))
        await until(here.waiters, "the second waits")
        await handle(there, "GET /orders/42", 0.1)
        await asyncio.gather(first, second)
    drawn = drawing(otel.exporter.get_finished_spans())
    page = (ROOT / "docs" / "observability.md").read_text("utf-8")
    shown = page.partition("```text\nPOST")[2].partition("```")[0]
    lines = [BARS.sub("|", line.rstrip()) for line in f"POST{shown}".splitlines()]
    assert drawn == lines, "\n".join(drawn)


def drawing(spans: Sequence[Any]) -> list[str]:
    """Return a line per span: its name under its parent's, and what it knows."""
    fences = sorted({s.attributes[FENCE] for s in spans if FENCE in s.attributes})

    def fence(attributes: Any) -> str:
        return f"fence {fences.index(attributes[FENCE]) + 7}"

    lines = []
    for root in sorted((s for s in spans if s.parent is None), key=lambda s: s.start_time):
        its = [s for s in spans if s.parent and s.parent.span_id == root.context.span_id]
        for span in [root, *sorted(its, key=lambda s: s.start_time)]:
            known = span.attributes
            words = [fence(known)] if FENCE in known else []
            words += [known[key] for key in ("error.type",) if key in known]
            words += [f"holder {known[key]}" for key in ("asynclock.holder",) if key in known]
            words += [f"→ hold of {fence(link.attributes)}" for link in span.links]
            name = span.name if span is root else f"  {span.name}"
            lines.append(f"{name}|{', '.join(words)}")
    return lines


@pytest.mark.parametrize(
    "kind",
    [
        lambda locks: locks.lock("a"),
        lambda locks: locks.semaphore("a", 1),
        lambda locks: locks.fair_lock("a"),
        lambda locks: locks.multi_lock("a", "b"),
        lambda locks: locks.rwlock("a").write(),
    ],
    ids=["lock", "semaphore", "fair", "multi", "write"],
)
async def test_a_search_for_a_holder_finds_its_hold_and_the_waits_of_other_processes(
    urls: list[str], otel: Otel, kind: Any
) -> None:
    here, there = (
        asynclock.connect(*urls, **SETTINGS, observers=[one.telemetry])
        for one in (otel, otel.beside())
    )
    async with here, there:
        lease = await kind(there).acquire()
        with pytest.raises(asynclock.AcquireTimeoutError):
            await kind(here).acquire(timeout=1)
        before = here.statistics().refused
        waits = asyncio.ensure_future(kind(here).acquire())
        await until(lambda: here.statistics().refused > before, "it was refused")
        await lease.release()
        await (await waits).release()
    first, second = otel.spans("asynclock.hold")
    found = [
        span
        for span in otel.exporter.get_finished_spans()
        if span.attributes.get("asynclock.holder_id") == first.attributes["asynclock.holder_id"]
    ]
    assert [span.name for span in found].count("asynclock.acquire") == 2
    assert first in found
    assert second not in found
    assert [span.attributes.get("asynclock.outcome") for span in found if span is not first] == [
        *("timeout", "acquired")
    ]


async def test_prefixes_on_the_same_nodes_do_not_mix(urls: list[str], otel: Otel) -> None:
    one, two = (
        asynclock.connect(*urls, **SETTINGS, prefix=prefix, observers=[otel.telemetry])
        for prefix in ("one:", "two:")
    )
    async with one, two:
        lease, other = await one.lock("a").acquire(), await two.lock("a").acquire()
        with pytest.raises(asynclock.AcquireTimeoutError):
            await one.lock("a").acquire(timeout=0.1)
        await lease.release()
        await other.release()
        (wait,) = [span for span in otel.spans("asynclock.acquire") if span.links]
        assert [link.attributes[FENCE] for link in wait.links] == [lease.fence]
        await two.aclose()
        assert otel.total("asynclock.node.up") >= 2


def test_spans_of_a_blocking_lock_belong_to_the_waiting_thread(urls: list[str], otel: Otel) -> None:
    tracer = otel.tracers.get_tracer("test")
    with blocking.connect(*urls, **SETTINGS, observers=[otel.telemetry]) as locks:
        for name in ("one", "two"):
            with tracer.start_as_current_span(name), locks.lock(name):
                pass
    handlers = [otel.spans(name)[0].get_span_context().span_id for name in ("one", "two")]
    for kind in ("asynclock.acquire", "asynclock.hold"):
        assert [span.parent.span_id for span in otel.spans(kind)] == handlers


@pytest.mark.parametrize("blocks", [False, True], ids=["asyncio", "blocking"])
@pytest.mark.parametrize("held_by", ["this process", "another"])
async def test_waits_show_until_they_end(urls: list[str], held_by: str, *, blocks: bool) -> None:
    """Also those of threads, and those that are cancelled, which no event reports."""
    otel = Otel(patterns=["jobs:*"])
    seen, jobs = partial(otel.counted, "acquire.waiting"), ("jobs:*",)
    connect = blocking.connect if blocks else asynclock.connect
    settings = {**SETTINGS, "observers": [otel.telemetry]}
    async with asynclock.connect(*urls, **settings) as locks:
        others = asynclock.connect(*urls, **SETTINGS) if held_by == "another" else locks
        held = await others.lock("jobs:1").acquire()
        if blocks:
            there: Any = await asyncio.to_thread(connect, *urls, **settings)
            wait = asyncio.create_task(asyncio.to_thread(_blocks, there))
        else:
            wait = asyncio.create_task(_acquire(locks, "jobs:1"))

        async def waits() -> bool:
            return seen() == {jobs: 1}

        await until(waits, "the wait is seen")
        first = otel.counted("acquire.longest_wait")[jobs]
        await asyncio.sleep(0.05)
        assert first < otel.counted("acquire.longest_wait")[jobs] < 60
        if blocks:
            await held.release()
            await wait
            await asyncio.to_thread(there.close)
        else:
            locks.unobserve(otel.telemetry)
            assert seen() == {}
            locks.observe(otel.telemetry)
            assert seen() == {jobs: 1}
            await call_off(wait)
        assert seen() == otel.counted("acquire.longest_wait") == {}
        await others.aclose()


def _blocks(locks: blocking.LockManager) -> None:
    with locks.lock("jobs:1", timeout=60):
        pass


async def _acquire(locks: asynclock.LockManager, name: str) -> asynclock.Lease:
    return await locks.lock(name).acquire()


# ---- logs ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("event", "level"),
    [
        (events.Contended("a", "evil\nlabel", 1.0), logging.DEBUG),
        (events.Acquired("a", "o", 1, 0.1, 3, False), logging.DEBUG),
        (events.Failed("a", "timeout", 1.0), logging.DEBUG),
        (events.Failed("a", "refused", 1.0), logging.DEBUG),
        (events.Failed("a", "error", 1.0), logging.DEBUG),
        (events.Failed("a", "outage", 1.0), logging.WARNING),
    ],
)
def test_levels(event: events.Event, level: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        LogEvents()(event)
    (record,) = caplog.records
    assert (record.levelno, record.name) == (level, "asynclock.events")
    assert "\n" not in record.getMessage()
    assert getattr(record, "asynclock_name", getattr(record, "asynclock_node", None)) in ("a", "n")


@pytest.mark.parametrize(
    "event",
    [
        events.Lost("a", "owner", 7, "it ran out", 4.0),
        events.NodeDown("n", "gone"),
        events.NodeQuarantined("n", "it restarted", 60.0),
        events.NodeUp("n"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_the_library_logs_itself_is_not_logged_twice(
    event: events.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        LogEvents()(event)
    assert not caplog.records


def test_a_logger_of_the_user_gets_what_its_level_allows(caplog: pytest.LogCaptureFixture) -> None:
    own = logging.getLogger("of.the.user")
    caplog.set_level(logging.INFO, own.name)
    for outcome in ("timeout", "outage"):
        LogEvents(own)(events.Failed("a\nb", outcome, 1.23456789))
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == (
        "of.the.user",
        "Failed name='a\\nb' outcome='outage' waited=1.23457",
    )
    assert vars(record)["asynclock_waited"] == 1.23456789


async def test_no_record_has_an_owner_id(
    asynclock_nodes: list[LocalServer], urls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A reader of the logs could release the lease with the id, also with other libraries' ids."""
    foreign = "4b5ff6dd1f3e4b0e8a0d4d0b7b0f7a11"
    settings = {**SETTINGS, "label": "", "observers": [LogEvents()]}
    with caplog.at_level(logging.DEBUG):
        async with asynclock.connect(*urls, **settings) as locks:
            async with locks.lock("a") as lease:
                await lease.extend()
                async with asynclock.connect(*urls, **settings) as others:
                    with pytest.raises(asynclock.AcquireTimeoutError) as caught:
                        await others.lock("a").acquire(timeout=0)
            for node in asynclock_nodes:
                await node.command("SET", "asynclock:b", foreign, "PX", 60_000)
            with pytest.raises(asynclock.AcquireTimeoutError) as met:
                await locks.lock("b").acquire(timeout=0)
    texts = [str(vars(record)) + record.getMessage() for record in caplog.records]
    assert len([text for text in texts if "Contended" in text]) >= 2
    secrets = (lease.owner.partition(":")[0], foreign)
    for text in (*texts, str(caught.value), str(met.value), repr(lease), repr(met.value)):
        assert not any(secret in text for secret in secrets), text
    assert met.value.owner == foreign, "the program may see it, people's eyes need not"


# ---- no harm -------------------------------------------------------------------------------------
def test_a_failing_observer_is_an_error_of_the_library(caplog: pytest.LogCaptureFixture) -> None:
    """Once for each observer and kind of failure, with the trace, on the documented logger."""
    failures = iter([RuntimeError("one"), RuntimeError("two"), ValueError("three")])

    def fails(_event: events.Event) -> None:
        raise next(failures)

    def fails_too(_event: events.Event) -> None:
        raise RuntimeError("four")

    observers = events.Observers([fails, fails_too])
    for _ in range(3):
        observers(events.SplitVote("a"))
    told = [(one.name, one.levelname, one.getMessage(), one.exc_info) for one in caplog.records]
    assert [line[:3] for line in told] == [
        ("asynclock", "ERROR", "an observer failed on SplitVote")
    ] * 3
    assert [str(trace[1]) for *_, trace in told if trace] == ["one", "four", "three"]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_observer_ends_no_task_and_no_loop(
    caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    def fail(event: events.Event) -> None:
        raise error

    seen: list[events.Event] = []
    observers = events.Observers([fail, seen.append])
    observers(events.SplitVote("a"))
    assert seen == [events.SplitVote("a")]
    assert "an observer failed on SplitVote" in caplog.text


# ---- nodes that are up and give no votes ---------------------------------------------------------
async def rejected(locks: asynclock.LockManager) -> bool:
    return locks.nodes()[0].state == "rejected"


async def test_a_node_that_the_record_refuses_counts_as_voting_and_its_acquires_not_at_all(
    urls: list[str], otel: Otel, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SETTINGS, "ttl": 8.0, "max_ttl": 8.0}
    async with asynclock.connect(urls[0], **settings, observers=[otel.telemetry]) as locks:
        await locks.ready()
        async with Fleet(*urls, **settings) as fleet:
            await fleet.record(force=True)
        await until(partial(rejected, locks), "the record refuses the client")
        with pytest.raises(asynclock.ConfigurationError, match="the fleet uses"):
            await locks.lock("a").try_acquire()
        assert otel.total("asynclock.node.voting") == 1
        assert otel.points("asynclock.acquire.duration") == []
    levels = {record.levelname for record in caplog.records if record.name == "asynclock.fleet"}
    assert "ERROR" in levels


# ---- an observer gets all events until it is removed ---------------------------------------------
class Ear:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def hear(self, event: events.Event) -> None:
        self.heard.append(type(event).__name__)


async def test_an_observer_comes_and_goes(urls: list[str]) -> None:
    ear = Ear()
    async with patient.connect(*urls, restart_guard=False) as locks:
        locks.observe(ear.hear)
        await go_through(locks.lock("a"))
        assert [name for name in ear.heard if name in ("Acquired", "Released")] == [
            "Acquired",
            "Released",
        ]
        # A bound method is a new object each time it is written down: equal, not the same.
        locks.unobserve(ear.hear)
        locks.unobserve(ear.hear)
        ear.heard.clear()
        await go_through(locks.lock("a"))
    assert "Acquired" not in ear.heard


async def test_a_manager_that_opens_again_keeps_its_observers() -> None:
    ear = Ear()
    locks = asynclock.connect("memory://", restart_guard=False)
    locks.observe(ear.hear)
    for opened in (1, 2):
        async with locks, locks.lock("a"):
            pass
        assert ear.heard.count("Acquired") == opened


async def test_a_manager_that_is_closed_asks_for_no_more_votes() -> None:
    ear = Ear()
    async with asynclock.connect("memory://") as others, others.lock("a"):
        async with asynclock.connect("memory://") as locks:
            locks.observe(ear.hear)
            waiting = asyncio.create_task(locks.lock("a").acquire())
            await until(lambda: "Voted" in ear.heard)
        await asyncio.wait([waiting])
    assert ear.heard.count("Voted") == 1


def test_an_observer_may_leave_when_it_hears() -> None:
    ear = Ear()

    def once(_event: events.Event) -> None:
        observers.remove(once)

    observers = events.Observers([once, ear.hear])
    observers(events.Event())
    observers(events.Event())
    assert ear.heard == ["Event", "Event"]
    assert observers == [ear.hear]
