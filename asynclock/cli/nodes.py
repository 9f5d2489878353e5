"""`asynclock nodes`: the record of the fleet's set of nodes, and the steps that change the set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from .._rules.nodeset import CLOSING, OPEN, NodeSet, shown
from ..errors import ConfigurationError
from ..fleet import Fleet, FleetState
from . import _app
from ._output import Status, log_to_stderr, print_json, print_table, say
from ._settings import Settings, load, repeated
from .inspect import say_causes


class Action(StrEnum):
    """What to do with the record."""

    show = "show"
    record = "record"
    add = "add"
    remove = "remove"
    swap = "replace"
    finish = "finish"
    back = "back"


NODES = {Action.add: "URL", Action.remove: "NODE", Action.swap: "NODE URL"}
"""For each action that takes nodes: which."""
FORCED = set(Action) - {Action.show, Action.remove}
"""The actions for which --force matters."""


def nodes(
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.show,
    changed: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE]...", help="add URL | remove NODE | replace NODE URL"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if clients still use other nodes.")
    ] = False,
    max_ttl: _app.MaxTtlOption = None,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    node: _app.NodeOption = None,
    config: _app.ConfigOption = None,
    prefix: _app.PrefixOption = None,
    node_timeout: _app.LongNodeTimeoutOption = None,
) -> int:
    """Show or change the set of nodes that all clients must use.

    The nodes keep a record of their set, and refuse clients that use other nodes. `record` writes
    it for the first time. Then the set changes one node at a time, while clients work:

    1. `add URL` or `remove NODE` opens a step. From now on clients may use the old set or the new.
    2. Start all clients with the new set. `show` lists those that still use the old one.
    3. `finish` refuses clients of the old set, and waits until none of them can hold a lease.

    `back` takes an open step back. `replace NODE URL` is two steps: it adds, and after `finish` the
    same command removes. An interrupted command may be repeated. Give the same --max-ttl (or
    max_ttl in the file) as your services. While a step is under way, --node may name either set.

    Examples:

        asynclock nodes show

        asynclock nodes replace redis://10.0.0.3 redis://10.0.0.9
    """
    given = changed or []
    wanted = NODES.get(action, "")
    if len(given) != len(wanted.split()):
        raise ConfigurationError(f"write `asynclock nodes {f'{action} {wanted}'.rstrip()}`")
    settings = load(node, config, prefix, node_timeout, max_ttl)
    log_to_stderr()
    state = asyncio.run(_act(settings.relaxed(), action, given, force=force))
    if json:
        print_json(_as_json(state))
    else:
        _print(state, repeated(node, config, prefix, max_ttl))
        say_causes({one.node: one.cause for one in state.nodes if one.cause}, settings.prefix)
    return 0 if _answered(state) else Status.UNREACHABLE


async def _act(
    settings: Settings, action: Action, given: Sequence[str], *, force: bool
) -> FleetState:
    async with Fleet(*settings.nodes, progress=say, **settings.options) as fleet:
        # Each action is a method.
        forced = {"force": force} if action in FORCED else {}
        found: FleetState = await getattr(fleet, action)(*given, **forced)
        return found


def _answered(state: FleetState) -> bool:
    """Return whether a quorum of the nodes told what they keep."""
    return 2 * sum(node.cause is None for node in state.nodes) > len(state.nodes)


def _print(state: FleetState, options: str) -> None:
    if state.record is None and not _answered(state):
        print("the record is unknown: too few nodes answered")
    else:
        say_record(state.record, options)
    rows = [
        (node.node, node.name, "" if node.epoch is None else str(node.epoch), _keeps(state, node))
        for node in state.nodes
    ]
    print_table(("node", "called", "epoch", "keeps"), rows)
    if state.clients is None:
        print("clients: no node shows them (CLIENT LIST)")
    elif state.clients:
        print_table(("client", "uses"), [(one.label, f"{one.uses} set") for one in state.clients])


def _keeps(state: FleetState, node: Any) -> str:
    if node.cause is not None:
        return f"unknown: {node.cause}"
    if node not in state.lagging:
        return "the newest record" if node.number else ""
    return "an older record" if node.number else "no record"


def say_record(record: NodeSet | None, options: str) -> None:
    """Print the record, and the command that can be given next, with its options."""

    def command(action: str) -> str:
        return f"asynclock nodes {action} {options}".rstrip()

    if record is None:
        print(f"no record; this command writes it:\n  {command('record')}")
        return
    print(f"epoch {record.epoch}: {shown(record.nodes)}")
    if not record.epoch:
        print(f"clients that differ are only warned; this refuses them:\n  {command('record')}")
    elif record.phase == OPEN:
        print(f"open step to {shown(record.other)}: start all clients with it, then")
        print(f"  {command('finish')}\nor take the step back:\n  {command('back')}")
    elif record.phase == CLOSING:
        print(f"closing step from {shown(record.other)}; this goes on:\n  {command('finish')}")


def _as_json(state: FleetState) -> dict[str, Any]:
    record, clients = state.record, state.clients
    return {
        "record": None if record is None else asdict(record),
        "nodes": [{**asdict(node), "lags": node in state.lagging} for node in state.nodes],
        "clients": None if clients is None else [asdict(client) for client in clients],
    }
