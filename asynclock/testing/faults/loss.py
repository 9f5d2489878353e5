"""Makes a lease lost, for tests."""

from __future__ import annotations

from asynclock._engine.lease import Lease
from asynclock.errors import ConfigurationError


def lose(lease: Lease, reason: str = "a test took it away") -> None:
    """Make `lease` lost now: this interrupts its body, and its exit raises LeaseLostError.

    Args:
        lease: a lease that is held.
        reason: what `lease.lost_reason` and the error say.
    """
    # Only tests may cause a loss, so Lease has no public method for it.
    if lease._grant is None:  # noqa: SLF001
        raise ConfigurationError(f"{lease!r} is not held: there is nothing to lose")
    lease._engine.mark_lost(lease._grant, reason)  # noqa: SLF001
