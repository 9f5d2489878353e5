"""What each error of a call in vain says and carries, and what people see of a name."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

import asynclock
from asynclock._engine import context, refusals
from asynclock._engine.attempt import WOKEN
from asynclock._engine.grant import Grant, LocalQueue
from asynclock._engine.inspection import (
    MOST_WAITERS,
    Inspection,
    NodeView,
    Waiter,
    in_order,
    question,
    whole,
)
from asynclock._engine.spec import LeaseOptions, Released, Vote, is_owner_id, label
from asynclock._nodes.replicated.acks import UNSUPPORTED
from asynclock._nodes.wire import Failure
from asynclock._primitives import lock
from asynclock._rules.pacing import Paces
from tests.tables.inside import now
from tests.waiting import in_virtual_time

OWNER, OTHER = "0123456789abcdef" * 2 + ":web 1", "1" * 32 + ":web:2"
CONTEXT: Any = SimpleNamespace(paces=Paces(), random=lambda: 0.5, messages={})
NO_RIGHT = Failure("no right", permanent=True)


class Failed(Vote):
    """A vote of three nodes in which some failed."""

    AIM, NEVER, name = "decide on", "be locked", "a"

    def __init__(self, *failures: Failure) -> None:
        self._nodes = tuple(cast("Any", SimpleNamespace(address=f"n{at}")) for at in range(3))
        self._quorum = 2
        self.failures = dict(enumerate(failures))


def carried(error: Any) -> dict[str, Any]:
    """What a refusal carries."""
    names = ("name", "owner", "holder", "remaining", "votes", "retry_after")
    return {name: getattr(error, name) for name in names}


@pytest.mark.parametrize(
    ("waited", "kind", "text"),
    [
        (False, asynclock.NotAcquiredError, "'a' is held by 'web 1'"),
        (True, asynclock.AcquireTimeoutError, "'a' was not free in time; it is held by 'web 1'"),
    ],
)
def test_a_refusal_by_others_carries_all_that_the_nodes_said(
    waited: bool, kind: type[Exception], text: str
) -> None:
    ballot = SimpleNamespace(claims={1: 5}, refused=3, unknown=1)
    said = {"holder": OWNER, "remaining": 4.0, "ballot": ballot, "retry_after": lambda: 0.25}
    attempt: Any = SimpleNamespace(spec=lock.spec("p:", "a"), name="a", **said)
    error = refusals.refused(attempt, waited=waited)
    assert (type(error), str(error)) == (kind, text)
    assert carried(error) == {
        "name": "a",
        "owner": OWNER,
        "holder": "web 1",
        "remaining": 4.0,
        "votes": {"granted": 1, "refused": 3, "unknown": 1},
        "retry_after": 0.25,
    }


@in_virtual_time
async def test_a_refusal_by_this_process_carries_how_long_its_lease_lasts() -> None:
    queue = LocalQueue("a", "p:a", 1, 0.0)
    grant = Grant(lock.spec("p:", "a"), OWNER, 1, LeaseOptions(10.0), 0.0, (0,), 0.0, None)
    known: dict[str, Any] = {}
    queue.grants.append(grant)
    for left, remaining, pause in ((4.0, 4.0, 1.5), (-1.0, 0.0, 0.0)):
        grant.valid_until, grant.held_since = now() + left, now() - 2.0
        known = {"name": "a", "owner": OWNER, "holder": "web 1", "votes": {}}
        known["remaining"], known["retry_after"] = pytest.approx(remaining), pytest.approx(pause)
        here, late = (
            refusals.held_here(CONTEXT, queue),
            refusals.too_long_here(CONTEXT, queue, 2.0, 0.0),
        )
        assert (type(here), type(late)) == (
            asynclock.NotAcquiredError,
            asynclock.AcquireTimeoutError,
        )
        assert str(here) == "'a' is held by this process"
        stopped = refusals.too_long_here(CONTEXT, queue, None, 0.0)
        assert str(stopped).endswith("; the work that waits was stopped")
        assert carried(here) == carried(late) == known
    nobody = LocalQueue("a", "p:a", 1, 0.0)
    context: Any = SimpleNamespace(paces=Paces(), random=lambda: 0.5, messages={})
    facts = {"name": "a", "votes": {}, "retry_after": 1.5}  # a hold of 1 s, and one that asks
    found = carried(refusals.too_long_here(context, nobody, 2.0, 0.0))
    assert found == {**dict.fromkeys(known), **facts}


def test_a_timeout_before_any_answer_and_a_wait_for_oneself_name_the_lock() -> None:
    late = refusals.out_of_time(CONTEXT, lock.spec("p:", "a"))
    own = refusals.already_held("a")
    assert type(late) is asynclock.AcquireTimeoutError
    assert str(late) == "the timeout for 'a' ended before the nodes could answer"
    assert type(own) is asynclock.AlreadyHeldError
    assert str(own) == (
        "this task or thread already holds 'a'; waiting for it would never end: release it first, "
        "or use reentrant_lock, a reader's upgrade() or a semaphore's several()"
    )
    assert (late.name, own.name) == ("a", "a")
    assert str(context.closed()) == "the manager was closed while this call waited"


@in_virtual_time
async def test_an_outage_names_each_node_and_when_to_ask_again() -> None:
    lasting = [Failure(f"started, votes in {s}", votes_from=now() + s) for s in (30, 20)]
    over = Failure("a moment", votes_from=now())
    began = "nodes answered to decide on 'a'"
    late = "of the nodes that answered may vote yet to decide on 'a'"
    for failures, text, retry in (
        (
            lasting,
            f"{late}; a quorum may in 20.0 s: n0: started, votes in 30; n1: started, votes in 20",
            20.0,
        ),
        ([Failure("lost"), lasting[0]], f"{late}: n0: lost; n1: started, votes in 30", 1.0),
        ([Failure("lost"), over], f"{began}: n0: lost; n1: a moment", 1.0),
        ([], f"{began}: no node answered", 1.0),
    ):
        error = refusals.outage(Failed(*failures))
        assert type(error) is asynclock.QuorumUnavailableError
        assert str(error) == f"too few {text}"
        assert error.name == "a"
        assert list(error.nodes) == ["n0", "n1"][: len(failures)]
        assert error.retry_after == pytest.approx(retry)


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        (NO_RIGHT, asynclock.ConfigurationError),
        (
            Failure("no right", permanent=True, code=UNSUPPORTED),
            asynclock.UnsupportedDeploymentError,
        ),
    ],
)
def test_what_a_person_must_mend_is_an_error_of_the_configuration(
    second: Failure, kind: type[asynclock.AsyncLockError]
) -> None:
    error = refusals.hopeless(Failed(NO_RIGHT, second))
    assert (type(error), error.name) == (kind, "a")
    assert str(error) == "'a' can't be locked here: n0: no right; n1: no right"


@pytest.mark.parametrize(
    ("owner", "ours", "shown"),
    [
        (None, False, None),
        ("", False, ""),
        (OWNER, True, "web 1"),
        (OWNER[:33], True, ""),
        (OWNER[:33] + "a:b", True, "a:b"),
        (OWNER[:32], False, "01234567…"),
        ("0" * 33 + ":x", False, "00000000…"),
        ("host:4711", False, "host:471…"),
        ("12345678", False, "12345678"),
        ("s:t", False, "s:t"),
    ],
)
def test_what_people_see_of_an_owner(owner: str | None, shown: str | None, *, ours: bool) -> None:
    """Whole ids of other libraries stay hidden: anyone could release the lock with them."""
    assert is_owner_id(owner) is ours
    assert label(owner) == shown


# what the nodes keep, put together

CLOCK = 1_800_000_000_000_000
SECONDS = CLOCK / 1_000_000
View = tuple[str | None, float | None, int]


def seen(*views: View, errors: int = 0) -> Inspection:
    """Return an inspection of a name on some nodes, with a quorum of more than half."""
    nodes = [NodeView(f"n{at}", *view) for at, view in enumerate(views)]
    nodes += [NodeView(f"e{at}", None, None, 0, "no answer") for at in range(errors)]
    return Inspection("a", tuple(nodes), len(nodes) // 2 + 1)


@pytest.mark.parametrize(
    ("views", "errors", "owner", "remaining", "fence", "since", "agreed"),
    [
        # Without the node of 3 s no quorum is left; a single node may be ahead.
        (
            [(OWNER, 5.0, CLOCK), (OWNER, 3.0, CLOCK + 7), (OTHER, 9.0, CLOCK + 9)],
            *(0, OWNER, 3.0, CLOCK + 7, SECONDS, False),
        ),
        (
            [(OWNER, 5.0, CLOCK), (OTHER, 3.0, CLOCK), (None, None, CLOCK)],
            *(0, None, None, CLOCK, None, False),
        ),
        ([(OWNER, 5.0, CLOCK)], 2, None, None, 0, None, True),
        ([(OWNER, 5.0, 1)] * 2, 1, OWNER, 5.0, 1, None, True),
        ([], 3, None, None, 0, None, True),
        ([(OWNER, 5.0, 1), (None, None, 1)], 1, None, None, 1, None, False),
        ([(OWNER, float(s), 1) for s in (9, 2, 7, 5, 3)], 0, OWNER, 5.0, 1, None, True),
        ([(OWNER, None, 1), (OWNER, None, 1), (OWNER, 4.0, 1)], 0, OWNER, None, 1, None, True),
        (
            [(OWNER, float(s), CLOCK + s) for s in (4, 1, 3, 2)],
            *(0, OWNER, 2.0, CLOCK + 2, (CLOCK + 1) / 1_000_000, True),
        ),
        (
            [(OTHER, 1.0, CLOCK - 5_000_000), (OWNER, 1.0, CLOCK), (OWNER, 1.0, CLOCK + 9)],
            *(0, OWNER, 1.0, CLOCK, SECONDS, False),
        ),
    ],
)
def test_a_quorum_names_the_owner_its_time_and_its_fence(
    views: list[View],
    errors: int,
    owner: str | None,
    remaining: float | None,
    fence: int,
    since: float | None,
    *,
    agreed: bool,
) -> None:
    found = seen(*views, errors=errors)
    assert (found.owner, found.remaining, found.fence) == (owner, remaining, fence)
    assert (found.since, found.agreed) == (since, agreed)
    assert found.holder == label(owner)


@pytest.mark.parametrize(
    ("owner", "fence", "shared", "since"),
    [
        (OWNER, CLOCK, False, SECONDS),
        (OWNER, 10**15, False, 1e9),
        (OWNER, CLOCK, True, None),
        (OWNER, 10**15 - 1, False, None),
        (OWNER, 2**53, False, None),
        ("1" * 31 + ":x", CLOCK, False, None),
        (None, CLOCK, False, None),
    ],
)
def test_a_fence_tells_since_when(
    owner: str | None, fence: int, shared: bool, since: float | None
) -> None:
    assert NodeView("n", owner, 1.0, fence, shared=shared).since == since


def test_the_whole_of_several_parts() -> None:
    first, second = Waiter("x", woken=True), Waiter("y", woken=False)
    held = NodeView("m", OWNER, 1.0, 3), NodeView("n", OWNER, 1.0, 9)
    free = NodeView("m", None, None, 7), NodeView("n", None, None, 0, "dead")
    parts = [
        Inspection("a", held, 2, waiting=(first, second)),
        Inspection("a", free, 2, waiting=(second,)),
    ]
    one = whole("a", "semaphore", parts)
    assert (one.name, one.kind, one.owner, one.parts) == ("a", "semaphore", None, tuple(parts))
    assert [(view.node, view.fence, view.error) for view in one.nodes] == [
        ("m", 7, None),
        ("n", 9, "dead"),
    ]
    assert one.waiting == (first, second), "each is listed once"


WAITS = b"1"


def place(name: str, number: int, value: bytes | None = WAITS) -> list[bytes | None]:
    """One waiter, as a node reports it: its ticket, its place, its value and its number."""
    return [name.encode(), b"%d" % number, value, b"%d" % number]


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        # Nodes may have different numbers for one that has just come: the highest one counts.
        (
            [
                [place("a", 3), place("b", 5), place("c", 11)],
                [place("b", 5), place("a", 7), place("c", 11)],
                [place("a", 3), place("b", 5), place("c", 11)],
            ],
            "bac",
        ),
        # A ticket that just one node of those that answered keeps may be left over.
        ([[place("b", 1), place("o", 0)], [place("b", 1)], []], "b"),
        ([[place("o", 1)], [], Failure("away")], ""),
        ([[place("o", 1)], Failure("away"), Failure("away")], "o"),
        ([], ""),
    ],
)
def test_waiters_of_a_majority_are_told_in_their_order(answers: Sequence[Any], found: str) -> None:
    assert in_order(answers) == tuple(Waiter(name, woken=False) for name in found)


@pytest.mark.parametrize(
    ("number", "since", "shared"),
    [
        (1795331604939299, 1795331604.939299, False),
        (4001795331604939, 1795331604.939, True),
        (4000000000000000, None, True),
        (1795331604939, 1795331604.939, False),
        (-1, None, True),
        (1, None, False),
    ],
    ids=[
        "a clock",
        "a reader",
        "the first",
        "a writer",
        "a reader that goes next",
        "a writer that was one",
    ],
)
def test_a_waiter_says_since_when_it_waits_if_its_number_is_a_clock(
    number: int, since: float | None, shared: bool
) -> None:
    (waiter,) = in_order([[place(OWNER, number)]])
    assert (waiter.since, waiter.shared) == (since, shared)


def test_a_waiter_waits_since_the_first_node_heard_of_it_and_is_woken_by_any() -> None:
    early, late = 1795331604000000, 1795331605000000
    answers = [[place("a", late, WOKEN)], [place("a", early)], [place("a", late, None)]]
    assert in_order(answers) == (Waiter("a", woken=True, since=early / 1e6),)


def test_of_a_waiter_people_see_its_label_and_nothing_that_is_no_text_fails() -> None:
    foreign = [b"\xff-of-another-library", b"2", WAITS, b"2"]
    ours, other = in_order([[place(OWNER, 1), foreign]])
    assert (ours.ticket, ours.label) == (OWNER, "web 1")
    assert (other.ticket, other.label) == ("\ufffd-of-another-library", "\ufffd-of-ano…")
    keys = lock.spec("p:", "a").woken(Released(True, (OWNER.encode(), foreign[0])))
    assert [key.rpartition("#")[2] for key in keys] == [OWNER, other.ticket]


def test_a_node_is_asked_for_a_bounded_number_of_waiters() -> None:
    command = question("a", "a:#queue")
    assert (command.keys, command.args) == (("a", "a:#queue"), ("inspect", MOST_WAITERS))
    assert MOST_WAITERS == 1000
