"""The detached ticket, with which another process takes a lease over."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Self

from .. import _clock
from ..errors import ConfigurationError
from .grant import Grant

VERSION: Final = 1
LONGEST: Final = 8192
"""Maximum number of bytes of a ticket."""


def no_such() -> ConfigurationError:
    """Return the error for bytes that are no ticket."""
    return ConfigurationError("this is no ticket that Lease.detach returned")


def no_ticket(name: str) -> ConfigurationError:
    """Return the error for a lease that can't be detached."""
    return ConfigurationError(
        f"the lease on {name!r} can't be detached: only those of lock() and fair_lock() can, so "
        "hold one of these for the work that another process goes on with",
        name=name,
    )


@dataclass(frozen=True, slots=True)
class Detached:
    """What a detached ticket says."""

    kind: str
    """The method of the manager that makes the lock."""
    name: str
    key: str
    """The lock's own key, so that no manager with another prefix takes the ticket."""
    owner: str
    fence: int
    ttl: float
    at_least: float
    """The seconds of `at_least` that were left."""

    @classmethod
    def of(cls, grant: Grant) -> Self:
        """Return what the ticket of the lease that has `grant` says."""
        spec = grant.spec
        left = max(0.0, grant.held_since + grant.options.at_least - _clock.now())
        return cls(spec.kind, spec.name, spec.keys[0], grant.owner, grant.fence, grant.ttl, left)

    def written(self) -> bytes:
        """Return the ticket. Raises ConfigurationError if the name is too long for one."""
        text = json.dumps({"asynclock": VERSION, **asdict(self)}, separators=(",", ":"))
        if len(text) > LONGEST:
            raise ConfigurationError(
                f"a ticket has at most {LONGEST} bytes, and the name of this lease is too long "
                "for it: lock a shorter name, such as a hash of this one",
                name=self.name,
            )
        return text.encode()

    @classmethod
    def read(cls, ticket: object) -> Self:
        """Return what `ticket` says. Raises ConfigurationError, which doesn't show the ticket."""
        if not isinstance(ticket, bytes):
            raise ConfigurationError(
                f"a ticket must be bytes, as Lease.detach returns them, not {type(ticket).__name__}"
            )
        try:
            found = json.loads(ticket) if len(ticket) <= LONGEST else None
        except (ValueError, RecursionError):
            found = None
        match found:
            case {"asynclock": int(version)} if version != VERSION:
                raise ConfigurationError(
                    f"the ticket has version {version}, but this version of asynclock reads "
                    f"{VERSION}: let all processes that pass tickets on have the same version"
                )
            case {
                "asynclock": 1,
                "kind": str(kind),
                "name": str(name),
                "key": str(key),
                "owner": str(owner),
                "fence": int(fence),
                "ttl": int() | float() as ttl,
                "at_least": int() | float() as at_least,
            }:
                return cls(kind, name, key, owner, fence, ttl, at_least)
        raise no_such()
