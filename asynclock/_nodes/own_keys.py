"""The keys of the library itself on a node, derived from the prefix alone: the record, the witness.

*The record* of the fleet's set of nodes is a register that only `asynclock.fleet` changes.

*The witness* is a key with a random text, which shows whether a node still has its keys. A server
reports the flush of any of its databases to all clients, and does not say which one. So each client
reads the witness when it connects, and again after each such report. The same text means that the
node has kept its keys. Another client may have made a new witness in the meantime, but that has
another text.

Between the report and the reply the node may not vote wrongly. The report makes the client discard
the replies to all requests that are on their way (`Trust.doubt`). The question for the witness goes
out next, and a link's replies come in order: so the witness is known before any later reply counts.
If the connection ends before the reply, the next one begins with the same question, and the text
is compared with that of the earlier connection.
"""

from __future__ import annotations

from typing import Any, Final

from .._keys import MARKER, SET, WITNESS
from .._rules.nodeset import Kept
from .script import Command, Script

OWN_KEYS = Script.load(__package__, "own_keys.lua")
RECORD_KEY: Final = MARKER + SET
"""The key of the record, without the prefix."""
RECORD_RETENTION: Final = 10 * 365 * 24 * 3600.0
"""Seconds that a record outlives its last change: it must not end before the fleet does."""
WITNESS_KEY: Final = MARKER + WITNESS
"""The key of the witness, without the prefix."""
WITNESS_RETENTION_MS: Final = 365 * 24 * 3600 * 1000
"""Milliseconds that a witness outlives the last connection or flush. A client that has been
connected for longer takes the next flush of any database for one of its own."""


def reading(key: str) -> tuple[Command, Command]:
    """Return the commands that ask for a push at the next change, and read the record."""
    words = ("CLIENT", "CACHING", "YES"), ("HMGET", key, "accepted", "value", "name")
    caching, reading = (Command.plain(*some) for some in words)
    caching.unlimited = reading.unlimited = True
    return caching, reading


def kept(reply: Any) -> Kept:
    """Return what a node keeps of the record, from its reply; nothing if it refused."""
    if not isinstance(reply, list):
        return Kept()
    number, text, name = (word.decode("utf-8", "replace") if word else "" for word in reply)
    return Kept(int(number), text, name) if number.isdigit() else Kept()


# For both keys the script is sent with its source: sent again after a NOSCRIPT, it would not be in
# order.


def telling(key: str, newest: Kept, name: str) -> Command:
    """Return the command that tells a node the newest record, and its own name in it."""
    words = ("record", str(newest.number), newest.text, name, int(RECORD_RETENTION * 1000))
    return Command(OWN_KEYS, (key,), words).with_source()


def asking_witness(key: str, text: str) -> Command:
    """Return the command that reads the witness, or makes one with this random text."""
    words = ("witness", text, WITNESS_RETENTION_MS)
    command = Command(OWN_KEYS, (key,), words).with_source()
    command.unlimited = True
    return command


def witnessed(reply: Any) -> bytes:
    """Return the text of the witness; b"" if the node can't keep one, or replies something else."""
    return reply if type(reply) is bytes else b""
