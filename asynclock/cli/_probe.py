"""Everything worth knowing about one server, asked over two connections in about a second."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field
from typing import Any

from .. import _clock
from .._nodes.endpoint import Endpoint, redacted
from .._nodes.handshake import HandshakeError, facts, greet
from .._nodes.link import Failure, Link
from .._nodes.script import Command
from .._primitives.lock import SCRIPT
from .._rules.trust import Facts, Trust

LIMIT = 2.0
"""Seconds to connect, and to answer."""
STEP = 0.1
"""Seconds between two readings of the server's clock."""
SETTINGS = (
    "appendfsync",
    "maxclients",
    "min-replicas-to-write",
    "save",
    "stop-writes-on-bgsave-error",
    "timeout",
)


@dataclass
class Probe:
    """What one server said; empty where it said nothing."""

    endpoint: Endpoint
    url: str
    """Without a password."""
    login: bool
    """Whether the URL has a password."""
    down: Failure | None = None
    facts: Facts = field(default_factory=Facts)
    waits: float = 0.0
    """Seconds for which the engine would not count its votes, by the engine's own rule."""
    waits_because: str = ""
    info: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    refused: dict[str, Failure] = field(default_factory=dict)
    """Command → why it was refused."""
    other_run_id: str | None = None
    """What a second connection found."""
    trips: list[float] = field(default_factory=list)
    offset: float | None = None
    """Seconds that its clock is ahead of ours."""
    jumped: float = 0.0
    """Seconds that its clock moved against ours in one step while we looked."""
    rate: float = 0.0
    """Seconds per second that it runs fast, at least; 0 while it can't be told from a good one."""

    @property
    def address(self) -> str:
        """How it is named."""
        return self.endpoint.address

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it, as far as its address tells."""
        host = self.endpoint.host
        return bool(self.endpoint.path) or host in ("localhost", "::1") or host.startswith("127.")

    def number(self, key: str) -> int:
        """A number in INFO; 0 where there is none."""
        text = self.info.get(key, "")
        return int(text) if text.lstrip("-").isdigit() else 0

    @property
    def round_trip(self) -> float | None:
        """The median of the round trips, in seconds."""
        return sorted(self.trips)[len(self.trips) // 2] if self.trips else None


@dataclass(frozen=True)
class Terms:
    """What the servers are wanted for."""

    nodes: int
    max_ttl: float
    node_timeout: float
    prefix: str
    acks: bool
    watch: float
    """Seconds to watch each clock."""


async def probe(endpoint: Endpoint, url: str, terms: Terms) -> Probe:
    """Ask one server; whatever fails is part of the answer."""
    login = bool(await endpoint.credentials())
    found = Probe(endpoint, redacted(url).strip("'"), login)
    ear = Ear()
    try:
        link = await greet(endpoint, ear, LIMIT, LIMIT)
    except HandshakeError as error:
        found.down = error.failure
        return found
    try:
        await _ask(found, link, terms)
    finally:
        link.close("done")
    return found


async def _ask(found: Probe, link: Link, terms: Terms) -> None:
    info, fsync, tracking = await asyncio.gather(
        link.ask(Command.plain("INFO")),
        link.ask(Command.plain("CONFIG", "GET", "appendfsync")),
        link.ask(Command.plain("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")),
    )
    if isinstance(info, Failure) and not info.code:
        found.down = info
        return
    _keep(found, "INFO", info)
    _keep(found, "CONFIG GET", fsync)
    if _keep(found, "CLIENT TRACKING", tracking):
        _keep(found, "CLIENT CACHING", await link.ask(Command.plain("CLIENT", "CACHING", "YES")))
    found.info = _words(info)
    found.facts = facts(info, fsync, tracking=tracking == b"OK")
    trust = Trust(terms.max_ttl)
    found.waits = trust.met(found.facts, _clock.now(), guard=True, guard_first=terms.nodes > 1)
    found.waits_because = trust.cause
    await _read_settings(found, link)
    await _try_commands(found, link, terms)
    await asyncio.gather(_watch_clock(found, link, trust, terms.watch), _second_look(found))


def _keep(found: Probe, command: str, reply: Any) -> bool:
    if isinstance(reply, Failure):
        found.refused[command] = reply
        return False
    return True


def _words(info: Any) -> dict[str, str]:
    if not isinstance(info, bytes):
        return {}
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


async def _read_settings(found: Probe, link: Link) -> None:
    asked = (link.ask(Command.plain("CONFIG", "GET", name)) for name in SETTINGS)
    for name, reply in zip(SETTINGS, await asyncio.gather(*asked), strict=True):
        if isinstance(reply, dict) and name.encode() in reply:
            found.config[name] = reply[name.encode()].decode("utf-8", "replace")


async def _try_commands(found: Probe, link: Link, terms: Terms) -> None:
    """Every command that locks need, on a key of ours that is gone within a second."""
    key = f"{terms.prefix}doctor-{secrets.token_hex(8)}"
    lock = Command(SCRIPT, (key, key + "-counter"), ("inspect",))
    tried = {
        "SET": Command.plain("SET", key, "doctor", "PX", 1000),
        "GET": Command.plain("GET", key),
        "PTTL": Command.plain("PTTL", key),
        "PEXPIRE": Command.plain("PEXPIRE", key, 1000),
        "DEL": Command.plain("DEL", key),
        "TIME": Command.plain("TIME"),
        "SCRIPT LOAD": Command.plain("SCRIPT", "LOAD", SCRIPT.source),
        "EVAL": Command.plain("EVAL", "return 1", 0),
        "EVALSHA": lock,
        "SCAN": Command.plain("SCAN", 0, "COUNT", 1),
    }
    if terms.acks:
        tried["WAIT"] = Command.plain("WAIT", 0, 1)
    replies = await asyncio.gather(*(link.ask(command) for command in tried.values()))
    for name, reply in zip(tried, replies, strict=True):
        _keep(found, name, reply)


async def _watch_clock(found: Probe, link: Link, trust: Trust, seconds: float) -> None:
    first: tuple[float, float, float] | None = None
    until = _clock.now() + seconds
    steps: list[float] = []
    while True:
        sent = _clock.now()
        reply = await link.ask(Command.plain("TIME"))
        received = _clock.now()
        if not isinstance(reply, list):
            return
        found.trips.append(received - sent)
        clock = int(reply[0]) + int(reply[1]) / 1_000_000
        # (its clock - ours) lies in an interval; the engine's own rule says what is a jump.
        low, high = clock - received, clock - sent
        steps.append(trust.sample(clock, sent, received))
        if first is None:
            first = (low, high, sent)
        elif received - first[2] > 0:
            span = received - first[2]
            found.rate = max(0.0, (low - first[1]) / span) or min(0.0, (high - first[0]) / span)
        if received >= until:
            break
        await asyncio.sleep(STEP)
    found.offset = (low + high) / 2 + received - _clock.wall()
    jumps = [step for step in steps if step]
    if len(jumps) == 1:
        found.jumped, found.rate = jumps[0], 0.0


async def _second_look(found: Probe) -> None:
    """Another connection: a proxy or balancer may lead it to another server."""
    with contextlib.suppress(HandshakeError):
        link = await greet(found.endpoint, Ear(), LIMIT, LIMIT)
        try:
            said = _words(await link.ask(Command.plain("INFO", "server")))
            found.other_run_id = said.get("run_id")
        finally:
            link.close("done")


class Ear:
    """The owner of a link that listens to nothing but replies."""

    def told(self, clock: float, sent: float, received: float) -> None:
        """Clocks are read on purpose here."""

    def pushed(self, push: list[Any]) -> None:
        """No key is watched."""

    def lost(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        """The questions that were out fail by themselves."""
