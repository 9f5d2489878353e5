"""The commands that the engine builds, word by word, and the reply to one for several names."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asynclock._engine import spec
from asynclock._engine.outbox import Batch
from asynclock._engine.spec import RELEASED, ms, plain, replies_of
from asynclock._nodes.wire import GRANTED, UNREADABLE, Command, Failure
from asynclock._primitives import lock

SPEC = replace(lock.spec("p:", "a"), neighbours=("p:a:#near",))
OWN, ALL = [*SPEC.all_keys[:2]], [*SPEC.all_keys]
ACQUIRE, LIMITS = ["acquire", "me", 2500, 7, 8, 9], (2.5, 7, 8, 9)
PHASED, EXEMPT = replace(SPEC, phased=True), replace(SPEC, exempt=("reader",))


@pytest.mark.parametrize(
    ("command", "keys", "args"),
    [
        # The script reads the exempt owner by its place, behind a whole ticket.
        (EXEMPT.acquire("me", *LIMITS), ALL, [*ACQUIRE, 0, "me", 0, 0, "reader"]),
        (EXEMPT.acquire("me", *LIMITS, (9, "t", 5)), ALL, [*ACQUIRE, 9, "t", 5, 0, "reader"]),
        (SPEC.restore("me", *LIMITS), ALL, [*ACQUIRE, 0, "me", 0, 1]),
        (SPEC.check("me"), OWN, ["check", "me"]),
        (SPEC.extend([(SPEC, "me")] * 2, 2.5, 9), OWN * 2, ["extend", 2500, 9, "me", "me"]),
        (SPEC.inspect(), OWN, ["inspect"]),
        (SPEC.release("me", 3.0, 4.0, ("more",)), ALL[:3], ["release", "me", "more"]),
        (PHASED.release("me", 3.0, 4.0), ALL, ["release", "me"]),
        (replace(PHASED, queue="").release("me", 3.0, 4.0), [*OWN, ALL[3]], ["release", "me"]),
    ],
)
def test_each_command_has_the_keys_and_the_words_that_its_script_reads(
    command: Command, keys: list[str], args: list[Any]
) -> None:
    assert ([*command.keys], [*command.args]) == (keys, args)


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0.0, 1), (0.0004, 1), (0.0015, 2), (1.0, 1000), (2.4996, 2500), (1.2345, 1234)],
)
def test_no_time_is_less_than_a_millisecond(seconds: float, milliseconds: int) -> None:
    """Redis refuses an expiry of 0."""
    assert ms(seconds) == milliseconds


def test_specs_are_kept_by_prefix_and_name() -> None:
    kept = lock.spec("one:", "a")
    assert lock.spec("one:", "a") is kept
    assert lock.spec("two:", "a").keys == ("two:a", "two:a:#fence")
    for number in range(2000):
        lock.spec("one:", str(number))
    assert lock.spec("one:", "a") is not kept, "their number is bounded"


# ---- commands for several names ------------------------------------------------------------------
@pytest.mark.parametrize("waits", [(), (2000,), (2000, "t", 0, 1)])
def test_a_bundle_is_the_commands_of_its_names(waits: tuple[Any, ...]) -> None:
    """As they would be sent alone, byte by byte."""
    context: Any = SimpleNamespace(multiplexer=SimpleNamespace(unsent=[]))
    specs = SPEC, PHASED, replace(SPEC, queue="")
    named = [SimpleNamespace(spec=one, owner="Ä") for one in specs]
    ends = [
        SimpleNamespace(grant=one, command=partial(one.spec.release, "Ä", 1.0, 2.0))
        for one in named
    ]
    for releases, asks in ((ends, named), (ends, []), ([], named)):
        batch: Any = Batch(context, SPEC, cast("Any", object()))
        batch.ttl, batch.place, batch._limits, batch._give_up_at = 2.5, waits, (7, 8, 9), 0.0
        batch.releases, batch.asks = releases, asks
        bundle = batch._command()
        assert bundle.packed == b"".join(single.packed for single in bundle.singles)
        assert (bundle.size, bundle.unlimited) == (len(releases + asks), bool(releases))


READERS = ("acquired", "raised", "released", "done", "holder", "readers", "places", "values")


@pytest.mark.parametrize("reply", [None, 7, b"x", [7], [7, [7]], [1, [7], 7]])
@pytest.mark.parametrize("name", READERS)
def test_a_reply_of_another_form_is_a_failure(name: str, reply: Any) -> None:
    assert getattr(spec, name)(reply) is UNREADABLE


NOW, AWAY = 1 << 50, Failure("away")
REFUSAL = [0, 900, b"x", 5, 0, 0, NOW]


@pytest.mark.parametrize(
    ("reply", "releases", "acquires", "found"),
    [
        ([1, 7, b"", NOW], 0, 1, [7]),
        ([1, 7, b"waiter", NOW], 0, 1, None),
        (REFUSAL, 0, 1, None),
        ([-1, NOW], 0, 1, None),
        ([1, b"", NOW], 1, 0, [GRANTED]),
        ([1, b"waiter", NOW], 1, 0, None),
        ([0, b"", NOW], 1, 0, None),
        ([0, [1, 7], NOW], 1, 1, [1, 7]),
        ([1, [1, REFUSAL], NOW], 1, 1, None),
        (AWAY, 0, 1, None),
        (AWAY, 1, 1, None),
        ([0, [1], NOW], 1, 1, None),
        ([0, [1, 7, 8], NOW], 1, 1, None),
        ([0, [1, b"7"], NOW], 1, 1, None),
        ([0, [True, 7], NOW], 1, 1, None),
        ([0, [1, 0], NOW], 1, 1, None),
        ([0, [1, 1 << 53], NOW], 1, 1, None),
    ],
)
def test_a_reply_is_plain_if_all_was_done_and_nobody_waits(
    reply: Any, releases: int, acquires: int, found: list[int] | None
) -> None:
    """Others who wait must be known: the holder's turn is shorter then."""
    assert plain(reply, releases, acquires) == found


def test_each_name_gets_the_reply_that_it_would_have_got_alone() -> None:
    replies = replies_of([1, [1, [1, b"waiter", NOW], 7, REFUSAL, AWAY], NOW], 2, 3)
    assert replies == [RELEASED, [1, b"waiter", NOW], (GRANTED, 7, b"", NOW), REFUSAL, AWAY]
    assert replies_of(AWAY, 1, 2) == [AWAY] * 3
    assert replies_of(REFUSAL, 0, 1) == [REFUSAL]
    for answers in ([1], [1, 7, 8]):
        assert replies_of([0, answers, NOW], 1, 1) == [UNREADABLE] * 2
