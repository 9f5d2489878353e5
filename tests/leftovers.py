"""What calls and leases may leave on nodes: nothing but what must outlive them."""

import json
from collections.abc import Iterable
from typing import Any

LASTING = (":#fence", ":#event", ":#latch", ":#once", ":#primary", ":#witness")
"""Ends of keys that stay: fences, the last words of a leader, shared state, notes on the server."""


async def left(nodes: Iterable[Any]) -> dict[str, object]:
    """Return what is left on the nodes: keys of owners and waiters, and parties of barriers."""
    found: dict[str, object] = {}
    for node in nodes:
        for key in await node.command("KEYS", "*"):
            if key.endswith(":#barrier"):
                (value,) = await node.command("HMGET", key, "value")
                if value and (here := json.loads(value)[2]):
                    found[key] = here
            elif not key.endswith(LASTING):
                found[key] = await node.command("TYPE", key)
    return found
