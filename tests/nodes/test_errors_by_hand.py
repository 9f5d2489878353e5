"""What a link does with the errors that a server replies, and what a command says of itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock import _clock
from asynclock._nodes.error_replies import ErrorReplies, look_inside
from asynclock._nodes.replies import NOBODY, READONLY, Failure, ServerError, Sink, failure
from asynclock._nodes.script import BATCH, FAILED, BatchCommand, Command
from asynclock._nodes.undoing import Entry, Undoing
from asynclock._nodes.watched import CONFIRMED, WatchedNode
from asynclock._primitives.lock import SCRIPT, spec
from asynclock._rules.trust import Facts
from asynclock.events import Observers
from tests.nodes.by_hand import Answers, HandLink, acquire, release
from tests.nodes.test_watchers import SETTINGS, nowhere
from tests.waiting import in_virtual_time

NOSCRIPT = ServerError("NOSCRIPT No matching script")
NOPERM = ServerError("NOPERM no permissions to access one of the keys")


class Sent:
    """A link that keeps what is sent on it, and why it is closed."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.sinks: list[Sink] = []
        self.ends: list[str] = []

    def send(self, command: Command, sink: Sink, index: int) -> None:
        self.commands.append(command)
        self.sinks.append(sink)

    def close(self, cause: str, *, permanent: bool = False, code: str = "") -> None:
        self.ends.append(code)


def entries(*commands: Command) -> list[Entry]:
    return [(NOBODY, 0, 0.0, command) for command in commands]


def batch(*parts: Command) -> Command:
    return BatchCommand(SCRIPT, ("a",), (BATCH,), lambda: parts)


# ---- a script that a server has forgotten


def test_a_rejected_command_goes_again_with_the_script_and_what_undoes_it_behind_it() -> None:
    link, sink = Sent(), Answers()
    first, undo, other = acquire("me"), release("me", 0.0, 60.0), release("other", 0.0, 60.0)
    errors = ErrorReplies(link, entries(undo, other))
    errors.take(NOSCRIPT, sink, 0, first)
    assert [(one.args, one.sourced) for one in link.commands] == [
        (first.args, True),
        (undo.args, True),
    ]
    assert link.sinks[0] is sink
    assert sink.found == []
    assert all(SCRIPT.source.encode() in one.packed for one in link.commands)


def test_a_servers_own_command_has_no_script_to_be_sent() -> None:
    link, sink = Sent(), Answers()
    ErrorReplies(link, ()).take(NOSCRIPT, sink, 0, Command.plain("EVALSHA"))
    assert link.commands == []
    assert sink.found[0].code == "NOSCRIPT"


def test_all_that_undoes_an_acquire_goes_again_in_its_order() -> None:
    """By the owner and by the ticket; each round only what is still behind."""
    undoing = Undoing()
    first = spec("", "a").acquire("me", 9.0, 0, 0, 9, (2000, "ticket", 1))
    leaves = [Command(SCRIPT, ("a",), ("leave", "ticket", number)) for number in (1, 2)]
    undo, resent = release("me", 0.0, 60.0), release("me", 0.0, 60.0).with_source()
    behind = entries(leaves[0], undo, acquire("other"), leaves[1], resent)
    assert undoing.behind(first, behind) == [undo, *leaves]
    assert undoing.behind(leaves[0], behind[1:]) == []
    again = release("me", 0.0, 30.0)
    assert undoing.behind(first, [*behind[1:], *entries(again)]) == [undo, again, leaves[1]]


def test_a_batch_is_looked_at_name_by_name() -> None:
    undo = [release(name, 0.0, 60.0) for name in "abc"]
    found = Undoing().behind(batch(acquire("a"), acquire("b")), entries(batch(*undo)))
    assert found == undo[:2]


# ---- errors after the timeout


def test_a_batch_that_was_denied_late_is_repeated_name_by_name() -> None:
    """One name of it may be forbidden; only releases still matter."""
    link, parts = Sent(), [release("a", 0.0, 60.0), acquire("b"), release("c", 0.0, 60.0)]
    errors = ErrorReplies(link, ())
    errors.late(NOPERM, 0, batch(*parts))
    assert link.commands == [parts[0], parts[2]]
    errors.late(NOPERM, 0, parts[0])
    assert len(link.commands) == 2, "a release that is denied alone stays denied"
    errors.late(ServerError("OOM command not allowed"), 0, batch(*parts))
    assert len(link.commands) == 2
    errors.late(NOSCRIPT, 0, parts[0])
    assert link.commands[2].sourced


def test_an_acquire_that_was_denied_late_is_not_repeated() -> None:
    """Its caller has gone on without it, so a lease that it wins would be nobody's."""
    link, parts = Sent(), [acquire("a"), release("b", 0.0, 60.0)]
    errors = ErrorReplies(link, ())
    errors.late(NOSCRIPT, 0, batch(*parts))
    assert [(one.parts[0].args, one.sourced) for one in link.commands] == [(parts[1].args, True)]
    errors.late(NOSCRIPT, 0, parts[0])
    assert len(link.commands) == 1


# ---- a primary that is none any more


@pytest.mark.parametrize(
    ("reply", "ends"),
    [
        ([1, [[1, 5], ServerError("READONLY You can't write")], 7], [READONLY]),
        ([1, [ServerError("OOM"), ServerError("ERR script: -READONLY no")], 7], [READONLY]),
        ([1, [ServerError("OOM"), [1, 5]], 7], []),
        ([0, 7], []),
        (b"OK", []),
    ],
)
def test_an_error_for_one_name_of_a_batch_shows_that_the_primary_was_replaced(
    reply: Any, ends: list[str]
) -> None:
    link = Sent()
    look_inside(link, reply)
    assert link.ends == ends


@pytest.mark.parametrize(
    ("text", "code", "permanent"),
    [
        ("WRONGPASS invalid", "WRONGPASS", True),
        ("NOAUTH Authentication required.", "NOAUTH", True),
        ("NOPROTO unsupported", "NOPROTO", True),
        ("WRONGTYPE Operation", "WRONGTYPE", True),
        ("ERR unknown command 'EVALSHA'", "ERR", True),
        ("ERR Error running script (call to f_0ab): @user_script:3: -OOM no memory", "OOM", False),
        (f"OOM no memory. script: {'0a' * 20}, on @user_script:3.", "OOM", False),
        ("ERR The user executing the script can't access a key", "ERR", True),
        ("ERR ACL failure in script: no permission", "ERR", True),
        ("BUSY a script is running", "BUSY", False),
        ("LOADING the dataset", "LOADING", False),
    ],
)
def test_which_errors_need_a_person(text: str, code: str, *, permanent: bool) -> None:
    found = failure(ServerError(text))
    assert (found.code, found.permanent) == (code, permanent)


# ---- what a command says of itself


def test_what_a_late_command_leaves_on_a_server() -> None:
    """The owner of an acquire and the tickets; of a release the ticket that it puts back."""
    first = spec("", "a").acquire("me", 9.0, 0, 0, 9)
    later = spec("", "a").acquire("me", 9.0, 0, 0, 9, (2000, "ticket", 1))
    back = Command.release(SCRIPT, ("a",), "me", 0.0, 60.0, (0, "ticket", 1))
    assert set(first.puts) == {"me"}
    assert set(later.puts) == {"me", "ticket"}
    assert set(back.puts) == {"ticket"}
    assert release("me", 0.0, 60.0).puts == []
    assert (first.claims, back.claims) == (("me",), ())


def test_a_release_that_is_sent_later_has_its_owner_alone() -> None:
    """By then its ticket has left; that its attempt had failed is still true."""
    plain, failed = release("me", 3.0, 60.0), (FAILED,)
    assert plain.again() is plain
    alone = Command.release(SCRIPT, ("a",), "me", 3.0, 60.0, failed)
    assert alone.again() is alone
    for more, kept in (((5,), ()), ((5, "ticket"), failed)):
        again = Command.release(SCRIPT, ("a",), "me", 3.0, 60.0, more).again()
        assert again.args == ("release", "me", *kept)
        assert (again.asked_since, again.retry_until, again.unlimited) == (3.0, 60.0, True)


def test_a_bounded_acquire_is_bounded_once() -> None:
    bounded = acquire("me", give_up_at=5.0).not_after(7)
    assert bounded.args[4] == 7
    assert bounded.give_up_at == 0.0


def test_the_parts_of_a_batch_are_made_once() -> None:
    made: list[int] = []
    command = BatchCommand(SCRIPT, ("a",), (BATCH,), lambda: made.append(1) or [acquire("a")])  # type: ignore[func-returns-value]
    assert command.parts is command.parts
    assert len(made) == 1


# ---- a primary that has to be confirmed


@in_virtual_time
async def test_a_primary_that_is_not_confirmed_is_asked_for_nothing_but_releases() -> None:
    node = WatchedNode("s", nowhere, SETTINGS, Observers())
    link: Any = HandLink(node)
    node._link, node.tracking = link, True
    sink = Answers()
    node.ask(acquire("me"), sink, 0)
    assert sink.found[0].cause == node.doubt
    assert node.state(_clock.now()) == "down"
    node.deliver(release("me", 0.0, _clock.now() + 60), sink, 0)
    assert [command.op for command in link.commands] == ["release"]
    node.confirm(_clock.now())
    assert node.state(_clock.now()) == "up"
    node.ask(acquire("me"), sink, 0, arm=True)
    assert [command.op for command in link.commands] == ["release", "CLIENT", "acquire"]


@in_virtual_time
async def test_an_older_confirmation_takes_nothing_from_a_newer_one() -> None:
    """Polls overlap: that of a frozen watcher ends last."""
    node = WatchedNode("s", nowhere, SETTINGS, Observers())
    node.confirm(_clock.now())
    node.confirm(_clock.now() - 1.9)
    link: Any = HandLink(node)
    node._link = link
    assert node.obstacle(_clock.now() + 1.9) is None
    assert node.obstacle(_clock.now() + 2.1) is not None


@in_virtual_time
async def test_a_connection_to_a_primary_that_nobody_confirms_is_closed() -> None:
    node = WatchedNode("s", nowhere, SETTINGS, Observers())
    link: Any = HandLink(node)
    with pytest.raises(Exception, match="not confirmed as the primary yet"):
        node.watched(link, Facts())
    assert link.causes == [node.doubt]


@in_virtual_time
async def test_whoever_waits_for_a_confirmation_goes_on_with_the_next_one_that_still_counts() -> (
    None
):
    node = WatchedNode("s", nowhere, SETTINGS, Observers())
    for _ in range(2):
        waiting = asyncio.create_task(node.confirmation())
        await asyncio.sleep(0.1)
        node.confirm(_clock.now() - CONFIRMED - 1)
        await asyncio.sleep(0.1)
        assert not waiting.done(), "that one is over already"
        node.confirm(_clock.now())
        async with asyncio.timeout(1):
            await waiting
        async with asyncio.timeout(1):
            await node.confirmation()
        await asyncio.sleep(CONFIRMED + 0.1)


@in_virtual_time
async def test_a_primary_without_a_connection_says_why_it_has_none() -> None:
    node = WatchedNode("s", nowhere, SETTINGS, Observers())
    sink = Answers()
    node._down = Failure("the Sentinels name no primary")
    node.ask(acquire("me"), sink, 0)
    assert sink.found == [node._down]
    assert node.obstacle(_clock.now()) is None
