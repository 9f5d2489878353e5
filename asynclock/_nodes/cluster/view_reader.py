"""Asks several servers of a cluster which server serves which hash slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..endpoint import Endpoint
from ..node import NodeSettings
from ..replicated.poll import poll, source_node
from ..replicated.watched import poll_patience
from ..replies import Failure
from ..server import ServerNode
from .kept import KeptNodes
from .slots import QUESTIONS, Address, View, read_views

MAX_SOURCES = 7
"""Number of servers that are asked for their view; with more primaries, all primaries are asked."""


class ViewReader:
    """The servers that are asked for their view of the cluster."""

    def __init__(
        self,
        endpoint: Endpoint,
        seeds: Sequence[Address],
        settings: NodeSettings,
        kept: KeptNodes,
    ) -> None:
        self._endpoint = endpoint
        self._seeds = seeds
        self._settings = settings
        self._kept = kept
        self._sources: dict[Address, ServerNode] = {}

    def __iter__(self) -> Iterator[ServerNode]:
        return iter(self._sources.values())

    async def read(self) -> tuple[Mapping[Address, View], Sequence[Failure]]:
        """Return the view of each server that has one, and why others have none."""
        if not self._sources:
            for seed in self._seeds:
                self._sources[seed] = self._source(seed)
        asked, patience = tuple(self._sources), poll_patience(self._settings.node_timeout)
        return read_views(asked, await poll(self._sources.values(), QUESTIONS, patience))

    def follow(self, view: View) -> list[ServerNode]:
        """Ask the servers of `view` from now on; return the others, which are no longer asked."""
        others = list(view.others)[: max(1, MAX_SOURCES - len(view.shards))]
        wanted, sources = {*view.shards, *others}, self._sources
        gone = [sources.pop(at) for at in list(sources) if at not in wanted]
        for address in wanted - sources.keys():
            sources[address] = self._source(address)
        return gone

    def _source(self, address: Address) -> ServerNode:
        return self._kept.start(source_node(self._endpoint.at(*address), self._settings))
