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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ... import _clock
from ..._background import Background
from ..._rules.quorum import majority
from ..._rules.trust import Facts
from ...errors import ConfigurationError
from ...events import Observers
from ..endpoint import Endpoint, Seeds
from ..handshake import HandshakeError, why_unready
from ..link import Link
from ..replies import Failure, by_field, told_by
from ..script import Command
from ..server import ServerNode
from . import POLL, PrimaryDialer, WatchedNode, poll, poll_patience, source_node
from .acks import MARGIN, AckedLink, Heirs, KnownReplicas, Term

if TYPE_CHECKING:
    from redis.asyncio.sentinel import SentinelConnectionPool

_log = logging.getLogger("asynclock.nodes")

SENTINEL_PORT = 26379
RETRY_GAP = 0.1
"""Maximum seconds between two requests to the Sentinels while they don't agree."""


@dataclass(frozen=True, slots=True)
class SentinelView:
    """What one Sentinel reports."""

    host: str
    port: int
    epoch: int
    """Rises with each failover."""
    replicas: int
    """Number of replicas that the Sentinel regards as alive."""
    known: int
    """Number of replicas that the Sentinel knows, dead or alive; it forgets none by itself."""
    silence: float = inf
    """Seconds of silence that the Sentinel takes for death."""
    processes: Mapping[str, str] = field(default_factory=dict)
    """The run_id of each replica that the Sentinel regards as alive, by `host:port`."""

    @property
    def primary(self) -> tuple[str, int]:
        """The host and port of the primary."""
        return self.host, self.port

    def agrees(self, other: SentinelView | None) -> bool:
        """Return whether both name the same primary, without a failover in between."""
        return other is not None and (self.primary, self.epoch) == (other.primary, other.epoch)


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
        seeds = Seeds(url, port=SENTINEL_PORT)
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

    def __init__(self, service: Service, primaries: PrimaryDialer, observers: Observers) -> None:
        where = ",".join(endpoint.address for endpoint in service.sentinels)
        super().__init__(f"{service.name}@{where}", self._open, primaries.settings, observers)
        self._service = service
        self._primaries = primaries
        self._sentinels = [
            source_node(endpoint, primaries.settings) for endpoint in service.sentinels
        ]
        self._questions = tuple(
            Command.plain("SENTINEL", word, service.name)
            for word in ("GET-MASTER-ADDR-BY-NAME", "MASTER", "REPLICAS")
        )
        self._current: SentinelView | None = None
        self._known = KnownReplicas()
        self._heirs = Heirs()

    async def keep(self) -> None:
        tasks = Background()
        try:
            for sentinel in self._sentinels:
                tasks.spawn(sentinel.keep(), f"asynclock: keep Sentinel {sentinel.address}")
            tasks.spawn(self._look_after(), f"asynclock: watch {self.address}")
            await super().keep()
        finally:
            await tasks.aclose()

    async def finish(self) -> None:
        await super().finish()
        await asyncio.gather(*(sentinel.finish() for sentinel in self._sentinels))

    async def _open(self, _node: ServerNode, limit: float) -> tuple[Link, Facts]:
        asked, self.late = _clock.now(), _nobody_named
        view = await self._ask_sentinels()
        endpoint = self._service.data.at(view.host, view.port)
        self.late = lambda seconds: told_by(endpoint.address, endpoint.late(seconds))
        self._known.counted(view.known)
        # If the address is dead, the Sentinels may soon name another: ask again rather than wait.
        patience = min(limit, 2 * self.settings.node_timeout)
        try:
            link, facts = await self._primaries.dial(
                endpoint,
                self,
                patience,
                self._known,
                replicas=view.replicas,
                term=view.epoch,
                window=view.silence + MARGIN,
            )
        except HandshakeError as error:
            raise HandshakeError(told_by(endpoint.address, error.failure)) from None
        if _clock.now() - asked > POLL:  # the look-up of its name took long
            asked = _clock.now()
            await self._still(view, link)
        if self._current is None or view.primary != self._current.primary:
            _log.info("%s: the primary is %s:%d", self.address, view.host, view.port)
            if self._primaries.acks.wanted == "all":
                _log.info("%s: %s", self.address, told(view.silence + MARGIN, link))
        self._current = view
        self.confirm(asked)
        link, facts = self.watched(link, facts)
        term = link.term if isinstance(link, AckedLink) else None
        if term is None and facts.run_id is not None:
            process = f"{facts.run_id}.{view.epoch}"
            term = Term(self._primaries.mark, process, view.epoch, keeps=False)
        complete = self._heirs.met(facts, term, view.epoch, facts.lag)
        return link, replace(facts, complete=complete)

    async def _still(self, view: SentinelView, link: Link) -> None:
        """Raise HandshakeError, and close the link, if the Sentinels name another primary now."""
        try:
            named = await self._ask_sentinels()
        except BaseException:
            link.close("the handshake failed")
            raise
        if not named.agrees(view):
            end = Failure("the Sentinels name another primary")
            link.close(end.cause)
            raise HandshakeError(end)

    async def _look_after(self) -> None:
        pause = POLL
        while True:
            await asyncio.sleep(pause * (3 + self.random()) / 4)
            pause = POLL
            link, asked = self._link, _clock.now()
            if link is None:
                continue
            try:
                view = await self._ask_sentinels()
            except Exception as error:  # ask again, whatever the Sentinels reply
                self.doubt = f"it is not confirmed as the primary: {why_unready(error).cause}"
                pause = RETRY_GAP
                continue
            if not view.agrees(self._current):
                link.close("the Sentinels name another primary")
                continue
            self.confirm(asked)
            if isinstance(link, AckedLink):
                link.replicas = view.replicas
            self._heirs.look(link, view.processes, self.trust.votes_from)

    async def _ask_sentinels(self) -> SentinelView:
        """Return the primary that a majority names. Raises HandshakeError if there is none."""
        patience = poll_patience(self.settings.node_timeout)
        answers = await poll(self._sentinels, self._questions, patience)
        return agreed_primary(self._service.name, answers)


def agreed_primary(service: str, answers: Sequence[Sequence[Any]]) -> SentinelView:
    """Return the primary that a majority names. Raises HandshakeError if there is none.

    `answers` has the replies of each configured Sentinel.
    """
    needed, read = majority(len(answers)), list(map(_read, answers))
    views = [one for one in read if isinstance(one, SentinelView)]
    for view in views:
        agreed = [other for other in views if other.primary == view.primary]
        if len(agreed) >= needed:
            return SentinelView(
                *view.primary,
                max(other.epoch for other in agreed),
                max(other.replicas for other in agreed),
                max(other.known for other in agreed),
                max(other.silence for other in agreed),
                {name: run for other in agreed for name, run in other.processes.items()},
            )
    failures = [one for one in read if isinstance(one, Failure)]
    unknown = [failure for failure in failures if "No such master" in failure.cause]
    if len(unknown) >= needed:
        cause = f"the Sentinels know no service {service!r}"
        raise HandshakeError(Failure(cause, permanent=True))
    if len(views) >= needed:
        named = sorted({f"{host}:{port}" for host, port in (one.primary for one in views)})
        raise HandshakeError(Failure(f"the Sentinels disagree: {', '.join(named)}"))
    causes = "; ".join(sorted({failure.cause for failure in failures}))
    cause = f"{len(views)} of {len(answers)} Sentinels answered ({causes})"
    hopeless = len(failures) == len(answers) and all(one.permanent for one in failures)
    raise HandshakeError(Failure(cause, permanent=hopeless))


def _nobody_named(seconds: float) -> Failure:
    return Failure(f"the Sentinels have named no primary within {seconds:g} s")


def told(window: float, link: Link) -> str:
    """Return what an heir of this primary does."""
    if isinstance(link, AckedLink) and link.term is not None:
        return f"an heir may serve at once; a dead replica stops locks for {window:g} s"
    return "an heir waits for max_ttl"


def _read(replies: Sequence[Any]) -> SentinelView | Failure:
    failed = next((reply for reply in replies if isinstance(reply, Failure)), None)
    if failed is not None:
        return failed
    try:
        return _view(*replies)
    except Exception as error:  # an unreadable answer of one Sentinel must not affect the others
        return Failure(f"its answer can't be read: {type(error).__name__}: {error}")


def _view(address: Any, master: Any, replicas: Any) -> SentinelView:
    host, port = (word.decode("utf-8", "replace") for word in address)
    known = [_fields(replica) for replica in replicas]
    alive = [replica for replica in known if _alive(replica)]
    about = _fields(master)
    silence = float(about.get("down-after-milliseconds", inf)) / 1000
    processes = {f"{one['ip']}:{one['port']}": one["runid"] for one in alive if one.get("runid")}
    epoch = int(about["config-epoch"])
    return SentinelView(host, int(port), epoch, len(alive), len(known), silence, processes)


def _alive(replica: dict[str, str]) -> bool:
    return not {"s_down", "o_down", "disconnected"} & set(replica["flags"].split(","))


def _fields(reply: Any) -> dict[str, str]:
    fields = by_field(reply).items()
    return {key.decode(): value.decode("utf-8", "replace") for key, value in fields}
