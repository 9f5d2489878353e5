"""The only reader of time.

Deadlines live on the boot-time clock where there is one: it never jumps, and unlike the monotonic
clock it goes on while the machine is suspended, so that a laptop wakes up to an expired lease.
Others call `_clock.now()` through the module, so that a simulation can put virtual time in its
place.
"""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def _boot_time() -> float:
    return time.clock_gettime(_BOOT)  # type: ignore[arg-type]  # only used where there is one


now = time.monotonic if _BOOT is None else _boot_time
"""Seconds on a clock that never jumps; only differences mean anything."""

wall = time.time
"""Seconds since 1970: the seed of fences before any node's clock is known, and for labels."""
