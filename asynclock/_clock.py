"""The only reader of time.

Deadlines live on the boot-time clock where there is one: it never jumps, and unlike the monotonic
clock it goes on while the machine is suspended, so that a laptop wakes up to an expired lease.
Others call `_clock.now()` through the module, so that a simulation can put virtual time in its
place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)

now: Callable[[], float] = time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT)
"""Seconds on a clock that never jumps; only differences mean anything."""

wall = time.time
"""Seconds since 1970: the seed of fences before any node's clock is known, and for labels."""
