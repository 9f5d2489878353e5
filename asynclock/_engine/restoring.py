"""Putting a lease's key on a node that lacks it: restarted empty, flushed, or without a vote.

Without this, restarting nodes one after the other would lose every held lease if the nodes keep
nothing on disk, though no two were ever down together. That concerns leases won before a restart,
and leases won soon after it, since a node without a vote is not asked. The request repeats the
owner's acquire, with its highest fence as the floor: a node whose name is free stores the key and
raises its counter; any other node refuses. The request is sent only when the node has its vote, and
once for each loss of the vote, so a key that was deleted by hand stays deleted. Reasons:
docs/decisions/0022; proof: tests/model, cases K and J.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _clock
from .._nodes.link import LATE_TIMER_FACTOR
from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import NOBODY
from .._rules import validity
from .grant import Grant
from .said import Granted, acquired


class Restores:
    """Puts missing keys of one manager's leases back."""

    def __init__(
        self, multiplexer: Multiplexer, retention: int, renew_at: Callable[[Grant, float], None]
    ) -> None:
        self._multiplexer = multiplexer
        self._retention = retention
        self.renew_at = renew_at
        """Called with a grant and the moment at which to ask its nodes again."""
        self.under_way: set[tuple[str, int]] = set()
        """The owner and the node of each request without a reply so far."""

    def missing(self, grant: Grant, index: int) -> None:
        """Put the key of `grant` back on node `index`, which replied that it lacks the key.

        This does nothing unless the node forgot the key, or had no vote when the others were asked.
        """
        node, now = self._multiplexer.nodes[index], _clock.now()
        since = max(node.trust.remembers_from, node.trust.votes_from)
        if since <= max(grant.asked_since, grant.restored.get(index, 0.0)):
            return
        if not node.settings.restart_guard or (grant.owner, index) in self.under_way:
            return
        if now < node.trust.votes_from:
            self.renew_at(grant, node.trust.votes_from)
        elif node.obstacle(now) is None:
            self._put_back(grant, index, now)

    def _put_back(self, grant: Grant, index: int, now: float) -> None:
        node, nodes = self._multiplexer.nodes[index], self._multiplexer
        until = min(grant.valid_until, now + LATE_TIMER_FACTOR * node.settings.node_timeout)
        nodes.fence_floor(now)  # reads the clocks; the last acquire may be long ago
        not_after = nodes.not_after(until)
        if not not_after:
            return  # too few clocks are known to say from when on the request is too late
        request = grant.spec.restore(grant.owner, grant.ttl, grant.top, not_after, self._retention)
        self.under_way.add((grant.owner, index))
        sink = Restore(self, grant, now, voted=index in grant.voters)
        # Until the reply comes, a key on the node may come from a late execution of this request.
        grant.doubt(index)
        node.ask(request, sink, index)

    def answered(self, restore: Restore, index: int, reply: Any) -> None:
        """Handle the reply of node `index` to a request."""
        grant, node = restore.grant, self._multiplexer.nodes[index]
        self.under_way.discard((grant.owner, index))
        if not grant.alarm:
            return  # the lease has ended; its release was sent after the request
        said = acquired(reply)
        if type(said) is not Granted or restore.sent < node.trust.votes_from:
            self.renew_at(grant, validity.retry_at(_clock.now(), grant.ttl))
            return
        if said.fence < grant.top:  # more were reserved, or the node ignored the floor
            raised = grant.spec.write_back(grant.owner, grant.top, self._retention)
            node.ask(raised, NOBODY, index)
        grant.put_back(index, restore.sent, said.fence, voted=restore.voted)


class Restore:
    """One request to put a key back; takes the reply."""

    __slots__ = ("_restores", "grant", "sent", "voted")

    def __init__(self, restores: Restores, grant: Grant, sent: float, *, voted: bool) -> None:
        self._restores = restores
        self.grant: Grant = grant
        self.sent: float = sent
        self.voted: bool = voted
        """Whether the node's earlier grant counted; then no other request to it is pending."""

    def on_reply(self, index: int, reply: Any) -> None:
        """Take the reply of node `index`."""
        self._restores.answered(self, index, reply)
