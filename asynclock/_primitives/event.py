"""The event: tasks wait until another task sets it."""

from __future__ import annotations

from .. import _clock, _settings
from .._engine.engine import Engine
from .._engine.inspection import Inspection
from ..errors import ConfigurationError
from .kind import Description
from .register import Register, state_kind

SET, CLEAR = "set", "clear"


def _describe(value: str, _now: int) -> Description:
    if value not in (SET, CLEAR):
        raise ConfigurationError("the state of this event was not written by this library")
    return {"set": value == SET}, "set" if value == SET else "cleared"


KIND = state_kind("event", _describe)


@_settings.made_by("connect(...).event(name)")
class SharedEvent(_settings.Answering):
    """An `asyncio.Event` that all processes share: tasks set it, clear it and wait for it.

    Once `set` or `clear` has returned, every later call in any process sees the change, with a
    minority of nodes dead. An event has no owner and so no fence. It stays set for `keep` seconds
    after the last change and then counts as never set; processes that share a name should use the
    same `keep`. Works on every deployment. A node that lost its memory counts as dead until the
    next change, or a read that notices the loss, writes the value to it again. Until then it and
    other dead nodes together may make calls raise QuorumUnavailableError.
    """

    __slots__ = ("_register",)

    def __init__(self, engine: Engine, prefix: str, name: str, keep: float) -> None:
        self._register = Register.of_kind(KIND, engine, prefix, name, keep)

    def __repr__(self) -> str:
        return f"<SharedEvent {self.name!r}>"

    @property
    def name(self) -> str:
        """The name that was passed to `LockManager.event`."""
        return self._register.name

    async def set(self, *, timeout: float | None = None) -> None:
        """Set the event: all tasks that wait for it go on, and later ones don't wait.

        Raises QuorumUnavailableError after `timeout` seconds (at least two node timeouts) if too
        few nodes answered or other changes got in the way each time. After that error or a
        cancellation the event may be set or not.
        """
        await self._register.change(lambda _: SET, deadline_of(timeout))

    async def clear(self, *, timeout: float | None = None) -> None:
        """Clear the event: tasks that come later wait. Raises the same errors as `set`."""
        await self._register.change(
            lambda value: None if value is None else CLEAR, deadline_of(timeout)
        )

    async def is_set(self, *, timeout: float | None = None) -> bool:
        """Return whether the event is set now. Raises the same errors as `set`."""
        return await self._register.read(deadline_of(timeout)) == SET

    async def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until the event is set. Return True, or False after `timeout` seconds.

        Raises QuorumUnavailableError if too few nodes answer until then. Cancelling this call
        changes nothing.
        """
        found = await self._register.until(
            lambda value: True if value == SET else None, deadline_of(timeout)
        )
        return bool(found)

    async def inspect(self) -> Inspection:
        """Return what each node stores; takes at most one node timeout."""
        return await self._register.inspect(KIND.name)


def deadline_of(timeout: float | None) -> float | None:
    """Return the moment at which a timeout that starts now ends; None without a timeout."""
    seconds = _settings.optional_seconds(timeout, "timeout", zero=True)
    return None if seconds is None else _clock.now() + seconds
