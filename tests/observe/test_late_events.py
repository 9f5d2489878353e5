"""What telemetry makes of events that come late, or of which it knows nothing."""

from asynclock import events
from tests.observe.test_observers import Otel


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
