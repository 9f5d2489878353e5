"""What is asked of one server: facts, rights, clock, fence counters, a use of each primitive."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _clock
from .._engine.engine import Engine
from .._engine.spec import LeaseOptions
from .._inspect.survey import ask, page_of
from .._keys import FENCE, MARKER, lock_key
from .._nodes.endpoint import Endpoint, redacted
from .._nodes.handshake import (
    RECORD_KEY,
    WITNESS_KEY,
    HandshakeError,
    ask_whether_one_server,
    greet,
    reading_record,
    record_in,
)
from .._nodes.link import Link
from .._nodes.replicated.acks import Acks
from .._nodes.wire import (
    NOBODY,
    UNREADABLE,
    Command,
    Failure,
    Sink,
    by_field,
    number,
    parse_info,
    read_facts,
    read_time,
    reader,
)
from .._primitives.base import OTHER
from .._primitives.kinds import KINDS
from .._primitives.lock import SCRIPT
from .._rules.nodeset import NOTHING, Copy, NodeSet
from .._rules.validity import Facts, Trust
from ..errors import AsyncLockError
from ..fleet import CLIENTS
from ..manager import engine_of
from ._settings import Settings

REPLY_TIMEOUT = 2.0
"""Seconds for the connection, and for each reply."""
CLOCK_PAUSE = 0.1
"""Seconds between two readings of the server's clock."""
SECOND = "a second connection"
"""Key in `Probe.refused` for a second connection that failed."""
SETTINGS = (
    "aclfile",
    "appendfsync",
    "maxclients",
    "min-replicas-to-write",
    "save",
    "stop-writes-on-bgsave-error",
    "timeout",
)


@dataclass
class Probe:
    """What one server reported; fields are empty if it didn't."""

    endpoint: Endpoint
    url: str
    """The URL without its password."""
    login: bool
    """Whether the URL has a password."""
    user: str = "default"
    """The user that we log in as."""
    down: Failure | None = None
    tls: str | None = None
    """The fault of TLS, if that is the reason: a code of findings.toml."""
    unusable: dict[str, str] = field(default_factory=dict)
    """For each primitive that failed in the trial: why."""
    facts: Facts = field(default_factory=Facts)
    waits: float = 0.0
    """Seconds for which the node has no vote, by the engine's own rule."""
    waits_because: str = ""
    info: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    refused: dict[str, Failure] = field(default_factory=dict)
    """For each command that was refused, or whose reply has an odd form: why."""
    other_run_id: str | None = None
    """The run_id that a second connection found."""
    trips: list[float] = field(default_factory=list)
    offset: float | None = None
    """Seconds that the server's clock is ahead of ours."""
    jumped: float = 0.0
    """Seconds by which the server's clock jumped against ours during the probe."""
    counters: Counters | None = None
    """The fence counters; None if the server refuses to list its keys."""
    copy: Copy = NOTHING
    """Its copy of the record of the fleet's set of nodes."""
    clients: Any = None
    """Its reply to CLIENT LIST."""
    rate: float = 0.0
    """Minimum drift of its clock in seconds per second, negative if slow; 0 if it may be good."""

    @property
    def address(self) -> str:
        """The name of the server in findings: its host and port, or its socket."""
        return self.endpoint.address

    @property
    def local(self) -> bool:
        """Whether the address is one that only this machine can reach."""
        host = self.endpoint.host
        return bool(self.endpoint.path) or host in ("localhost", "::1") or host.startswith("127.")

    def number(self, key: str) -> int:
        """Return a number in INFO; 0 if there is none."""
        return number(self.info, key) or 0

    def setting(self, name: str) -> int:
        """Return a number in the configuration; 0 if there is none."""
        return number(self.config, name) or 0

    @property
    def configurable(self) -> bool:
        """Whether it may be one that commands configure: it shows its settings, or none was asked.

        Servers of managed services hide them, and servers of others from users without rights.
        """
        return bool(self.config) or self.down is not None

    @property
    def epoch(self) -> int | None:
        """The epoch of the record that it keeps; None without one."""
        record = NodeSet.parse(self.copy.text)
        return None if record is None else record.epoch

    @property
    def round_trip(self) -> float | None:
        """The median of the round trips, in seconds."""
        return sorted(self.trips)[len(self.trips) // 2] if self.trips else None


@dataclass(frozen=True)
class Purpose:
    """What the servers are to be used for."""

    nodes: int
    max_ttl: float
    node_timeout: float
    prefix: str
    acks: Acks
    watch: float
    """Seconds to watch each clock."""
    disks_kept: bool = False
    """Whether the services promise that no node loses its disk (`restart_guard="disk"`)."""
    options: str = ""
    """What names the nodes on the command line of another command of ours, without passwords."""


async def probe(endpoint: Endpoint, url: str, purpose: Purpose) -> Probe:
    """Probe one server; failures become part of the result."""
    login = await endpoint.credentials()
    found = Probe(endpoint, redacted(url).strip("'"), bool(login), (login or ("default",))[0])
    listener = NullListener()
    try:
        link = await greet(endpoint, listener, REPLY_TIMEOUT, REPLY_TIMEOUT)
    except HandshakeError as error:
        found.down = error.failure
        found.tls = await diagnose(endpoint)
        return found
    try:
        await _ask(found, link, purpose)
    except HandshakeError as error:
        found.down = error.failure
    finally:
        link.close("done")
    return found


async def _ask(found: Probe, link: Link, purpose: Purpose) -> None:
    info, fsync, tracking = await asyncio.gather(
        link.ask(Command.plain("INFO")),
        link.ask(Command.plain("CONFIG", "GET", "appendfsync")),
        link.ask(Command.plain("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")),
    )
    if isinstance(info, Failure) and not info.code:
        found.down = info
        return
    _allowed(found, "INFO", info)
    _allowed(found, "CONFIG GET", fsync)
    tracked = tracking == b"OK" and link.no_hello is None
    if link.no_hello is not None:
        _allowed(found, "HELLO", link.no_hello)
    elif _allowed(found, "CLIENT TRACKING", tracking):
        _allowed(found, "CLIENT CACHING", await link.ask(Command.plain("CLIENT", "CACHING", "YES")))
    if not tracked:
        await ask_whether_one_server(link, purpose.prefix + WITNESS_KEY)
    found.info = parse_info(info)
    found.facts = read_facts(info, fsync, tracking=tracked)
    trust = Trust(purpose.max_ttl)
    found.waits = trust.met(
        found.facts,
        _clock.now(),
        guard=True,
        guard_first=purpose.nodes > 1,
        disks_kept=purpose.disks_kept,
    )
    found.waits_because = trust.why(_clock.now())
    found.copy = record_in(await link.ask(reading_record(purpose.prefix + RECORD_KEY)[1]))
    found.clients = await link.ask(CLIENTS)
    await _read_settings(found, link)
    await _try_commands(found, link, purpose)
    found.counters = await count_counters(link, purpose.prefix)
    await asyncio.gather(_watch_clock(found, link, trust, purpose.watch), _second_connection(found))


def _allowed(found: Probe, command: str, reply: Any) -> bool:
    read = READERS.get(command)
    if isinstance(answer := read(reply) if read else reply, Failure):
        found.refused[command] = answer
        return False
    return True


READERS: dict[str, Callable[[Any], object]] = {
    "INFO": reader(lambda reply: reply.splitlines()),
    "SCAN": page_of,
    "TIME": read_time,
}
"""What reads the reply to a command, or returns a Failure if the reply has an odd form."""


async def _read_settings(found: Probe, link: Link) -> None:
    asked = (link.ask(Command.plain("CONFIG", "GET", name)) for name in SETTINGS)
    for settings in map(reader(by_field), await asyncio.gather(*asked)):
        if isinstance(settings, dict):
            found.config |= settings
        elif settings is UNREADABLE:
            found.refused["CONFIG GET"] = settings


async def _try_commands(found: Probe, link: Link, purpose: Purpose) -> None:
    """Try every command that locks need, on a key of our own that expires within a second."""
    key = f"{purpose.prefix}doctor-{secrets.token_hex(8)}"
    lock = Command(SCRIPT, (key, key + "-counter"), ("inspect",))
    tried = {
        "SET": Command.plain("SET", key, "doctor", "PX", 1000),
        "GET": Command.plain("GET", key),
        "PTTL": Command.plain("PTTL", key),
        "PEXPIRE": Command.plain("PEXPIRE", key, 1000),
        "DEL": Command.plain("DEL", key),
        "TIME": Command.plain("TIME"),
        "SCRIPT LOAD": Command.plain("SCRIPT", "LOAD", SCRIPT.source),
        "EVAL": Command.plain("EVAL", "return 1", 1, key),  # a proxy needs a key
        "EVALSHA": lock,
        "SCAN": Command.plain("SCAN", 0, "COUNT", 1),
        "WAIT": Command.plain("WAIT", 0, 1),
    }
    if purpose.acks.durable:
        tried["WAITAOF"] = Command.plain("WAITAOF", 0, 0, 1)
    replies = await asyncio.gather(*(link.ask(command) for command in tried.values()))
    for name, reply in zip(tried, replies, strict=True):
        if not _allowed(found, name, reply) and not (failure := found.refused[name]).code:
            found.down = failure  # it closed the connection, or answers no more


async def _watch_clock(found: Probe, link: Link, trust: Trust, seconds: float) -> None:
    first: tuple[float, float, float] | None = None
    until = _clock.now() + seconds
    steps: list[float] = []
    while True:
        sent = _clock.now()
        clock = read_time(await link.ask(Command.plain("TIME")))
        received = _clock.now()
        if isinstance(clock, Failure):
            return
        found.trips.append(received - sent)
        # (its clock - ours) lies in an interval; the engine's own rule decides what is a jump.
        low, high = clock - received, clock - sent
        steps.append(trust.sample(clock, sent, received))
        if first is None:
            first = (low, high, sent)
        else:
            span = received - first[2]
            found.rate = max(0.0, (low - first[1]) / span) or min(0.0, (high - first[0]) / span)
        if received >= until:
            break
        await asyncio.sleep(CLOCK_PAUSE)
    found.offset = (low + high) / 2 + received - _clock.wall()
    jumps = [step for step in steps if step]
    if len(jumps) == 1:
        found.jumped, found.rate = jumps[0], 0.0


async def _second_connection(found: Probe) -> None:
    """Open another connection, which a proxy or balancer may lead to another server."""
    replies = await replies_of(found.endpoint, ("INFO", "server"))
    if isinstance(replies, Failure):
        found.refused[SECOND] = replies
    else:
        found.other_run_id = parse_info(*replies).get("run_id")


async def replies_of(endpoint: Endpoint, *commands: Sequence[str]) -> list[Any] | Failure:
    """Return what a server replies on a connection of its own, or why there is none."""
    try:
        link = await greet(endpoint, NullListener(), REPLY_TIMEOUT, REPLY_TIMEOUT)
    except HandshakeError as error:
        return error.failure
    try:
        return list(await asyncio.gather(*(link.ask(Command.plain(*one)) for one in commands)))
    finally:
        link.close("done")


class NullListener:
    """The owner of a link that needs nothing but replies."""

    watched_keys: Collection[str] = ()
    in_cluster = False
    lack: Failure | None = None

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Do nothing: no key is watched, and commands without a reply fail by themselves."""

    on_wake: Callable[..., None] = _ignore
    on_answer: Callable[..., None] = _ignore
    on_clock: Callable[..., None] = _ignore
    on_push: Callable[..., None] = _ignore
    on_disconnect: Callable[..., None] = _ignore

    def keep_release(self, release: Command) -> Sink:  # noqa: ARG002 # as the link calls it
        """Keep nothing: the probe holds nothing."""
        return NOBODY


# ---- Why a connection fails, where TLS is the reason: as a code of findings.toml -----------------


_PLAIN_PORT = "tls-plain-port"
_CLIENT = "tls-client-certificate"
_AUTHORITY = "tls-authority"
# Codes of OpenSSL's X509_V_ERR_*.
_VERIFY = {
    10: "tls-expired",
    **dict.fromkeys((18, 19, 20, 21), _AUTHORITY),
    **dict.fromkeys((62, 64), "tls-name"),
}


async def diagnose(endpoint: Endpoint) -> str | None:
    """Connect once more; return the fault of TLS, None if the failure has another reason."""
    unseen = endpoint.path or endpoint.opaque
    return None if unseen else await asyncio.to_thread(_look, endpoint)


def _look(endpoint: Endpoint) -> str | None:
    context = endpoint.tls
    try:
        if context is None:
            return "tls-only" if _speaks_tls(endpoint) else None
        _listen(endpoint, context)
    except ssl.SSLCertVerificationError as error:
        return _VERIFY.get(error.verify_code, "tls-certificate")
    except ssl.SSLError as error:
        return _by_reason(error.reason or str(error))
    except OSError:
        pass  # a plain server waits for an end of line, which TLS does not send
    try:
        answer = _listen(endpoint, None)
    except OSError:
        return None
    return _PLAIN_PORT if answer.startswith((b"+", b"-")) else None


def _speaks_tls(endpoint: Endpoint) -> bool:
    anything = ssl.create_default_context()
    anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), REPLY_TIMEOUT) as plain,
            anything.wrap_socket(plain),
        ):
            return True
    except ssl.SSLError as error:
        return _by_reason(error.reason or str(error)) is _CLIENT
    except OSError:
        return False


def _by_reason(reason: str) -> str | None:
    reason = reason.upper().replace(" ", "_")
    # TLS 1.3 has an alert for a missing certificate; older versions report any failure.
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return _CLIENT
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason or "EOF" in reason:
        return _PLAIN_PORT
    return _CLIENT if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason else None


def _listen(endpoint: Endpoint, context: ssl.SSLContext | None) -> bytes:
    """Connect, send PING if there is no TLS, and return the reply. Raises OSError."""
    with socket.create_connection((endpoint.host, endpoint.port), REPLY_TIMEOUT) as plain:
        if context is None:
            plain.sendall(b"PING\r\n")
            return plain.recv(64)
        # In TLS 1.3 the server checks our certificate after the handshake has ended for us, and
        # resets a connection with unread bytes, which would hide the reason: so send nothing.
        with context.wrap_socket(plain, server_hostname=endpoint.host) as secure:
            return secure.recv(64)


# ---- The fence counters, on a large server from a sample -----------------------------------------


KEYS_PER_SCAN = 1000
"""Number of keys that the server looks at in one step."""
PAGES = 100
"""Maximum number of steps; beyond them the rest is estimated."""
WEIGHED = 20
"""Maximum number of counters whose memory is asked for."""


@dataclass(frozen=True)
class Counters:
    """The fence counters of all names under the prefix."""

    count: int
    size: int | None
    """Bytes that they take; None if the server does not tell."""

    @property
    def shown(self) -> str:
        """The numbers for people."""
        size = "" if self.size is None else f" ({self.size / 1e6:.1f} MB)"
        return f"{self.count:,}{size}"


async def count_counters(link: Link, prefix: str) -> Counters | None:
    """Return the counters on the server at `link`; None if it refuses to list its keys."""
    begins, ends = prefix.encode(), f"{MARKER}{FENCE}".encode()
    found: list[bytes] = []
    cursor, seen = b"0", 0
    for _ in range(PAGES):
        page = page_of(await link.ask(Command.plain("SCAN", cursor, "COUNT", KEYS_PER_SCAN)))
        if isinstance(page, Failure):
            return None
        cursor = page.cursor
        seen += len(page.keys)
        found += (key for key in page.keys if key.startswith(begins) and key.endswith(ends))
        if cursor == b"0":
            return Counters(len(found), await _size(link, found, len(found)))
    total = await link.ask(Command.plain("DBSIZE"))
    count = round(len(found) * total / seen) if isinstance(total, int) and seen else len(found)
    return Counters(count, await _size(link, found, count))


async def _size(link: Link, found: list[bytes], count: int) -> int | None:
    sample = found[:: len(found) // WEIGHED + 1]
    asked = (link.ask(Command.plain("MEMORY", "USAGE", key)) for key in sample)
    sizes = [size for size in await asyncio.gather(*asked) if isinstance(size, int)]
    if not sizes:
        return 0 if not found else None
    return round(sum(sizes) / len(sizes) * count)


# ---- Takes a real lock and uses every other primitive once, so that all scripts run --------------


LIMIT = 2.0
"""Maximum seconds for each primitive."""
TTL = 5.0
"""Seconds after which the locks of an interrupted trial end by themselves."""


async def use_everything(settings: Settings, url: str) -> dict[str, str]:
    """Use each primitive on this node alone; return the cause for each one that fails.

    `settings` are those of the services, including `acks`. The guards are off, because a node
    without a vote has a finding of its own.
    """
    options = {**settings.options, "ttl": TTL, "strict": False}
    options |= {"restart_guard": False, "clock_guard": False, "set_guard": False}
    options["node_timeout"] = max(1.0, float(options.get("node_timeout", 1.0)))
    options["max_ttl"] = max(4 * options["node_timeout"], TTL, float(options.get("max_ttl", TTL)))
    run = f"doctor-{secrets.token_hex(8)}"
    trials = {kind.method or kind.name: kind.trial for kind in KINDS}
    failed: dict[str, str] = {}
    async with Settings((url,), options).connect() as locks:
        engine, how = engine_of(locks), LeaseOptions(TTL)
        for primitive, trial in trials.items():
            # If a plain lock fails, the other primitives would only fail in the same way.
            name = f"{run}-{primitive}"
            if "lock" not in failed and (cause := await _cause(trial(engine, name, how, LIMIT))):
                failed[primitive] = cause
        await _clean_up(engine, [f"{run}-{one}{end}" for one in trials for end in ("", OTHER)])
    return failed


async def _cause(using: Awaitable[object]) -> str | None:
    try:
        async with asyncio.timeout(2 * LIMIT):
            await using
    except AsyncLockError as error:
        nodes = getattr(error, "nodes", None)
        return next(iter(nodes.values())) if nodes else str(error)
    except TimeoutError:
        return f"no answer within {2 * LIMIT:g} s"
    return None


async def _clean_up(engine: Engine, names: Sequence[str]) -> None:
    prefix = engine.settings.prefix
    keys = {key for kind in KINDS for one in names for key in kind.keys(lock_key(prefix, one))}
    (node,) = engine.multiplexer.nodes
    # One key per command, because on a Cluster the keys are in different slots.
    await asyncio.gather(*(ask(node, Command.plain("DEL", key, keys=(key,))) for key in keys))
