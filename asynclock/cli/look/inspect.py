"""`asynclock inspect`: its options and its help. held.py does the work."""

from __future__ import annotations

from typing import Annotated

import typer

from .._options import ConfigOption, LongNodeTimeoutOption, NodeOption, PrefixOption
from .held import InspectArguments, show


def inspect(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The lock.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="All that is held or shared.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: LongNodeTimeoutOption = None,
) -> int:
    """Show who holds a lock, or everything that is held or shared.

    It shows for each node the owner, the seconds until the node frees the name by itself, and the
    highest fence; for an event, latch or barrier its state. Listing reads the keys in small pages
    (SCAN) and blocks no server.

    The exit status is 69 if too few nodes answered.

    Examples:

        asynclock inspect nightly-report
        asynclock inspect --all
        asynclock inspect --all --json | jq '.locks[] | select(.agreed | not)'
    """
    return show(InspectArguments(name, all_, json, node, config, prefix, node_timeout))
