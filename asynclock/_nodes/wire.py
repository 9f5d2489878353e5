"""What travels between a client and a node: commands, packed once for all nodes, and replies.

A script is Lua source in a file beside its primitive. EVALSHA names a script by its SHA-1. A node
that has forgotten a script (SCRIPT FLUSH, restart) gets it again with one EVAL (see link.py). A
node answers with a reply or a Failure, which a sink takes.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import pkgutil
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, final

import hiredis

from .._rules.validity import Facts

Word = bytes | str | int

ACQUIRE: Final = "acquire"
"""The operation that may set an owner's key, or leave a ticket."""
BATCH: Final = "batch"
"""The operation that does several releases and acquires of one tick."""
RELEASE: Final = "release"
"""The operation that deletes an owner's key; it may put a ticket back."""
EXTEND: Final = "extend"
"""The operation that prolongs the leases of several owners."""
REST: Final = "rest"
"""The operation that releases a name but lets nobody have it until a moment of the nodes' clock."""
FAILED: Final = 2
"""Argument of a release after a failed attempt, which is no turn of a read-write lock."""
UNDOES: Final = frozenset({RELEASE, REST, "leave"})
"""Operations that undo an acquire, so they must not be executed before it."""
WRITES: Final = frozenset({ACQUIRE, BATCH, REST, "raise", EXTEND, "prepare", "accept"})
"""Operations whose effect must not be lost. A lost release only makes the lock last for its ttl."""
VOTES: Final = frozenset({ACQUIRE, "read", "prepare", "accept"})
"""Operations whose positive reply is a vote, which a server that may have forgotten can't give."""
GRANTED: Final = 1
"""First word of a script's reply: it did what was asked."""
GRANTED_DIGIT: Final = ord("1")
"""In the reply to an operation on several owners: it did what was asked for this owner."""


# A command as bytes of the Redis protocol.
pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]


class Command:
    """One request, as bytes for the wire; made once, sent to every node."""

    __slots__ = (
        "args",
        "asked_since",
        "first",
        "give_up_at",
        "keys",
        "numbered_at",
        "op",
        "packed",
        "retry_until",
        "script",
        "sourced",
        "unlimited",
        "wakes",
    )
    asked_since: float
    """For a release or a leave: when the first node was asked for the lease, or was told of the
    ticket. Unset for other commands."""
    retry_until: float
    """The moment until which a lost release or leave is sent again; 0 for other commands."""
    give_up_at: float
    """For an acquire without a `not_after`: the moment, on our clock, after which no node may
    execute it. 0 for all other commands."""
    numbered_at: float
    """For a change of a register: the moment at which its number was chosen. A node that has
    forgotten keys since then must not execute it. 0 for all other commands."""
    first: Command | None
    """The command that must go right before this one, each time this one is sent: what CACHING
    or ASKING asks for is over with the next command, even if the server rejects that one."""
    sourced: bool
    """Whether the command carries the script's source instead of its SHA-1."""
    unlimited: bool
    """Whether a link with MAX_IN_FLIGHT unanswered commands still takes this one."""
    size = 1
    """Number of replies; a bundle has one for each name."""
    wakes: Sequence[str]
    """The keys that this changes and that tasks of this process may watch. When a link sends
    the command, it wakes them: a server sends no push for a change of our own, but forgets that
    it was to send one. A request that they send then is executed after the change."""

    def __init__(self, script: Script | None, keys: Sequence[str], args: Sequence[Word]) -> None:
        self.script: Script | None = script
        self.keys: Sequence[str] = keys
        self.args: Sequence[Word] = args
        self.op: Word = args[0]
        """The first argument: the operation of a script, such as "acquire", or the name of a
        server's command."""
        # Not defaults of the class, which then has no slots: making a command would take longer.
        self.retry_until = self.give_up_at = self.numbered_at = 0.0
        self.sourced = self.unlimited = False
        self.first = None
        self.wakes = ()
        words = tuple(args) if script is None else ("EVALSHA", script.sha, len(keys), *keys, *args)
        self.packed: bytes = pack(words)

    @classmethod
    def plain(cls, *words: Word, keys: Sequence[str] = ()) -> Command:
        """Make a command of the server itself, such as TIME; name its keys for a Cluster."""
        return cls(None, keys, words)

    def resent(self, asked_since: float, until: float) -> Command:
        """Let this release or leave be resent until `until` to nodes asked after `asked_since`."""
        self.asked_since, self.retry_until, self.unlimited = asked_since, until, True
        return self

    def again(self) -> Command:
        """Return the release to send again later: it keeps no ticket, and wakes the next waiter.

        By then its ticket may have left, and the process that kept the name no longer asks for it.
        """
        same = self.op != RELEASE or len(self.args) <= 2 or self.args[2] == FAILED
        if self.script is None or same:
            return self
        words = (RELEASE, self.owner, FAILED)[: 3 if len(self.args) > 3 else 2]
        return Command(self.script, self.keys, words).resent(self.asked_since, self.retry_until)

    @property
    def owner(self) -> Word:
        """The owner that an acquire or a release is for."""
        return self.args[1]

    @property
    def undoes(self) -> tuple[Word, Word]:
        """What names a release, or a leave, among those that are kept to be sent again."""
        return self.op, self.args[1]

    @property
    def singles(self) -> Sequence[Command]:
        """The commands, one per name, that this command stands for."""
        return (self,)

    @property
    def claims(self) -> Sequence[Word]:
        """The owners whose key this command may set."""
        return (self.owner,) if self.op == ACQUIRE else ()

    @property
    def puts(self) -> list[Word]:
        """The owners and tickets that stay on a server which executes this command late."""
        words = self.args[1:] if self.op == ACQUIRE else self.args[3:] if self.op == RELEASE else ()
        return [word for word in words if isinstance(word, str)]

    def not_after(self, moment: int) -> Command:
        """Return the same acquire, but a node refuses it after `moment` (node's clock, in µs)."""
        if self.script is None:
            return self
        bounded = copy(self)
        bounded.give_up_at = 0.0
        bounded.args = [*self.args[:4], moment, *self.args[5:]]
        words = (self.script.sha, len(self.keys), *self.keys, *bounded.args)
        bounded.packed = pack(("EVALSHA", *words))
        return bounded.with_source() if self.sourced else bounded

    def behind(self, first: Command) -> Command:
        """Return the same command, but links send `first` right before it, each time."""
        command = copy(self)
        command.first = first
        return command

    def with_source(self) -> Command:
        """Return the same call with the source, for a node that doesn't know the script."""
        if self.script is None:
            return self
        source = self.script.source
        command = copy(self)
        command.sourced = True
        command.packed = pack(("EVAL", source, len(self.keys), *self.keys, *self.args))
        return command


CACHING: Final = Command.plain("CLIENT", "CACHING", "YES")
"""Requests a push for the keys that the next command on the connection reads."""
ASKING: Final = Command.plain("ASKING")
"""Allows the next command on the connection to use a slot that is on its way to this server."""


class BatchCommand(Command):
    """Several releases and acquires of one script: one command, or a bundle of one per name."""

    def __init__(
        self,
        script: Script | None,
        keys: Sequence[str],
        args: Sequence[Word],
        claims: Sequence[Word],
        singles: Callable[[], Sequence[Command]],
    ) -> None:
        super().__init__(script, keys, args)
        self._claims = claims
        self._singles: Sequence[Command] | None = None
        self._make = singles

    @property
    def claims(self) -> Sequence[Word]:
        """The owners whose key this command may set, in the order of the replies."""
        return self._claims

    @property
    def singles(self) -> Sequence[Command]:
        """One command per name, for the rare cases in which each name counts alone."""
        if self._singles is None:  # kept, because each command that is rejected asks again
            self._singles = self._make()
        return self._singles


@functools.lru_cache(maxsize=2048)
def head(script: Script, keys: Sequence[str], op: Word, more: int) -> bytes:
    """Return the packed beginning of a command, up to its operation; `more` words follow."""
    words = pack(("EVALSHA", script.sha, len(keys), *keys, op)).partition(b"\n")[2]
    return b"*%d\r\n%b" % (4 + len(keys) + more, words)


class Script:
    """Lua source and its SHA-1, by which nodes know it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha: str = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, package: str, *names: str) -> Script:
        """Join the files `names` of `package` into one script."""
        # Importing importlib.resources takes ten times as long as reading all scripts.
        # None, from a loader that can't read files, is a TypeError.
        files = (pkgutil.get_data(package, name) for name in names)
        source = "\n".join(str(file, "utf-8") for file in files)  # type: ignore[arg-type]
        return cls(source)


# ---- What a node answers: a reply or a Failure, the sinks that take it, what INFO and TIME say ---


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

SENT_AGAIN = (*REDIRECTS, "TRYAGAIN", "NOSCRIPT")
"""Codes of a Cluster's errors after which the command is sent again; no server is at fault."""


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


GIVEN_UP: Final = Failure("given up before it was executed")
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
    "WRONGTYPE": "another program has a key of this name: choose another name or prefix",
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
        return Failure(f"{text.rstrip('.')} ({advice})", permanent=True, code=code)
    return Failure(text, permanent or forbidden, code)


def lost(error: BaseException, *, greeted: bool) -> Failure:
    """Return why a connection ended: a server may refuse our certificate after the handshake."""
    refused = not greeted and refused_certificate(error)
    return Failure(f"connection lost: {error}", refused, NO_TRUST if refused else "")


def refused_certificate(error: BaseException) -> bool:
    """Return whether this says that we refused a certificate, or the server ours."""
    reason = str(getattr(error, "reason", ""))
    return isinstance(error, ssl.SSLError) and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def by_field(reply: Any) -> dict[str, str]:
    """Return the map of texts in a reply, in RESP2 a list of fields and values in turns."""
    fields = zip(reply[::2], reply[1::2], strict=True) if type(reply) is list else reply.items()
    return {key.decode(): value.decode("utf-8", "replace") for key, value in fields}


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


class Gather:
    """Keeps each reply; `complete` once all are here, or `enough` of them without a failure."""

    def __init__(self, size: int, enough: int, patience: float = 0.0) -> None:
        self.found: dict[int, Any] = {}
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
    history = (fields.get(key, "") for key in HISTORY)
    always = fsync in ({b"appendfsync": b"always"}, [b"appendfsync", b"always"])
    return Facts(
        run_id=fields.get("run_id") or None,
        uptime=number(fields, "uptime_in_seconds"),
        lineage=frozenset(one for one in history if one.strip("0")),
        version=fields.get("valkey_version") or fields.get("redis_version"),
        role=fields.get("role"),
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
    """Return whether these are a Sentinel's: `redis_mode`, or `server_mode` of Valkey 9."""
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
