"""What a primitive tells the engine, and the commands that follow from it.

A primitive owns no loop and no connection: it names keys and a script that understands the five
operations (see prelude.lua). Everything else is the engine's and the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .._nodes.script import Command, Script, Word

Elsewhere = Callable[[Sequence[bytes], int, float], "Recipe | None"]
"""(hints of the nodes that refused, how many refusals a place may have and still be won, a random
number in [0, 1)) → the place to try at once, or None: wait."""


@dataclass(slots=True, eq=False)
class Recipe:
    """How one name is locked. Never changed; to enforce that would triple the price of one."""

    name: str
    """As the user said it."""
    script: Script
    keys: tuple[str, ...]
    """As the script wants them; the first is the one whose change may free the name."""
    extra: tuple[Word, ...] = ()
    """Arguments of acquire after the standard ones."""
    line: str | None = None
    """Those with the same line wait for each other inside the process; None: nobody waits."""
    permits: int = 1
    """So many of one line may hold at once."""
    watched: tuple[str, ...] = ()
    """The keys whose change is worth a new attempt."""
    wakes: tuple[str, ...] | None = None
    """The keys that a release changes, if not the watched ones."""
    part: str = ""
    """Which of several places of its name this is, such as a semaphore's slot."""
    neighbours: tuple[str, ...] = ()
    """Keys that acquire looks at besides its own."""
    elsewhere: Elsewhere | None = None
    """Asked after a refusal: which other place of the name is worth trying at once?"""
    patience: float = 0.0
    """For so many seconds after each refusal the nodes remember that somebody waits: a wish then
    carries a ticket, asks again in half that time and takes the ticket back when it ends; 0: no."""

    queued: bool = False
    """The nodes keep those who want it in order: of ours only the first has a chance."""

    def acquire(
        self,
        owner: str,
        ttl: float,
        floor: int,
        not_after: int,
        retention: int,
        ticket: tuple[Word, ...] = (),
    ) -> Command:
        """Take it for `ttl` seconds; the ticket says who waits, and how long to remember it."""
        args = ("acquire", owner, ms(ttl), floor, not_after, retention, *self.extra, *ticket)
        return Command(self.script, self.keys + self.neighbours, args)

    def leave(self, ticket: Word) -> Command:
        """Nobody waits with this ticket any more."""
        return Command(self.script, self.keys + self.neighbours, ("leave", ticket))

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
