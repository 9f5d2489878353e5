"""All kinds of primitives, and the scripts that every connection loads."""

from __future__ import annotations

from . import election, lock, multi, once, readwrite, semaphore, shared

KINDS = (
    lock.KIND,
    readwrite.KIND,
    multi.KIND,
    lock.FAIR_KIND,
    election.KIND,
    semaphore.KIND,
    shared.EVENT,
    shared.LATCH,
    shared.BARRIER,
    once.KIND,
)
"""What each primitive declares of itself."""
SCRIPTS = tuple(dict.fromkeys(script for kind in KINDS for script in kind.scripts))
"""All scripts; each connection loads them at once, because an unknown script loses a wake-up."""
