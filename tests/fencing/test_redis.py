"""A stale holder cannot write to Redis, whatever it tries: on real servers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

from asynclock import testing
from asynclock.errors import ConfigurationError
from asynclock.fencing import FencedRedis, FenceStamp, StaleFenceError
from asynclock.testing import LocalServer, all_servers
from tests.fencing import page
from tests.fencing.clients import Wire
from tests.fencing.page import stamp

SEEN = "asynclock:seen:orders:42:#seen"
PATIENCE = 40  # the clients' default of 5 s is not much on a busy machine


def on(wire: Wire, **settings: Any) -> FencedRedis:
    return FencedRedis(wire, **settings)  # type: ignore[arg-type]  # it has what is used


# ---- the store in Redis: what it asks for --------------------------------------------------------
async def test_each_write_asks_for_its_record_its_fence_and_its_words() -> None:
    wire = Wire()
    fenced, lease = on(wire), FenceStamp("a", 7)
    record, day = "asynclock:seen:a:#seen", 86_400_000
    await fenced.claim(lease)
    await fenced.set(lease, "key", b"value")
    await fenced.set(lease, "key", 1.5, ttl=60)
    await fenced.hset(lease, "hash", {"one": 1, "two": "2"})
    await fenced.delete(lease, "key", b"hash")
    assert wire.asked == [
        ([record, record], ["claim", 7, day, 1]),
        ([record, record, "key"], ["set", 7, day, 1, b"value"]),
        ([record, record, "key"], ["set", 7, day, 1, 1.5, 60_000]),
        ([record, record, "hash"], ["hset", 7, day, 1, "one", 1, "two", "2"]),
        ([record, record, "key", b"hash"], ["del", 7, day, 1]),
    ]


@pytest.mark.parametrize(
    ("part", "records"),
    [
        ("3", ["x:a:#3:#seen", "x:a:#3:#seen"]),
        ("read", ["x:a:#read:#seen", "x:a:#write:#seen"]),
        ("write", ["x:a:#write:#seen", "x:a:#write:#seen", "x:a:#read:#seen"]),
    ],
)
async def test_the_record_of_a_part_comes_first_and_then_those_of_its_rivals(
    part: str, records: list[str]
) -> None:
    wire = Wire()
    await on(wire, prefix="x:", retention=None).set(FenceStamp("a", 7, part), "key", "value")
    assert wire.asked == [([*records, "key"], ["set", 7, 0, len(records) - 1, "value"])]


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0.001, 1), (0.0014, 1), (0.29, 290), (1.001, 1001), (2.3, 2300), (0.75, 750)],
)
async def test_times_are_rounded_to_the_millisecond(seconds: float, milliseconds: int) -> None:
    """1.001 * 1000 is less than 1001: cut off, a key would live a millisecond less."""
    wire = Wire()
    await on(wire, retention=seconds).set(FenceStamp("a", 7), "key", "value", ttl=seconds)
    ((_, words),) = wire.asked
    assert words == ["set", 7, milliseconds, 1, "value", milliseconds]


async def test_what_a_write_returned_is_returned() -> None:
    assert await on(Wire(1, 5)).hset(FenceStamp("a", 7), "hash", {"one": 1}) == 5
    assert await on(Wire(1, 5)).delete(FenceStamp("a", 7), "key") == 5


WRONG_TIME = "{} must be positive seconds or None: {}"


@pytest.mark.parametrize("seconds", [0, -1, 0.0009, 0.0001, 2**40, float("nan"), float("inf")])
async def test_a_time_that_no_server_takes_is_refused(seconds: float) -> None:
    wire = Wire()
    with pytest.raises(ConfigurationError) as caught:
        on(wire, retention=seconds)
    assert str(caught.value) == WRONG_TIME.format("retention", seconds)
    with pytest.raises(ConfigurationError) as caught:
        await on(wire).set(FenceStamp("a", 7), "key", "value", ttl=seconds)
    assert str(caught.value) == WRONG_TIME.format("ttl", seconds)
    assert not wire.asked


async def test_a_wrong_call_says_what_it_needs(server: LocalServer) -> None:
    wire = Wire()
    fenced, lease = on(wire), FenceStamp("a", 7)
    for call, words in (
        (fenced.hset(lease, "hash", {}), "hset needs at least one field"),
        (fenced.delete(lease), "delete needs at least one key"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            await call
        assert str(caught.value) == words
    assert wire.asked == []
    with pytest.raises(ConfigurationError, match=r"needs a redis.asyncio client, not 'redis://'"):
        FencedRedis("redis://")  # type: ignore[arg-type]  # what a caller may do wrong
    with (
        redis.Redis(port=server.port) as blocking,
        pytest.raises(ConfigurationError, match="async"),
    ):
        FencedRedis(blocking)  # type: ignore[arg-type]  # what a caller may do wrong


# ---- on real servers -----------------------------------------------------------------------------
@pytest.mark.parametrize("binary", all_servers(), ids=lambda binary: binary.kind)
async def test_each_write_is_applied_or_refused_by_its_fence(binary, asynclock_servers) -> None:
    (server,) = await asynclock_servers(1, binary=binary)
    order: dict[str, str | bytes | int | float] = {"state": "new", "total": 12}
    async with Redis.from_url(server.url, decode_responses=True, socket_timeout=PATIENCE) as client:
        fenced = FencedRedis(client)
        assert await fenced.hset(stamp(7), "order", order) == 2
        assert await fenced.hset(stamp(7), "order", {"state": "paid"}) == 0
        await fenced.set(stamp(8), "note", "hello", ttl=60)
        for write in (
            fenced.set(stamp(7), "note", "late"),
            fenced.hset(stamp(7), "order", {"state": "late"}),
            fenced.delete(stamp(7), "order", "note"),
            fenced.claim(stamp(7)),
        ):
            with pytest.raises(StaleFenceError) as caught:
                await write
            assert (caught.value.fence, caught.value.highest) == (7, 8)
        assert await client.hgetall("order") == {"state": "paid", "total": "12"}
        assert await client.get("note") == "hello"
        assert 0 < await client.ttl("note") <= 60
        assert await fenced.delete(stamp(8), "order", "note", "nothing") == 2


async def test_the_written_keys_of_one_lock_share_one_record(client: Redis) -> None:
    """Else an old holder could still write wherever the new one has not been yet."""
    fenced = FencedRedis(client)
    await fenced.set(stamp(2), "a", "new")
    with pytest.raises(StaleFenceError):
        await fenced.set(stamp(1), "b", "old")
    await fenced.set(FenceStamp("another lock", 1), "b", "mine")


@pytest.mark.parametrize("retention", [None, 600])
async def test_large_fences_are_compared_exactly(client: Redis, retention: float | None) -> None:
    """Neighbours near 2**53, where `tostring` of 14 digits would call them equal."""
    fenced = FencedRedis(client, retention=retention)
    top = 2**53 - 1
    await fenced.claim(stamp(top - 1))
    await fenced.claim(stamp(top))
    assert await client.get(SEEN) == str(top).encode()
    with pytest.raises(StaleFenceError) as caught:
        await fenced.claim(stamp(top - 1))
    assert caught.value.highest == top


async def test_a_write_that_fails_has_shown_its_fence(client: Redis) -> None:
    fenced = FencedRedis(client)
    await client.set("a string", "x")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await fenced.hset(stamp(2), "a string", {"field": "value"})
    with pytest.raises(StaleFenceError):
        await fenced.claim(stamp(1))


async def test_a_hash_of_any_size_goes_through(client: Redis) -> None:
    fields = {f"field {i}": i for i in range(20_000)}  # unpack() would end at about 8,000 values
    assert await FencedRedis(client).hset(stamp(1), "large", fields) == len(fields)


async def test_a_record_that_is_no_number_is_an_error_not_a_zero(client: Redis) -> None:
    await client.set(SEEN, "rubbish")
    with pytest.raises(ResponseError, match="highest fence"):
        await FencedRedis(client).set(stamp(1), "key", "value")
    assert await client.get("key") is None


@pytest.fixture
async def cluster() -> AsyncIterator[RedisCluster]:
    async with testing.RedisCluster(1, replicas=0) as nodes:
        url = nodes.servers[0].url
        async with RedisCluster.from_url(url, socket_timeout=PATIENCE) as client:
            yield client


async def test_in_a_cluster_one_tag_keeps_record_and_keys_together(cluster: RedisCluster) -> None:
    fenced = FencedRedis(cluster)
    await fenced.set(FenceStamp("orders:{42}", 2), "order:{42}", "new")
    with pytest.raises(StaleFenceError):
        await fenced.set(FenceStamp("orders:{42}", 1), "order:{42}", "old")
    assert await cluster.get("order:{42}") == b"new"


async def test_the_page_shows_what_works(client: Redis) -> None:
    test = "tests/fencing/test_redis.py::test_the_page_shows_what_works"
    await page.run(test, {"client": client, "lease": stamp(3)})
    assert await client.hget("order:42", "state") == b"paid"
    with pytest.raises(StaleFenceError):
        await FencedRedis(client).claim(stamp(2))
