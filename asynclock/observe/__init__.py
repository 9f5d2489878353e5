"""Observers of a manager's events: `logs.LogEvents`, and `otel.Telemetry` (extra `[otel]`).

Use them as `asynclock.connect(…, observers=[LogEvents(), Telemetry()])`. Without observers no event
is created. An observer that fails is logged once and breaks no lock.
"""

from __future__ import annotations

from .logs import LogEvents

__all__ = ["LogEvents"]
