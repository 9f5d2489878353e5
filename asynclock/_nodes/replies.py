"""What a node answers: a reply or a Failure, the sinks that take it, and what INFO and TIME say."""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, final

from .._rules.trust import Facts

READONLY = "READONLY"
"""Code of a replica's reply to a write, and of the end of a link to a demoted primary."""

NOT_REDIS = "NOTREDIS"
"""Code of a Failure for bytes that are not the Redis protocol; no server sends this code."""


NO_TRUST = "NOTRUST"
"""Code of a Failure for a certificate that we or the server refused; no server sends this code."""

NO_ACKS = "NOACKS"
"""Code of a Failure for a grant that too few servers acknowledged; no server sends this code."""

NO_RIGHT = "NOPERM"
"""Code of a server's reply to a user who has no right to a command, or to one of its keys."""

REDIRECTS = ("MOVED", "ASK")
"""Codes of a Cluster's replies that name another server."""


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """Why a node gave no answer. If `permanent`, a person must fix it; retrying won't help."""

    cause: str
    permanent: bool = False
    code: str = ""
    """The first word of the server's error, such as MOVED; "" without an error reply."""
    votes_from: float = 0.0
    """The moment from which the node votes again, if a guard keeps it from voting; otherwise 0."""


NO_CONNECTION = "no connection within node_timeout={seconds:g} s"
UNREADABLE = Failure("its reply has an unexpected form", code="UNREADABLE")
"""The Failure of a node whose reply has a shape that the command never has. No server sends this
code."""

P = ParamSpec("P")
S = TypeVar("S")


def reader(read: Callable[Concatenate[Any, P], S]) -> Callable[Concatenate[Any, P], S | Failure]:
    """Decorate a function that parses a reply: if it raises, it returns UNREADABLE instead.

    The result also takes a Failure in place of a reply, and returns it.
    """

    @functools.wraps(read)
    def checked(reply: Any, /, *args: P.args, **options: P.kwargs) -> S | Failure:
        if isinstance(reply, Failure):
            return reply
        try:
            return read(reply, *args, **options)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
            return UNREADABLE

    return checked


def no_connection(seconds: float) -> Failure:
    """Return the Failure of a connection that took longer than that many seconds."""
    return Failure(NO_CONNECTION.format(seconds=seconds))


def told_by(address: str, failure: Failure) -> Failure:
    """Return the failure of one server of several, with its address."""
    return replace(failure, cause=f"{address}: {failure.cause}")


class Sink(Protocol):
    """The receiver of the answer of node `index`: a reply or a Failure."""

    def on_reply(self, index: int, reply: Any, /) -> None:
        """Take the answer, straight from the socket.

        Raises only if the reply has an unexpected form; then it must not have counted the answer.
        """


class ServerError(Exception):
    """An error reply, as hiredis makes it."""


# What servers write around an error inside a script: before 7.0 in front of it, since then behind.
# Those before 7.0 write less if the script catches the error, and a Valkey 9 leaves the SHA-1 out.
_AROUND = re.compile(
    r"^(ERR Error running script \(call to \w+\): @user_script:\d+: |@user_script: ?\d+: )+-?"
    r"|\.? script: ([0-9a-f]{40}, )?on @\S+$"
)
# A refused right inside a script has no code of its own. The texts before 7.2 and since then.
_FORBIDDEN_INSIDE = ("executing the script can't", "ACL failure in script")
_PERMANENT = ("WRONGPASS", "NOAUTH", NO_RIGHT, "NOPROTO", "WRONGTYPE")


_OTHER_SLOT = (
    "it belongs to a Cluster and serves other slots: write redis+cluster:// instead of redis://, "
    'and a prefix without "{"; or name the server of this slot if CLUSTER is disabled or refused'
)
_NO_CLUSTER = (
    "it is no Cluster, or does not show it: write redis:// instead of redis+cluster://, and "
    'prefix="{locks}:" if that ends with CROSSSLOT'
)
_MISTAKES = {
    "CROSSSLOT": "a Cluster keeps this name's keys apart: write redis+cluster:// instead of "
    'redis://, or prefix="{locks}:" if CLUSTER is disabled or refused there',
    **{f"{code} ": _OTHER_SLOT for code in REDIRECTS},
    "SELECT is not allowed in cluster mode": "it belongs to a Cluster: write redis+cluster:// "
    "instead of redis://, and no database",
    # So says a Cluster of Valkey 9, too, which may have several databases.
    "DB index is out of range": "CONFIG GET databases says how many there are; for a Cluster write "
    "redis+cluster:// instead of redis://, and no database",
    "cluster support disabled": _NO_CLUSTER,
    "unknown command 'CLUSTER'": _NO_CLUSTER,
    "permissions to run the 'cluster": "allow +cluster|slots +cluster|info, or write redis:// "
    'instead of redis+cluster://, and prefix="{locks}:"',
    "unknown command 'SENTINEL'": "it is no Sentinel: write redis:// instead of redis+sentinel://",
    # "Unknown Redis command called from" in Redis, without "Redis" in Valkey.
    "command called from": "scripts need every command that docs/access.md lists: "
    "remove rename-command from its configuration",
}
"""Part of an error reply that only a mistake of the user causes -> what to write."""


def failure(error: Exception, *, in_cluster: bool = False) -> Failure:
    """Turn a server's error reply into a Failure.

    `in_cluster`: whether the server is one of a Cluster, whose redirects are followed.
    """
    text = _AROUND.sub("", str(error))
    if text.startswith("ERR unknown command"):  # servers repeat the arguments: keys, passwords
        text = text.partition(", with args")[0]
    code = text.partition(" ")[0]
    permanent = code in _PERMANENT or text.startswith("ERR unknown command")
    forbidden = any(words in text for words in _FORBIDDEN_INSIDE)
    plain = text.replace("`", "'")  # as servers since 7.0 write it
    advice = next((_MISTAKES[words] for words in _MISTAKES if words in plain), None)
    followed = in_cluster and code in REDIRECTS
    if advice is not None and not followed:
        return Failure(f"{text} ({advice})", permanent=True, code=code)
    return Failure(text, permanent or forbidden, code)


def lost(error: BaseException, *, greeted: bool) -> Failure:
    """Return why a connection ended: a server may refuse our certificate after the handshake."""
    refused = not greeted and refused_certificate(error)
    return Failure(f"connection lost: {error}", refused, NO_TRUST if refused else "")


def refused_certificate(error: BaseException) -> bool:
    """Return whether this says that we refused a certificate, or the server ours."""
    reason = str(getattr(error, "reason", ""))
    return isinstance(error, ssl.SSLError) and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def by_field(reply: Any) -> dict[Any, Any]:
    """Return the map in a reply, in RESP2 a list of fields and values in turns; {} if none."""
    if type(reply) is list:
        return dict(zip(reply[::2], reply[1::2], strict=False))
    return reply if isinstance(reply, dict) else {}


class Answer:
    """A sink for one answer, which a task awaits."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()

    def on_reply(self, _index: int, reply: Any) -> None:
        """Take the answer, unless the waiting task was cancelled."""
        if not self.future.done():
            self.future.set_result(reply)


class Take:
    """A sink that passes each answer on to a function."""

    __slots__ = ("on_reply",)

    def __init__(self, on_reply: Callable[[int, Any], None]) -> None:
        self.on_reply = on_reply


NOBODY: Sink = Take(lambda _index, _reply: None)
"""A sink that ignores all answers."""


class Gather:
    """Keeps each reply; `complete` once all are here, or `enough` of them without a failure."""

    def __init__(self, size: int, enough: int, patience: float = 0.0) -> None:
        self.found: dict[int, Any] = {}
        """The replies and Failures so far."""
        self._loop = asyncio.get_running_loop()
        self.complete: asyncio.Future[None] = self._loop.create_future()
        self._size = size
        self._missing = enough
        self._patience = patience
        """Seconds that the others get once enough have answered."""

    def on_reply(self, index: int, reply: Any) -> None:
        self.found[index] = reply
        self._missing -= not isinstance(reply, Failure)
        if len(self.found) == self._size:
            self._finish()
        elif self._missing <= 0:
            if self._patience:
                self._loop.call_later(self._patience, self._finish)
            else:
                self._finish()

    def _finish(self) -> None:
        if not self.complete.done():
            self.complete.set_result(None)


HISTORY = ("master_replid", "master_replid2")
"""The fields with the ids of the history of a server's data; zeros for none."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def read_facts(info: Any, fsync: Any, *, tracking: bool) -> Facts:
    """Return the facts in the replies to INFO and CONFIG GET appendfsync, if they succeeded."""
    fields = parse_info(info)
    if not fields:
        return Facts(tracking=tracking)
    always = fsync in ({b"appendfsync": b"always"}, [b"appendfsync", b"always"])
    return Facts(
        run_id=fields.get("run_id") or None,
        uptime=number(fields, "uptime_in_seconds"),
        lineage=frozenset(found for key in HISTORY if (found := fields.get(key, "").strip("0"))),
        version=fields.get("valkey_version") or fields.get("redis_version"),
        role=fields.get("role"),
        maxmemory=number(fields, "maxmemory") or 0,
        maxmemory_policy=fields.get("maxmemory_policy"),
        replicas=number(fields, "connected_slaves") or 0,
        durable=always and fields.get("aof_enabled") == "1",
        tracking=tracking,
    )


def parse_info(reply: Any) -> dict[str, str]:
    """Return the fields of a reply to INFO; empty if the server refused."""
    if not isinstance(reply, bytes | str):
        return {}
    text = reply if isinstance(reply, str) else reply.decode("utf-8", "replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def is_sentinel(fields: Mapping[str, str]) -> bool:
    """Return whether these fields of INFO are a Sentinel's.

    Redis calls the field `redis_mode`, Valkey 9 calls it `server_mode`.
    """
    return any(key.endswith("_mode") and fields[key] == "sentinel" for key in fields)


def number(fields: Mapping[str, str], key: str) -> int | None:
    """Return the number in field `key`; None if the field is missing or isn't a number."""
    text = fields.get(key, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def major_minor(version: str | None) -> tuple[int, ...]:
    """Return the first two numbers of a version; fewer if these parts aren't numbers."""
    return tuple(int(part) for part in (version or "").split(".")[:2] if _NUMBER.fullmatch(part))


def too_far(trip: float, limit: float) -> str:
    """Return what to do if a round trip took more seconds than the limit, for messages."""
    return f"; a round trip took {trip:.2g} s: raise node_timeout" if trip > limit else ""


@reader
def read_time(reply: Any) -> float:
    """Return the clock in a reply to TIME, in seconds since 1970."""
    seconds, micros = reply
    return int(seconds) + int(micros) / 1_000_000
