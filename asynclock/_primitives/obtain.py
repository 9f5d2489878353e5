"""Getting several leases with one call: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._engine.acquire import Acquire, AcquireContext
from .._engine.lease import Lease
from ..errors import LeaseLostError, NotAcquiredError
from .hold import release_soon

Calls = Sequence[Callable[[], Acquire]]


async def obtain(calls: Calls) -> list[Lease]:
    """Make one call after the other.

    If anything fails or this is cancelled, the leases that the earlier calls got are released. The
    releases are not awaited, because the caller's timeout may have ended.
    """
    leases: list[Lease] = []
    await _add(leases, calls, None)
    return leases


async def obtain_behind(gate: Callable[[], AcquireContext[Lease]], calls: Calls) -> list[Lease]:
    """Make the calls as `obtain` does, while the lease of `gate` keeps other callers out.

    If that lease is lost, all begins again.
    """
    while True:
        leases: list[Lease] = []
        try:
            await _add(leases, calls, gate())
        except LeaseLostError:
            continue  # a call whose timeout has ended raises AcquireTimeoutError then
        return leases


async def _add(leases: list[Lease], calls: Calls, gate: AcquireContext[Lease] | None) -> None:
    try:
        if gate is None:
            for call in calls:
                leases.append(await call())  # noqa: PERF401 - a failure must find the first ones
        else:
            async with gate as turn:
                try:
                    await _add(leases, calls, None)
                except NotAcquiredError:
                    turn._let_go()  # leaving the block would wait for the replies
                    raise
    except GeneratorExit:
        release_soon(leases)
        raise
    except BaseException:
        for lease in reversed(leases):
            lease._let_go()
        raise
