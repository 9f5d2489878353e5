"""Records of a fenced store expire, and no stale holder is accepted all the same."""

import time

import pytest
from redis.asyncio import Redis

from asynclock.fencing import READ, WRITE, FencedRedis, FenceStamp, StaleFenceError

DAY = 86400.0
RETENTION = 1000.0
US = 1_000_000
RECORD = "asynclock:seen:a:#seen"


@pytest.fixture
def fenced(client: Redis) -> FencedRedis:
    return FencedRedis(client, retention=RETENTION)


def aged(seconds: float, part: str = "") -> FenceStamp:
    """The stamp of a lease that was acquired so long ago."""
    return FenceStamp("a", int((time.time() - seconds) * US), part)


async def test_the_default_is_a_day(client: Redis) -> None:
    await FencedRedis(client).claim(aged(0))
    assert DAY - 60 < await client.ttl(RECORD) <= DAY + 60


async def test_a_stale_holder_is_rejected_after_the_newer_record_has_expired(
    client: Redis, fenced: FencedRedis
) -> None:
    stale, newer = aged(RETENTION + 60), aged(RETENTION + 1)
    await FencedRedis(client, retention=None).claim(newer)
    await client.delete(RECORD)  # it has expired: the write was a retention ago
    with pytest.raises(StaleFenceError, match="too old") as caught:
        await fenced.set(stale, "key", "late")
    assert caught.value.highest is None
    assert await client.get("key") is None
    # A clock that was set back by less than half the retention makes no difference.
    with pytest.raises(StaleFenceError):
        await fenced.claim(aged(RETENTION / 2 + 60))


async def test_a_lease_may_write_first_within_half_the_retention(fenced: FencedRedis) -> None:
    await fenced.claim(aged(RETENTION / 2 - 60))


async def test_a_lease_that_writes_is_never_too_old(client: Redis, fenced: FencedRedis) -> None:
    lease = aged(10 * RETENTION)
    await FencedRedis(client, retention=None).claim(lease)
    await fenced.set(lease, "key", "kept")
    assert RETENTION - 60 < await client.ttl(RECORD) <= RETENTION


async def test_a_record_ahead_of_the_clock_stays_until_then(
    client: Redis, fenced: FencedRedis
) -> None:
    await fenced.claim(aged(-500))
    assert RETENTION + 400 < await client.ttl(RECORD) <= RETENTION + 501
    await fenced.claim(aged(-1e9))
    assert await client.ttl(RECORD) <= 2 * RETENTION, "a forged fence leaves no record for ever"


async def test_an_old_reader_needs_a_record_that_its_own_fence_is_not_below(
    client: Redis, fenced: FencedRedis
) -> None:
    """Another reader's newer record says nothing of the writers in between."""
    await fenced.claim(aged(0, READ))
    with pytest.raises(StaleFenceError, match="too old"):
        await fenced.claim(aged(RETENTION, READ))
    await fenced.claim(aged(RETENTION / 4, READ))
    await client.set("asynclock:seen:a:#write:#seen", aged(2 * RETENTION, WRITE).fence)
    await fenced.claim(aged(RETENTION, READ))


async def test_without_a_retention_no_fence_is_too_old(client: Redis) -> None:
    await FencedRedis(client, retention=None).claim(aged(1e6))


async def test_a_record_ahead_of_the_clock_stays_when_a_lower_reader_comes(
    client: Redis, fenced: FencedRedis
) -> None:
    """The record keeps the higher fence, so it must live as long as that needs."""
    await fenced.claim(aged(-500, READ))
    await fenced.claim(aged(0, READ))
    assert await client.ttl("asynclock:seen:a:#read:#seen") > RETENTION + 400


async def test_a_refusal_leaves_the_record_as_it_is(client: Redis, fenced: FencedRedis) -> None:
    await FencedRedis(client, retention=None).claim(FenceStamp("a", 2))
    with pytest.raises(StaleFenceError):
        await fenced.claim(FenceStamp("a", 1))
    assert await client.ttl(RECORD) == -1


async def test_a_fence_that_is_too_old_is_told_which_would_do(fenced: FencedRedis) -> None:
    old = aged(5 * RETENTION, READ)
    with pytest.raises(
        StaleFenceError, match=r"of 'a' \(read\) is too old.* below (\d+)"
    ) as caught:
        await fenced.claim(old)
    oldest = int(str(caught.value).partition(" below ")[2].split()[0])
    assert oldest == pytest.approx(aged(RETENTION / 2).fence, abs=60 * US)
    assert (caught.value.name, caught.value.fence, caught.value.highest) == ("a", old.fence, None)


@pytest.mark.parametrize("part", ["", READ, WRITE])
async def test_only_fences_from_2001_on_are_taken_for_times(fenced: FencedRedis, part: str) -> None:
    """Smaller ones are of other origin, such as revisions: they are compared only."""
    await fenced.claim(FenceStamp("a", 10**15, part))
    with pytest.raises(StaleFenceError, match="is too old"):
        await fenced.claim(FenceStamp("b", 10**15 + 1, part))
