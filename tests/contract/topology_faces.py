"""Faces with replicas, Sentinels or a Cluster behind them, and other ways to connect.

Their servers take seconds to start and to find each other, so they are started (and hurt) once per
worker and emptied between tests.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from asynclock.testing import (
    LocalServer,
    Quorum,
    RedisCluster,
    Replicated,
    SentinelGroup,
    Single,
    Topology,
    find_server,
    make_certificates,
)
from asynclock.testing.plugin import StartServers
from tests.contract.faces import Face, Setting

# Under a busy machine a replica may take its time: half of this is what WAIT has.
PATIENT = {"node_timeout": 0.45}

_warm: dict[str, Topology] = {}


def close() -> None:
    """End all that are warm."""
    for topology in _warm.values():
        topology.close()
    _warm.clear()


def topology(
    name: str,
    make: Callable[[], Topology],
    hurt: Callable[[Any], Awaitable[None]] | None = None,
    *,
    warm: str = "",
    **options: Any,
) -> Setting:
    """A face on a topology; faces with the same `warm` share it."""

    @contextlib.asynccontextmanager
    async def setting(_start: StartServers) -> AsyncIterator[Face]:
        kind = warm or name
        found = _warm.get(kind)
        if found is None:
            found = _warm[kind] = make()
            await found.repair()
            if hurt is not None:
                await hurt(found)
        primaries = [server for server in found.servers if await is_primary(server)]
        for server in primaries:
            await server.command("FLUSHALL")
        yield Face(name, list(found.addresses), primaries, {**PATIENT, **options})

    return setting


async def is_primary(server: LocalServer) -> bool:
    if not server.alive or server.frozen:
        return False
    role: str = (await server.command("ROLE"))[0]
    return role == "master"


async def replica_dead(group: Replicated) -> None:
    await group.replicas[0].kill()


async def replica_frozen(group: Replicated) -> None:
    await group.replicas[0].freeze()


async def sentinel_dead(group: SentinelGroup) -> None:
    await group.replicas[0].kill()
    await group.sentinels[0].kill()


async def sentinel_frozen(group: SentinelGroup) -> None:
    await group.replicas[0].freeze()
    await group.sentinels[0].freeze()


def tls() -> Single:
    folder = Path(tempfile.mkdtemp(prefix="alk-tls-"))
    return Single(tls=make_certificates(folder), tls_client_certs=True)


TOPOLOGY_FACES: dict[str, Setting] = {
    "acks1-up": topology("acks1-up", Replicated, warm="replicated", acks=1),
    "acks1-dead": topology("acks1-dead", Replicated, replica_dead, acks=1),
    "acks1-frozen": topology("acks1-frozen", Replicated, replica_frozen, acks=1),
    "acksall-up": topology("acksall-up", Replicated, warm="replicated", acks="all"),
    "sentinel-up": topology("sentinel-up", SentinelGroup, acks=1),
    "sentinel-dead": topology("sentinel-dead", SentinelGroup, sentinel_dead, acks=1),
    "sentinel-frozen": topology("sentinel-frozen", SentinelGroup, sentinel_frozen, acks=1),
    "cluster-up": topology("cluster-up", RedisCluster, acks=1),
    "3-unix": topology("3-unix", lambda: Quorum(3, unix=True)),
}
if find_server().tls:
    TOPOLOGY_FACES["1-tls"] = topology("1-tls", tls)
