"""`asynclock release`: take a lock from its holder, by hand."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from .._engine.inspection import Inspection
from .._nodes.link import Failure
from ..errors import ConfigurationError
from ..manager import LockManager
from ._options import ConfigOption, NodeOption, NodeTimeoutOption, PrefixOption, Settings, load
from ._output import print_json, print_table, say
from ._places import Place
from ._status import Status
from ._survey import ask, survey
from ._views import origin, seconds
from .inspect import NODE_TIMEOUT


def add_to(app: typer.Typer) -> None:
    """Make the command known."""
    app.command("release")(release)


@dataclass(frozen=True)
class Outcome:
    """What became of one key on one node."""

    node: str
    owner: str | None
    result: str


def release(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock.", show_default=False)],
    owner: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Release it only from this owner (see inspect)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Release it from whoever holds it now.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: NodeTimeoutOption = None,
) -> int:
    """Release a lock that its holder does not give back.

    The holder loses it: it notices at its next renewal, and its fence is refused by every store
    that checks fences. A lock whose holder is dead frees itself when its ttl is over; this is for
    those who can't wait, or for a holder that hangs and goes on renewing.

    --owner takes the whole id or its 32 digits. Somebody who got the lock meanwhile keeps it.

    The exit status is 0 once a quorum of nodes is free of that owner, 75 if somebody else has it,
    69 if too few nodes answered, 1 if you said no.

    Examples:

        asynclock release nightly-report --force
        asynclock release nightly-report --owner 5f0c…e1 --yes
    """
    if (owner is None) == (not force):
        raise ConfigurationError("say which owner (--owner ID), or --force for whoever holds it")
    settings = load(node, config, prefix=prefix, node_timeout=node_timeout)
    return asyncio.run(_release(settings, name, owner, ask_first=not yes, json=json))


async def _release(
    settings: Settings, name: str, owner: str | None, *, ask_first: bool, json: bool
) -> int:
    timeout = settings.options.get("node_timeout", NODE_TIMEOUT)
    async with settings.connect(
        node_timeout=timeout, restart_guard=False, clock_guard=False
    ) as locks:
        places = await _held(locks, name)
        wanted = _wanted(places, owner)
        silent = [view.node for view in places[0].nodes if view.error is not None]
        if not wanted:
            return _nothing_to_do(places, owner, silent)
        if ask_first and not _agreed(name, wanted):
            return 1
        outcomes = [
            outcome for place, owners in wanted for outcome in await _free(locks, place, owners)
        ]
        return _report(outcomes, json, len(places[0].nodes))


async def _held(locks: LockManager, name: str) -> list[Inspection]:
    lock = await locks.inspect(name)
    if any(view.owner for view in lock.nodes):
        return [lock]
    return (await survey(locks, name)).places or [lock]


def _wanted(
    places: Sequence[Inspection], owner: str | None
) -> list[tuple[Inspection, tuple[str, ...]]]:
    """Which owners are to lose which places."""
    found = []
    for place in places:
        owners = {view.owner for view in place.nodes if view.owner is not None}
        mine = {one for one in owners if owner in (None, one, one.partition(":")[0])}
        if mine:
            found.append((place, tuple(sorted(mine))))
    return found


def _nothing_to_do(places: Sequence[Inspection], owner: str | None, silent: Sequence[str]) -> int:
    place = places[0]
    if len(place.nodes) - len(silent) < place.quorum:
        say(f"too few nodes answered; silent: {', '.join(silent)}")
        return Status.UNREACHABLE
    held = next((one for one in places if any(view.owner for view in one.nodes)), None)
    if held is not None and owner is not None:
        say(f"{place.name!r} is held by {held.holder or 'somebody else'}, not by that owner")
        return Status.NOT_ACQUIRED
    say(f"{place.name!r} is free")
    return Status.OK


def _agreed(name: str, wanted: Sequence[tuple[Inspection, tuple[str, ...]]]) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask on; add --yes if you are sure")
    rows = []
    for place, owners in wanted:
        for owner in owners:
            label = owner.partition(":")[2]
            where = origin(label)
            rows.append(
                (
                    place.part,
                    owner.partition(":")[0],
                    label,
                    str(where["host"] or ""),
                    str(where["pid"] or ""),
                    seconds(place.remaining),
                )
            )
    print_table(("part", "owner", "holder", "host", "pid", "remaining"), rows)
    say(f"{name!r}: whoever holds it may still be at work, and will not know it at once")
    return typer.confirm("Release it?", err=True)


async def _free(locks: LockManager, found: Inspection, owners: Sequence[str]) -> list[Outcome]:
    prefix = locks._defaults.prefix
    place = Place.shown_as(found.name, found.kind, found.part)
    nodes = locks._engine.multiplexer.nodes
    outcomes = []
    for owner in owners:
        command = place.release(prefix, owner)
        replies = await asyncio.gather(*(ask(node, command) for node in nodes))
        for node, reply in zip(nodes, replies, strict=True):
            if isinstance(reply, Failure):
                outcomes.append(Outcome(node.address, owner, f"unknown: {reply.cause}"))
            else:
                result = "released" if reply[0] == 1 else "was not held by that owner"
                outcomes.append(Outcome(node.address, owner, result))
    return outcomes


def _report(outcomes: Sequence[Outcome], json: bool, nodes: int) -> int:
    if json:
        print_json({"outcomes": [vars(one) for one in outcomes]})
    else:
        rows = [(one.node, (one.owner or "").partition(":")[0], one.result) for one in outcomes]
        print_table(("node", "owner", "result"), rows)
    unknown = {one.node for one in outcomes if one.result.startswith("unknown")}
    return Status.OK if nodes - len(unknown) >= nodes // 2 + 1 else Status.UNREACHABLE
