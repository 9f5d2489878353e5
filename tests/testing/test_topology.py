"""Deployments are ready when they say so, and a failover is one."""

import asyncio

import pytest

import asynclock.testing
from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing import (
    LocalServer,
    Quorum,
    RedisCluster,
    Replicated,
    SentinelGroup,
    Single,
    all_servers,
    make_certificates,
)
from tests.able_servers import server_with_tls

BINARIES = all_servers()

# Failovers wait for timeouts on purpose long enough for a busy machine.
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=BINARIES, ids=lambda b: f"{b.kind}-{b.version[0]}.{b.version[1]}")
def binary(request):
    return request.param


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_the_public_names_are_there():
    for name in asynclock.testing.__all__:
        assert getattr(asynclock.testing, name).__doc__
    assert dir(asynclock.testing) == asynclock.testing.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        asynclock.testing.nonsense  # noqa: B018 - the access is the test


async def role(server: LocalServer) -> str:
    return (await server.command("ROLE"))[0]


async def test_single_and_quorum():
    async with Single() as single, Quorum(3) as quorum:
        assert single.addresses == [single.servers[0].url]
        assert len(set(quorum.addresses)) == 3
        with pytest.raises(UnsupportedDeploymentError, match="Single"):
            await single.fail_over()
        await quorum.servers[0].kill()
        await quorum.servers[1].freeze()
        await quorum.repair()
        assert [await role(server) for server in quorum.servers] == ["master"] * 3


async def test_a_replica_has_everything_when_ready(binary):
    async with Replicated(replicas=2, binary=binary) as group:
        (address,) = group.addresses
        assert address == group.primary.url
        assert [await role(server) for server in group.servers] == ["master", "slave", "slave"]
        await group.primary.command("SET", "a", "1")
        await group.ready()
        assert [await server.command("GET", "a") for server in group.servers] == ["1"] * 3


async def test_replicated_failover_and_repair():
    async with Replicated(replicas=2, password="secret", aof=True) as group:
        await group.primary.command("SET", "a", "1")
        await group.ready()
        old = group.primary
        new = await group.fail_over()
        assert not old.alive
        assert group.addresses == [new.url] != [old.url]
        assert await new.command("GET", "a") == "1"
        await group.repair()
        assert await role(old) == "slave"
        assert await new.command("WAIT", 2, 10_000) == 2


async def test_replicated_with_tls_and_users(certificates):
    users = ["default off", "app on >pw ~* +@all"]
    options = {"binary": server_with_tls(), "tls": certificates, "users": users}
    async with Replicated(replicas=1, **options) as group:
        assert group.addresses[0].startswith("rediss://")


async def primary_of(sentinel: LocalServer, service: str) -> int:
    address = await sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    return int(address[1])


async def test_sentinels_know_everything_when_ready(binary):
    settings = {"service": "orders", "down_after": 10.0, "binary": binary}
    async with SentinelGroup(replicas=2, sentinels=3, **settings) as group:
        ports = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
        assert group.addresses == [f"redis+sentinel://{ports}/orders"]
        for sentinel in group.sentinels:
            assert await primary_of(sentinel, "orders") == group.primary.port
            assert len(await sentinel.command("SENTINEL", "SENTINELS", "orders")) == 2
            assert len(await sentinel.command("SENTINEL", "REPLICAS", "orders")) == 2
            assert "3 usable" in await sentinel.command("SENTINEL", "CKQUORUM", "orders")
            words = await sentinel.command("SENTINEL", "MASTER", "orders")
            told = dict(zip(words[::2], words[1::2], strict=True))
            wanted = {"quorum": "2", "down-after-milliseconds": "10000", "parallel-syncs": "3"}
            assert wanted.items() <= told.items()
            assert told["failover-timeout"] == "4000"


async def test_sentinels_fail_over_a_killed_primary_and_take_it_back():
    async with SentinelGroup(replicas=2, sentinels=3, password="secret") as group:
        old = group.primary
        new = await group.fail_over()
        assert new is group.primary is not old
        assert await role(new) == "master"
        for sentinel in group.sentinels:
            assert await primary_of(sentinel, group.service) == new.port
        await group.repair()
        assert await role(old) == "slave"
        assert group.addresses[0].startswith("redis+sentinel://:secret@127.0.0.1:")
        assert await group.fail_over(kill=False) is not new
        assert new.alive


async def test_sentinels_with_tls(certificates):
    binary = server_with_tls()
    async with SentinelGroup(replicas=1, binary=binary, tls=certificates) as group:
        assert group.addresses[0].startswith("rediss+sentinel://127.0.0.1:")
        assert group.addresses[0].endswith("ca.pem")


async def slots_and_replicas(server: LocalServer) -> tuple[int, int]:
    shards = await server.command("CLUSTER", "SLOTS")
    return sum(last - first + 1 for first, last, *_ in shards), sum(len(s) - 3 for s in shards)


async def test_a_cluster_serves_all_slots_when_ready(binary):
    async with RedisCluster(primaries=3, replicas=1, binary=binary) as cluster:
        ports = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
        assert cluster.addresses == [f"redis+cluster://{ports}"]
        for server in cluster.servers:
            assert await slots_and_replicas(server) == (16384, 3)
            assert "cluster_state:ok" in await server.command("CLUSTER", "INFO")
        for primary, replica in cluster.shards:
            assert [await role(primary), await role(replica)] == ["master", "slave"]
            assert await primary.command("WAIT", 1, 10_000) == 1


async def test_a_cluster_replaces_a_killed_primary_and_takes_it_back():
    async with RedisCluster(primaries=3, replicas=1) as cluster:
        old = await cluster.primary(1)
        new = await cluster.fail_over(shard=1)
        assert {old, new} == set(cluster.shards[1])
        await cluster.repair()
        assert await role(old) == "slave"
        assert await cluster.fail_over(kill=False, shard=1) is old


async def test_a_cluster_is_not_ready_while_it_moves_slots_and_a_repair_calls_that_off():
    async with RedisCluster(primaries=3, replicas=0) as cluster:
        source, target = marked = cluster.servers[:2]
        names = [await node.command("CLUSTER", "MYID") for node in marked]
        await target.command("CLUSTER", "SETSLOT", 7, "IMPORTING", names[0])
        await source.command("CLUSTER", "SETSLOT", 7, "MIGRATING", names[1])
        waiting = asyncio.ensure_future(cluster.ready())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await cluster.repair()
        await waiting


async def test_a_cluster_with_tls(certificates):
    binary = server_with_tls()
    async with RedisCluster(3, replicas=0, binary=binary, tls=certificates) as cluster:
        assert cluster.addresses[0].startswith("rediss+cluster://")
        with pytest.raises(UnsupportedDeploymentError, match="no replica"):
            await cluster.fail_over()


async def test_nothing_is_left_of_a_deployment():
    async with SentinelGroup(replicas=1) as group:
        await group.primary.freeze()
        await group.sentinels[0].freeze()
    assert not any(server.alive for server in [*group.servers, *group.sentinels])
