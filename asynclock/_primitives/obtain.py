"""Getting several leases with one call: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .._engine.acquire import Acquire, AcquireContext
from .._engine.lease import Lease
from ..errors import AsyncLockError, LeaseLostError, NotAcquiredError, QuorumUnavailableError
from .hold import release_soon, together

Calls = Sequence[Callable[[], Acquire]]


class Try(Acquire):
    """A call that doesn't wait and reports no failure: its caller tries another way then."""

    __slots__ = ()

    def _report(self, error: AsyncLockError) -> None:
        pass


async def obtain(calls: Calls) -> list[Lease]:
    """Make one call after the other.

    If anything fails or this is cancelled, the leases that the earlier calls got are released. The
    releases are not awaited, because the caller's timeout may have ended.
    """
    with _all_or_none() as leases:
        for call in calls:
            leases.append(await call())
        return leases


async def obtain_at_once(calls: Sequence[Try]) -> list[Lease] | None:
    """Make calls that don't wait, together; return None if one of them gets no lease."""
    try:
        with _all_or_none() as leases:
            await together(calls, leases)
            return leases
    except (NotAcquiredError, QuorumUnavailableError):
        return None


async def obtain_behind(gate: Callable[[], AcquireContext[Lease]], calls: Calls) -> list[Lease]:
    """Make the calls as `obtain` does, while the lease of `gate` keeps other callers out.

    If that lease is lost, all begins again.
    """
    while True:
        try:
            with _all_or_none() as leases:
                async with gate() as turn:
                    try:
                        leases.extend(await obtain(calls))
                    except NotAcquiredError:
                        turn._let_go()  # leaving the block would wait for the replies
                        raise
                return leases
        except LeaseLostError:
            continue  # a call whose timeout has ended raises AcquireTimeoutError then


@contextmanager
def _all_or_none() -> Iterator[list[Lease]]:
    """Release the leases of the list if the block fails."""
    leases: list[Lease] = []
    try:
        yield leases
    except GeneratorExit:
        release_soon(leases)
        raise
    except BaseException:
        for lease in reversed(leases):
            lease._let_go()
        raise
