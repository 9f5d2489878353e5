"""Holds a lock as another process would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from asynclock._engine.lease import Lease
from asynclock._nodes.deployment import NodeAddress
from asynclock._primitives.multi import Hold
from asynclock._settings import ConnectSettings
from asynclock.errors import ConfigurationError
from asynclock.manager import LockManager, connect

TIMEOUT = 5.0
"""Maximum seconds to wait for the name: in a correct test its holder releases it soon."""


@asynccontextmanager
async def busy(
    name: str, *nodes: NodeAddress | LockManager, **settings: Unpack[ConnectSettings]
) -> AsyncIterator[Lease]:
    """Hold the mutex `name` until the block ends, as another process would.

        async with busy("orders:42", app.state.asynclock):
            answer = await client.post("/orders/42/ship")  # 409

    Use this because a test that acquires the lock itself and calls the application in the same task
    gets AlreadyHeldError. Raises AcquireTimeoutError if the name is not free within 5 seconds.

    Args:
        name: the mutex to hold.
        nodes: the LockManager of the code under test, whose nodes and settings are used over
            separate connections; or addresses as for `connect` (default: `memory://`).
        settings: those of `connect`, with addresses only.
    """
    managers = [node for node in nodes if isinstance(node, LockManager)]
    addresses = [node for node in nodes if not isinstance(node, LockManager)]
    if managers and (len(nodes) > 1 or settings):
        raise ConfigurationError("a LockManager has its nodes and settings already")
    if managers:
        first = managers[0]
        rival = LockManager(first._make_engine, first._defaults, first._observers)  # noqa: SLF001 - connections of its own
    else:
        rival = connect(*(addresses or ["memory://"]), **settings)
    async with rival, rival.lock(name, timeout=TIMEOUT, interrupt=False) as lease:
        yield lease


# ---- Makes a lease lost, for tests ---------------------------------------------------------------


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
