"""All kinds of primitives, and the scripts that every connection loads."""

from __future__ import annotations

from . import barrier, election, event, fair, latch, lock, multi, once, readwrite, semaphore

KINDS = tuple(
    module.KIND
    for module in (lock, readwrite, multi, fair, election, semaphore, event, latch, barrier, once)
)
"""What each primitive declares of itself."""
SCRIPTS = tuple(dict.fromkeys(script for kind in KINDS for script in kind.scripts))
"""All scripts; each connection loads them at once, because an unknown script loses a wake-up."""
