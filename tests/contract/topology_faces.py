"""Faces with replicas, Sentinels or a Cluster behind them, and other ways to connect.

Their servers take seconds to start and to find each other, so they are started (and hurt) once per
worker and emptied between tests.

Every deployment comes up, with one server dead and with one frozen, by TCP, by TLS and by Unix
socket, except where that can't be: one server has nothing to lose; a frozen replica stays attached
to its primary, so `acks="all"` gets no lock without Sentinels that count it out; and Sentinels and
Clusters name hosts and ports. Of these, all that connect by TCP and some of each other kind
(STANDING) run every time, the rest is marked nightly.
"""

import asyncio
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from asynclock.testing import (
    Certificates,
    LocalServer,
    Quorum,
    RedisCluster,
    Replicated,
    SentinelGroup,
    Single,
    Topology,
    make_certificates,
    until,
)
from asynclock.testing.plugin import StartServers
from tests.able_servers import server_with_tls, server_with_waitaof
from tests.contract.faces import Face, Setting

Hurt = Callable[[Any], Awaitable[None]]
Addresses = Callable[[Any], list[str]]

_warm: dict[str, Topology] = {}


def close() -> None:
    """End all that are warm."""
    for topology in _warm.values():
        topology.close()
    _warm.clear()
    if certificates.cache_info().currsize:
        shutil.rmtree(certificates().ca.parent)
        certificates.cache_clear()


@functools.cache
def certificates() -> Certificates:
    """Made once per process, when they are needed."""
    return make_certificates(Path(tempfile.mkdtemp(prefix="alk-tls-")))


@contextlib.contextmanager
def without_system_authorities() -> Iterator[None]:
    """Let TLS contexts trust only the authority that an address names.

    Every TLS context also loads the system's authorities, which takes most of the time of a test,
    and they signed none of our certificates.
    """
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = os.devnull
    try:
        yield
    finally:
        del os.environ["SSL_CERT_FILE"]
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


def _named(topology: Topology) -> list[str]:
    return list(topology.addresses)


def topology(
    name: str,
    make: Callable[[], Topology],
    hurt: Hurt | None = None,
    *,
    warm: str = "",
    addresses: Addresses = _named,
    **options: Any,
) -> Setting:
    """A face on a topology; faces with the same `warm` share it."""

    @contextlib.asynccontextmanager
    async def setting(_start: StartServers) -> AsyncIterator[Face]:
        kind = warm or name
        with without_system_authorities():
            found = _warm.get(kind) or await _made(make, hurt)
            _keep(kind, found)
            primaries = [server for server in found.servers if await is_primary(server)]
            for server in primaries:
                await server.command("FLUSHALL")
            yield Face(name, addresses(found), primaries, options)

    return setting


def _keep(kind: str, topology: Topology) -> None:
    """Keep it for the next tests of its kind.

    A worker of xdist gets them in a row (tests/scheduling.py), so it ends all others: their servers
    would go on talking to each other. One process alone gets tests in any order and keeps all.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        for other in _warm.keys() - {kind}:
            _warm.pop(other).close()
    _warm[kind] = topology


async def _made(make: Callable[[], Topology], hurt: Hurt | None) -> Topology:
    topology = make()
    try:
        await topology.repair()
        if hurt is not None:
            await hurt(topology)
    except BaseException:
        topology.close()  # the next test gets another one
        raise
    return topology


async def is_primary(server: LocalServer) -> bool:
    if not server.alive or server.frozen:
        return False
    role: str = (await server.command("ROLE"))[0]
    return role == "master"


# ---- what is done to them ------------------------------------------------------------------------
async def server_dead(quorum: Quorum) -> None:
    await quorum.servers[-1].kill()


async def server_frozen(quorum: Quorum) -> None:
    await quorum.servers[-1].freeze()


async def replica_dead(group: Replicated) -> None:
    await group.replicas[0].kill()
    await until(lambda: attached(group, 1), "the primary misses its replica")


async def replica_frozen(group: Replicated) -> None:
    await group.replicas[0].freeze()


async def attached(group: Replicated, count: int) -> bool:
    return f"connected_slaves:{count}\r" in await group.primary.command("INFO", "replication")


async def sentinel_dead(group: SentinelGroup) -> None:
    await group.replicas[0].kill()
    await group.sentinels[0].kill()


async def sentinel_frozen(group: SentinelGroup) -> None:
    await group.replicas[0].freeze()
    await group.sentinels[0].freeze()


async def counted_out(group: SentinelGroup) -> None:
    """A replica is frozen, and all Sentinels have noticed."""
    await group.replicas[0].freeze()

    async def noticed() -> bool:
        asked = (one.command("SENTINEL", "REPLICAS", group.service) for one in group.sentinels)
        return all("s_down" in str(replicas) for replicas in await asyncio.gather(*asked))

    await until(noticed, "the Sentinels count the replica out")


async def primary_dead(cluster: RedisCluster) -> None:
    """The name "a" lies in the last shard: it is served by a promoted replica then."""
    await cluster.fail_over(shard=2)


async def shard_replica_frozen(cluster: RedisCluster) -> None:
    await cluster.shards[0][1].freeze()


# ---- every deployment in every state, by every way to connect ------------------------------------
def starting(kind: type[Any], *sizes: int, transport: str) -> Callable[[], Topology]:
    """Return what starts a topology with these numbers of servers."""

    def make() -> Topology:
        if transport == "tls":
            binary = server_with_tls()
            return kind(*sizes, binary=binary, tls=certificates(), tls_client_certs=True)
        if transport == "tcp":
            return kind(*sizes)
        # Replicas find their primary by TCP, so it listens on both.
        if issubclass(kind, Replicated):
            return kind(*sizes, args=("--unixsocket", "s"))
        return kind(*sizes, unix=True)

    return make


def quorums(transport: str) -> Iterator[tuple[str, Setting]]:
    """A single server and 3 or 5 independent ones (by TCP: faces.py)."""
    name = f"1-{transport}-up"
    yield name, topology(name, starting(Single, transport=transport))
    for n in (3, 5):
        for state, hurt in {"up": None, "dead": server_dead, "frozen": server_frozen}.items():
            name = f"{n}-{transport}-{state}"
            yield name, topology(name, starting(Quorum, n, transport=transport), hurt)


def groups(transport: str) -> Iterator[tuple[str, Setting]]:
    """A primary with two replicas; the same group serves both settings of acks."""
    for state, hurt in {"up": None, "dead": replica_dead, "frozen": replica_frozen}.items():
        for acks in (1, "all") if state != "frozen" else (1,):
            name = f"acks{acks}-{transport}-{state}"
            yield (
                name,
                topology(
                    name,
                    starting(Replicated, 2, transport=transport),
                    hurt,
                    warm=f"group-{transport}-{state}",
                    addresses=_unix_socket if transport == "unix" else _named,
                    acks=acks,
                ),
            )


def _unix_socket(group: Replicated) -> list[str]:
    return [f"unix://{group.primary.folder}/data/s"]


def watched(transport: str) -> Iterator[tuple[str, Setting]]:
    """Groups behind Sentinels, and Clusters."""
    states: dict[str, Hurt | None] = {"up": None, "dead": sentinel_dead, "frozen": sentinel_frozen}
    for state, hurt in states.items():
        name = f"sentinel-{transport}-{state}"
        yield name, topology(name, starting(SentinelGroup, transport=transport), hurt, acks=1)
    name = f"sentinel-{transport}-all-frozen"
    make = starting(SentinelGroup, transport=transport)
    yield name, topology(name, make, counted_out, acks="all")

    clusters: dict[str, tuple[int, int, Hurt | None]] = {
        "up": (3, 1, None),
        "dead": (3, 2, primary_dead),
        "frozen": (1, 2, shard_replica_frozen),
    }
    for state, (primaries, replicas, hurt) in clusters.items():
        name = f"cluster-{transport}-{state}"
        make = starting(RedisCluster, primaries, replicas, transport=transport)
        yield name, topology(name, make, hurt, acks=1)


def _all() -> Iterator[tuple[str, Setting]]:
    for transport in ("tcp", "unix", "tls"):
        if transport != "tcp":
            yield from quorums(transport)
        yield from groups(transport)
        if transport != "unix":
            yield from watched(transport)
    name = "durable-tcp-up"
    yield name, topology(name, saving, acks=1, durable=True)


def saving() -> Replicated:
    """A group whose servers can tell that they have saved a grant."""
    return Replicated(2, aof=True, binary=server_with_waitaof())


TOPOLOGY_FACES: dict[str, Setting] = dict(_all())

STANDING = {name for name in TOPOLOGY_FACES if "-tcp-" in name} | {
    *("1-tls-up", "3-tls-frozen", "acks1-tls-dead", "sentinel-tls-frozen", "cluster-tls-up"),
    *("1-unix-up", "3-unix-dead", "5-unix-frozen", "acksall-unix-up"),
}
