"""Gives an application its manager, from settings that `setup` may replace before the start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from .._connect import connect
from .._nodes.deployment import NodeAddress
from .._settings import ConnectSettings
from ..errors import ConfigurationError
from ..manager import LockManager
from . import _stopping
from ._problems import Contended, checked

Nodes: TypeAlias = "Sequence[NodeAddress | LockManager]"


class Source:
    """Nodes and settings, or an existing manager.

    A second `setup` of the same application replaces them, so that a test can use other nodes.
    """

    def __init__(self, nodes: Nodes, settings: ConnectSettings, contended: Contended = 409) -> None:
        self._runs = 0  # several if test clients overlap
        self._take(nodes, settings, contended)

    def replace(self, nodes: Nodes, settings: ConnectSettings, contended: Contended) -> None:
        """Replace all settings. Raises ConfigurationError while the application runs."""
        if self._runs:
            raise ConfigurationError("the application runs: call setup before it starts")
        self._take(nodes, settings, contended)

    def _take(self, nodes: Nodes, settings: ConnectSettings, contended: Contended) -> None:
        self.contended = checked(contended)
        addresses = [node for node in nodes if not isinstance(node, LockManager)]
        if len(addresses) == len(nodes):
            # Made only to raise the error of a wrong setting here, not at the start of the server.
            connect(*addresses, **settings)
        elif len(nodes) > 1:
            raise ConfigurationError("a LockManager has its nodes already: pass nothing else")
        elif settings:
            raise ConfigurationError(f"a LockManager has its settings already: {sorted(settings)}")
        self._nodes, self._addresses, self._settings = tuple(nodes), addresses, settings

    @asynccontextmanager
    async def run(self) -> AsyncIterator[LockManager]:
        """Open the manager while the application runs."""
        given = next((node for node in self._nodes if isinstance(node, LockManager)), None)
        self._runs += 1
        try:
            async with given or connect(*self._addresses, **self._settings) as locks:
                _stopping.begin(locks)
                yield locks
        finally:
            self._runs -= 1
