"""What a primitive tells the engine, and the commands that follow from it.

A primitive owns no loop and no connection: it names keys and a script that understands the five
operations (see prelude.lua). Everything else is the engine's and the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._nodes.script import Command, Script, Word


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one name is locked."""

    name: str
    """As the user said it."""
    script: Script
    keys: tuple[str, ...]
    """As the script wants them; the first is the one whose change may free the name."""
    extra: tuple[Word, ...] = ()
    """Arguments of acquire after the standard ones."""
    line: str | None = None
    """Those with the same line wait for each other inside the process; None: nobody waits."""
    watched: tuple[str, ...] = ()
    """The keys whose change is worth a new attempt."""

    def acquire(
        self, owner: str, ttl: float, floor: int, not_after: int, retention: int
    ) -> Command:
        """Take it for `ttl` seconds."""
        args = ("acquire", owner, ms(ttl), floor, not_after, retention, *self.extra)
        return Command(self.script, self.keys, args)

    def write_back(self, owner: str, fence: int, retention: int) -> Command:
        """Raise the counter to `fence`, while we own it."""
        return Command(self.script, self.keys, ("raise", owner, fence, retention))

    def release(self, owner: str, owed_until: float) -> Command:
        """Give it back; owed to a node that can't be reached until `owed_until`."""
        command = Command(self.script, self.keys, ("release", owner))
        command.owed_until = owed_until
        return command

    def inspect(self) -> Command:
        """Ask who has it."""
        return Command(self.script, self.keys, ("inspect",))


def ms(seconds: float) -> int:
    """Seconds as Redis wants them: whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))
