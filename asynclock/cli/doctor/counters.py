"""Counts the fence counters on a server, and weighs them; on a large server from a sample."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..._keys import FENCE, MARKER
from ..._nodes.link import Link
from ..._nodes.script import Command

KEYS_PER_SCAN = 1000
"""Number of keys that the server looks at in one step."""
PAGES = 100
"""Maximum number of steps; beyond them the rest is estimated."""
WEIGHED = 20
"""Maximum number of counters whose memory is asked for."""


@dataclass(frozen=True)
class Counters:
    """The fence counters of all names under the prefix."""

    count: int
    size: int | None
    """Bytes that they take; None if the server does not tell."""

    @property
    def shown(self) -> str:
        """The numbers for people."""
        size = "" if self.size is None else f" ({self.size / 1e6:.1f} MB)"
        return f"{self.count:,}{size}"


async def count_counters(link: Link, prefix: str) -> Counters | None:
    """Return the counters on the server at `link`; None if it refuses to list its keys."""
    begins, ends = prefix.encode(), f"{MARKER}{FENCE}".encode()
    found: list[bytes] = []
    cursor, seen = b"0", 0
    for _ in range(PAGES):
        reply = await link.ask(Command.plain("SCAN", cursor.decode(), "COUNT", KEYS_PER_SCAN))
        if not isinstance(reply, list):
            return None
        cursor, keys = reply
        seen += len(keys)
        found += (key for key in keys if key.startswith(begins) and key.endswith(ends))
        if cursor == b"0":
            return Counters(len(found), await _size(link, found, len(found)))
    total = await link.ask(Command.plain("DBSIZE"))
    count = round(len(found) * total / seen) if isinstance(total, int) and seen else len(found)
    return Counters(count, await _size(link, found, count))


async def _size(link: Link, found: list[bytes], count: int) -> int | None:
    sample = found[:: len(found) // WEIGHED + 1]
    asked = (link.ask(Command.plain("MEMORY", "USAGE", key)) for key in sample)
    sizes = [size for size in await asyncio.gather(*asked) if isinstance(size, int)]
    if not sizes:
        return 0 if not found else None
    return round(sum(sizes) / len(sizes) * count)
