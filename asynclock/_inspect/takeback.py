"""Takes a lock back from its holder: by a release, or by asking the holder for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from .._engine.inspection import Inspection
from .._engine.refusals import is_owner_id
from .._engine.said import done, last_owner, released
from .._keys import derived
from .._nodes.replies import Failure
from ..errors import ConfigurationError, QuorumUnavailableError
from .access import NodeAccess
from .layout import KeyRef
from .survey import Survey, ask, survey


@dataclass(frozen=True)
class Outcome:
    """The result of a release for one key on one node."""

    node: str
    owner: str | None
    result: str


Parts = list[tuple[Inspection, tuple[str, ...]]]
"""The parts of a name to take back, each with the owners that lose it."""


async def held_now(access: NodeAccess, name: str) -> Survey:
    """Return what is held of a name: the mutex alone if somebody has it, otherwise all parts."""
    found = await survey(access, name)
    found.held = [one for one in found.held if one.kind == "lock"] or found.held
    return found


def digits(owner: str) -> str:
    """Return the part of an owner's id that people type."""
    return last_owner(owner).partition(":")[0]


def parts_of(leases: Sequence[Inspection], owner: str | None) -> Parts:
    """Return the parts that `owner` has (its id or the 32 digits of it), or anybody if None."""
    found = []
    for lease in leases:
        owners = {view.owner for view in lease.nodes if view.owner is not None}
        mine = {one for one in owners if owner in (None, one, digits(one))}
        if mine:
            found.append((lease, tuple(sorted(mine))))
    return found


async def free(access: NodeAccess, found: Inspection, owners: Sequence[str]) -> list[Outcome]:
    """Release a part of a name on every node that still has it for one of these owners."""
    key = KeyRef.shown_as(found.name, found.kind, found.part)
    outcomes, wakeups = [], access.engine.multiplexer.wakeups
    for owner in owners:
        command = key.release(access.prefix, owner)
        replies = await asyncio.gather(*(ask(node, command) for node in access.nodes))
        for index, (node, reply) in enumerate(zip(access.nodes, replies, strict=True)):
            said = released(reply)
            if isinstance(said, Failure):
                outcomes.append(Outcome(node.address, owner, f"unknown: {said.cause}"))
                continue
            result = "released" if said.done else "was not held by that owner"
            outcomes.append(Outcome(node.address, owner, result))
            for ticket in said.woken:  # it may be that of a task of this process
                wakeups.wake(derived(command.keys[2], ticket.decode()), index)
        access.engine.renewals.changed(command.keys[0])  # servers push to other clients only
    return outcomes


async def release_held(access: NodeAccess, name: str, owner: str | None, *, force: bool) -> bool:
    """Do the work of `LockManager.release_held`."""
    if (owner is None) == (not force) or not isinstance(owner, str | None):
        raise ConfigurationError("pass either the owner (`inspect` shows it) or force=True")
    found = await held_now(access, name)
    outcomes = [
        outcome
        for lease, owners in parts_of(found.held, owner)
        for outcome in await free(access, lease, owners)
    ]
    unknown = {one.node: one.result for one in outcomes if one.result.startswith("unknown")}
    _check(access, found, name, unknown)
    return any(one.result == "released" for one in outcomes)


async def ask_back(access: NodeAccess, name: str) -> bool:
    """Do the work of `LockManager.ask_back`."""
    found, engine = await held_now(access, name), access.engine
    by, seconds = engine.new_owner(), engine.settings.max_ttl
    asked, unknown = False, dict[str, str]()
    for lease in found.held:
        if lease.owner is None or not is_owner_id(lease.owner):
            continue  # no other library looks; its owner could be the end of a key of ours
        key = KeyRef.shown_as(lease.name, lease.kind, lease.part)
        command = key.ask_back(access.prefix, lease.owner, by, seconds)
        replies = map(done, await asyncio.gather(*(ask(node, command) for node in access.nodes)))
        said = dict(zip((node.address for node in access.nodes), replies, strict=True))
        unknown |= {node: one.cause for node, one in said.items() if isinstance(one, Failure)}
        asked |= list(said.values()).count(True) >= access.quorum
    _check(access, found, name, unknown)
    return asked


def _check(access: NodeAccess, found: Survey, name: str, unknown: dict[str, str]) -> None:
    causes = found.errors | unknown
    if len(access.nodes) - len(causes) < access.quorum:
        listed = "; ".join(f"{node}: {cause}" for node, cause in causes.items())
        raise QuorumUnavailableError(
            f"too few nodes answered about {name!r}: {listed}", name=name, nodes=causes
        )
