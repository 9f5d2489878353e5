"""A server that is the primary today: connecting to it, and how far it can be trusted.

A replica that was promoted may miss what the old primary granted, and neither its uptime nor its
run_id tells a client that never met the old one. So clients leave a mark in the data: the run_id
of the process that they met as the primary, and since when. A mark that names another process, or
none at all, makes the server count as just restarted (docs/decisions/0018).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from .._rules.trust import Facts
from .acks import UNSUPPORTED, AckedLink, Acks
from .endpoint import Endpoint
from .handshake import HandshakeError, dial
from .link import Failure
from .node import Node, NodeSettings
from .script import Command, Script

_log = logging.getLogger("asynclock.nodes")

MARK = Script.load(__package__, "primary.lua")
MARK_KEY: Final = ":fence"
"""After the prefix: the counter of the empty name, which no lock can have."""
RETENTION = 30 * 24 * 3600 * 1000
"""Milliseconds a mark outlives the last connection; without one, a new client waits once more."""
WAITAOF_SINCE = (7, 2)


@dataclass(frozen=True, slots=True)
class Primaries:
    """How to connect to whoever is the primary: the same for all groups of a manager."""

    settings: NodeSettings
    scripts: Sequence[Script]
    acks: Acks
    mark: str
    """The key of the mark."""

    async def dial(
        self,
        endpoint: Endpoint,
        node: Node,
        limit: float,
        *,
        mark: str | None = None,
        replicas: int | None = None,
    ) -> tuple[AckedLink, Facts]:
        """Open a link to a primary. Raises HandshakeError, also if it is none.

        `mark`: another key for the mark. `replicas`: how many there are, where others know it
        better than the primary.
        """
        timeout = self.settings.node_timeout
        make = partial(AckedLink, acks=self.acks, node_timeout=timeout)
        link, facts = await dial(endpoint, node, self.scripts, timeout, limit, make)
        try:
            self._check(facts)
            facts = await self._marked(link, facts, mark or self.mark)
        except BaseException:
            link.close("the handshake failed")
            raise
        link.recount = replicas is None
        link.replicas = (facts.replicas or 0) if replicas is None else replicas
        return link, facts

    def _check(self, facts: Facts) -> None:
        if facts.role not in (None, "master"):
            # Not for ever: addresses of managed services move to the next primary.
            raise HandshakeError(Failure("it is a replica, not the primary"))
        if self.acks.durable and facts.version is not None and older(facts.version):
            cause = f"durable=True needs WAITAOF of Redis 7.2 or later; it is {facts.version}"
            raise HandshakeError(Failure(cause, permanent=True, code=UNSUPPORTED))

    async def _marked(self, link: AckedLink, facts: Facts, key: str) -> Facts:
        # What a server keeps on its own disk says nothing about what it missed as a replica.
        facts = replace(facts, durable=False)
        if facts.run_id is None:
            return facts
        complete = "1" if self.acks.wanted == "all" else "0"
        reply = await link.ask(Command(MARK, (key,), (facts.run_id, complete, RETENTION)))
        if isinstance(reply, Failure):
            if not reply.permanent:
                raise HandshakeError(reply)
            return replace(facts, marked=0.0, promoted=True)
        same, since, now = reply
        return replace(
            facts, marked=(now - since) / 1_000_000, promoted=not same, complete=since == 0
        )


def older(version: str) -> bool:
    """Whether a server of this version has no WAITAOF."""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return tuple(numbers) < WAITAOF_SINCE
