"""Makes a lease lost, for tests."""

from __future__ import annotations

from asynclock._engine.lease import Lease
from asynclock._primitives.hold import Hold
from asynclock.errors import ConfigurationError


def lose(lease: Lease | Hold, reason: str = "a test took it away") -> None:
    """Make `lease` lost now: this interrupts its body, and its exit raises LeaseLostError.

    Args:
        lease: a lease that is held; of a lease on several names, the first one is lost.
        reason: what `lease.lost_reason` and the error say.
    """
    # Only tests may cause a loss, so Lease has no public method for it.
    one = lease._leases[0] if isinstance(lease, Hold) else lease  # noqa: SLF001
    if one._grant is None or one._ended:  # noqa: SLF001
        raise ConfigurationError(f"{lease!r} is not held: there is nothing to lose")
    one._engine.mark_lost(one._grant, reason)  # noqa: SLF001
