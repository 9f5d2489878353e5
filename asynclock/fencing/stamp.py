"""What a store compares: the name of a lock and the fence of one holding of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..errors import AsyncLockError, ConfigurationError

FENCE_LIMIT = 2**53
"""Fences stay below, so that Lua, JSON and JavaScript count them exactly."""


class Fenced(Protocol):
    """Anything with a lock's name and a fence: a `Lease`, or a `FenceStamp` from elsewhere."""

    @property
    def name(self) -> str: ...

    @property
    def fence(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FenceStamp:
    """A lock's name and a fence, without the lease: what travels in a message or a request."""

    name: str
    fence: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not _is_text(self.name):
            raise ConfigurationError(f"a lock's name is a non-empty str, not {self.name!r}")
        if not isinstance(self.fence, int) or isinstance(self.fence, bool):
            raise ConfigurationError(f"a fence is an int, not {self.fence!r}")
        if not 0 < self.fence < FENCE_LIMIT:
            raise ConfigurationError(f"a fence lies between 1 and 2**53 - 1, unlike {self.fence}")

    @classmethod
    def of(cls, fenced: Fenced) -> FenceStamp:
        """The stamp of a lease, checked."""
        return cls(fenced.name, fenced.fence)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half a surrogate pair has no bytes
        return False
    return True


class StaleFenceError(AsyncLockError):
    """A newer holder was here first: nothing was written; abandon (in a web handler: 412).

    `fence` is the one that was refused, `highest` the largest the store has seen for `name`, or
    None where the store does not tell.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        fence: int = 0,
        highest: int | None = None,
    ) -> None:
        super().__init__(message, name=name)
        self.fence = fence
        self.highest = highest

    @classmethod
    def refused(cls, stamp: FenceStamp, highest: int) -> StaleFenceError:
        """The error of a store that has seen `highest`."""
        message = f"fence {stamp.fence} of {stamp.name!r} is stale: {highest} was here before"
        return cls(message, name=stamp.name, fence=stamp.fence, highest=highest)
