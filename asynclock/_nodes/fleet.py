"""Whether a manager may use its nodes: each node keeps a record of the set that the fleet uses.

The newest record counts, wherever it was read; nodes with an older one are told (decision 0025).
Until it votes, a node that doesn't know its name is left out of the comparison if a quorum of the
others fits: its address may be a tunnel.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import socket
from collections.abc import Iterable, Sequence
from typing import Final

from .. import _clock
from .._rules.nodeset import Copy, NodeSet, shown
from .node import Node
from .server import ServerNode
from .wire import NOBODY, Command, Failure

_log = logging.getLogger("asynclock.fleet")

FLEET: Final = 3
"""Minimum number of nodes of a client that mentions that its nodes keep no record."""
NAMED: Final = "asynclock:"
"""Start of a connection's name. The digest of the client's nodes and its label follow."""
UNRECORDED: Final = (
    "the nodes keep no record of their set, so nothing notices a client with other nodes: "
    "`asynclock nodes record` writes one"
)
LONGEST_LABEL = 100


def digest(names: Iterable[str]) -> str:
    """Return a short text that stands for a set of nodes, in the names of connections."""
    text = "\n".join(sorted(names))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class SetGuard:
    """What one manager knows of the record, and whether the record allows its nodes."""

    def __init__(self, nodes: Sequence[Node], quorum: int, label: str | None) -> None:
        self.failure: Failure | None = None
        """Why this client may use none of its nodes; None if it may."""
        self._nodes = nodes
        self._quorum = quorum
        self._label = label
        self._names: dict[Node, str] = {}
        """What the record calls each node that was met; "" as long as the node doesn't know."""
        self._newest = Copy()
        self._told: dict[Node, object] = {}
        """For each node that was told: what it kept, what it was told, and on which link."""
        self._again: asyncio.TimerHandle | None = None
        """When a node without a name is compared once more."""
        self._said = ""

    def compare(self, met: Node) -> None:
        """Compare all nodes met so far; `met` has just reported what it keeps."""
        if not (isinstance(met, ServerNode) and met.settings.record_key and met.trust.facts):
            return
        copy = met.trust.facts.copy
        self._names[met] = copy.name or self._names.get(met, "")
        self._newest = max(self._newest, copy)
        # A quorum of answers is needed for each lease. Fewer readings may all be outdated.
        if len(self._names) < self._quorum:
            return
        record = NodeSet.parse(self._newest.text)
        if record is not None:
            self._judge(record)
            loop = asyncio.get_running_loop()
            for node in self._names:  # including those met before the record was known
                loop.call_soon(self._tell, record, node)
        elif len(self._nodes) >= FLEET:
            # Not a warning: most fleets never change, and each run of a program would repeat it.
            self._say(logging.INFO, UNRECORDED)

    def _judge(self, record: NodeSet) -> None:
        unsure = self._unsure(record)
        met = self._names.keys() - unsure.keys()
        names = [self._name(node) if node in met else None for node in self._nodes]
        if record.allows(names):
            enough = not unsure or len(names) - names.count(None) >= self._quorum
            if enough:
                self._allow()
            if enough or len(self._names) < len(self._nodes):  # the next node may decide
                self._compare_later(unsure)
                return
        text = (
            f"this client uses the nodes {shown(self._own())}, and the fleet uses "
            f"{' or '.join(map(shown, record.usable))} (epoch {record.epoch}): two clients could "
            "hold the same lock; connect to the fleet's nodes, see `asynclock nodes show`"
        )
        if record.epoch:
            self._refuse(text)
        else:
            self._say(logging.WARNING, text)

    def _compare_later(self, unsure: dict[Node, float]) -> None:
        self.close()
        if unsure:  # for the node that votes first; its comparison plans the next
            node, seconds = min(unsure.items(), key=lambda item: item[1])
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(seconds, _compare_again, node)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _unsure(self, record: NodeSet) -> dict[Node, float]:
        """Return the nodes that the record may know by other names.

        With each: for how many seconds it need not be compared, because it has no vote.
        """
        now = _clock.now()
        nameless = [node for node, name in self._names.items() if not name]
        strangers = [n for n in nameless if n.address not in record.nodes + record.other]
        waits = {node: node.votes_from - node.settings.node_timeout - now for node in strangers}
        return {node: seconds for node, seconds in waits.items() if seconds > 0}

    def _own(self) -> list[str]:
        return [self._name(node) for node in self._nodes]

    def _name(self, node: Node) -> str:
        return self._names.get(node) or node.address

    def _refuse(self, text: str) -> None:
        self._say(logging.ERROR, text)
        before, self.failure = self.failure, Failure(text, permanent=True)
        for node in self._nodes:
            node.trust.doubt(_clock.now())
            if node.rejected in (None, before):
                node.rejected = self.failure

    def _allow(self) -> None:
        if self.failure is not None:
            self._say(logging.INFO, "the fleet's record allows this client's nodes again")
            for node in self._nodes:
                if node.rejected == self.failure:
                    node.rejected = None
            self.failure = None

    def _tell(self, record: NodeSet, met: Node) -> None:
        """Tell `met` what it does not know, and which set its client on this connection uses."""
        if not isinstance(met, ServerNode) or met.link is None or met.trust.facts is None:
            return
        copy, newest, name = met.trust.facts.copy, self._newest, self._name(met)
        telling = copy, newest, self._own(), met.link
        if self._told.get(met) == telling:
            return  # once on a connection, or a node that can't be told would cause a loop
        self._told[met] = telling
        untold = (newest.number, name) != (copy.number, copy.name)
        if untold and name in record.nodes + record.other:
            met.tell_record(newest, name)
        label = self._label or f"{socket.gethostname()}:{os.getpid()}"
        label = re.sub("[^!-~]", "-", label)[:LONGEST_LABEL]
        words = f"{NAMED}{digest(self._own())}:{label}"
        met.ask(Command.plain("CLIENT", "SETNAME", words), NOBODY, 0)

    def _say(self, level: int, text: str) -> None:
        if text != self._said:
            self._said = text
            _log.log(level, "%s", text)


def _compare_again(node: Node) -> None:
    """Compare the nodes once more, before `node` votes. Without a link, it is met again first."""
    if isinstance(node, ServerNode) and node.link is not None:
        node.on_connect(node)
