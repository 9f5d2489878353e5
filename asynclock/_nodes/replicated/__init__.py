"""A server that is the primary at present: connects to it, and doubts it if it may be replaced.

A mark in the data tells each client whether it knows the process as the primary
(docs/decisions/0018). Sentinels, or the servers of a Cluster, confirm the primary: each
confirmation by a majority counts for CONFIRMED seconds from its request. After that, commands fail
without being sent, apart from releases, and replies to writes don't count (docs/decisions/0020).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from ... import _clock
from ..._process import Background
from ..._rules.heirs import Roster
from ..._rules.quorum import majority
from ..._rules.validity import Facts
from ...errors import ConfigurationError
from ...events import Observers
from ..endpoint import Endpoint, Seeds
from ..handshake import HandshakeError, closing_if_failed, dial, greet, why_unready
from ..link import Link, LinkListener
from ..node import Node, NodeSettings
from ..server import Dial, ServerNode
from ..wire import READONLY, Command, Failure, Gather, Script, Sink, by_field, major_minor, told_by
from .acks import (
    MARGIN,
    UNSUPPORTED,
    AckedLink,
    Acks,
    Heirs,
    KnownReplicas,
    Primacy,
    leave_mark,
)

if TYPE_CHECKING:
    from redis.asyncio.sentinel import SentinelConnectionPool

_log = logging.getLogger("asynclock.nodes")

T = TypeVar("T")

WAITAOF_SINCE = (7, 2)


@dataclass(frozen=True, slots=True)
class PrimaryDialer:
    """How to connect to a primary; the same for all groups of a manager."""

    settings: NodeSettings
    scripts: Sequence[Script]
    acks: Acks
    mark: str
    """The key of the mark."""

    async def dial(
        self,
        endpoint: Endpoint,
        listener: LinkListener,
        limit: float,
        known: KnownReplicas,
        *,
        mark: str | None = None,
        replicas: int | None = None,
        term: int = 0,
        window: float = inf,
    ) -> tuple[Link, Facts]:
        """Open a link to a primary. Raises HandshakeError, also if the server is not a primary.

        `known` is the same at each call for one primary. `mark` is another key for the mark.
        `replicas` is the number of replicas, if others know it better than the primary. `term`
        rises with each failover, so a primary that was replaced and came back has another one.
        `window` is the number of seconds for which a look at the roster of a new term counts; it is
        of no use from `max_ttl` on.
        """
        timeout = self.settings.node_timeout
        keys = self.settings.record_key, self.settings.witness_key
        make = partial(AckedLink, acks=self.acks, node_timeout=timeout) if self.acks else Link
        link, facts = await dial(endpoint, listener, self.scripts, timeout, limit, *keys, make)
        with closing_if_failed(link):
            known.counted(facts.replicas)
            self._check(facts, known, watched=replicas is not None)
            named = self.acks.wanted == "all" and window < self.settings.max_ttl
            roster = str(Roster(0, window)) if named else ""
            facts, roster = await self._marked(link, facts, mark or self.mark, term, roster)
        if isinstance(link, AckedLink):
            link.recount = replicas is None
            link.replicas = (facts.replicas or 0) if replicas is None else replicas
            if named and roster:
                link.term = Primacy(mark or self.mark, f"{facts.run_id}.{term}", term, keeps=True)
        return link, facts

    def _check(self, facts: Facts, known: KnownReplicas, *, watched: bool) -> None:
        if facts.role not in (None, "master"):
            # With watchers (Sentinels, a Cluster) this passes: they will name the primary. Without
            # them it passes only if the address has led to a primary before (`PASSING`), as the
            # address of a managed service does.
            cause = "it is a replica, not the primary"
            raise HandshakeError(Failure(cause, permanent=not watched, code=READONLY))
        lack = known.lack(self.acks)
        if lack is not None:
            raise HandshakeError(lack)
        if self.acks.durable and facts.version is not None and older(facts.version):
            cause = f"durable=True needs WAITAOF of Redis 7.2 or later; it is {facts.version}"
            raise HandshakeError(Failure(cause, permanent=True, code=UNSUPPORTED))

    async def _marked(
        self, link: Link, facts: Facts, key: str, term: int, roster: str
    ) -> tuple[Facts, str]:
        # A server's own disk doesn't have what the server missed as a replica.
        facts = replace(facts, durable=False)
        if facts.run_id is None:
            return facts, ""
        mark = await leave_mark(link, key, f"{facts.run_id}.{term}", roster)
        if mark is None:
            return replace(facts, marked=0.0, promoted=True), roster
        met = replace(facts, marked=mark.age, promoted=not mark.same, after=mark.before)
        return met, mark.roster


def older(version: str) -> bool:
    """Return whether a server of this version lacks WAITAOF."""
    return major_minor(version) < WAITAOF_SINCE


# ---- Watched by Sentinels, or by the servers of a Cluster ----------------------------------------


POLL: Final = 1.0
"""Maximum seconds between two requests to the watchers while they confirm the primary."""
CONFIRMED: Final = 2 * POLL
"""Seconds for which a primary counts as confirmed, from the moment the watchers were asked."""


def poll_patience(node_timeout: float) -> float:
    """Return the seconds to wait for the other watchers once a majority has answered.

    With a frozen watcher each poll takes that long. Two polls and the pause between them must end
    within CONFIRMED, whatever the node timeout.
    """
    return min(node_timeout, POLL) / 4


SILENT = Failure("no answer yet")


async def poll(
    servers: Iterable[Node], questions: Sequence[Command], patience: float
) -> list[list[Any]]:
    """Return each server's answers, in the order of the questions; a failure names its server.

    Once a majority has answered, the others get `patience` seconds.
    """
    asked, each = tuple(servers), len(questions)
    replies = Gather(each * len(asked), each * majority(len(asked)), patience)
    for index, (server, question) in enumerate(product(asked, questions)):
        server.ask(question, replies, index)
    await replies.complete
    found = [
        _named(server, replies.found.get(index, SILENT))
        for index, (server, _) in enumerate(product(asked, questions))
    ]
    return [found[first : first + each] for first in range(0, len(found), each)]


def _named(server: Node, reply: Any) -> Any:
    answered = reply is not SILENT and isinstance(reply, Failure)
    return told_by(server.address, reply) if answered else reply


def understood(read: Callable[..., T], replies: Sequence[Any]) -> T | Failure:
    """Return what a server reports in these replies, or why it reports nothing."""
    failed = next((reply for reply in replies if isinstance(reply, Failure)), None)
    if failed is not None:
        return failed
    try:
        return read(*replies)
    except Exception as error:  # an unreadable answer of one server must not affect the others
        return Failure(f"its answer can't be read: {type(error).__name__}: {error}")


def source_node(endpoint: Endpoint, settings: NodeSettings) -> ServerNode:
    """Return a node for questions about primaries only: logged in, no guards, no observers."""

    async def open_link(node: ServerNode, limit: float) -> tuple[Link, Facts]:
        return await greet(endpoint, node, settings.node_timeout, limit), Facts()

    unguarded = replace(settings, restart_guard=False, record_key="")
    node = ServerNode(endpoint.address, open_link, unguarded, Observers())
    node.late = endpoint.late
    return node


class WatchedNode(ServerNode):
    """A node whose server may be replaced by another one as the primary."""

    def __init__(
        self, address: str, dial: Dial, settings: NodeSettings, observers: Observers
    ) -> None:
        super().__init__(address, dial, settings, observers)
        self.doubt = "it is not confirmed as the primary yet"
        """Why the primary is not confirmed, if it isn't."""
        self._confirmed_until = 0.0
        self._confirmed = asyncio.Event()

    def confirm(self, asked: float) -> None:
        """Note that a majority, asked at `asked` (boot-time clock), named this node's primary."""
        self._confirmed_until = max(self._confirmed_until, asked + CONFIRMED)
        self._confirmed.set()

    async def confirmation(self) -> None:
        """Wait until the primary is confirmed."""
        while _clock.now() > self._confirmed_until:
            self._confirmed.clear()
            await self._confirmed.wait()

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        doubt = self.doubted(_clock.now())
        if doubt is None:
            super().ask(command, sink, index, arm=arm)
        else:
            sink.on_reply(index, doubt)

    def obstacle(self, now: float) -> Failure | None:
        return self.doubted(now) or super().obstacle(now)

    def state(self, now: float) -> str:
        """Return "down" while the primary is not confirmed, otherwise `ServerNode.state`."""
        return "down" if self.doubted(now) else super().state(now)

    def require(self) -> None:
        """Raise HandshakeError if the primary is not confirmed."""
        if _clock.now() > self._confirmed_until:
            raise HandshakeError(Failure(self.doubt))

    def watched(self, link: Link, facts: Facts) -> Facts:
        """Return a handshake's facts, with CONFIRMED as the lag of other clients.

        Raises HandshakeError if the primary is no longer confirmed.
        """
        self.require()
        link.doubted = self.doubted
        return replace(facts, lag=CONFIRMED)

    def doubted(self, now: float) -> Failure | None:
        """Return why the primary may have been replaced, or None if it is confirmed."""
        # A node without a link reports its own cause.
        if self.link is None or now <= self._confirmed_until:
            return None
        return Failure(self.doubt)


# ---- Watched by Sentinels: they name it, and its link is closed when they name another -----------
# All Sentinels are asked, and every second again while a connection is open. The primary is the
# server that a majority of the configured ones names (decision 0020).
# https://redis.io/docs/latest/develop/reference/sentinel-clients/


SENTINEL_PORT = 26379
RETRY_GAP = 0.1
"""Maximum seconds between two requests to the Sentinels while they don't agree."""


@dataclass(frozen=True, slots=True)
class SentinelView:
    """What one Sentinel reports."""

    primary: tuple[str, int]
    """The host and port of the primary."""
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

        The Sentinels' own login is `sentinel_username` and `sentinel_password`. Raises
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
        asked = _clock.now()
        self.late = lambda s: Failure(f"the Sentinels have named no primary within {s:g} s")
        view = await self._ask_sentinels()
        endpoint = self._service.data.at(*view.primary)
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
            with closing_if_failed(link):
                if not view.agrees(await self._ask_sentinels()):
                    raise HandshakeError(Failure("the Sentinels name another primary"))
        if self._current is None or view.primary != self._current.primary:
            _log.info("%s: the primary is %s:%d", self.address, *view.primary)
            if self._primaries.acks.wanted == "all":
                _log.info("%s: %s", self.address, told(view.silence + MARGIN, link))
        self._current = view
        self.confirm(asked)
        with closing_if_failed(link):
            facts = self.watched(link, facts)
        term = link.term if isinstance(link, AckedLink) else None
        if term is None and facts.run_id is not None:
            process = f"{facts.run_id}.{view.epoch}"
            term = Primacy(self._primaries.mark, process, view.epoch, keeps=False)
        complete = self._heirs.met(facts, term, view.epoch, facts.lag)
        return link, replace(facts, complete=complete)

    async def _look_after(self) -> None:
        pause = POLL
        while True:
            await asyncio.sleep(pause * (3 + self.random()) / 4)
            pause = POLL
            link, asked = self.link, _clock.now()
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
    """Return the primary that a majority of all Sentinels names, or raise HandshakeError."""
    needed, read = majority(len(answers)), [understood(_view, replies) for replies in answers]
    views = [one for one in read if isinstance(one, SentinelView)]
    for view in views:
        agreed = [other for other in views if other.primary == view.primary]
        if len(agreed) >= needed:
            return SentinelView(
                view.primary,
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


def told(window: float, link: Link) -> str:
    """Return what an heir of this primary does."""
    if isinstance(link, AckedLink) and link.term is not None:
        return f"an heir may serve at once; a dead replica stops locks for {window:g} s"
    return "an heir waits for max_ttl"


def _view(address: Any, master: Any, replicas: Any) -> SentinelView:
    host, port = (word.decode("utf-8", "replace") for word in address)
    known = [by_field(replica) for replica in replicas]
    alive = [replica for replica in known if _alive(replica)]
    about = by_field(master)
    silence = float(about.get("down-after-milliseconds", inf)) / 1000
    processes = {f"{one['ip']}:{one['port']}": one["runid"] for one in alive if one.get("runid")}
    epoch = int(about["config-epoch"])
    primary = host, int(port)
    return SentinelView(primary, epoch, len(alive), len(known), silence, processes)


def _alive(replica: dict[str, str]) -> bool:
    return not {"s_down", "o_down", "disconnected"} & set(replica["flags"].split(","))
