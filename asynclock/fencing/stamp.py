"""The stamp that a store compares: the name of a lock, its part, and the fence of one lease."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import AsyncLockError, ConfigurationError

FENCE_LIMIT = 2**53
"""All fences are below this number, so that Lua, JSON and JavaScript represent them exactly."""


READ, WRITE = "read", "write"
"""The parts in the leases of a read-write lock."""
_PART = re.compile(r"[a-z0-9]{0,16}")


class Fenced(Protocol):
    """Anything with a lock's name and a fence, such as a `Lease` or a `FenceStamp`.

    If it also has a `part`, such as the slot of a semaphore, that is compared as well.
    """

    @property
    def name(self) -> str:
        """Name of the lock."""

    @property
    def fence(self) -> int:
        """Fencing token, which rises with every lease on the name."""


@dataclass(frozen=True, slots=True)
class FenceStamp:
    """A lock's name and a fence without the lease, to be sent in a message or a request.

    Raises ConfigurationError for wrong values.

    Args:
        name: the lock's name.
        fence: the lease's fencing token.
        part: the lease's (`lease.part`): the slot of a semaphore, the side of a read-write lock, or
            "" for a lock with a single holder.
    """

    name: str
    fence: int
    part: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not _is_text(self.name):
            raise ConfigurationError(f"a lock's name is a non-empty str, not {self.name!r}")
        if not isinstance(self.fence, int) or isinstance(self.fence, bool):
            raise ConfigurationError(f"a fence is an int, not {self.fence!r}")
        if not 0 < self.fence < FENCE_LIMIT:
            raise ConfigurationError(f"a fence must be between 1 and 2**53 - 1, not {self.fence}")
        if not isinstance(self.part, str) or not _PART.fullmatch(self.part):
            raise ConfigurationError(
                f"a part is up to 16 small letters and digits, not {self.part!r}"
            )

    @classmethod
    def of(cls, fenced: Fenced) -> FenceStamp:
        """Return the stamp of a lease. Raises ConfigurationError if its values are wrong.

        Args:
            fenced: a lease of any kind on one name, or another stamp.
        """
        fences = getattr(fenced, "fences", None)
        if isinstance(fences, Mapping):  # one record for all of them would protect none
            raise ConfigurationError(
                f"{fenced!r} has a fence for each of its parts: check each on its own, for example "
                "FenceStamp(name, lease.fences[name]) for a name of a multi_lock"
            )
        return cls(fenced.name, fenced.fence, getattr(fenced, "part", ""))

    @property
    def rivals(self) -> tuple[str, ...]:
        """The parts of the name whose highest fences this fence must not be below.

        The slots of a semaphore are independent of each other. A reader comes after all writers
        with lower fences, but readers hold at the same time, whatever the order of their fences. A
        writer comes after all writers and readers with lower fences.
        """
        if self.part == READ:
            return (WRITE,)
        return (WRITE, READ) if self.part == WRITE else (self.part,)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half a surrogate pair can't be encoded
        return False
    return True


class StaleFenceError(AsyncLockError):
    """A newer holder has written before; nothing was written: abandon (in a web handler: 412).

    `fence` is the rejected fence, `highest` the highest one that the store has seen for `name`, or
    None if the store doesn't report it.
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
        """Return the error for a store that has seen `highest`."""
        message = f"fence {stamp.fence} of {_shown(stamp)} is stale: {highest} was seen before"
        return cls(message, name=stamp.name, fence=stamp.fence, highest=highest)

    @classmethod
    def too_old(cls, stamp: FenceStamp, oldest: int) -> StaleFenceError:
        """Return the error for a store that may have forgotten newer fences below `oldest`."""
        message = (
            f"fence {stamp.fence} of {_shown(stamp)} is too old: the store has no record of it, "
            f"and keeps no records of fences below {oldest} (begin each lease with a claim)"
        )
        return cls(message, name=stamp.name, fence=stamp.fence)


def _shown(stamp: FenceStamp) -> str:
    return f"{stamp.name!r} ({stamp.part})" if stamp.part else repr(stamp.name)


# ---- Stores for the highest fence of each lock, for checks that are separate from the write ------


class FenceStore(Protocol):
    """Stores the highest fence per lock; `FencedRedis` is one that many processes can share."""

    async def claim(self, lease: Fenced, /) -> None:
        """Store this fence, or raise `StaleFenceError` if a higher one was seen."""


class MemoryFenceStore:
    """Stores the highest fences that one process has seen.

    Use it only if a single process guards the protected resource; several workers need a shared
    store. Names may come from strangers, so beyond `max_names` (each part of a name counts) it
    forgets the name that was unused for longest. A late request for a forgotten name passes.
    """

    def __init__(self, max_names: int = 100_000) -> None:
        if max_names < 1:
            raise ConfigurationError(f"max_names must be at least 1, not {max_names!r}")
        self._max_names = max_names
        self._highest: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def claim(self, lease: Fenced, /) -> None:
        """Store this fence, or raise `StaleFenceError` if a higher one was seen."""
        stamp = FenceStamp.of(lease)
        highest = max(self._highest.get((stamp.name, part), 0) for part in stamp.rivals)
        if stamp.fence < highest:
            raise StaleFenceError.refused(stamp, highest)
        own = (stamp.name, stamp.part)
        self._highest[own] = max(stamp.fence, self._highest.get(own, 0))
        self._highest.move_to_end(own)
        if len(self._highest) > self._max_names:
            self._highest.popitem(last=False)
