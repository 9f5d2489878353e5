"""Takes a lock back from its holder: by a release, or by asking the holder for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from .. import _settings
from .._engine import refusals
from .._engine.attempt import WakesNext
from .._engine.engine import Engine
from .._engine.inspection import Inspection, ask_all
from .._engine.spec import Vote, done, is_owner_id, last_owner, released
from .._nodes.wire import NO_RIGHT, Failure
from .._primitives.kinds import spec_of
from ..errors import ConfigurationError
from .survey import Survey, survey


class Outcome(NamedTuple):
    """The result of a release for one owner on one node."""

    node: str
    owner: str
    released: bool | Failure
    """Whether the node released something of that owner."""

    @property
    def result(self) -> str:
        """The result in words."""
        if isinstance(self.released, Failure):
            return f"unknown: {self.released.cause}"
        return "released" if self.released else "was not held by that owner"


def digits(owner: str) -> str:
    """Return the part of an owner's id that people type."""
    return last_owner(owner).partition(":")[0]


class TakeBack(Vote):
    """What is held of a name, and the nodes that failed until now."""

    AIM = "take back"
    NEVER = "be taken back"

    def __init__(self, engine: Engine, name: str, found: Survey) -> None:
        super().__init__(name, engine.multiplexer)
        self._engine = engine
        self.held: list[Inspection] = [one for one in found.held if one.kind == "lock"]
        """The mutex alone if somebody has it, otherwise all parts."""
        self.held = self.held or found.held
        for index, node in enumerate(engine.multiplexer.nodes):
            if cause := found.errors.get(node.address):
                self.failures[index] = Failure(cause, permanent=cause.startswith(NO_RIGHT))

    @classmethod
    async def of(cls, engine: Engine, name: str) -> Self:
        """Ask all nodes what is held of `name`. Raises ConfigurationError if it is no name."""
        return cls(engine, name, await survey(engine, _settings.name(name)))

    def parts(self, owner: str | None) -> list[tuple[Inspection, str]]:
        """Return the parts that `owner` has (its id or the 32 digits of it), or anybody if None."""
        return [
            (lease, one)
            for lease in self.held
            for one in sorted({view.owner for view in lease.nodes if view.owner is not None})
            if owner in (None, one, digits(one))
        ]

    async def free(self, parts: Sequence[tuple[Inspection, str]]) -> list[Outcome]:
        """Release each part on every node that still has it for that owner."""
        outcomes, engine = [], self._engine
        for lease, owner in parts:
            spec = spec_of(engine.settings.prefix, lease)
            replies = await ask_all(engine, spec.release(owner, 0.0, 0.0))
            waiters = WakesNext(engine.multiplexer.wakeups, spec)  # tasks of this process
            for index, reply in sorted(replies.items()):
                parsed = released(reply)
                waiters.on_reply(index, reply)
                result = self._note(index, parsed if isinstance(parsed, Failure) else parsed.done)
                outcomes.append(Outcome(self._nodes[index].address, owner, result))
            engine.renewals.changed(spec.keys[0])  # servers push to other clients only
        return outcomes

    async def release(self, owner: str | None) -> bool:
        parts = self.parts(owner)
        if not parts and owner in [lease.holder for lease in self.held]:
            raise ConfigurationError(f"{owner!r} is a label: pass the owner (`inspect` shows it)")
        outcomes = await self.free(parts)
        self.check()
        return any(one.released is True for one in outcomes)

    async def ask(self) -> bool:
        asked, engine = False, self._engine
        by, seconds = engine.owners.new(), engine.settings.max_ttl
        for lease in self.held:
            if lease.owner is None or not is_owner_id(lease.owner):
                continue  # no other library looks; its owner could be the end of a key of ours
            spec = spec_of(engine.settings.prefix, lease)
            replies = await ask_all(engine, spec.publish(lease.owner, by, seconds, lease.owner))
            results = [self._note(index, done(reply)) for index, reply in replies.items()]
            asked |= results.count(True) >= self._quorum
        self.check()
        return asked

    def _note(self, index: int, result: bool | Failure) -> bool | Failure:
        if isinstance(result, Failure):
            self.failures[index] = result
        return result

    def check(self) -> None:
        if self.outage:
            raise refusals.hopeless(self) if self.hopeless else refusals.outage(self)
