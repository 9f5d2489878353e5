"""Topologies take seconds to start: each is started once per worker, repaired and emptied."""

from collections.abc import Callable
from typing import TypeVar

from asynclock.testing import RedisCluster, Topology

T = TypeVar("T", bound=Topology)


class Topologies:
    """Those of one worker, by what they were asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Topology] = {}

    async def get(self, kind: str, make: Callable[[], T]) -> T:
        """One that is whole and empty. Two of the same kind differ in `kind`."""
        topology = self._made.pop(kind, None) or make()
        try:
            await topology.repair()
            await _empty(topology)
        except BaseException:
            topology.close()  # whatever was done to it, the next test gets another one
            raise
        self._made[kind] = topology
        return topology  # type: ignore[return-value]  # what `make` made is what is stored

    def close(self) -> None:
        """End them all."""
        for topology in self._made.values():
            topology.close()


async def _empty(topology: Topology) -> None:
    for server in topology.servers:
        if (await server.command("ROLE"))[0] == "master":
            await server.command("FLUSHALL")
            replicas = 0 if isinstance(topology, RedisCluster) else len(topology.servers) - 1
            await server.command("WAIT", replicas, 2000)
            await server.command("CONFIG", "RESETSTAT")
