"""A primary that Sentinels watch: found by asking them, left when they name another one.

All Sentinels are asked and the newest opinion counts (the highest configuration epoch), provided
that a majority of those configured answered: one that was cut off keeps naming the old primary.
They are asked again every second while a connection is open, because an old primary that wakes up
goes on as one until a Sentinel demotes it, which takes seconds.
https://redis.io/docs/latest/develop/reference/sentinel-clients/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from redis.asyncio.sentinel import SentinelConnectionPool

from .._background import Background
from .._rules.quorum import majority
from .._rules.trust import Facts
from ..errors import ConfigurationError
from ..events import Observers
from .acks import AckedLink
from .endpoint import Endpoint, Seeds
from .handshake import HandshakeError, greet
from .link import Failure, Link
from .node import Node, NodeSettings
from .primary import Primaries
from .script import Command

_log = logging.getLogger("asynclock.nodes")

PORT = 26379
POLL = 1.0
"""Seconds between two questions to the Sentinels while all is well."""
LAG = 2 * POLL
"""So long others may go on with a primary that has been replaced: until they have asked, too."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one Sentinel says; the highest epoch is the newest."""

    epoch: int
    host: str
    port: int
    replicas: int
    """Those it regards as alive."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a URL or a client of redis-py says of a group behind Sentinels."""

    name: str
    data: Endpoint
    """How to log in to the servers; the address comes from the Sentinels."""
    sentinels: tuple[Endpoint, ...]

    @classmethod
    def from_url(cls, url: str) -> Service:
        """From `redis+sentinel://user:password@host:port,host:port/service?db=0`.

        The Sentinels' own login is in `sentinel_username` and `sentinel_password`.
        """
        seeds = Seeds(url, port=PORT)
        user = seeds.query.pop("sentinel_username", "")
        password = seeds.query.pop("sentinel_password", "")
        if not seeds.path or "/" in seeds.path:
            raise ConfigurationError(
                f"{seeds.shown} must end with the name of one service: "
                "redis+sentinel://host1,host2,host3/service"
            )
        data = seeds.endpoints()[0]
        seeds.query.pop("db", None)
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
        return cls(seeds.path, data, tuple(seeds.endpoints(login)))

    @classmethod
    def of_pool(cls, pool: SentinelConnectionPool) -> Service:
        """From the client that redis-py's `Sentinel.master_for` makes."""
        clients = pool.sentinel_manager.sentinels
        sentinels = tuple(Endpoint.of(client) for client in clients)
        return cls(str(pool.service_name), Endpoint.of_pool(pool, "the client"), sentinels)


class SentinelNode(Node):
    """The primary of one service, whoever it is; one voter."""

    def __init__(self, service: Service, primaries: Primaries, observers: Observers) -> None:
        where = ",".join(endpoint.address for endpoint in service.sentinels)
        super().__init__(f"{service.name}@{where}", self._open, primaries.settings, observers)
        self._service = service
        self._primaries = primaries
        self._sentinels = [
            _sentinel(endpoint, primaries.settings) for endpoint in service.sentinels
        ]
        self._master = Command.plain("SENTINEL", "MASTER", service.name)
        self._replicas = Command.plain("SENTINEL", "REPLICAS", service.name)
        self._current = ("", 0)

    async def keep(self) -> None:
        """Keep a link to the primary open until cancelled."""
        crew = Background()
        try:
            for sentinel in self._sentinels:
                crew.spawn(sentinel.keep(), f"asynclock: keep Sentinel {sentinel.address}")
            crew.spawn(self._look_after(), f"asynclock: watch {self.address}")
            await super().keep()
        finally:
            await crew.aclose()

    async def finish(self) -> None:
        """Close all links once what is queued has been written."""
        await super().finish()
        await asyncio.gather(*(sentinel.finish() for sentinel in self._sentinels))

    async def _open(self, _node: Node, limit: float) -> tuple[Link, Facts]:
        opinion = await self._ask_sentinels()
        # A dead address may be replaced any moment: better to ask again than to wait for it.
        patience = min(limit, 2 * self.settings.node_timeout)
        link, facts = await self._primaries.dial(
            self._service.data.at(opinion.host, opinion.port),
            self,
            patience,
            replicas=opinion.replicas,
        )
        if facts.marked is not None and not facts.complete:
            facts = replace(facts, marked=facts.marked - LAG)
        if (opinion.host, opinion.port) != self._current:
            self._current = (opinion.host, opinion.port)
            _log.info("%s: the primary is %s:%d", self.address, opinion.host, opinion.port)
        return link, facts

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(POLL * (0.75 + self.random() / 4))
            link = self._link
            if link is None:
                continue
            try:
                opinion = await self._ask_sentinels()
            except HandshakeError:
                continue  # without a majority of Sentinels nobody is replaced either
            if link is not self._link:
                continue
            if (opinion.host, opinion.port) != self._current:
                link.close("the Sentinels name another primary")
            elif isinstance(link, AckedLink):
                link.replicas = opinion.replicas

    async def _ask_sentinels(self) -> Opinion:
        poll = _Poll(len(self._sentinels), self.settings.node_timeout / 4)
        for index, sentinel in enumerate(self._sentinels):
            sentinel.ask(self._master, poll, 2 * index)
            sentinel.ask(self._replicas, poll, 2 * index + 1)
        await poll.complete
        return poll.verdict(self._service.name)


def _sentinel(endpoint: Endpoint, settings: NodeSettings) -> Node:
    async def open_link(node: Node, limit: float) -> tuple[Link, Facts]:
        return await greet(endpoint, node, settings.node_timeout, limit), Facts()

    unguarded = replace(settings, restart_guard=False)
    return Node(endpoint.address, open_link, unguarded, Observers())


_SILENT = Failure("no answer yet")


class _Poll:
    """The sink for what all Sentinels say: the primary under 2i, its replicas under 2i + 1."""

    def __init__(self, size: int, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.complete: asyncio.Future[None] = self._loop.create_future()
        self._size = size
        self._patience = patience
        """Seconds for the others once a majority has answered: one may be frozen."""
        self._said: dict[int, Any] = {}

    def cast(self, index: int, reply: Any) -> None:
        """Keep one answer."""
        self._said[index] = reply
        if len(self._said) == 2 * self._size:
            self._finish()
        elif len(self._said) == 2 * majority(self._size):
            self._loop.call_later(self._patience, self._finish)

    def _finish(self) -> None:
        if not self.complete.done():
            self.complete.set_result(None)

    def verdict(self, service: str) -> Opinion:
        """The newest opinion. Raises HandshakeError where there are too few."""
        said = [self._said.get(i, _SILENT) for i in range(2 * self._size)]
        pairs = list(zip(said[::2], said[1::2], strict=True))
        opinions = [opinion for pair in pairs if (opinion := _opinion(*pair)) is not None]
        if len(opinions) >= majority(self._size):
            return max(opinions, key=lambda opinion: opinion.epoch)
        failures = [one for pair in pairs if (one := _first_failure(pair)) is not None]
        unknown = [failure for failure in failures if "No such master" in failure.cause]
        if len(unknown) >= majority(self._size):
            cause = f"the Sentinels know no service {service!r}"
            raise HandshakeError(Failure(cause, permanent=True))
        causes = "; ".join(sorted({failure.cause for failure in failures}))
        cause = f"{len(opinions)} of {self._size} Sentinels answered ({causes})"
        hopeless = len(failures) == self._size and all(one.permanent for one in failures)
        raise HandshakeError(Failure(cause, permanent=hopeless))


def _first_failure(replies: Iterable[Any]) -> Failure | None:
    return next((reply for reply in replies if isinstance(reply, Failure)), None)


def _opinion(master: Any, replicas: Any) -> Opinion | None:
    if isinstance(master, Failure) or isinstance(replicas, Failure):
        return None
    said = _fields(master)
    alive = [_alive(_fields(replica)) for replica in replicas]
    return Opinion(int(said["config-epoch"]), said["ip"], int(said["port"]), sum(alive))


def _alive(replica: dict[str, str]) -> bool:
    return not {"s_down", "o_down", "disconnected"} & set(replica["flags"].split(","))


def _fields(reply: Any) -> dict[str, str]:
    if isinstance(reply, list):
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    return {key.decode(): value.decode("utf-8", "replace") for key, value in reply.items()}
