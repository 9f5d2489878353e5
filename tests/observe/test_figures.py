"""Each figure and span of telemetry as a whole: what an operator reads beside the number."""

from contextvars import copy_context

import pytest
from opentelemetry.trace import SpanKind

from asynclock import events
from tests.observe.test_observers import Otel

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
DESCRIPTIONS = {
    "asynclock.acquire.duration": "From the call to a lease or an error.",
    "asynclock.hold.duration": "From the grant to the release or loss.",
    "asynclock.lease.remaining": "Validity left at the release.",
    "asynclock.lease.active": "Leases that are held.",
    "asynclock.lease.renewals": "Extensions by a quorum.",
    "asynclock.lease.handovers": "Passed on in the process.",
    "asynclock.lease.losses": "Ended against the holder's will.",
    "asynclock.acquire.longest_wait": "How long the first of them has waited.",
    "asynclock.acquire.outcomes": "Calls that ended.",
    "asynclock.acquire.refusals": "Attempts that others won.",
    "asynclock.acquire.split_votes": "Attempts that nobody won.",
    "asynclock.acquire.waiting": "Tasks that wait now for a name that is held.",
    "asynclock.node.votes": "What nodes had answered when it was decided.",
    "asynclock.node.state_changes": "Nodes that came or went.",
    "asynclock.node.up": "1 while a connection to the node is ready.",
    "asynclock.node.voting": "1 while the node is up and no guard bars it.",
}


@pytest.fixture
def otel() -> Otel:
    return Otel()


def told(otel: Otel, *happened: events.Event) -> Otel:
    for event in happened:  # as in tasks of their own
        copy_context().run(otel.telemetry, event)
    return otel


def test_each_figure_says_what_it_is(otel: Otel) -> None:
    """Dashboards of metrics show these words beside the name."""
    told(otel, *EVERYTHING)
    assert {metric.name: metric.description for metric in otel.metrics()} == DESCRIPTIONS


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
