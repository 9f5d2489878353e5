"""`asynclock inspect`: who holds what, and what is shared, node by node."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from .._engine.inspection import Inspection
from ..errors import ConfigurationError
from ._options import ConfigOption, NodeOption, NodeTimeoutOption, PrefixOption, Settings, load
from ._output import clean, print_json, print_table, say
from ._states import SharedState
from ._status import Status
from ._survey import Survey, survey
from ._views import as_json, leading, note, origin, seconds, support, title

NODE_TIMEOUT = 1.0
"""Seconds for each node: people can wait longer than locks, and pages of keys take a while."""


def add_to(app: typer.Typer) -> None:
    """Make the command known."""
    app.command("inspect")(inspect)


def inspect(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The lock.", show_default=False)
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Everything that is held or shared.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: NodeTimeoutOption = None,
) -> int:
    """Show who holds a lock, or everything that is held or shared.

    For each node: the owner it keeps the name for, the seconds until it would free the name by
    itself, and the highest fence it knows; of an event, latch or barrier its state. Listing goes
    through the keys in small pages (SCAN) and blocks no server.

    The exit status is 69 if too few nodes answered to tell.

    Examples:

        asynclock inspect nightly-report
        asynclock inspect --all
        asynclock inspect --all --json | jq '.locks[] | select(.agreed | not)'
    """
    if (name is None) == (not all_):
        raise ConfigurationError("name one lock, or say --all, but not both")
    settings = load(node, config, prefix=prefix, node_timeout=node_timeout)
    found = asyncio.run(look(settings, name))
    if name is None:
        _show_all(found, json)
    else:
        _show_one(found, json)
    for address, error in found.errors.items():
        say(f"{address}: {error}")
    nodes = len(settings.nodes)
    return Status.UNREACHABLE if nodes - len(found.errors) < nodes // 2 + 1 else Status.OK


async def look(settings: Settings, name: str | None) -> Survey:
    """Everything, or the lock `name` and (if nobody holds it) the parts of that name."""
    timeout = settings.options.get("node_timeout", NODE_TIMEOUT)
    async with settings.connect(
        node_timeout=timeout, restart_guard=False, clock_guard=False
    ) as locks:
        if name is None:
            return await survey(locks)
        lock = await locks.inspect(name)
        errors = {view.node: view.error for view in lock.nodes if view.error is not None}
        if not any(view.owner for view in lock.nodes):
            found = await survey(locks, name)
            if found.places or found.waiting or found.states:
                free = [] if found.states and not found.waiting else [lock]
                return replace(found, places=found.places or free)
        return Survey([lock], errors)


def _show_all(found: Survey, json: bool) -> None:
    if json:
        shown = [as_json(one) for one in found.places]
        states = [one.as_json() for one in found.states]
        print_json(
            {"locks": shown, "states": states, "waiting": found.waiting, "errors": found.errors}
        )
        return
    print_table(
        ("name", "holder", "fence", "remaining", "nodes", "note"),
        [_row(one, found.waiting.get(one.name, 0)) for one in found.places]
        + [_state_row(one) for one in found.states],
    )
    shared = f", {len(found.states)} shared" if found.states else ""
    print(f"{len(found.places)} held{shared}")


def _row(found: Inspection, waiting: int) -> tuple[str, ...]:
    view = leading(found)
    holder = (view.holder if view else None) or ""
    fence = str(found.fence or "")
    notes = ", ".join(filter(None, [note(found), f"{waiting} waiting" if waiting else ""]))
    return title(found), holder, fence, seconds(found.remaining), support(found), notes


def _show_one(found: Survey, json: bool) -> None:
    places = found.places
    name = places[0].name if places else found.states[0].name
    waiting = found.waiting.get(name)
    if json:
        shown = [as_json(one) for one in places]
        plain = bool(places) and places[0].kind == "lock"
        whole = shown[0] if plain else {"name": name, "parts": shown}
        states = [one.as_json() for one in found.states]
        print_json({**whole, "states": states, "waiting": waiting})
        return
    for place in places:
        _show_place(place)
    for state in found.states:
        _show_state(state)
    if waiting:
        print(f"{waiting} waiting")


def _show_place(found: Inspection) -> None:
    print(f"{clean(title(found))}: {clean(_verdict(found))}")
    rows = [
        (
            view.node,
            "" if view.owner is None else view.owner.partition(":")[0],
            view.holder or "",
            seconds(view.remaining) if view.owner else "",
            str(view.fence or ""),
            view.error or ("free" if view.owner is None else ""),
        )
        for view in found.nodes
    ]
    print_table(("node", "owner", "holder", "remaining", "fence", "note"), rows)


def _state_row(found: SharedState) -> tuple[str, ...]:
    support = f"{found.support}/{len(found.nodes)}"
    left = seconds(found.last.remaining)
    return f"{found.name} [{found.kind}]", "", "", left, support, found.summary


def _show_state(found: SharedState) -> None:
    print(f"{clean(found.name)} [{found.kind}]: {found.summary}")
    rows = [
        (
            said.node,
            "" if said.value is None else said.value,
            seconds(said.remaining),
            said.error or ("" if said.number == found.last.number else "behind"),
        )
        for said in found.nodes
    ]
    print_table(("node", "value", "remaining", "note"), rows)


def _verdict(found: Inspection) -> str:
    if found.owner is not None:
        where = origin(found.holder)
        parts = [f"held by {found.holder}"]
        if where["pid"] is not None:
            task = f", {where['task']}" if where["task"] else ""
            parts = [f"held by process {where['pid']} on {where['host']}{task}"]
        parts.append(f"fence {found.fence}")
        if found.remaining is not None:
            parts.append(f"{found.remaining:.1f} s left without renewal")
        return "; ".join([*parts, *filter(None, [note(found)])])
    if any(view.owner for view in found.nodes):
        return "nobody has a quorum: " + note(found)
    answered = sum(view.error is None for view in found.nodes)
    if answered < found.quorum:
        return f"unknown: {answered} of {len(found.nodes)} nodes answered"
    return "free"
