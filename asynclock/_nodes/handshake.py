"""From an address to a link that is logged in, knows the scripts and has told its facts.

Everything after the login is one round trip. Whatever a server or a proxy refuses there (INFO,
CLIENT TRACKING, SCRIPT LOAD, …) only makes us know or do less; only a refused login or protocol
ends the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from .. import _clock
from .._rules.trust import Facts
from .endpoint import Endpoint
from .link import Failure, Link, Owner
from .script import Command, Script

L = TypeVar("L", bound=Link)


class HandshakeError(Exception):
    """The connection could not be made ready; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


async def dial(
    endpoint: Endpoint,
    owner: Owner,
    scripts: Iterable[Script],
    node_timeout: float,
    limit: float,
    make: Callable[[Owner, float], L],
) -> tuple[L, Facts]:
    """Open a link within `limit` seconds. Raises HandshakeError; leaves no socket behind.

    `make` gets the owner and the seconds that each command has, until the link is open.
    """
    async with _opening(limit) as opened:
        link = await endpoint.open(lambda: make(owner, limit))
        opened.append(link)
        await _log_in(link, endpoint)
        known = await _introduce(link, scripts)
        link.timeout = node_timeout
    return link, known


async def greet(endpoint: Endpoint, owner: Owner, node_timeout: float, limit: float) -> Link:
    """The same for a server that is only asked who is who: logged in, nothing more."""
    async with _opening(limit) as opened:
        link = await endpoint.open(lambda: Link(owner, limit))
        opened.append(link)
        await _log_in(link, endpoint)
        link.timeout = node_timeout
    return link


@contextlib.asynccontextmanager
async def _opening(limit: float) -> AsyncIterator[list[Link]]:
    """A bound in time; the links that are opened inside are closed if it fails."""
    opened: list[Link] = []
    try:
        async with asyncio.timeout(limit):
            yield opened
    except TimeoutError:
        _drop(opened)
        raise HandshakeError(Failure(f"no connection within {limit:g} s")) from None
    except OSError as error:
        _drop(opened)
        raise HandshakeError(Failure(f"can't connect: {_reason(error)}")) from None
    except BaseException:
        _drop(opened)
        raise


def _reason(error: OSError) -> str:
    # asyncio puts "Connect call failed" where the system's own words were.
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


def _drop(opened: list[Link]) -> None:
    for link in opened:
        link.close("the handshake failed")


async def _log_in(link: Link, endpoint: Endpoint) -> None:
    try:
        login = await endpoint.credentials()
    except Exception as error:  # a provider is the user's code: whatever it raises is a cause
        raise HandshakeError(Failure(f"no credentials: {error!r}")) from error
    hello = Command.plain("HELLO", "3", *(("AUTH", *login) if login else ()))
    answer = await link.ask(hello)
    if isinstance(answer, Failure) and answer.code == "WRONGPASS" and endpoint.rotates:
        answer = replace(answer, permanent=False)  # the next password may be right
    _accept(answer)
    if endpoint.db:
        _accept(await link.ask(Command.plain("SELECT", endpoint.db)))


def _accept(answer: Any) -> None:
    if isinstance(answer, Failure):
        cause = answer.cause
        if answer.code in ("ERR", "NOPROTO") and "HELLO" in cause.upper():
            cause = f"Redis 6.2 or later is needed: {cause}"
        raise HandshakeError(Failure(cause, permanent=answer.permanent, code=answer.code))


async def _introduce(link: Link, scripts: Iterable[Script]) -> Facts:
    # A script that could not be loaded is sent by EVAL when it is first needed.
    loads = [Command.plain("SCRIPT", "LOAD", script.source) for script in scripts]
    questions = (
        Command.plain("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"),
        Command.plain("CONFIG", "GET", "appendfsync"),
        Command.plain("TIME"),
        Command.plain("INFO"),
        *loads,
    )
    sent = _clock.now()
    replies = await asyncio.gather(*map(link.ask, questions))
    tracking, fsync, clock, info = replies[:4]
    _accept(info if isinstance(info, Failure) and not info.code else None)
    if isinstance(clock, list):
        link.owner.told(int(clock[0]) + int(clock[1]) / 1_000_000, sent, _clock.now())
    known = facts(info, fsync, tracking=tracking == b"OK")
    return replace(known, refused=_refused(questions, replies))


def _refused(questions: Iterable[Command], replies: Iterable[Any]) -> tuple[str, ...]:
    """The commands that this server will not run for us, each once."""
    pairs = zip(questions, replies, strict=True)
    return tuple({str(asked.args[0]): None for asked, reply in pairs if isinstance(reply, Failure)})


def facts(info: Any, fsync: Any, *, tracking: bool) -> Facts:
    """What INFO and CONFIG GET appendfsync said, as far as they said anything."""
    if not isinstance(info, bytes | str):
        return Facts(tracking=tracking)
    text = info if isinstance(info, str) else info.decode("utf-8", "replace")
    said = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    always = isinstance(fsync, dict) and fsync.get(b"appendfsync") == b"always"
    uptime = said.get("uptime_in_seconds")
    return Facts(
        run_id=said.get("run_id"),
        uptime=float(uptime) if uptime else None,
        version=said.get("valkey_version") or said.get("redis_version"),
        role=said.get("role"),
        maxmemory=int(said.get("maxmemory") or 0),
        maxmemory_policy=said.get("maxmemory_policy"),
        replicas=int(said.get("connected_slaves") or 0),
        durable=always and said.get("aof_enabled") == "1",
        tracking=tracking,
    )
