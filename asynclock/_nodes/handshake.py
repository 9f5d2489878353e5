"""Opens a link: connects, logs in, loads the scripts and asks for the server's facts.

All commands go out in one round trip, the login first. If a server or a proxy refuses one of the
others (INFO, CLIENT TRACKING, SCRIPT LOAD, …), the library does without it. Only a refused login or
protocol, or a server that isn't ready, fails the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any, Final

from .. import _clock
from .._keys import MARKER, SET, WITNESS
from .._rules.nodeset import NOTHING, Copy
from .._rules.validity import Facts
from ..errors import ConfigurationError
from .dialing import reason
from .endpoint import LOGIN, Endpoint, without
from .link import Link, LinkListener, Patience
from .wire import (
    NO_TRUST,
    NOT_REDIS,
    Command,
    Failure,
    Script,
    is_sentinel,
    major_minor,
    parse_info,
    read_facts,
    read_time,
    refused_certificate,
)

HOW_TO_LOG_IN = (
    "write redis://:PASSWORD@host or redis://USER:PASSWORD@host, for Sentinels "
    "?sentinel_password=PASSWORD"
)
WANTS_LOGIN = f"it wants a password (NOAUTH): {HOW_TO_LOG_IN}"
NOT_READY = ("LOADING", "BUSY", "")
"""Codes of answers that tell nothing about a server, because it loads its data, is held up by a
script, or has closed the connection. A server that loads says that it has no append-only file."""
LOGIN_CODES = ("NOAUTH", "WRONGPASS")
"""Codes of a reply to HELLO from a server that knows the command."""
NO_USE = "NOUSE"
"""Code of a Failure for a proxy that can't be used; no server sends this code."""
TWEMPROXY = (
    "it is a proxy that closes the connection at HELLO, and so at other commands that locks need, "
    "as twemproxy does: name the servers behind it"
)
SPREADS = (
    "it is a proxy that chooses a server by the first key of a script, so two clients could hold "
    'one lock on two servers: name the servers behind it, or write prefix="{locks}:" if it keeps '
    "keys with the same braces on one server"
)
FIRST_KEYS = 24
"""Number of keys that are tried to find out whether a proxy sends them to several servers. Two
equal servers remain unnoticed once in 2^24 times."""
OLDEST = (6, 2)
SENTINEL = "it is a Sentinel: write redis+sentinel://host:port/SERVICE instead of redis://host:port"
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""Reasons of OpenSSL, before 3.2 and since then, for a reply that is not TLS."""


class HandshakeError(Exception):
    """The handshake failed; `failure` has the cause."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


def why_unready(error: Exception) -> Failure:
    """Return the cause of a failed handshake, without texts that may contain a password's part."""
    if isinstance(error, HandshakeError):
        return error.failure
    if isinstance(error, UnicodeError):
        return Failure("the handshake failed: its address or login can't be encoded")
    return Failure(f"the handshake failed: {type(error).__name__}: {error}")


@contextlib.contextmanager
def closing_if_failed(link: Link) -> Iterator[None]:
    """Close the link if the rest of its handshake, in this context, fails."""
    try:
        yield
    except BaseException:
        link.close("the handshake failed")
        raise


async def dial(
    endpoint: Endpoint,
    listener: LinkListener,
    scripts: Iterable[Script],
    node_timeout: float,
    limit: float,
    record_key: str = "",
    own_key: str = "",
    make: Callable[[LinkListener, float], Link] = Link,
) -> tuple[Link, Facts]:
    """Open a link within `limit` seconds. Raises HandshakeError, and closes the socket then.

    With an `own_key`, a proxy that spreads the keys of a script is refused.
    """
    async with _opening(endpoint, partial(make, listener), node_timeout, limit) as link:
        known = await _introduce(link, endpoint, scripts, record_key, own_key)
        link.answer_within(node_timeout)
    return link, known


async def greet(
    endpoint: Endpoint, listener: LinkListener, node_timeout: float, limit: float
) -> Link:
    """Open a link that is only logged in, for a server that only reports the roles of others."""
    async with _opening(endpoint, partial(Link, listener), node_timeout, limit) as link:
        await _log_in(link, endpoint, await _credentials(endpoint))
        link.answer_within(node_timeout)
    return link


@contextlib.asynccontextmanager
async def _opening(
    endpoint: Endpoint, make: Callable[[float], Link], node_timeout: float, limit: float
) -> AsyncIterator[Link]:
    """Open a link, limit the time of the handshake, and close the link if it fails."""
    link: Link | None = None
    try:
        await endpoint.look_up()
        async with asyncio.timeout(None) as scope:
            patience = Patience(limit, lambda: scope.reschedule(0.0))  # now
            try:
                link = await endpoint.open(partial(make, limit))
                endpoint.phase = LOGIN
                yield link
            finally:
                patience.cancel()
    except BaseException as error:
        if link is not None:
            link.close("the handshake failed")
        if isinstance(error, TimeoutError):
            raise HandshakeError(endpoint.late(node_timeout)) from None
        if isinstance(error, OSError):
            raise HandshakeError(_refused_connection(endpoint, error)) from None
        if isinstance(error, ConfigurationError):
            raise HandshakeError(Failure(str(error), permanent=True)) from None
        raise


def _refused_connection(endpoint: Endpoint, error: OSError) -> Failure:
    cause, refused = f"{endpoint.trouble}: {reason(error)}", refused_certificate(error)
    if isinstance(error, ssl.SSLError) and error.reason in NOT_TLS:
        cause = f"{cause}: does this port speak TLS?"
    return Failure(cause, permanent=refused, code=NO_TRUST if refused else "")


async def _credentials(endpoint: Endpoint) -> Sequence[str]:
    try:
        return await endpoint.credentials()
    except Exception as error:  # a provider is the user's code; its text may quote the password
        cause = f"no credentials: the provider raised {type(error).__name__}"
        raise HandshakeError(Failure(cause)) from None


async def _log_in(
    link: Link, endpoint: Endpoint, login: Sequence[str], *questions: Command
) -> list[Any]:
    """Log in and ask `questions` in the same round trip; in RESP2 if HELLO 3 is refused."""
    secrets = [word for word in login if word and word != "default"][-1:]
    hello = Command.plain("HELLO", "3", *(("AUTH", *login) if login else ()))
    select = [Command.plain("SELECT", endpoint.db)] if endpoint.db else []
    sent = _clock.now()
    answer, *answers = await asyncio.gather(*map(link.ask, (hello, *select, *questions)))
    if not (isinstance(answer, Failure) and answer.code == ""):
        link.trip = endpoint.trip = _clock.now() - sent
    if isinstance(answer, Failure) and _no_hello(answer):
        link.no_hello = replace(answer, cause=without(answer.cause, secrets))
        words = login[1:] if login[:1] == ("default",) else login  # proxies may know no users
        first = Command.plain("AUTH", *words) if login else Command.plain("PING")
        again = (first, *select, *questions)
        answer, *answers = await asyncio.gather(*map(link.ask, again))
    if isinstance(answer, Failure) and answer.code == "WRONGPASS" and endpoint.rotates:
        answer = replace(answer, permanent=False)  # the next password may be right
    if isinstance(answer, Failure) and not (answer.code or link.closed.done()):
        raise TimeoutError
    if isinstance(answer, Failure) and answer.code in ("", NOT_REDIS) and link.closed.done():
        answer = await _hung_up(answer, link, endpoint)
    _accept(answer, secrets)
    if select:
        _accept(answers.pop(0))
    return answers


def _no_hello(answer: Failure) -> bool:
    named = "HELLO" in answer.cause.upper() and answer.code not in LOGIN_CODES
    return named or answer.code == "NOPROTO"


async def _hung_up(answer: Failure, link: Link, endpoint: Endpoint) -> Failure:
    """Return why the connection was closed instead of a reply to HELLO.

    A server that goes down closes it, too, with all others, and so does a port that wants TLS. Only
    a proxy such as twemproxy closes a connection at HELLO and answers PING on another open one.
    """
    links: list[Link] = []
    with contextlib.suppress(OSError), contextlib.ExitStack() as both:
        for _ in range(2):
            links.append(await endpoint.open(lambda: Link(link.listener, link.timeout)))
            both.callback(links[-1].close, "the handshake failed")
        endpoint.phase = LOGIN
        greeted, other = links
        await greeted.ask(Command.plain("HELLO", "3"))
        ping = await other.ask(Command.plain("PING"))
        known = ping == b"PONG" or (isinstance(ping, Failure) and ping.code in LOGIN_CODES)
        if known and greeted.closed.done():
            return Failure(TWEMPROXY, permanent=True, code=NO_USE)
    tls = "; if this port wants TLS, the URL must begin with rediss" if endpoint.plain else ""
    return replace(answer, cause=answer.cause + tls)


def _accept(answer: Any, secrets: Sequence[str] = ()) -> None:
    if isinstance(answer, Failure):
        # A server that does not know the command repeats its arguments: the password is one.
        cause = WANTS_LOGIN if answer.code == "NOAUTH" else without(answer.cause, secrets)
        if answer.code == "WRONGPASS":
            cause += f" ({HOW_TO_LOG_IN})"
        raise HandshakeError(Failure(cause, permanent=answer.permanent, code=answer.code))


def _accept_ready(answer: Any) -> None:
    if isinstance(answer, Failure) and answer.code in NOT_READY:
        _accept(answer)


async def _introduce(
    link: Link, endpoint: Endpoint, scripts: Iterable[Script], record_key: str, own_key: str
) -> Facts:
    # A script that could not be loaded is sent with EVAL when it is first needed.
    loads = [Command.plain("SCRIPT", "LOAD", script.source) for script in scripts]
    questions = (
        Command.plain("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"),
        Command.plain("CONFIG", "GET", "appendfsync"),
        Command.plain("TIME"),
        Command.plain("INFO"),
        *loads,
        *(reading_record(record_key) if record_key else ()),
    )
    login = await _credentials(endpoint)
    sent = _clock.now()
    replies = await _log_in(link, endpoint, login, *questions)
    for reply in replies:
        _accept_ready(reply)
    tracking, fsync, time, info, *more = replies
    fields = parse_info(info)
    if is_sentinel(fields):
        raise HandshakeError(Failure(SENTINEL, permanent=True))
    if link.no_hello and () < major_minor(fields.get("redis_version")) < OLDEST:
        cause = f"Redis 6.2 or later is needed: {link.no_hello.cause}"
        raise HandshakeError(Failure(cause, permanent=True))
    clock = read_time(time)
    if not isinstance(clock, Failure):
        link.listener.on_clock(clock, sent, _clock.now())
    link.tracking = tracking == b"OK" and link.no_hello is None
    if own_key and not link.tracking:  # a proxy does not pass pushes on
        await ask_whether_one_server(link, own_key)
    known = read_facts(info, fsync, tracking=link.tracking)
    record = record_in(more[-1] if record_key else None)
    refused = _refused(questions, replies)
    return replace(known, refused=("HELLO", *refused) if link.no_hello else refused, copy=record)


async def ask_whether_one_server(link: Link, own_key: str) -> None:
    """Raise HandshakeError if it depends on the first key of a script which server executes it."""
    key = f"{own_key}:{token_hex(8)}"
    see = "return redis.call('GET', KEYS[2])"
    stored, *seen, _ = await asyncio.gather(
        link.ask(Command.plain("SET", key, "1", "PX", 10_000)),
        *(
            link.ask(Command.plain("EVAL", see, 2, f"{own_key}:{number}", key))
            for number in range(FIRST_KEYS)
        ),
        link.ask(Command.plain("DEL", key)),
    )
    _accept_ready(stored)
    if stored == b"OK" and None in seen:
        raise HandshakeError(Failure(SPREADS, permanent=True, code=NO_USE))


def _refused(questions: Iterable[Command], replies: Iterable[Any]) -> tuple[str, ...]:
    """Return the commands that this server refused, each once."""
    pairs = zip(questions, replies, strict=True)
    return tuple({str(asked.op): None for asked, reply in pairs if isinstance(reply, Failure)})


# ---- The library's own keys on a node, derived from the prefix alone: the record, the witness ----
# The record of the fleet's set of nodes is a register that only `asynclock.fleet` changes. The
# witness is a random text, which shows whether a node still has its keys (docs/fencing.md).


OWN_KEYS = Script.load(__package__, "own_keys.lua")
RECORD_KEY: Final = MARKER + SET
"""The key of the record, without the prefix."""
RECORD_RETENTION: Final = 10 * 365 * 24 * 3600.0
"""Seconds that a record outlives its last change: it must not end before the fleet does."""
WITNESS_KEY: Final = MARKER + WITNESS
"""The key of the witness, without the prefix."""
WITNESS_RETENTION_MS: Final = 365 * 24 * 3600 * 1000
"""Milliseconds that a witness outlives the last connection or flush. A client that has been
connected for longer takes the next flush of any database for one of its own."""


def reading_record(key: str) -> tuple[Command, Command]:
    """Return the commands that ask for a push at the next change, and read the record."""
    words = ("CLIENT", "CACHING", "YES"), ("HMGET", key, "accepted", "value", "name")
    caching, reading = (Command.plain(*some) for some in words)
    caching.unlimited = reading.unlimited = True
    return caching, reading


LONGEST_NUMBER: Final = 16
"""Maximum number of digits of a record's number, which is below 2^53."""


def record_in(reply: Any) -> Copy:
    """Return what a node keeps of the record, from its reply; nothing if it refused."""
    match reply:
        case [bytes(number), None | bytes() as text, None | bytes() as name] if (
            number.isdigit() and len(number) <= LONGEST_NUMBER
        ):
            texts = ((one or b"").decode("utf-8", "replace") for one in (text, name))
            return Copy(int(number), *texts)
    return NOTHING


# For both keys the script is sent with its source: sent again after a NOSCRIPT, it would not be in
# order.


def telling_record(key: str, newest: Copy, name: str) -> Command:
    """Return the command that tells a node the newest record, and its own name in it."""
    words = ("record", str(newest.number), newest.text, name, int(RECORD_RETENTION * 1000))
    return Command(OWN_KEYS, (key,), words).with_source()


def asking_witness(key: str, text: str) -> Command:
    """Return the command that reads the witness, or makes one with this random text."""
    words = ("witness", text, WITNESS_RETENTION_MS)
    command = Command(OWN_KEYS, (key,), words).with_source()
    command.unlimited = True
    return command
