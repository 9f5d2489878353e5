"""Scripts and commands, packed once for all nodes.

A script is Lua source in a file beside its primitive. EVALSHA names a script by its SHA-1. A node
that has forgotten a script (SCRIPT FLUSH, restart) gets it again with one EVAL (see link.py).
"""

from __future__ import annotations

import hashlib
import pkgutil
from collections.abc import Callable, Sequence
from copy import copy
from typing import Final

import hiredis

Word = bytes | str | int

ACQUIRE: Final = "acquire"
"""The operation that may set an owner's key, or leave a ticket."""
BATCH: Final = "batch"
"""The operation that does several releases and acquires of one tick."""
RELEASE: Final = "release"
"""The operation that deletes an owner's key; it may put a ticket back."""
REST: Final = "rest"
"""The operation that releases a name but lets nobody have it until a moment of the nodes' clock."""
FAILED: Final = 2
"""Argument of a release after a failed attempt, which is no turn of a read-write lock."""
UNDOES: Final = frozenset({RELEASE, REST, "leave"})
"""Operations that undo an acquire, so they must not be executed before it."""
WRITES: Final = frozenset({ACQUIRE, BATCH, REST, "raise", "extend", "prepare", "accept"})
"""Operations whose effect must not be lost. A lost release only makes the lock last for its ttl."""
GRANTED: Final = 1
"""First word of a script's reply: it did what was asked."""
GRANTED_MARK: Final = ord("1")
"""In the reply to an operation on several owners: it did what was asked for this owner."""


# A command as bytes of the Redis protocol.
pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]


class Command:
    """One request, as bytes for the wire; made once, sent to every node."""

    __slots__ = (
        "args",
        "asked_since",
        "first",
        "give_up_at",
        "keys",
        "numbered_at",
        "op",
        "packed",
        "retry_until",
        "script",
        "sourced",
        "unlimited",
        "wakes",
    )
    asked_since: float
    """For a release or a leave: when the first node was asked for the lease, or was told of the
    ticket. Unset for other commands."""
    retry_until: float
    """The moment until which a lost release or leave is sent again; 0 for other commands."""
    give_up_at: float
    """For an acquire without a `not_after`: the moment, on our clock, after which no node may
    execute it. 0 for all other commands."""
    numbered_at: float
    """For a change of a register: the moment at which its number was chosen. A node that has
    forgotten keys since then must not execute it. 0 for all other commands."""
    first: Command | None
    """The command that must go right before this one, each time this one is sent: what CACHING
    or ASKING asks for is over with the next command, even if the server rejects that one."""
    sourced: bool
    """Whether the command carries the script's source instead of its SHA-1."""
    unlimited: bool
    """Whether a link with MAX_IN_FLIGHT unanswered commands still takes this one."""
    wakes: Sequence[str]
    """The keys that this changes and that tasks of this process may watch. When a link sends
    the command, it wakes them: a server sends no push for a change of our own, but forgets that
    it was to send one. A request that they send then is executed after the change."""

    def __init__(self, script: Script | None, keys: Sequence[str], args: Sequence[Word]) -> None:
        self.script: Script | None = script
        self.keys: Sequence[str] = keys
        self.args: Sequence[Word] = args
        self.op: Word = args[0]
        """The first argument: the operation of a script, such as "acquire", or the name of a
        server's command."""
        # Not defaults of the class, which then has no slots: making a command would take longer.
        self.retry_until = self.give_up_at = self.numbered_at = 0.0
        self.sourced = self.unlimited = False
        self.first = None
        self.wakes = ()
        words = tuple(args) if script is None else ("EVALSHA", script.sha, len(keys), *keys, *args)
        self.packed: bytes = pack(words)

    @classmethod
    def plain(cls, *words: Word, keys: Sequence[str] = ()) -> Command:
        """Make a command of the server itself, such as TIME; name its keys for a Cluster."""
        return cls(None, keys, words)

    @classmethod
    def release(
        cls,
        script: Script,
        keys: Sequence[str],
        owner: Word,
        asked_since: float,
        until: float,
        more: tuple[Word, ...] = (),
        op: str = RELEASE,
    ) -> Command:
        """Make a release, which is resent until `until` to nodes asked after `asked_since`."""
        command = cls(script, keys, (op, owner, *more))
        command.asked_since, command.retry_until = asked_since, until
        command.unlimited = True
        return command

    def again(self) -> Command:
        """Return the release to send again later, with its owner alone.

        By then its ticket may have left, and the process that kept the name no longer asks for it.
        """
        alone = self.op != RELEASE or len(self.args) <= 2 or self.args[2] == FAILED
        if self.script is None or alone:
            return self
        release, since, until = Command.release, self.asked_since, self.retry_until
        failed = (FAILED,) if len(self.args) > 3 else ()
        return release(self.script, self.keys, self.owner, since, until, failed)

    @property
    def owner(self) -> Word:
        """The owner that an acquire or a release is for."""
        return self.args[1]

    @property
    def undoes(self) -> tuple[Word, Word]:
        """What names a release, or a leave, among those that are kept to be sent again."""
        return self.op, self.args[1]

    @property
    def parts(self) -> Sequence[Command]:
        """The commands, one per name, that this command stands for."""
        return (self,)

    @property
    def claims(self) -> Sequence[Word]:
        """The owners whose key this command may set."""
        return (self.owner,) if self.op == ACQUIRE else ()

    @property
    def puts(self) -> list[Word]:
        """The owners and tickets that stay on a server which executes this command late."""
        words = self.args[1:] if self.op == ACQUIRE else self.args[3:] if self.op == RELEASE else ()
        return [word for word in words if isinstance(word, str)]

    def not_after(self, moment: int) -> Command:
        """Return the same acquire, but a node refuses it after `moment` (node's clock, in µs)."""
        if self.script is None:
            return self
        bounded = copy(self)
        bounded.give_up_at = 0.0
        bounded.args = [*self.args[:4], moment, *self.args[5:]]
        words = (self.script.sha, len(self.keys), *self.keys, *bounded.args)
        bounded.packed = pack(("EVALSHA", *words))
        return bounded.with_source() if self.sourced else bounded

    def behind(self, first: Command) -> Command:
        """Return the same command, but links send `first` right before it, each time."""
        command = copy(self)
        command.first = first
        return command

    def with_source(self) -> Command:
        """Return the same call with the source, for a node that doesn't know the script."""
        if self.script is None:
            return self
        source = self.script.source
        command = copy(self)
        command.sourced = True
        command.packed = pack(("EVAL", source, len(self.keys), *self.keys, *self.args))
        return command


CACHING: Final = Command.plain("CLIENT", "CACHING", "YES")
"""Requests a push for the keys that the next command on the connection reads."""
ASKING: Final = Command.plain("ASKING")
"""Allows the next command on the connection to use a slot that is on its way to this server."""


class BatchCommand(Command):
    """Several releases and acquires of one script, as one command."""

    def __init__(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Word],
        claims: Sequence[Word],
        singles: Callable[[], Sequence[Command]],
    ) -> None:
        super().__init__(script, keys, args)
        self._claims = claims
        self._parts: Sequence[Command] | None = None
        self._singles = singles

    @property
    def claims(self) -> Sequence[Word]:
        """The owners whose key this command may set, in the order of the replies."""
        return self._claims

    @property
    def parts(self) -> Sequence[Command]:
        """One command per name, for the rare cases in which each name counts alone."""
        if self._parts is None:  # kept, because each command that is rejected asks again
            self._parts = self._singles()
        return self._parts


class Script:
    """Lua source and its SHA-1, by which nodes know it."""

    def __init__(self, source: str, *, batches: bool = False) -> None:
        self.source = source
        self.batches = batches
        """Whether it has the operation BATCH."""
        self.sha: str = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, package: str, *names: str) -> Script:
        """Join the files `names` of `package` into one script."""
        # Importing importlib.resources takes ten times as long as reading all scripts.
        # None, from a loader that can't read files, is a TypeError.
        files = (pkgutil.get_data(package, name) for name in names)
        source = "\n".join(str(file, "utf-8") for file in files)  # type: ignore[arg-type]
        return cls(source, batches=f"{BATCH}.lua" in names)
