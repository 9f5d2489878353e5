"""Our own exit statuses, as in sysexits.h, and the status for each error."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from ..errors import (
    AsyncLockError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
)


class Status(IntEnum):
    """The program's exit status, unless `asynclock run` passes on that of its command."""

    OK = 0
    USAGE = 64
    """The arguments or settings are wrong: fix them."""
    UNREACHABLE = 69
    """Too few nodes answered, or may vote."""
    LOST = 70
    """The lease was lost, and the command was ended."""
    OUTPUT = 74
    """The output can't be written."""
    NOT_ACQUIRED = 75
    """Another holder has the lock: try again later."""
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    """128 + 2, for Ctrl-C."""


_MEANING: tuple[tuple[type[Exception], Status], ...] = (
    (ConfigurationError, Status.USAGE),
    (NotAcquiredError, Status.NOT_ACQUIRED),
    (QuorumUnavailableError, Status.UNREACHABLE),
    (LeaseLostError, Status.LOST),
)


def status_of(error: AsyncLockError) -> Status:
    """Return the exit status for an error."""
    return next((status for kind, status in _MEANING if isinstance(error, kind)), Status.LOST)


def lines_of(error: AsyncLockError) -> Iterator[str]:
    """Return the error as text for people; for an outage with a line per node."""
    if isinstance(error, QuorumUnavailableError) and error.nodes:
        causes = [f"{node}: {cause}" for node, cause in error.nodes.items()]
        yield str(error).removesuffix(": " + "; ".join(causes))
        yield from (f"  {cause}" for cause in causes)
    else:
        yield str(error)
