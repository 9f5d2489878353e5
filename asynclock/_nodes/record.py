"""How the record of the fleet's set of nodes is read from a node and told to it.

The record is a register that only `asynclock.fleet` changes; its key belongs to the prefix alone.
"""

from __future__ import annotations

from typing import Any, Final

from .._keys import MARKER, SET
from .._rules.nodeset import Kept
from .script import Command, Script

SCRIPT = Script.load(__package__, "record.lua")
RECORD_KEY: Final = MARKER + SET
"""The key of the record, without the prefix."""
RECORD_RETENTION: Final = 10 * 365 * 24 * 3600.0
"""Seconds that a record outlives its last change: it must not end before the fleet does."""


def reading(key: str) -> tuple[Command, Command]:
    """Return the commands that ask for a push at the next change, and read the record."""
    words = ("CLIENT", "CACHING", "YES"), ("HMGET", key, "accepted", "value", "name")
    caching, reading = (Command.plain(*some) for some in words)
    caching.unlimited = reading.unlimited = True
    return caching, reading


def kept(reply: Any) -> Kept:
    """Return what a node keeps, from its reply; nothing if it refused."""
    if not isinstance(reply, list):
        return Kept()
    number, text, name = (word.decode("utf-8", "replace") if word else "" for word in reply)
    return Kept(int(number), text, name) if number.isdigit() else Kept()


def telling(key: str, newest: Kept, name: str) -> Command:
    """Return the command that tells a node the newest record, and its own name in it.

    It carries the script's source: sent again after a NOSCRIPT, it would not be in order.
    """
    words = (str(newest.number), newest.text, name, int(RECORD_RETENTION * 1000))
    return Command(SCRIPT, (key,), words).with_source()
