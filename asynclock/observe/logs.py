"""Events → stdlib logging."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ..events import (
    Event,
    Failed,
    Lost,
    NodeDown,
    NodeQuarantined,
    NodeUp,
)


class LogEvents:
    """Logs what happens: outages and nodes that go away as WARNING, nodes that come as INFO.

    Everything about a single lock is DEBUG, contention too: under load there is plenty of it.
    Losses and quarantines are left out, since the library logs those by itself, observer or not:
    one ERROR per loss, one WARNING per quarantine. A record's `extra` has the event's fields as
    `asynclock_name`, `asynclock_fence`, and so on. Texts from outside (names, labels) come as
    `repr`, so that no line of a log can be forged.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("asynclock.events")

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind is Lost or kind is NodeQuarantined:
            return
        level = _LEVELS[kind](event) if kind in _LEVELS else logging.DEBUG
        if not self._logger.isEnabledFor(level):
            return
        known = {field.name: getattr(event, field.name) for field in fields(event)}
        text = " ".join(f"{name}={_shown(value)}" for name, value in known.items())
        extra = {f"asynclock_{name}": value for name, value in known.items()}
        self._logger.log(level, "%s %s", kind.__name__, text, extra=extra)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _of_failure(event: Any) -> int:
    return logging.WARNING if event.outcome == "outage" else logging.DEBUG


_LEVELS: dict[type[Event], Callable[[Event], int]] = {
    Failed: _of_failure,
    NodeDown: lambda _: logging.WARNING,
    NodeUp: lambda _: logging.INFO,
}
