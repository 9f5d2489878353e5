"""The commands that the engine builds of what a primitive names: each word that a node gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asynclock._engine.message import Message
from asynclock._engine.release import Release
from asynclock._engine.spec import LockSpec, ms
from asynclock._nodes.script import Command
from asynclock._primitives import lock

SPEC = replace(lock.spec("p:", "a"), neighbours=("p:a:#near",))
KEY, FENCE, QUEUE, NEAR = SPEC.all_keys
PLAIN = replace(SPEC, queue="", neighbours=())
EXEMPT = replace(SPEC, exempt=("reader",))
PHASED = replace(SPEC, phased=True)
PATIENCE = ms(SPEC.ticket_ttl)


def words(command: Command) -> tuple[list[str], list[Any]]:
    """Return the keys and the arguments of a command."""
    assert command.script is SPEC.script
    return list(command.keys), list(command.args)


def acquired(spec: LockSpec, *ticket: Any) -> list[Any]:
    command = spec.acquire("me", 2.5, 7, 8, 9, tuple(ticket))
    assert list(command.keys) == list(spec.all_keys)
    return list(command.args)


def test_an_acquire_names_the_owner_the_limits_and_the_ticket() -> None:
    usual = ["acquire", "me", 2500, 7, 8, 9]
    assert SPEC.all_keys == (KEY, FENCE, QUEUE, NEAR)
    assert (SPEC.waits, PLAIN.waits) == ((PATIENCE,), ())
    assert acquired(PLAIN) == acquired(SPEC) == usual
    assert acquired(SPEC, 2000, "ticket", 5) == [*usual, 2000, "ticket", 5]


@pytest.mark.parametrize(
    ("ticket", "sent"),
    [
        ((), (0, "me", 0, 0)),
        ((2000,), (2000, "me", 0, 0)),
        ((2000, "ticket", 5), (2000, "ticket", 5, 0)),
        ((2000, "me", 0, 1), (2000, "me", 0, 1)),
    ],
)
def test_whom_an_acquire_may_pass_stands_behind_a_whole_ticket(
    ticket: tuple[Any, ...], sent: tuple[Any, ...]
) -> None:
    """The script reads the exempt owner by its place."""
    assert acquired(EXEMPT, *ticket)[6:] == [*sent, "reader"]


def test_a_key_is_put_back_past_all_who_wait() -> None:
    restored = ["acquire", "me", 2500, 7, 8, 9]
    assert words(SPEC.restore("me", 2.5, 7, 8, 9)) == (
        [KEY, FENCE, QUEUE, NEAR],
        [*restored, 0, "me", 0, 1],
    )
    assert words(PLAIN.restore("me", 2.5, 7, 8, 9)) == ([KEY, FENCE], restored)


def test_each_other_command_names_the_keys_that_it_needs() -> None:
    own, everything = [KEY, FENCE], [KEY, FENCE, QUEUE, NEAR]
    assert words(SPEC.leave("ticket")) == (everything, ["leave", "ticket"])
    assert words(SPEC.pass_on()) == (everything, ["pass"])
    assert words(SPEC.write_back("me", 7, 9)) == (own, ["raise", "me", 7, 9])
    assert words(SPEC.check("me")) == (own, ["check", "me"])
    assert words(SPEC.inspect()) == (own, ["inspect"])
    assert SPEC.ticket_key("ticket") == f"{QUEUE}:#ticket"


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        (PLAIN, [KEY, FENCE]),
        (SPEC, [KEY, FENCE, QUEUE]),
        (PHASED, [KEY, FENCE, QUEUE, NEAR]),
        (replace(PHASED, queue=""), [KEY, FENCE, NEAR]),
    ],
)
def test_a_release_names_the_queue_and_reads_the_neighbours_of_a_phased_one(
    spec: LockSpec, keys: list[str]
) -> None:
    command = spec.release("me", 3.0, 4.0, ("more",))
    assert words(command) == (keys, ["release", "me", "more"])
    assert (command.asked_since, command.retry_until, command.unlimited) == (3.0, 4.0, True)
    assert words(spec.release("me", 3.0, 4.0))[1] == ["release", "me"]


@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(0.0, 1), (0.0004, 1), (0.0015, 2), (1.0, 1000), (2.4996, 2500)]
)
def test_no_time_is_less_than_a_millisecond(seconds: float, milliseconds: int) -> None:
    """Redis refuses an expiry of 0."""
    assert ms(seconds) == milliseconds


class Given:
    """A release, as far as a message needs it."""

    def __init__(self, spec: LockSpec, owner: str) -> None:
        self.spec, self.owner = spec, owner

    def command(self) -> Command:
        return self.spec.release(self.owner, 1.0, 2.0)


def test_a_batch_groups_its_keys_by_kind_and_its_owners_by_operation() -> None:
    """As batch.lua reads them: by their places."""
    names = [lock.spec("p:", name) for name in "abcd"]
    releases: list[Release] = [Given(names[0], "A"), Given(names[1], "B")]  # type: ignore[list-item]
    acquires = [(names[2], "C"), (names[3], "D")]
    (a, _, qa), (b, _, qb), (c, fc, qc), (d, fd, qd) = (spec.all_keys for spec in names)
    keys = [a, b, qa, qb, qc, qd, c, d, fc, fd]
    message = Message(lock.SCRIPT, 2.5, (7, 8, 9), (2000,), 50.0)
    both = message.command(releases, acquires)
    assert words(both) == (keys, ["batch", 2, 2500, 7, 8, 9, 2000, "A", "B", "C", "D"])
    silent = Message(lock.SCRIPT, 2.5, (7, 8, 9), (), 50.0).command([], acquires)
    assert words(silent) == (
        [qc, qd, c, d, fc, fd],
        ["batch", 0, 2500, 7, 8, 9, 0, "C", "D"],
    )
    assert [words(part) for part in both.parts] == [
        ([a, names[0].keys[1], qa], ["release", "A"]),
        ([b, names[1].keys[1], qb], ["release", "B"]),
        ([c, fc, qc], ["acquire", "C", 2500, 7, 8, 9, 2000]),
        ([d, fd, qd], ["acquire", "D", 2500, 7, 8, 9, 2000]),
    ]
    assert both.parts is both.parts, "each command that is rejected asks again"


def test_a_message_for_one_name_is_its_own_command() -> None:
    (spec,) = [lock.spec("p:", "a")]
    message = Message(lock.SCRIPT, 2.5, (7, 8, 9), (2000,), 50.0)
    release: list[Release] = [Given(spec, "A")]  # type: ignore[list-item]
    assert words(message.command(release, [])) == (list(spec.all_keys), ["release", "A"])
    assert words(message.command([], [(spec, "B")])) == (
        list(spec.all_keys),
        ["acquire", "B", 2500, 7, 8, 9, 2000],
    )
