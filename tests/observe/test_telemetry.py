"""Spans and figures of single events: their lengths, their kinds, their names."""

import time
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from asynclock import events
from asynclock.errors import ConfigurationError
from tests.observe.test_observers import Otel

ACQUIRED = events.Acquired("a", "owner", 7, 2.5, 3, False)


@pytest.fixture
def otel() -> Otel:
    return Otel()


def told(otel: Otel, *happened: events.Event) -> Otel:
    for event in happened:  # as in tasks of their own
        copy_context().run(otel.telemetry, event)
    return otel


def figure(otel: Otel, name: str) -> tuple[Mapping[str, Any], Any]:
    """Return the only point of a metric: its attributes, and its sum or value."""
    ((attributes, point),) = otel.points(name)
    return attributes, getattr(point, "sum", getattr(point, "value", None))


def test_a_wait_has_the_length_that_the_caller_waited(otel: Otel) -> None:
    before = time.time_ns()
    told(otel, ACQUIRED)
    (span,) = otel.spans("asynclock.acquire")
    assert span.end_time - span.start_time == 2_500_000_000
    assert before <= span.end_time <= time.time_ns()
    assert span.kind is SpanKind.CLIENT
    assert dict(span.attributes) == {
        "asynclock.lock.name": "a",
        "asynclock.lease.fence": 7,
        "asynclock.lease.handed_over": False,
        "asynclock.outcome": "acquired",
    }
    # A name in a metric would make a time series per lock.
    assert figure(otel, "asynclock.acquire.duration") == ({"asynclock.outcome": "acquired"}, 2.5)
    assert otel.counted("acquire.outcomes") == {("other", "acquired"): 1}


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [("timeout", False), ("refused", False), ("outage", True), ("error", True)],
)
def test_only_what_is_no_ones_turn_is_no_error(otel: Otel, outcome: str, wrong: bool) -> None:
    """That others have the lock is usual; an outage and a mistake are errors."""
    told(otel, events.Failed("a", outcome, 1.5))
    (span,) = otel.spans("asynclock.acquire")
    assert (not span.status.is_ok) is wrong
    assert span.status.description == (outcome if wrong else None)
    assert span.attributes["error.type"] == outcome
    assert span.attributes["asynclock.lock.name"] == "a"
    attributes = {"asynclock.outcome": outcome, "error.type": outcome}
    assert figure(otel, "asynclock.acquire.duration") == (attributes, 1.5)
    assert otel.total("asynclock.lease.active") == 0
    assert not otel.spans("asynclock.hold")


def test_a_hold_ends_with_its_release(otel: Otel) -> None:
    told(otel, ACQUIRED, events.Renewed("a", "owner", 7, 9.0))
    assert figure(otel, "asynclock.lease.active")[1] == 1
    told(otel, events.Released("a", "owner", 7, 3.0, 6.5))
    (span,) = otel.spans("asynclock.hold")
    assert span.status.is_ok
    assert "error.type" not in span.attributes
    for name, wanted in (
        ("hold.duration", 3.0),
        ("lease.remaining", 6.5),
        ("lease.renewals", 1),
        ("lease.active", 0),
    ):
        assert figure(otel, f"asynclock.{name}") == ({}, wanted)
    assert otel.total("asynclock.lease.losses") == 0
    assert otel.total("asynclock.lease.handovers") == 0


def test_a_loss_is_an_error_of_the_hold(otel: Otel) -> None:
    told(otel, ACQUIRED, events.Lost("a", "owner", 7, "it ran out", 4.0))
    (span,) = otel.spans("asynclock.hold")
    assert not span.status.is_ok
    assert span.status.description == "it ran out"
    assert span.attributes["error.type"] == "lease_lost"
    assert figure(otel, "asynclock.hold.duration") == ({}, 4.0)
    assert otel.counted("lease.losses") == {("it ran out",): 1}


def test_two_leases_of_one_owner_end_apart(otel: Otel) -> None:
    """An owner keeps its id when it hands a lease over; the fence differs."""
    told(
        otel,
        ACQUIRED,
        events.Acquired("a", "owner", 8, 0.5, 0, True),
        events.Released("a", "owner", 7, 1.0, 5.0),
    )
    (span,) = otel.spans("asynclock.hold")
    assert span.attributes["asynclock.lease.fence"] == 7
    assert figure(otel, "asynclock.lease.handovers") == ({}, 1)
    told(otel, events.Released("a", "owner", 8, 1.0, 5.0))
    fences = [one.attributes["asynclock.lease.fence"] for one in otel.spans("asynclock.hold")]
    assert fences == [7, 8]
    assert figure(otel, "asynclock.lease.active")[1] == 0
    told(otel, events.Released("a", "owner", 8, 1.0, 5.0))
    assert len(otel.spans("asynclock.hold")) == 2
    assert figure(otel, "asynclock.lease.active")[1] == 0


def test_a_wait_has_a_link_only_to_a_hold_that_it_waited_for(otel: Otel) -> None:
    """Not to one that was over before, of another name, or that goes on beside its lease."""
    told(otel, events.Acquired("a", "one", 7, 0.0, 3, False))
    told(otel, events.Acquired("a", "two", 8, 0.5, 3, False), events.Failed("a", "timeout", 1.0))
    told(otel, events.Released("a", "two", 8, 1.0, 5.0), events.Failed("b", "timeout", 1.0))
    time.sleep(0.002)
    told(otel, events.Acquired("a", "three", 9, 0.001, 3, False))
    told(otel, events.Released("a", "three", 9, 1.0, 5.0))
    told(otel, events.Acquired("a", "four", 10, 5.0, 3, False))
    fences = [
        [link.attributes["asynclock.lease.fence"] for link in span.links]
        for span in otel.spans("asynclock.acquire")
    ]
    assert fences == [[], [], [8], [], [], [9]]


def test_holds_of_many_names_are_forgotten(otel: Otel) -> None:
    for number in range(1100):
        told(otel, events.Acquired(f"n{number}", "one", 7, 0.0, 3, False))
        told(otel, events.Released(f"n{number}", "one", 7, 1.0, 5.0))
    told(otel, *(events.Failed(f"n{number}", "timeout", 60.0) for number in (0, 1099)))
    waits = otel.spans("asynclock.acquire")[-2:]
    assert [len(span.links) for span in waits] == [0, 1]


def test_waits_of_microseconds_and_of_minutes_are_told_apart(otel: Otel) -> None:
    for waited in (0.0002, 0.002, 0.02, 0.2, 2.0, 20.0, 55.0):
        told(otel, events.Failed("a", "timeout", waited))
    ((_, point),) = otel.points("asynclock.acquire.duration")
    assert max(point.bucket_counts) == 1


PATTERNS = ["orders:*", "[ab]", "a*"]


def test_each_name_counts_for_the_first_pattern_that_fits() -> None:
    otel = Otel(patterns=PATTERNS)
    names = ("orders:1", "a", "abc", "b", "my/orders:1", "A")
    told(otel, *(events.Failed(name, "timeout", 1.0) for name in names))
    wanted = {("orders:*", "timeout"): 1, ("[ab]", "timeout"): 2, ("a*", "timeout"): 1}
    assert otel.counted("acquire.outcomes") == {**wanted, ("other", "timeout"): 2}


def test_names_make_no_series() -> None:
    """Hundreds of names later there are as many series as at first, and each began with 0."""
    otel = Otel(patterns=PATTERNS)

    def series() -> set[tuple[Any, ...]]:
        return {
            (metric.name, *sorted(point.attributes.items()))
            for metric in otel.metrics()
            for point in metric.data.data_points
        }

    def one_more(number: int) -> None:
        name = f"orders:{number}"
        ends = [events.Failed(name, outcome, 1.0) for outcome in ("timeout", "outage")]
        told(otel, events.Acquired(name, "owner", number, 2.5, 3, False), *ends)
        told(otel, events.Lost(name, "owner", number, events.LOSS_REASONS[0], 4.0))

    began = series()
    one_more(0)
    first = series()
    assert first > began
    new = {name for name, *_ in first - began}
    assert new == {
        f"asynclock.{one}" for one in ("acquire.duration", "hold.duration", "lease.active")
    }
    for number in range(1, 300):
        one_more(number)
    assert series() == first


def test_one_pattern_is_no_list() -> None:
    with pytest.raises(ConfigurationError, match="list of patterns"):
        Otel(patterns="orders:*")


# ---- nodes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("node", "at"),
    [
        ("10.0.0.1:6379", {"server.address": "10.0.0.1", "server.port": 6379}),
        ("fe80::1:6379", {"server.address": "fe80::1", "server.port": 6379}),
        ("/run/redis:1.sock", {"server.address": "/run/redis:1.sock"}),
        ("memory://a", {"server.address": "memory://a"}),
        (":6379", {"server.address": ":6379"}),
    ],
)
def test_where_a_node_is(otel: Otel, node: str, at: dict[str, Any]) -> None:
    told(otel, events.NodeUp(node))
    assert figure(otel, "asynclock.node.up") == (at, 1)


def test_the_health_of_a_node_follows_events(otel: Otel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarantined node is up and does not vote, until the quarantine is over."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def seen() -> tuple[Any, Any]:
        return figure(otel, "asynclock.node.up")[1], figure(otel, "asynclock.node.voting")[1]

    told(otel, events.NodeUp("n"))
    assert seen() == (1, 1)
    told(otel, events.NodeQuarantined("n", "it restarted", 60.0))
    assert seen() == (1, 0)
    told(otel, events.NodeDown("n", "gone"))
    assert seen() == (0, 0)
    now = 1030.0
    told(otel, events.NodeUp("n"))
    assert seen() == (1, 0), "a new connection ends no quarantine"
    now = 1060.0
    assert seen() == (1, 1)
    counts = {
        attributes["asynclock.node.state"]: point.value
        for attributes, point in otel.points("asynclock.node.state_changes")
    }
    assert counts == {"up": 2, "down": 1, "quarantined": 1}


def test_votes_are_counted_by_node_and_by_what_it_said(otel: Otel) -> None:
    told(otel, events.Voted("a", {"n:1": "granted", "n:2": "refused"}))
    told(otel, events.Voted("a", {"n:1": "granted", "n:2": "open"}))
    found = {
        (attributes["server.port"], attributes["asynclock.vote"]): point.value
        for attributes, point in otel.points("asynclock.node.votes")
    }
    assert found == {(1, "granted"): 2, (2, "refused"): 1, (2, "open"): 1}


# ---- each figure as a whole: what an operator reads beside the number ----------------------------
EVERYTHING: tuple[events.Event, ...] = (
    events.Acquired("a", "owner", 7, 2.5, 0, True),
    events.Renewed("a", "owner", 7, 9.0),
    events.Released("a", "owner", 7, 3.0, 6.5),
    events.Lost("b", "owner", 8, "it ran out", 4.0),
    events.Contended("a", "web", 1.0),
    events.SplitVote("a"),
    events.Voted("a", {"n:1": "granted"}),
    events.NodeUp("n:1"),
)
FIGURES = {
    "asynclock.acquire.duration": ("s", "From the call to a lease or an error."),
    "asynclock.hold.duration": ("s", "From the grant to the release or loss."),
    "asynclock.lease.remaining": ("s", "Validity left at the release."),
    "asynclock.lease.active": ("{lease}", "Leases that are held."),
    "asynclock.lease.renewals": ("{renewal}", "Extensions by a quorum."),
    "asynclock.lease.handovers": ("{handover}", "Passed on in the process."),
    "asynclock.lease.losses": ("{loss}", "Ended against the holder's will."),
    "asynclock.acquire.longest_wait": ("s", "How long the first of them has waited."),
    "asynclock.acquire.outcomes": ("{acquire}", "Calls that ended."),
    "asynclock.acquire.refusals": ("{refusal}", "Attempts that others won."),
    "asynclock.acquire.split_votes": ("{vote}", "Attempts that nobody won."),
    "asynclock.acquire.waiting": ("{task}", "Tasks that wait now for a name that is held."),
    "asynclock.node.votes": ("{vote}", "What nodes had answered when it was decided."),
    "asynclock.node.state_changes": ("{change}", "Nodes that came or went."),
    "asynclock.node.up": ("{node}", "1 while a connection to the node is ready."),
    "asynclock.node.voting": ("{node}", "1 while the node is up and no guard bars it."),
}


def test_each_figure_says_what_it_is_and_has_its_unit(otel: Otel) -> None:
    """Dashboards of metrics show these words beside the name."""
    told(otel, *EVERYTHING)
    found = {metric.name: (metric.unit, metric.description) for metric in otel.metrics()}
    assert found == FIGURES
    assert figure(otel, "asynclock.acquire.refusals") == ({}, 1)
    assert figure(otel, "asynclock.acquire.split_votes") == ({}, 1)


def test_figures_and_spans_are_of_this_library(otel: Otel) -> None:
    told(otel, *EVERYTHING)
    data = otel.reader.get_metrics_data()
    assert data
    scopes = {scope.scope.name for one in data.resource_metrics for scope in one.scope_metrics}
    spans = otel.exporter.get_finished_spans()
    assert scopes == {span.instrumentation_scope.name for span in spans} == {"asynclock"}


@pytest.mark.parametrize(("handed_over", "votes"), [(True, 0), (True, 3), (False, 3), (False, 0)])
def test_a_lease_that_was_handed_over_says_so(otel: Otel, votes: int, *, handed_over: bool) -> None:
    told(
        otel,
        events.Acquired("a", "owner", 7, 0.5, votes, handed_over),
        events.Released("a", "owner", 7, 1.0, 5.0),
    )
    (wait,), (hold,) = otel.spans("asynclock.acquire"), otel.spans("asynclock.hold")
    known = {
        "asynclock.lock.name": "a",
        "asynclock.lease.fence": 7,
        "asynclock.lease.handed_over": handed_over,
    }
    assert dict(hold.attributes) == {**known, "asynclock.holder_id": events.holder_id("owner")}
    assert dict(wait.attributes) == {**known, "asynclock.outcome": "acquired"}
    assert (wait.kind, hold.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL)
    assert otel.total("asynclock.lease.handovers") == handed_over


def test_the_end_of_one_lease_ends_no_other(otel: Otel) -> None:
    told(
        otel,
        events.Acquired("a", "one", 7, 0.5, 3, False),
        events.Released("b", "two", 7, 1.0, 5.0),
        events.Lost("a", "one", 6, "it ran out", 4.0),
    )
    assert otel.spans("asynclock.hold") == []
    assert otel.total("asynclock.lease.active") == 1
    assert otel.total("asynclock.hold.duration") == 0


def test_a_node_that_never_connected_is_not_up(otel: Otel) -> None:
    told(otel, events.NodeQuarantined("n", "it restarted", 0.0), events.NodeDown("m", "refused"))
    for name in ("asynclock.node.up", "asynclock.node.voting"):
        assert {known["server.address"]: point.value for known, point in otel.points(name)} == {
            "n": 0,
            "m": 0,
        }


def test_each_outcome_is_counted_from_zero() -> None:
    """Otherwise the first one is no change that an alert could see."""
    found = {known["asynclock.outcome"] for known, _ in Otel().points("asynclock.acquire.outcomes")}
    assert found == {"acquired", "timeout", "refused", "outage", "error"}


# ---- events that come late, or of which it knows nothing -----------------------------------------
def test_a_release_after_the_loss_ends_no_second_hold() -> None:
    otel = Otel()
    for event in (
        events.Acquired("a", "owner", 1, 0.1, 3, False),
        events.Lost("a", "owner", 1, "gone", 1.0),
        events.Released("a", "owner", 1, 1.0, 0.0),
    ):
        otel.telemetry(event)
    (span,) = otel.spans("asynclock.hold")
    assert span.attributes["error.type"] == "lease_lost"
    assert otel.total("asynclock.lease.active") == 0


def test_a_wait_for_a_foreign_lock_has_no_holder_id(caplog: pytest.LogCaptureFixture) -> None:
    """OpenTelemetry warns of an attribute that is None."""
    otel = Otel()
    told = (events.Contended("a", None, 1.0), events.Acquired("a", "owner", 1, 0.1, 3, False))
    copy_context().run(list, map(otel.telemetry, told))
    (span,) = otel.spans("asynclock.acquire")
    assert span.attributes["asynclock.holder"] == ""
    assert ("asynclock.holder_id" in span.attributes, caplog.messages) == (False, [])


def test_events_of_a_later_version_change_no_known_figure() -> None:
    class Later(events.Event):
        pass

    class NodeLater(events.NodeEvent):
        pass

    otel = Otel()
    otel.telemetry(events.NodeUp("n"))
    for event in (Later(), NodeLater("n")):
        otel.telemetry(event)
    at = {"server.address": "n"}
    assert otel.total("asynclock.node.up", **at) == 1
    changes = otel.points("asynclock.node.state_changes")
    states = [known["asynclock.node.state"] for known, _ in changes]
    assert sorted(states) == ["unknown", "up"]
