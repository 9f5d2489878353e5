"""The commands that the engine builds, word by word, and the reply to one for several names."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from asynclock._engine.ask import Ticket
from asynclock._engine.outbox import RELEASED, Batch, parts_of, plain
from asynclock._engine.spec import LockSpec, ms
from asynclock._nodes.link import LATE_TIMER_FACTOR
from asynclock._nodes.wire import GRANTED, UNREADABLE, Command, Failure, ServerError
from asynclock._primitives import lock

SPEC = replace(lock.spec("p:", "a"), neighbours=("p:a:#near",))
KEY, FENCE, QUEUE, NEAR = SPEC.all_keys
OWN, ALL = [KEY, FENCE], [KEY, FENCE, QUEUE, NEAR]
PLAIN = replace(SPEC, queue="", neighbours=())
EXEMPT = replace(SPEC, exempt=("reader",))
PHASED = replace(SPEC, phased=True)
ACQUIRE = ["acquire", "me", 2500, 7, 8, 9]
LIMITS = (2.5, 7, 8, 9)


def words(command: Command) -> tuple[list[str], list[Any]]:
    """Return the keys and the arguments of a command."""
    assert command.script is SPEC.script
    return list(command.keys), list(command.args)


def settled() -> Ticket:
    ticket = Ticket(SPEC, "mine", 0.0, 2.0)
    ticket.settle([7, 9], 3, enough=True)
    return ticket


@pytest.mark.parametrize(
    ("command", "keys", "args"),
    [
        (PLAIN.acquire("me", *LIMITS), OWN, ACQUIRE),
        (SPEC.acquire("me", *LIMITS), ALL, ACQUIRE),
        (SPEC.acquire("me", *LIMITS, (2000, "t", 5)), ALL, [*ACQUIRE, 2000, "t", 5]),
        # The script reads the exempt owner by its place, behind a whole ticket.
        (EXEMPT.acquire("me", *LIMITS), ALL, [*ACQUIRE, 0, "me", 0, 0, "reader"]),
        (EXEMPT.acquire("me", *LIMITS, (2000,)), ALL, [*ACQUIRE, 2000, "me", 0, 0, "reader"]),
        (EXEMPT.acquire("me", *LIMITS, (9, "t", 5)), ALL, [*ACQUIRE, 9, "t", 5, 0, "reader"]),
        (EXEMPT.acquire("me", *LIMITS, (9, "t", 0, 1)), ALL, [*ACQUIRE, 9, "t", 0, 1, "reader"]),
        # A key is put back past all who wait.
        (SPEC.restore("me", *LIMITS), ALL, [*ACQUIRE, 0, "me", 0, 1]),
        (PLAIN.restore("me", *LIMITS), OWN, ACQUIRE),
        (SPEC.leave("t"), ALL, ["leave", "t"]),
        (SPEC.pass_on(), ALL, ["pass"]),
        (SPEC.write_back("me", 7, 9), OWN, ["raise", "me", 7, 9]),
        (SPEC.check("me"), OWN, ["check", "me"]),
        (SPEC.inspect(), OWN, ["inspect"]),
        (PLAIN.release("me", 3.0, 4.0), OWN, ["release", "me"]),
        (SPEC.release("me", 3.0, 4.0, ("more",)), ALL[:3], ["release", "me", "more"]),
        (PHASED.release("me", 3.0, 4.0), ALL, ["release", "me"]),
        (replace(PHASED, queue="").release("me", 3.0, 4.0), [*OWN, NEAR], ["release", "me"]),
    ],
)
def test_each_command_has_the_keys_and_the_words_that_its_script_reads(
    command: Command, keys: list[str], args: list[Any]
) -> None:
    assert words(command) == (keys, args)


def test_what_a_waiter_tells_the_nodes() -> None:
    new, later = Ticket(SPEC, "mine", 0.0, 2.0), settled()
    assert (new.words(), new.place()) == ((2000, "mine", 0), (0, "mine", 2000, 0))
    assert (later.words(), later.place()) == ((2000, "mine", 9), (0, "mine", 2000, 9))
    assert (later.rank, later.key) == (3, f"{QUEUE}:#mine")


def test_a_release_is_sent_again_until_its_key_has_died_however_many_are_open() -> None:
    command = SPEC.release("me", 3.0, 4.0)
    assert (command.asked_since, command.retry_until, command.unlimited) == (3.0, 4.0, True)


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


# commands for several names


class Given:
    """A release, as far as a message needs it."""

    def __init__(self, spec: LockSpec, owner: str) -> None:
        self.spec, self.owner = spec, owner

    def command(self) -> Command:
        return self.spec.release(self.owner, 1.0, 2.0)


SPECS = [lock.spec("p:", name) for name in "abcd"]
RELEASES: list[Any] = [Given(SPECS[0], "A"), Given(SPECS[1], "B")]
ACQUIRES: list[Any] = [Given(SPECS[2], "C"), Given(SPECS[3], "D")]


def message(
    releases: list[Any], acquires: list[Any], waits: tuple[int, ...] = (2000,), not_after: int = 8
) -> Command:
    """Return what is sent for these names at the moment 48, with node timeouts of a second."""
    nodes = SimpleNamespace(unsent=[], fence_floor=lambda _: 7, not_after=lambda _: not_after)
    settings = SimpleNamespace(node_timeout=2 / LATE_TIMER_FACTOR)
    context: Any = SimpleNamespace(multiplexer=nodes, settings=settings, retention=9)
    batch = Batch(context, SPECS[0])
    batch.ttl, batch.waits, batch.started = 2.5, waits, 48.0
    batch.releases, batch.asks = releases, acquires
    return batch._command()


def test_a_batch_groups_its_keys_by_kind_and_its_owners_by_operation() -> None:
    """As batch.lua reads them: by their places."""
    (a, fa, qa), (b, fb, qb), (c, fc, qc), (d, fd, qd) = (spec.all_keys for spec in SPECS)
    both, silent = message(RELEASES, ACQUIRES), message([], ACQUIRES, ())
    limits = [2500, 7, 8, 9]
    keys = [a, b, c, d, qa, qb, qc, qd, fc, fd]
    assert words(both) == (keys, ["batch", 2, *limits, 2000, "A", "B", "C", "D"])
    assert words(silent) == ([c, d, qc, qd, fc, fd], ["batch", 0, *limits, 0, "C", "D"])
    assert [words(part) for part in both.parts] == [
        ([a, fa, qa], ["release", "A"]),
        ([b, fb, qb], ["release", "B"]),
        ([c, fc, qc], ["acquire", "C", *limits, 2000]),
        ([d, fd, qd], ["acquire", "D", *limits, 2000]),
    ]
    assert both.parts is both.parts, "each command that is rejected asks again"
    assert both.unlimited
    assert not silent.unlimited, "only releases are taken however many are open"


def test_a_message_for_one_name_is_its_own_command() -> None:
    assert words(message(RELEASES[:1], []))[1] == ["release", "A"]
    single = words(message([], ACQUIRES[:1]))
    assert single == (list(SPECS[2].all_keys), ["acquire", "C", 2500, 7, 8, 9, 2000])


@pytest.mark.parametrize(("not_after", "give_up_at"), [(0, 50.0), (8, 0.0)])
def test_a_command_with_no_common_limit_gets_one_by_the_clock_of_each_node(
    not_after: int, give_up_at: float
) -> None:
    single = message([], ACQUIRES[:1], not_after=not_after)
    several = message([], ACQUIRES, not_after=not_after)
    assert [one.give_up_at for one in (single, several, *several.parts)] == [give_up_at] * 4


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
    ],
)
def test_a_reply_is_plain_if_all_was_done_and_nobody_waits(
    reply: Any, releases: int, acquires: int, found: list[int] | None
) -> None:
    """Others who wait must be known: the holder's turn is shorter then."""
    assert plain(reply, releases, acquires) == found


def test_each_name_gets_the_reply_that_it_would_have_got_alone() -> None:
    error = ServerError("WRONGTYPE Operation against a key.")
    parts = parts_of([1, [1, [1, b"waiter", NOW], 7, REFUSAL, error], NOW], 2, 3)
    assert parts[:4] == [RELEASED, [1, b"waiter", NOW], (GRANTED, 7, b"", NOW), REFUSAL]
    wrong = parts[4]
    assert isinstance(wrong, Failure)
    assert (wrong.cause[:33], wrong.permanent) == ("WRONGTYPE Operation against a key", True)
    assert parts_of(AWAY, 1, 2) == [AWAY] * 3
    assert parts_of(REFUSAL, 0, 1) == [REFUSAL]
    for answers in ([1], [1, 7, 8]):
        assert parts_of([0, answers, NOW], 1, 1) == [UNREADABLE] * 2
