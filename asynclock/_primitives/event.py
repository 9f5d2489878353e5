"""The event: many wait until somebody sets it."""

from __future__ import annotations

from .. import _clock, _settings
from .._engine.inspection import Inspection
from .register import Register


class SharedEvent:
    """As `asyncio.Event`, shared by all processes: set, cleared, and waited for.

    What `set` or `clear` has returned from is seen by every later call anywhere, with a minority
    of nodes dead. Nobody holds it, so it has no fence. It stays set for `keep` seconds after the
    last change and then counts as never set. On every deployment; a node that lost its memory
    counts as dead until the next change has told it again.
    """

    __slots__ = ("_register",)

    def __init__(self, register: Register) -> None:
        self._register = register

    def __repr__(self) -> str:
        return f"<SharedEvent {self.name!r}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._register.name

    async def set(self, *, timeout: float | None = None) -> None:
        """Let all who wait go on, and all who come later.

        Raises QuorumUnavailableError if too few nodes answered for `timeout` seconds; it may be
        set or not then, as when it is cancelled.
        """
        await self._register.change(lambda _: "set", deadline_of(timeout))

    async def clear(self, *, timeout: float | None = None) -> None:
        """Make those who come from now on wait. Raises as `set`."""
        await self._register.change(
            lambda value: None if value is None else "clear", deadline_of(timeout)
        )

    async def is_set(self, *, timeout: float | None = None) -> bool:
        """Whether it is set now. Raises as `set`."""
        return await self._register.read(deadline_of(timeout)) == "set"

    async def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until it is set. → True, or False after `timeout` seconds.

        Raises QuorumUnavailableError if too few nodes answer until then. Cancelling leaves nothing
        behind.
        """
        found = await self._register.until(
            lambda value: True if value == "set" else None, deadline_of(timeout)
        )
        return bool(found)

    async def inspect(self) -> Inspection:
        """What each node says."""
        return await self._register.inspect("event")


def deadline_of(timeout: float | None) -> float | None:
    """The moment at which a timeout of so many seconds is over."""
    seconds = _settings.optional_seconds(timeout, "timeout", zero=True)
    return None if seconds is None else _clock.now() + seconds
