"""A server that is the primary at present: connects to it, and doubts it if it may be replaced.

A promoted replica may lack grants of the old primary. A client that never met the old primary can't
see that from uptime or run_id. So clients leave a mark in the data: the run_id of the process that
they met as the primary, and since when. If the mark names another process or is missing, the server
counts as just restarted (docs/decisions/0018).

A primary that may be replaced is used only while watchers confirm that it is the primary: Sentinels
or the servers of a Cluster. A client that is cut off together with an old primary can't see that
another server was promoted. So each confirmation by a majority of the watchers counts for CONFIRMED
seconds from the moment it was requested. After that, commands fail without being sent, and replies
to writes don't count. Two majorities share a watcher, so the old primary grants nothing later than
CONFIRMED seconds after a majority named the new one. The new primary's first quarantine is longer
by that time (`Facts.lag`). Releases are sent in any case. Reasons: docs/decisions/0020.

`poll` asks the watchers. One of them may be frozen, so it doesn't wait for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf
from typing import Any, Final

from ... import _clock
from ..._rules.heirs import Roster
from ..._rules.quorum import majority
from ..._rules.trust import Facts
from ...events import Observers
from ..endpoint import Endpoint
from ..handshake import HandshakeError, dial, greet
from ..link import Link, LinkListener
from ..node import Node, NodeSettings
from ..replies import READONLY, Failure, Gather, Sink, major_minor, told_by
from ..script import Command, Script
from ..server import Dial, ServerNode
from .acks import UNSUPPORTED, AckedLink, Acks, KnownReplicas, Term, leave_mark

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
        `replicas` is the number of replicas, if others know it better than the primary. `term` is a
        number that rises with each failover: it distinguishes a primary that was replaced and came
        back from one that was never replaced. `window` is the number of seconds for which a look at
        the roster of a new term counts; it is of no use from `max_ttl` on.
        """
        timeout = self.settings.node_timeout
        keys = self.settings.record_key, self.settings.witness_key
        make = partial(AckedLink, acks=self.acks, node_timeout=timeout) if self.acks else Link
        link, facts = await dial(endpoint, listener, self.scripts, timeout, limit, *keys, make)
        try:
            known.counted(facts.replicas)
            self._check(facts, known, watched=replicas is not None)
            named = self.acks.wanted == "all" and window < self.settings.max_ttl
            roster = str(Roster(0, window)) if named else ""
            facts, roster = await self._marked(link, facts, mark or self.mark, term, roster)
        except BaseException:
            link.close("the handshake failed")
            raise
        if isinstance(link, AckedLink):
            link.recount = replicas is None
            link.replicas = (facts.replicas or 0) if replicas is None else replicas
            if named and roster:
                link.term = Term(mark or self.mark, f"{facts.run_id}.{term}", term, keeps=True)
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


# ---- Watched by others --------------------------------------------------------------------------


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
    found = [replies.found.get(index, SILENT) for index in range(each * len(asked))]
    return [
        [_named(server, reply) for reply in found[first : first + each]]
        for server, first in zip(asked, range(0, len(found), each), strict=True)
    ]


def _named(server: Node, reply: Any) -> Any:
    answered = reply is not SILENT and isinstance(reply, Failure)
    return told_by(server.address, reply) if answered else reply


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

    def watched(self, link: Link, facts: Facts) -> tuple[Link, Facts]:
        """Return the results of a handshake, with CONFIRMED as the lag of other clients.

        Raises HandshakeError, and closes the link, if the primary is no longer confirmed.
        """
        try:
            self.require()
        except HandshakeError:
            link.close(self.doubt)
            raise
        link.doubted = self.doubted
        return link, replace(facts, lag=CONFIRMED)

    def doubted(self, now: float) -> Failure | None:
        """Return why the primary may have been replaced, or None if it is confirmed."""
        # A node without a link reports its own cause.
        if self._link is None or now <= self._confirmed_until:
            return None
        return Failure(self.doubt)
