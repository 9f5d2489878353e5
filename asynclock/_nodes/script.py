"""Scripts and the commands made of them, packed once for all nodes.

A script is Lua source in a file beside its primitive; EVALSHA names it by its SHA-1, and a node
that has forgotten it (SCRIPT FLUSH, restart) gets it again by one EVAL (see link.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from importlib.resources import files

from hiredis import pack_command

Word = bytes | str | int


def pack(*words: Word) -> bytes:
    """A command as the bytes of the Redis protocol."""
    packed: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub says 1-tuple
    return packed


class Command:
    """One request, as bytes for the wire; made once, sent to every node."""

    __slots__ = ("args", "keys", "owed_until", "packed", "script")

    def __init__(self, script: Script, keys: Sequence[str], args: Sequence[Word]) -> None:
        self.script: Script | None = script
        self.keys = keys
        self.args = args
        self.owed_until = 0.0
        """If its connection breaks, it must be sent again until then (boot-time clock)."""
        self.packed = pack("EVALSHA", script.sha, len(keys), *keys, *args)

    @classmethod
    def plain(cls, *words: Word) -> Command:
        """A command of the server's own, such as TIME."""
        command = cls.__new__(cls)
        command.script = None
        command.keys, command.args, command.owed_until = (), words, 0.0
        command.packed = pack(*words)
        return command

    def with_source(self) -> Command:
        """The same call for a node that doesn't know the script."""
        if self.script is None:
            return self
        source = self.script.source
        command = copy(self)
        command.packed = pack("EVAL", source, len(self.keys), *self.keys, *self.args)
        return command


class Script:
    """Lua source and its name on the wire."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, package: str, *names: str) -> Script:
        """The files `names` of `package`, one after the other, as one script."""
        folder = files(package)
        return cls("\n".join((folder / name).read_text("utf-8") for name in names))
