"""Mistakes that waiting doesn't cure are ConfigurationErrors at once, and say what to write."""

from collections.abc import AsyncIterator
from functools import partial

import pytest

import asynclock
from asynclock.testing import LocalServer, RedisCluster
from asynclock.testing.plugin import StartServers
from tests.access.conftest import Connect
from tests.access.test_acl import PRIMITIVES, SHARED
from tests.waiting import go_through, until

TAG = "{locks}:"


def renamed(command: str) -> tuple[str, ...]:
    return "--rename-command", command, ""


async def serves(server: LocalServer) -> bool:
    return "cluster_state:ok" in await server.command("CLUSTER", "INFO")


@pytest.mark.parametrize(
    ("args", "url", "words"),
    [
        ((), "redis://{}/99", "CONFIG GET databases"),
        ((), "redis+cluster://{}", r"write redis:// instead of redis\+cluster://"),
        ((), "redis+sentinel://{}/group", r"write redis:// instead of redis\+sentinel://"),
        (renamed("HELLO"), "redis+sentinel://{}/group", r"write redis:// instead of redis\+sent"),
        (renamed("TIME"), "redis://{}", "remove rename-command"),
        (renamed("EVALSHA"), "redis://{}", "unknown command .EVALSHA.$"),
        (renamed("CLUSTER"), "redis+cluster://{}", "it is no Cluster"),
    ],
)
async def test_a_mistake_is_told_at_once(
    asynclock_servers: StartServers, connect: Connect, args: tuple[str, ...], url: str, words: str
) -> None:
    (server,) = await asynclock_servers(1, args=args)
    await refuses(connect, url.format(f"{server.host}:{server.port}"), words)


@pytest.fixture
async def halves() -> AsyncIterator[list[LocalServer]]:
    """Start a Cluster of two servers, of which one user may not use CLUSTER.

    The first server has the slot of "{locks}".
    """
    async with RedisCluster(primaries=2, replicas=0) as cluster:
        for server in cluster.servers:
            await until(partial(serves, server))
            await server.command(*"ACL SETUSER weak on >secret ~* &* +@all -cluster".split())
        yield cluster.servers


@pytest.mark.parametrize(
    ("half", "database", "prefix"), [(0, "", "a"), (0, "/3", "a"), (1, "", TAG)]
)
async def test_so_is_a_plain_url_of_a_cluster(
    halves: list[LocalServer], connect: Connect, half: int, database: str, prefix: str
) -> None:
    words = r"write redis\+cluster:// instead of redis://"
    await refuses(connect, halves[half].url + database, words, prefix=prefix)


async def test_where_cluster_is_refused_all_keys_may_lie_in_one_slot(
    halves: list[LocalServer], connect: Connect
) -> None:
    """Each error leads there."""
    first, other = halves
    words = 'prefix="{locks}:"'
    weak = first.url_for("weak", "secret")
    await refuses(connect, weak, words)
    await refuses(connect, weak.replace("redis://", "redis+cluster://"), words)
    await refuses(connect, other.url_for("weak", "secret"), "name the server of", prefix=TAG)
    locks = connect(weak, prefix=TAG)
    for use in (*PRIMITIVES.values(), *SHARED.values()):
        await use(locks)
    async with locks.lock("a"):
        assert "a" in [found.name async for found in locks.inspect_all()]


@pytest.mark.parametrize("why", ["renamed", "no right"])
async def test_leases_are_found_with_scan(
    asynclock_servers: StartServers, connect: Connect, why: str
) -> None:
    args = renamed("SCAN") if why == "renamed" else ()
    (server,) = await asynclock_servers(1, args=args)
    await server.command(*"ACL SETUSER weak on >secret ~* &* +@all -scan".split())
    locks = connect(server.url if args else server.url_for("weak", "secret"))
    async with locks.lock("a", timeout=20):
        with pytest.raises(asynclock.ConfigurationError, match=r"SCAN: allow \+scan to the user"):
            [one async for one in locks.inspect_all()]
        assert (await locks.inspect("a")).owner


async def refuses(connect: Connect, url: str, words: str, prefix: str = "asynclock:") -> None:
    locks = connect(url, prefix=prefix)
    with pytest.raises(asynclock.ConfigurationError, match=words):
        await locks.lock("a").acquire(timeout=20)
    await locks.aclose()


async def test_a_node_that_is_down_says_why_and_not_why_it_did_not_vote_before(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    (server,) = await asynclock_servers()
    locks = connect(server.url, ttl=60, max_ttl=60)
    await go_through(locks.lock("a", timeout=20))
    await server.restart(keep_data=False)
    await until(lambda: locks.nodes()[0].state == "quarantined")
    await server.kill()
    await until(lambda: "Connection refused" in locks.nodes()[0].cause, timeout=20)
    assert locks.nodes()[0].state == "down"
    with pytest.raises(asynclock.QuorumUnavailableError, match="Connection refused") as caught:
        await locks.lock("a").try_acquire()
    assert caught.value.retry_after == 1, "the end of the guard says nothing about the next start"
    with pytest.raises(asynclock.QuorumUnavailableError, match="Connection refused") as caught:
        await locks.ready(voting=True, timeout=0.2)
    assert caught.value.retry_after == 1
    await locks.aclose()
