"""`asynclock release`: takes a lock from its holder, by hand."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from ..._access import node_access
from ..._engine.inspection import Inspection
from ..._engine.said import RESTS, released
from ..._inspect.layout import KeyRef
from ..._inspect.survey import ask, survey
from ..._inspect.views import origin
from ..._nodes.replies import Failure
from ...errors import ConfigurationError
from ...manager import LockManager
from .._options import ConfigOption, LongNodeTimeoutOption, NodeOption, PrefixOption
from .._output import print_json, print_table
from .._sources import Settings, load
from .._status import Status
from .._text import log_to_stderr, say, seconds
from .held import say_causes


@dataclass(frozen=True)
class Outcome:
    """The result of the release for one key on one node."""

    node: str
    owner: str | None
    result: str


def release(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock.", show_default=False)],
    owner: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Release it only from this owner (see inspect)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Release it from any owner.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: LongNodeTimeoutOption = None,
) -> int:
    """Release a lock that its holder does not release.

    The holder loses the lock. It notices that at its next renewal at the latest, and once there is
    a new holder, stores that check fences reject its writes. The lock of a dead holder ends by
    itself with its ttl. Use this if you can't wait, or if a holder hangs and goes on renewing.

    --owner takes the whole id or its 32 digits. It never takes the lock from another owner.

    The exit status is 0 once a quorum of nodes is free of that owner, 75 if another owner has the
    lock, 69 if too few nodes answered, 1 if you said no.

    Examples:

        asynclock release nightly-report --force
        asynclock release nightly-report --owner 5f0c…e1 --yes
    """
    if (owner is None) == (not force):
        raise ConfigurationError(
            f"name the owner (--owner ID: `asynclock inspect {name}` shows it), "
            "or release it from any owner with --force"
        )
    settings = load(node, config, prefix=prefix, node_timeout=node_timeout).relaxed()
    log_to_stderr()
    return asyncio.run(_release(settings, name, owner, ask_first=not yes, json=json))


async def _release(
    settings: Settings, name: str, owner: str | None, *, ask_first: bool, json: bool
) -> int:
    async with settings.connect(restart_guard=False, clock_guard=False, set_guard=False) as locks:
        leases = await _held(locks, name)
        wanted = _wanted(leases, owner)
        if not wanted:
            if json:
                print_json({"outcomes": []})
            return _nothing_to_do(leases, owner, settings.prefix)
        if ask_first and not _agreed(name, wanted):
            return 1
        outcomes = [
            outcome for lease, owners in wanted for outcome in await _free(locks, lease, owners)
        ]
        return _report(outcomes, json, len(leases[0].nodes))


async def _held(locks: LockManager, name: str) -> list[Inspection]:
    lock = await locks.inspect(name)
    if any(view.owner is not None for view in lock.nodes):
        return [lock]
    return (await survey(node_access(locks), name)).held or [lock]


def _wanted(
    leases: Sequence[Inspection], owner: str | None
) -> list[tuple[Inspection, tuple[str, ...]]]:
    """Return the parts of the name to release, each with the owners that lose it."""
    found = []
    for lease in leases:
        owners = {view.owner for view in lease.nodes if view.owner is not None}
        mine = {one for one in owners if owner in (None, one, _digits(one))}
        if mine:
            found.append((lease, tuple(sorted(mine))))
    return found


def _digits(owner: str) -> str:
    return owner.removeprefix(RESTS).partition(":")[0]


def _nothing_to_do(leases: Sequence[Inspection], owner: str | None, prefix: str) -> int:
    first = leases[0]
    silent = {view.node: view.error for view in first.nodes if view.error is not None}
    if len(first.nodes) - len(silent) < first.quorum:
        say("too few nodes answered")
        say_causes(silent, prefix)
        return Status.UNREACHABLE
    held = next((one for one in leases if any(view.owner is not None for view in one.nodes)), None)
    if held is not None and owner is not None:
        say(f"{first.name!r} is held by {held.holder or 'another owner'}, not by that owner")
        return Status.NOT_ACQUIRED
    say(f"{first.name!r} is free")
    return Status.OK


def _agreed(name: str, wanted: Sequence[tuple[Inspection, tuple[str, ...]]]) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask on; confirm with --yes")
    rows = []
    for lease, owners in wanted:
        for owner in owners:
            label = owner.removeprefix(RESTS).partition(":")[2]
            where = origin(label)
            rows.append(
                (
                    lease.part,
                    _digits(owner),
                    label,
                    str(where["host"] or ""),
                    str(where["pid"] or ""),
                    seconds(lease.remaining),
                )
            )
    print_table(("part", "owner", "holder", "host", "pid", "remaining"), rows)
    say(f"{name!r}: its holder may still be working, and will not notice at once")
    return typer.confirm("Release it?", err=True)


async def _free(locks: LockManager, found: Inspection, owners: Sequence[str]) -> list[Outcome]:
    access = node_access(locks)
    key = KeyRef.shown_as(found.name, found.kind, found.part)
    outcomes = []
    for owner in owners:
        command = key.release(access.prefix, owner)
        replies = await asyncio.gather(*(ask(node, command) for node in access.nodes))
        for node, reply in zip(access.nodes, replies, strict=True):
            said = released(reply)
            if isinstance(said, Failure):
                outcomes.append(Outcome(node.address, owner, f"unknown: {said.cause}"))
            else:
                result = "released" if said.done else "was not held by that owner"
                outcomes.append(Outcome(node.address, owner, result))
    return outcomes


def _report(outcomes: Sequence[Outcome], json: bool, nodes: int) -> int:
    if json:
        print_json({"outcomes": [vars(one) for one in outcomes]})
    else:
        rows = [(one.node, _digits(one.owner or ""), one.result) for one in outcomes]
        print_table(("node", "owner", "result"), rows)
    unknown = {one.node for one in outcomes if one.result.startswith("unknown")}
    return Status.OK if nodes - len(unknown) >= nodes // 2 + 1 else Status.UNREACHABLE
