"""The only module that reads the time.

Deadlines are on the boot-time clock if the system has one. It never jumps, and unlike the monotonic
clock it goes on while the machine is suspended, so a lease expires during the suspension. Callers
must write `_clock.now()`, with the module, so that a simulation can replace it by virtual time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)

now: Callable[[], float] = time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT)
"""Seconds on a clock that never jumps; only differences have a meaning."""

wall = time.time
"""Seconds since 1970, for in-memory nodes and the doctor's check of clocks; locks never use it."""
