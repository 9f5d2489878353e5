"""Events of locks for people and machines: `logs.LogEvents`, and `otel.Telemetry` (extra `[otel]`).

Both are observers: `asynclock.connect(…, observers=[LogEvents(), Telemetry()])`. Without one, no
event is even made. One that fails is logged once and breaks nothing.
"""

from __future__ import annotations

from .logs import LogEvents

__all__ = ["LogEvents"]
