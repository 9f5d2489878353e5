"""The bounds of what a store of fences takes, and what it says about anything else."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock.errors import ConfigurationError
from asynclock.fencing import (
    LOCK_FENCE_HEADER,
    LOCK_NAME_HEADER,
    FencedRedis,
    FenceHeaderError,
    FenceStamp,
    StaleFenceError,
    check_fence,
    read_fence_headers,
)
from asynclock.fencing._naming import check_template, fields_of, fill_in
from asynclock.testing import memory_node

LEASE = FenceStamp("a", 7)


class Client:
    """A client as redis-py's, of a server in memory, and what it was asked for."""

    def __init__(self) -> None:
        self.node = memory_node()
        self.asked: list[list[Any]] = []

    async def execute_command(self, *words: Any) -> Any:
        return await self.node.command(*words)

    def register_script(self, source: str) -> Any:
        async def call(keys: list[Any], args: list[Any]) -> Any:
            self.asked.append(args)
            return await self.execute_command("EVAL", source, len(keys), *keys, *args)

        return call


def store(client: Client, **settings: Any) -> FencedRedis:
    return FencedRedis(client, **settings)  # type: ignore[arg-type]  # it has what is used


async def left(client: Client, key: str) -> Any:
    return await client.node.command("PTTL", key)


async def test_times_are_seconds_and_may_be_parts_of_one() -> None:
    client = Client()
    fenced = store(client, retention=3600.5)
    await fenced.set(LEASE, "key", "value", ttl=0.75)
    assert 0 < await left(client, "key") <= 750
    assert 3_600_000 < await left(client, "asynclock:seen:a:#seen") <= 3_600_500
    await fenced.set(LEASE, "key", "value")
    assert await left(client, "key") == -1
    for seconds, milliseconds in ((0.001, 1), (None, 0)):
        await store(client, retention=seconds).claim(LEASE)
        assert client.asked[-1][2] == milliseconds


@pytest.mark.parametrize("seconds", [0, -1, 0.0009, 2**40, float("nan"), float("inf")])
async def test_a_time_that_no_server_takes_is_refused(seconds: float) -> None:
    client = Client()
    with pytest.raises(ConfigurationError, match=r"^retention must be positive seconds or None"):
        store(client, retention=seconds)
    with pytest.raises(ConfigurationError, match=r"^ttl must be positive seconds or None"):
        await store(client).set(LEASE, "key", "value", ttl=seconds)
    assert not client.asked


async def test_a_client_that_is_not_asynchronous_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"needs a redis.asyncio client, not 'redis://'"):
        FencedRedis("redis://")  # type: ignore[arg-type]  # what a caller may do wrong


async def test_a_fence_that_is_too_old_is_told_which_would_do() -> None:
    client = Client()
    now = int(client.node.wall() * 1_000_000)
    old = FenceStamp("a", now - 5000 * 1_000_000, "read")
    with pytest.raises(
        StaleFenceError, match=r"of 'a' \(read\) is too old.* below (\d+)"
    ) as caught:
        await store(client, retention=1000).claim(old)
    oldest = int(str(caught.value).partition(" below ")[2].split()[0])
    assert oldest == pytest.approx(now - 500 * 1_000_000, abs=60_000_000)
    assert (caught.value.name, caught.value.fence, caught.value.highest) == ("a", old.fence, None)


def headers(name: str) -> dict[str, str]:
    return {LOCK_NAME_HEADER: name, LOCK_FENCE_HEADER: "7"}


async def test_a_name_that_no_lock_can_have_is_the_senders_mistake() -> None:
    """The store refuses it; a web server must not answer 500."""
    with pytest.raises(FenceHeaderError, match="must not contain ':#'") as caught:
        await check_fence(headers("a:%23fence"), store(Client()), "a:#fence")
    assert (caught.value.header, caught.value.missing) == (LOCK_NAME_HEADER, False)


def test_how_long_a_name_in_a_header_may_be() -> None:
    assert read_fence_headers(headers("a" * 2048)).name == "a" * 2048
    with pytest.raises(FenceHeaderError, match="is not a percent-encoded name"):
        read_fence_headers(headers("a" * 2049))


def test_a_template_says_what_it_lacks_and_what_the_route_has() -> None:
    with pytest.raises(ConfigurationError, match=r"'\{c' is not a valid template: .*'}'"):
        fields_of("{c")
    text = r"^PUT /x: the lock name '\{d\}\{c\}' needs 'c', which .* of the path \('a', 'b'\);"
    with pytest.raises(ConfigurationError, match=text):
        check_template("{d}{c}", {"b", "a"}, "PUT /x")
    with pytest.raises(ConfigurationError, match=r"needs 'c', which .* of the path \('a', 'b'\);"):
        fill_in("{c}", {"b": 1, "a": 2})


@pytest.mark.parametrize("part", ["", "read", "write"])
async def test_only_fences_from_2001_on_are_taken_for_times(part: str) -> None:
    """Smaller ones are of other origin, such as revisions: they are compared only."""
    fenced = store(Client())
    await fenced.claim(FenceStamp("a", 10**15, part))
    with pytest.raises(StaleFenceError, match="is too old"):
        await fenced.claim(FenceStamp("b", 10**15 + 1, part))
