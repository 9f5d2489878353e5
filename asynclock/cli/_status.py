"""Exit statuses of our own, after sysexits.h, and which error means which."""

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
    """What the program's exit status means where no command's own is passed on."""

    OK = 0
    USAGE = 64
    """Wrong arguments or settings: it can never work like this."""
    UNREACHABLE = 69
    """Too few nodes answered."""
    LOST = 70
    """The lease was lost, so the command was ended."""
    NOT_ACQUIRED = 75
    """Somebody else has the lock: try again later."""
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    """128 + 2: Ctrl-C."""


_MEANING: tuple[tuple[type[Exception], Status], ...] = (
    (ConfigurationError, Status.USAGE),
    (NotAcquiredError, Status.NOT_ACQUIRED),
    (QuorumUnavailableError, Status.UNREACHABLE),
    (LeaseLostError, Status.LOST),
)


def status_of(error: AsyncLockError) -> Status:
    """The exit status that tells this error."""
    return next((status for kind, status in _MEANING if isinstance(error, kind)), Status.LOST)


def lines_of(error: AsyncLockError) -> Iterator[str]:
    """The error for people; with an outage, a line per node."""
    if isinstance(error, QuorumUnavailableError) and error.nodes:
        yield f"too few nodes answered{f' for {error.name!r}' if error.name else ''}"
        for node, cause in error.nodes.items():
            yield f"  {node}: {cause}"
    else:
        yield str(error)
