"""Observers of a manager's events: `LogEvents`, and `otel.Telemetry` (extra `[otel]`).

Use them as `asynclock.connect(…, observers=[LogEvents(), Telemetry()])`. Without observers no event
is created. An observer that fails is logged once and breaks no lock.
"""

from __future__ import annotations

import logging
from dataclasses import fields

from ..events import Event, Failed, Lost, NodeDown, NodeQuarantined, NodeUp

__all__ = ["LogEvents"]


class LogEvents:
    """Logs events: an acquire that failed in an outage as WARNING, all others as DEBUG.

    Contention is DEBUG too, because it is frequent under load. Losses and changes of nodes are left
    out: the library logs them itself, with or without observers, as one ERROR per loss, one WARNING
    when a node stops voting and one INFO when it votes again. A record's `extra` has the event's
    fields as `asynclock_name`, `asynclock_fence`, and so on. The owner id is left out, because
    anyone with that id could release the lease. Untrusted texts (names, labels) are logged as
    `repr`, so that they can't forge a line of the log.

    Args:
        logger: gets the records (default: "asynclock.events").
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("asynclock.events")

    def __call__(self, event: Event) -> None:
        """Log `event`, unless the level of its record is off."""
        kind = type(event)
        if kind in _LOGGED_ANYWAY:
            return
        outage = isinstance(event, Failed) and event.outcome == "outage"
        level = logging.WARNING if outage else logging.DEBUG
        if not self._logger.isEnabledFor(level):
            return
        names = (field.name for field in fields(event) if field.name != "owner")
        known = {name: getattr(event, name) for name in names}
        text = " ".join(f"{name}={_shown(value)}" for name, value in known.items())
        extra = {f"asynclock_{name}": value for name, value in known.items()}
        self._logger.log(level, "%s %s", kind.__name__, text, extra=extra)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


_LOGGED_ANYWAY = {Lost, NodeDown, NodeQuarantined, NodeUp}
