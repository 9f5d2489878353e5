"""Connects to a server that is the primary at present, and finds out whether it was promoted.

A promoted replica may lack grants of the old primary. A client that never met the old primary can't
see that from uptime or run_id. So clients leave a mark in the data: the run_id of the process that
they met as the primary, and since when. If the mark names another process or is missing, the server
counts as just restarted (docs/decisions/0018).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from ..._rules.heirs import Roster
from ..._rules.trust import Facts
from ..endpoint import Endpoint
from ..handshake import HandshakeError, dial
from ..link import Link, LinkListener
from ..node import NodeSettings
from ..replies import READONLY, Failure, major_minor
from ..script import Script
from .acks import UNSUPPORTED, AckedLink, Acks, KnownReplicas
from .mark import Term, leave_mark

_log = logging.getLogger("asynclock.nodes")

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
