"""A primary that Sentinels watch: they name it, and its link is closed when they name another.

All Sentinels are asked. The primary is the server that a majority of the configured Sentinels
names, because a Sentinel that was cut off keeps naming the old primary. They are asked again every
second while a connection is open. An old primary that resumes acts as the primary until a Sentinel
demotes it, which takes seconds; one that is cut off together with its clients goes on without end.
https://redis.io/docs/latest/develop/reference/sentinel-clients/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .. import _clock
from .._background import Background
from .._rules.quorum import majority
from .._rules.trust import Facts
from ..errors import ConfigurationError
from ..events import Observers
from .acks import AckedLink
from .endpoint import Endpoint, Seeds
from .handshake import HandshakeError, why_unready
from .link import Failure, Link
from .node import Node
from .poll import Poll, scout
from .primary import Primaries
from .script import Command
from .watched import POLL, WatchedNode, poll_patience

if TYPE_CHECKING:
    from redis.asyncio.sentinel import SentinelConnectionPool

_log = logging.getLogger("asynclock.nodes")

PORT = 26379
GAP = 0.1
"""Maximum seconds between two requests to the Sentinels while they don't agree."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one Sentinel reports."""

    host: str
    port: int
    epoch: int
    """Rises with each failover."""
    replicas: int
    """Number of replicas that the Sentinel regards as alive."""

    @property
    def place(self) -> tuple[str, int]:
        """The host and port of the primary."""
        return self.host, self.port

    def agrees(self, other: Opinion | None) -> bool:
        """Return whether both name the same primary, without a failover in between."""
        return other is not None and (self.place, self.epoch) == (other.place, other.epoch)


@dataclass(frozen=True, slots=True)
class Service:
    """A group behind Sentinels, as a URL or a redis-py client describes it."""

    name: str
    data: Endpoint
    """The login for the servers; their addresses come from the Sentinels."""
    sentinels: tuple[Endpoint, ...]

    @classmethod
    def from_url(cls, url: str) -> Service:
        """Read `redis+sentinel://user:password@host:port,host:port/service?db=0`.

        The Sentinels' own login is in `sentinel_username` and `sentinel_password`. Raises
        ConfigurationError.
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
        """Read the pool of a client that redis-py's `Sentinel.master_for` has made."""
        clients = pool.sentinel_manager.sentinels
        sentinels = tuple(Endpoint.of(client) for client in clients)
        return cls(str(pool.service_name), Endpoint.of_pool(pool, "the client"), sentinels)


class SentinelNode(WatchedNode):
    """The present primary of one service; one voter."""

    def __init__(self, service: Service, primaries: Primaries, observers: Observers) -> None:
        where = ",".join(endpoint.address for endpoint in service.sentinels)
        super().__init__(f"{service.name}@{where}", self._open, primaries.settings, observers)
        self._service = service
        self._primaries = primaries
        self._sentinels = [scout(endpoint, primaries.settings) for endpoint in service.sentinels]
        self._questions = tuple(
            Command.plain("SENTINEL", word, service.name)
            for word in ("GET-MASTER-ADDR-BY-NAME", "MASTER", "REPLICAS")
        )
        self._current: Opinion | None = None

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
        """Close all links once all queued commands have been written."""
        await super().finish()
        await asyncio.gather(*(sentinel.finish() for sentinel in self._sentinels))

    async def _open(self, _node: Node, limit: float) -> tuple[Link, Facts]:
        asked = _clock.now()
        opinion = await self._ask_sentinels()
        # If the address is dead, the Sentinels may soon name another: ask again rather than wait.
        patience = min(limit, 2 * self.settings.node_timeout)
        link, facts = await self._primaries.dial(
            self._service.data.at(opinion.host, opinion.port),
            self,
            patience,
            replicas=opinion.replicas,
            term=opinion.epoch,
        )
        if self._current is None or opinion.place != self._current.place:
            _log.info("%s: the primary is %s:%d", self.address, opinion.host, opinion.port)
        self._current = opinion
        self.confirm(asked)
        return self.watched(link, facts)

    async def _look_after(self) -> None:
        pause = POLL
        while True:
            await asyncio.sleep(pause * (3 + self.random()) / 4)
            pause = POLL
            link, asked = self._link, _clock.now()
            if link is None:
                continue
            try:
                opinion = await self._ask_sentinels()
            except Exception as error:  # ask again, whatever the Sentinels reply
                self.doubt = f"it is not confirmed as the primary: {why_unready(error).cause}"
                pause = GAP
                continue
            if link is not self._link:
                continue
            if not opinion.agrees(self._current):
                link.close("the Sentinels name another primary")
                continue
            self.confirm(asked)
            if isinstance(link, AckedLink):
                link.replicas = opinion.replicas

    async def _ask_sentinels(self) -> Opinion:
        """Return the primary that a majority names. Raises HandshakeError if there is none."""
        patience = poll_patience(self.settings.node_timeout)
        poll = _Poll(len(self._sentinels), len(self._questions), patience)
        poll.ask(self._sentinels, self._questions)
        await poll.complete
        return poll.verdict(self._service.name)


class _Poll(Poll):
    """The answers of all Sentinels."""

    def verdict(self, service: str) -> Opinion:
        """Return the primary that a majority names. Raises HandshakeError if there is none."""
        read = [_read(answer) for answer in self.answers()]
        opinions = [one for one in read if isinstance(one, Opinion)]
        for opinion in opinions:
            agreed = [other for other in opinions if other.place == opinion.place]
            if len(agreed) >= majority(self._size):
                return Opinion(
                    *opinion.place,
                    max(other.epoch for other in agreed),
                    max(other.replicas for other in agreed),
                )
        failures = [one for one in read if isinstance(one, Failure)]
        unknown = [failure for failure in failures if "No such master" in failure.cause]
        if len(unknown) >= majority(self._size):
            cause = f"the Sentinels know no service {service!r}"
            raise HandshakeError(Failure(cause, permanent=True))
        if len(opinions) >= majority(self._size):
            named = sorted({f"{host}:{port}" for host, port in (one.place for one in opinions)})
            raise HandshakeError(Failure(f"the Sentinels disagree: {', '.join(named)}"))
        causes = "; ".join(sorted({failure.cause for failure in failures}))
        cause = f"{len(opinions)} of {self._size} Sentinels answered ({causes})"
        hopeless = len(failures) == self._size and all(one.permanent for one in failures)
        raise HandshakeError(Failure(cause, permanent=hopeless))


def _read(replies: Sequence[Any]) -> Opinion | Failure:
    failed = next((reply for reply in replies if isinstance(reply, Failure)), None)
    if failed is not None:
        return failed
    try:
        return _opinion(*replies)
    except Exception as error:  # an unreadable answer of one Sentinel must not affect the others
        return Failure(f"its answer can't be read: {type(error).__name__}: {error}")


def _opinion(address: Any, master: Any, replicas: Any) -> Opinion:
    host, port = (word.decode("utf-8", "replace") for word in address)
    alive = [_alive(_fields(replica)) for replica in replicas]
    return Opinion(host, int(port), int(_fields(master)["config-epoch"]), sum(alive))


def _alive(replica: dict[str, str]) -> bool:
    return not {"s_down", "o_down", "disconnected"} & set(replica["flags"].split(","))


def _fields(reply: Any) -> dict[str, str]:
    if isinstance(reply, list):
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
    return {key.decode(): value.decode("utf-8", "replace") for key, value in reply.items()}
