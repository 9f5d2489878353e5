"""A server that has forgotten a script rejects everything that is on the way to it."""

from __future__ import annotations

import asyncio

import pytest

from asynclock._nodes.link import Link
from asynclock._nodes.replies import NOBODY
from asynclock._nodes.script import Command, Word
from asynclock._nodes.undoing import Undoing
from asynclock._primitives.lock import spec
from tests.nodes.test_guards import Owner, Wire

REJECTED = b"-NOSCRIPT No matching script\r\n"
NAMES = 1000


async def test_each_of_thousands_of_rejected_commands_is_looked_at_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If each reply made the link look at all others, the loop would stand still for seconds."""
    looks: list[Word] = []

    def owner(command: Command) -> Word:
        looks.append(command.args[1])
        return command.args[1]

    monkeypatch.setattr(Command, "owner", property(owner))
    link = Link(Owner(), 60.0)
    link.connection_made(Wire(link))
    for name in map(str, range(NAMES)):
        link.send(spec("", name).acquire(name, 9.0, 0, 0, 9), NOBODY, 0)
    for name in map(str, range(NAMES)):
        link.send(spec("", name).release(name, 0.0, 0.0), NOBODY, 0)
    link.data_received(REJECTED * 2 * NAMES)
    link.close("the test is over")
    await asyncio.sleep(0)
    assert set(looks) == set(map(str, range(NAMES)))
    assert len(looks) <= 10 * NAMES


async def test_only_what_is_behind_an_acquire_is_sent_again_behind_it() -> None:
    """A release may have the owner that is the ticket of an acquire after it."""
    first, second = spec("", "a").acquire("me", 9.0, 0, 0, 9), spec("", "a").release("me", 0.0, 0.0)
    later = spec("", "a").acquire("other", 9.0, 0, 0, 9, (2000, "me", 1))
    entries = [(NOBODY, 0, 0.0, one) for one in (first, second, later)]
    undoing = Undoing()
    assert undoing.behind(first, entries[1:]) == [second]
    assert undoing.behind(second, entries[2:]) == []
    assert undoing.behind(later, []) == []
