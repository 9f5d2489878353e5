"""Finds what must be sent again behind an acquire that is sent again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from .replies import Sink
from .script import ACQUIRE, UNDOES, Command, Word

Entry = tuple[Sink, int, float, Command]
"""A command that has no reply yet, as a link keeps it."""


class Undoing:
    """The releases and leaves that have no reply yet, by owner.

    One for all replies that arrive together: to search thousands of commands for each of thousands
    of replies would block the event loop for seconds.
    """

    __slots__ = ("_by_owner", "_newest")

    def __init__(self) -> None:
        self._by_owner: dict[Word, list[Command]] = {}
        self._newest: Entry | None = None
        """The last entry that was looked at."""

    def behind(self, command: Command, in_flight: Sequence[Entry]) -> list[Command]:
        """Return what undoes `command`, which was rejected; `in_flight` are those behind it.

        A command that carries the script's source was sent again before. It isn't returned, or the
        number of such commands would double with each acquire.
        """
        new = list(takewhile(lambda entry: entry is not self._newest, reversed(in_flight)))
        for *_, one in reversed(new):
            for part in () if one.sourced else one.parts:
                if part.op in UNDOES:
                    self._by_owner.setdefault(part.owner, []).append(part)
        self._newest = in_flight[-1] if in_flight else None
        for part in command.parts:
            if part.op in UNDOES and part in (mine := self._by_owner.get(part.owner, [])):
                mine.remove(part)  # it isn't behind anything any more
        acquires = (part for part in command.parts if part.op == ACQUIRE)
        # A first attempt has its owner twice.
        words = dict.fromkeys(word for part in acquires for word in part.args)
        return [one for word in words for one in self._by_owner.get(word, ())]
