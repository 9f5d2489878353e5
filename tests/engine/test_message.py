"""What the reply to a command for one or several names says about each name."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._engine.message import RELEASED, Message, parts_of, plain
from asynclock._engine.release import Release
from asynclock._nodes.replies import UNREADABLE, Failure, ServerError
from asynclock._nodes.script import GRANTED
from asynclock._primitives import lock

NOW = 1 << 50
AWAY = Failure("away")
SPEC = lock.spec("p:", "a")


@pytest.mark.parametrize(
    ("reply", "releases", "acquires", "found"),
    [
        ([1, 7, b"", NOW], 0, 1, [7]),
        ([1, 7, b"waiter", NOW], 0, 1, None),
        ([0, 900, b"x", 5, 0, 0, NOW], 0, 1, None),
        ([-1, NOW], 0, 1, None),
        ([1, b"", NOW], 1, 0, [GRANTED]),
        ([1, b"waiter", NOW], 1, 0, None),
        ([0, b"", NOW], 1, 0, None),
        ([0, [1, 7], NOW], 1, 1, [1, 7]),
        ([1, [1, [0, 900, b"x", 5, 0, 0, NOW]], NOW], 1, 1, None),
        (AWAY, 0, 1, None),
        (AWAY, 1, 1, None),
    ],
)
def test_a_reply_is_plain_if_all_was_done_and_nobody_waits(
    reply: Any, releases: int, acquires: int, found: list[int] | None
) -> None:
    """Others who wait must be known: the holder's turn is shorter then."""
    assert plain(reply, releases, acquires) == found


@pytest.mark.parametrize("answers", [[1], [1, 7, 8]])
def test_a_reply_to_other_names_is_refused(answers: list[int]) -> None:
    assert plain([0, answers, NOW], 1, 1) is None
    assert parts_of([0, answers, NOW], 1, 1) == [UNREADABLE] * 2


def test_each_name_gets_the_reply_that_it_would_have_got_alone() -> None:
    refusal = [0, 900, b"x", 5, 0, 0, NOW]
    error = ServerError("WRONGTYPE Operation against a key.")
    parts = parts_of([1, [1, [1, b"waiter", NOW], 7, refusal, error], NOW], 2, 3)
    assert parts[:4] == [RELEASED, [1, b"waiter", NOW], (GRANTED, 7, b"", NOW), refusal]
    assert parts[4] == Failure(
        "WRONGTYPE Operation against a key", permanent=True, code="WRONGTYPE"
    )
    assert parts_of(AWAY, 1, 2) == [AWAY] * 3
    assert parts_of(refusal, 0, 1) == [refusal]


class Released:
    """A release, as far as a message needs it."""

    spec, owner = SPEC, "old"

    def command(self) -> Any:
        return SPEC.release(self.owner, 1.0, 2.0)


@pytest.mark.parametrize(("not_after", "give_up_at"), [(0, 50.0), (NOW, 0.0)])
def test_a_command_with_no_common_limit_gets_one_by_the_clock_of_each_node(
    not_after: int, give_up_at: float
) -> None:
    message = Message(SPEC.script, 10.0, (0, not_after, 5000), (2000,), 50.0)
    one, other = (SPEC, "one"), (lock.spec("p:", "b"), "other")
    single, several = message.command([], [one]), message.command([], [one, other])
    assert single.give_up_at == several.give_up_at == give_up_at
    assert [part.give_up_at for part in several.parts] == [give_up_at] * 2


def test_a_command_with_releases_is_taken_however_many_are_open() -> None:
    message = Message(SPEC.script, 10.0, (0, NOW, 5000), (2000,), 50.0)
    release: Release = Released()  # type: ignore[assignment]
    acquires = [(SPEC, "one"), (lock.spec("p:", "b"), "other")]
    assert message.command([release], acquires[:1]).unlimited
    assert not message.command([], acquires).unlimited
    parts = message.command([release], acquires).parts
    assert [part.args[:2] for part in parts] == [
        ("release", "old"),
        ("acquire", "one"),
        ("acquire", "other"),
    ]
