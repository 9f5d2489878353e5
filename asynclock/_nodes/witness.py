"""The witness: a key with a random text, which shows whether a node still has its keys.

A server reports the flush of any of its databases to all clients, and does not say which one. So
each client reads the witness when it connects, and again after each such report. The same text
means that the node has kept its keys. Another client may have made a new witness in the meantime,
but that has another text.

Between the report and the reply the node may not vote wrongly. The report makes the client discard
the replies to all requests that are on their way (`Trust.doubt`). The question for the witness goes
out next, and a link's replies come in order: so the witness is known before any later reply counts.
If the connection ends before the reply, the next one begins with the same question, and the text
is compared with that of the earlier connection.
"""

from __future__ import annotations

from typing import Any, Final

from .._keys import MARKER, WITNESS
from .script import Command, Script

SCRIPT = Script.load(__package__, "witness.lua")
WITNESS_KEY: Final = MARKER + WITNESS
"""The key of the witness, without the prefix."""
RETENTION_MS: Final = 365 * 24 * 3600 * 1000
"""Milliseconds that a witness outlives the last connection or flush. A client that has been
connected for longer takes the next flush of any database for one of its own."""


def question(key: str, text: str) -> Command:
    """Return the command that reads the witness, or makes one with this random text.

    It carries the script's source: sent again after a NOSCRIPT, it would not be in order.
    """
    command = Command(SCRIPT, (key,), (text, RETENTION_MS)).with_source()
    command.unlimited = True
    return command


def read(reply: Any) -> bytes:
    """Return the text of the witness; b"" if the node can't keep one, or replies something else."""
    return reply if type(reply) is bytes else b""
