"""`asynclock release`: takes a lock from its holder, by hand."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from .._engine.inspection import Inspection
from .._engine.spec import label
from .._inspect.takeback import TakeBack, digits
from .._inspect.views import origin
from ..errors import ConfigurationError
from ..manager import engine_of
from . import _app
from ._output import Status, log_to_stderr, print_json, print_table, say, seconds
from ._settings import Settings, load
from .inspect import say_causes


def release(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock.", show_default=False)],
    owner: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Release it only from this owner (see inspect)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Release it from any owner.")] = False,
    ask: Annotated[
        bool, typer.Option("--ask", help="Only ask its holder to give it back, and don't wait.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    node: _app.NodeOption = None,
    config: _app.ConfigOption = None,
    prefix: _app.PrefixOption = None,
    node_timeout: _app.LongNodeTimeoutOption = None,
) -> int:
    """Release a lock that its holder does not release.

    The holder loses the lock. It notices that at its next renewal at the latest, and once there is
    a new holder, stores that check fences reject its writes. The lock of a dead holder ends by
    itself with its ttl. Use this if you can't wait, or if a holder hangs and goes on renewing.

    --ask takes nothing: a holder that listens (`lease.on_wanted` in Python) hears of it and decides
    by itself. The exit status is 0 also if nobody holds the lock or listens.

    --owner takes the whole id or its 32 digits. It never takes the lock from another owner.

    The exit status is 0 once a quorum of nodes is free of that owner, 75 if another owner has the
    lock, 69 if too few nodes answered, 1 if you said no.

    Examples:

        asynclock release nightly-report --ask
        asynclock release nightly-report --force
        asynclock release nightly-report --owner 5f0c…e1 --yes
    """
    if ask + force + (owner is not None) != 1:
        raise ConfigurationError(
            f"name the owner (--owner ID: `asynclock inspect {name}` shows it), "
            "or release it from any owner with --force, or only ask for it with --ask"
        )
    settings = load(node, config, prefix, node_timeout).relaxed()
    log_to_stderr()
    if ask:
        return asyncio.run(_ask(settings, name, json=json))
    return asyncio.run(_release(settings, name, owner, ask_first=not yes, json=json))


async def _ask(settings: Settings, name: str, *, json: bool) -> int:
    async with settings.look("release --ask") as locks:
        asked = await locks.ask_back(name)
    if json:
        print_json({"asked": asked})
    say(f"the holder of {name!r} was asked" if asked else f"nobody holds {name!r}")
    return Status.OK


async def _release(
    settings: Settings, name: str, owner: str | None, *, ask_first: bool, json: bool
) -> int:
    async with settings.connect(restart_guard=False, clock_guard=False, set_guard=False) as locks:
        take = await TakeBack.of(engine_of(locks), name)
        parts = take.parts(owner)
        if parts and ask_first and not _agreed(name, parts):
            return 1
        outcomes = await take.free(parts)
    if json:
        rows = [{"node": one.node, "owner": one.owner, "result": one.result} for one in outcomes]
        print_json({"outcomes": rows})
    elif parts:
        cells = [(one.node, digits(one.owner), one.result) for one in outcomes]
        print_table(("node", "owner", "result"), cells)
    if not parts and take.outage:
        say("too few nodes answered")
        say_causes(take.causes(), settings.prefix)
    elif not parts and take.held:
        holder = take.held[0].holder or "another owner"
        say(f"{name!r} is held by {holder}, not by that owner")
        return Status.NOT_ACQUIRED
    elif not parts:
        say(f"{name!r} is free")
    return Status.UNREACHABLE if take.outage else Status.OK


def _agreed(name: str, parts: Sequence[tuple[Inspection, str]]) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask on; confirm with --yes")
    rows = []
    for lease, owner in parts:
        holder = label(owner) or ""
        host, pid, _ = (str(one or "") for one in origin(holder).values())
        rows.append((lease.part, digits(owner), holder, host, pid, seconds(lease.remaining)))
    print_table(("part", "owner", "holder", "host", "pid", "remaining"), rows)
    say(f"{name!r}: its holder may still be working until it notices")
    return typer.confirm("Release it?", err=True)
