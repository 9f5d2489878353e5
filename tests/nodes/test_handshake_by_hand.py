"""What the handshake sends, and what it makes of each answer. The test plays the server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import hiredis
import pytest

from asynclock import _clock
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.handshake import HandshakeError, dial, greet, why_unready
from asynclock._nodes.link import Link
from asynclock._nodes.replies import NO_TRUST, NOT_REDIS, Failure
from asynclock._primitives.lock import SCRIPT
from asynclock._rules.trust import Facts
from tests.nodes.test_one_link import Owner
from tests.waiting import in_virtual_time

P = TypeVar("P", bound=asyncio.Protocol)
NODE_TIMEOUT, LIMIT = 0.25, 2.0
INFO = "run_id:one\r\nuptime_in_seconds:5\r\nrole:master"
USUAL = {
    "HELLO": "+OK",
    "SELECT": "+OK",
    "CLIENT": "+OK",
    "CONFIG": "%1\r\n+appendfsync\r\n+always",
    "AUTH": "+OK",
    "TIME": "*2\r\n+1700000000\r\n+250000",
    "INFO": f"${len(INFO)}\r\n{INFO}",
    "SCRIPT": "+sha",
    "HMGET": "*3\r\n+7\r\n+nodes\r\n+name",
}
"""The replies of a server that grants everything, by the command's first word; "": none."""


class Talk(asyncio.Transport):
    """A connection to a server that gives these replies, and the words that it was sent."""

    def __init__(self, protocol: asyncio.Protocol, replies: dict[str, str]) -> None:
        super().__init__()
        self.protocol, self.replies = protocol, replies
        self.asked: list[list[str]] = []
        self.ended = False
        self._reader = hiredis.Reader(encoding="utf-8")

    def write(self, data: Any) -> None:
        self._reader.feed(bytes(data))
        answer = b""
        while words := self._reader.gets():
            self.asked.append(words)
            reply = self.replies[words[0]]
            if reply == "end":
                asyncio.get_running_loop().call_later(0.02, self.abort)
                break
            if reply:
                answer += f"{reply}\r\n".encode()
        if answer:
            asyncio.get_running_loop().call_later(0.01, self.protocol.data_received, answer)

    def abort(self) -> None:
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Place(Endpoint):
    """The address of such a server."""

    def __init__(self, url: str = "redis://h", **replies: str) -> None:
        super().__init__(Endpoint.from_url(url)._settings)
        self.replies = {**USUAL, **replies}
        self.talk: Any = None

    async def look_up(self) -> None:
        pass

    async def open(self, make: Callable[[], P]) -> P:
        protocol = make()
        self.talk = Talk(protocol, self.replies)
        protocol.connection_made(self.talk)
        return protocol


async def connect(place: Place, owner: Owner | None = None, record: str = "") -> tuple[Link, Facts]:
    return await dial(place, owner or Owner(), [SCRIPT], NODE_TIMEOUT, LIMIT, record)


async def refusal(place: Place) -> Any:
    """Return the failure of a handshake; its connection is closed."""
    with pytest.raises(HandshakeError) as caught:
        await connect(place)
    await asyncio.sleep(0)
    assert place.talk.ended
    return caught.value.failure


@in_virtual_time
async def test_a_login_a_database_and_all_questions_are_sent() -> None:
    place = Place("redis://alice:secret@h/1")
    await connect(place, record="a:#set")
    assert place.talk.asked == [
        ["HELLO", "3", "AUTH", "alice", "secret"],
        ["SELECT", "1"],
        ["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"],
        ["CONFIG", "GET", "appendfsync"],
        ["TIME"],
        ["INFO"],
        ["SCRIPT", "LOAD", SCRIPT.source],
        ["CLIENT", "CACHING", "YES"],
        ["HMGET", "a:#set", "accepted", "value", "name"],
    ]
    plain = Place()
    await connect(plain)
    assert [words[0] for words in plain.talk.asked][:2] == ["HELLO", "CLIENT"]
    assert plain.talk.asked[0] == ["HELLO", "3"]


@in_virtual_time
async def test_what_a_server_says_of_itself_is_kept() -> None:
    owner, sent = Owner(), _clock.now()
    link, facts = await connect(Place(), owner, record="a:#set")
    assert (facts.run_id, facts.uptime, facts.role) == ("one", 5.0, "master")
    assert (facts.kept.number, facts.kept.text, facts.kept.name) == (7, "nodes", "name")
    assert facts.tracking
    assert facts.refused == ()
    ((clock, asked, received),) = owner.clocks
    assert clock == 1_700_000_000.25
    assert sent == asked < received == _clock.now()
    assert link.timeout == NODE_TIMEOUT
    assert (await connect(Place()))[1].kept == Facts().kept, "nobody asked for a record"


@in_virtual_time
async def test_nothing_of_a_handshake_goes_on_after_it() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: complaints.append(what))
    link, _ = await connect(Place())
    await asyncio.sleep(3 * LIMIT)
    assert complaints == []
    assert not link.closed.done()


@in_virtual_time
async def test_what_a_server_refuses_but_the_login_is_done_without() -> None:
    no = "-NOPERM no right"
    refused = dict.fromkeys(("CLIENT", "CONFIG", "TIME", "INFO", "SCRIPT", "HMGET"), no)
    owner = Owner()
    _, facts = await connect(Place(**refused), owner, record="a:#set")
    assert facts == Facts(refused=("CLIENT", "CONFIG", "TIME", "INFO", "SCRIPT", "HMGET"))
    assert owner.clocks == []
    _, facts = await connect(Place(CLIENT="+QUEUED"))
    assert not facts.tracking, "only OK says that pushes will come"


@pytest.mark.parametrize(
    ("replies", "cause", "permanent"),
    [
        ({"HELLO": "-WRONGPASS invalid username-password pair"}, "WRONGPASS invalid", True),
        ({"HELLO": "-NOAUTH HELLO must be called with AUTH"}, "it wants a password (NOAUTH)", True),
        (
            {"HELLO": "-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`"},
            "Redis 6.2 or later is needed: ERR unknown command `HELLO`",
            True,
        ),
        ({"HELLO": "-NOPROTO unsupported HELLO"}, "Redis 6.2 or later is needed: NOPROTO", True),
        ({"HELLO": "-ERR max number of clients"}, "ERR max number of clients", False),
        ({"HELLO": "-LOADING the dataset"}, "LOADING the dataset", False),
        ({"SCRIPT": "-LOADING the dataset"}, "LOADING the dataset", False),
        ({"INFO": "-BUSY running a script"}, "BUSY running a script", False),
        ({"SELECT": "-ERR DB index is out of range"}, "ERR DB index is out of range", True),
        ({"SELECT": "-NOPERM no right"}, "NOPERM no right", True),
        ({"INFO": "+redis_mode:sentinel"}, "it is a Sentinel: write redis+sentinel://", True),
        (
            {"HELLO": "-NOPROTO unsupported HELLO", "INFO": "+redis_version:7.0.15"},
            "it is Redis 7.0.15, but HELLO 3 is refused",
            True,
        ),
    ],
)
@in_virtual_time
async def test_a_server_that_refuses_the_login_or_the_database_or_is_not_ready_is_of_no_use(
    replies: dict[str, str], cause: str, *, permanent: bool
) -> None:
    failure = await refusal(Place("redis://h/1", **replies))
    assert failure.cause.startswith(cause)
    assert failure.permanent is permanent


@pytest.mark.parametrize(
    ("reply", "code"), [("HTTP/1.1 400 Bad Request", NOT_REDIS), ("-WRONGPASS no", "WRONGPASS")]
)
@in_virtual_time
async def test_why_a_login_failed_is_kept_as_a_code(reply: str, code: str) -> None:
    """What isn't Redis may be a proxy's answer for a moment; a wrong password stays wrong."""
    failure = await refusal(Place(HELLO=reply))
    assert failure.code == code


@in_virtual_time
async def test_a_server_that_repeats_the_login_is_quoted_with_the_user_and_not_the_password() -> (
    None
):
    words = "-ERR no such command: HELLO 3 AUTH alice secret"
    failure = await refusal(Place("redis://alice:secret@h", HELLO=words))
    assert "HELLO 3 AUTH alice ***" in failure.cause


@in_virtual_time
async def test_a_connection_that_ends_before_info_is_no_server_without_the_right_to_info() -> None:
    """It would count as one that may have forgotten everything."""
    failure = await refusal(Place(INFO="end"))
    assert "closed the connection" in failure.cause
    assert not failure.permanent


@pytest.mark.parametrize(("url", "guess"), [("redis://h", True), ("unix:///run/redis", False)])
@in_virtual_time
async def test_a_connection_that_ends_at_once_may_want_tls(url: str, *, guess: bool) -> None:
    failure = await refusal(Place(url, HELLO="end"))
    assert ("the URL must begin with rediss" in failure.cause) is guess


@pytest.mark.parametrize("only_greet", [False, True])
@in_virtual_time
async def test_a_mute_server_costs_the_limit_and_leaves_no_connection(*, only_greet: bool) -> None:
    place, began = Place(HELLO=""), _clock.now()
    with pytest.raises(HandshakeError) as caught:
        if only_greet:
            await greet(place, Owner(), NODE_TIMEOUT, LIMIT)
        else:
            await connect(place)
    assert _clock.now() - began == pytest.approx(LIMIT, abs=0.01)
    assert "within 2 s" in caught.value.failure.cause
    assert place.talk.ended


@in_virtual_time
async def test_a_handshake_that_is_cancelled_leaves_no_connection() -> None:
    place = Place(HELLO="")
    for asked in (connect(place), greet(place, Owner(), NODE_TIMEOUT, LIMIT)):
        connecting: asyncio.Task[Any] = asyncio.ensure_future(asked)
        await asyncio.sleep(0.1)
        assert not place.talk.ended
        connecting.cancel()
        await asyncio.wait([connecting])
        assert place.talk.ended


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "it failed")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "cause", "permanent"),
    [
        (
            ConnectionRefusedError(111, "Connect call failed"),
            "can't connect: Connection refu",
            False,
        ),
        (OSError(), "can't connect: OSError", False),
        (OSError("no route"), "can't connect: no route", False),
        (tls_error("CERTIFICATE_VERIFY_FAILED"), "can't connect: it failed", True),
        (
            tls_error("WRONG_VERSION_NUMBER"),
            "can't connect: it failed: does this port speak TLS?",
            False,
        ),
        (
            tls_error("RECORD_LAYER_FAILURE"),
            "can't connect: it failed: does this port speak TLS?",
            False,
        ),
    ],
)
@in_virtual_time
async def test_a_connection_that_cannot_be_opened_says_why(
    error: OSError, cause: str, *, permanent: bool
) -> None:
    class Closed(Place):
        async def open(self, make: Callable[[], P]) -> P:
            raise error

    with pytest.raises(HandshakeError) as caught:
        await connect(Closed())
    failure = why_unready(caught.value)
    assert failure.cause.startswith(cause)
    assert (failure.permanent, failure.code) == (permanent, NO_TRUST if permanent else "")


@in_virtual_time
async def test_an_error_of_a_provider_of_passwords_is_told_without_its_words() -> None:
    """They may quote the password."""

    class Failing(Place):
        async def credentials(self) -> tuple[str, ...]:
            raise PermissionError("the password canary has expired")

    failure = await refusal(Failing())
    assert failure == Failure("no credentials: the provider raised PermissionError")
