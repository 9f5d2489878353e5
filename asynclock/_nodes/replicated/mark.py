"""The mark that clients store in a server's data: the name of the process at this address.

The data outlive a process, or reach another server by replication. If the mark names another
process, this process was promoted or restarted since clients last connected. If there is no mark,
the server may have lost its data. Reasons: docs/decisions/0018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..._keys import MARKER, PRIMARY
from ..handshake import HandshakeError
from ..link import Link
from ..replies import REDIRECTS, Failure, reader
from ..script import Command, Script

SCRIPT = Script.load(__package__, "mark.lua")
MARK_KEY: Final = MARKER + PRIMARY
"""The key of the mark, without the prefix."""
MARK_RETENTION_MS = 30 * 24 * 3600 * 1000
"""Milliseconds that a mark outlives the last connection; then a client waits out a quarantine."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark that this client found when it connected to the process."""

    same: bool
    """Whether the mark named this process already."""
    age: float
    """Seconds since the mark first named this process, by the server's clock; for a client without
    a roster at most those since the roster was closed."""
    before: str
    """The process that the mark named before, or "-"."""
    roster: str = ""
    """The replicas that must acknowledge each grant; "" if nobody keeps to a roster."""


async def leave_mark(link: Link, key: str, process: str, roster: str = "") -> Mark | None:
    """Make the mark name `process`. Return None if the server forbids it or has no memory left.

    `roster` begins a new term's roster; a client without one closes the roster that it finds.
    Raises HandshakeError if the server doesn't answer, is still loading its data, or names another
    server of its Cluster.
    """
    reply = _read(await link.ask(Command(SCRIPT, (key,), (process, MARK_RETENTION_MS, roster))))
    if isinstance(reply, Failure):
        forbidden = reply.permanent and reply.code not in REDIRECTS
        if forbidden or "OOM" in reply.cause:
            return None
        raise HandshakeError(reply)
    return reply


@reader
def _read(reply: Any) -> Mark:
    same, since, before, found, now = reply
    return Mark(bool(same), (now - since) / 1_000_000, before.decode(), found.decode())
