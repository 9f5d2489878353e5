"""All commands on keys that an in-memory node knows."""

from __future__ import annotations

from typing import Any

from asynclock.testing import _collections, _strings
from asynclock.testing._keyspace import Keyspace, ReplyError, Words

COMMANDS = {**_strings.COMMANDS, **_collections.COMMANDS}


def execute(space: Keyspace, words: Words) -> Any:
    """Do a command. Raises ReplyError."""
    known = COMMANDS.get(words[0].upper())
    if known is None:
        raise ReplyError(f"ERR unknown command '{words[0].decode(errors='replace')}'")
    function, reads = known
    if reads and len(words) > 1:
        space.read(words[1])
    try:
        return function(space, words[1:])
    except (IndexError, ValueError) as error:
        raise ReplyError(f"ERR {error or 'wrong arguments'}") from None
