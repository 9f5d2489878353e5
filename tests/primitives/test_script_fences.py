"""The fences that the scripts give out, and for how long they keep the counters."""

from __future__ import annotations

import pytest

from asynclock._nodes.script import Script
from asynclock._primitives import lock, multi, readwrite
from tests.primitives.script_server import DAY, TTL, Server

MINUTE = 60_000_000
KEYS = "l c q"
READ, WRITE = (readwrite.READ, "r c q w"), (readwrite.WRITE, "w c q r")


@pytest.fixture
async def server() -> Server:
    return Server()


async def granted(server: Server, way: str, floor: int) -> int:
    """The fence of an acquire; each kind of lock has its own way to it."""
    if way == "batch":
        words = ("batch", 0, TTL, floor, 0, DAY, 0, "me")
        odd, (fence,) = await server.call(lock.SCRIPT, "q l c", *words)
        assert odd == 0
        return int(fence)
    script, keys = {
        "lock": (lock.SCRIPT, KEYS),
        "slot": (lock.SCRIPT, f"{KEYS} n"),
        "multi": (multi.SCRIPT, "l c"),
        "read": READ,
        "write": WRITE,
    }[way]
    more = (0, "me", 0) if way in ("read", "write") else ()
    reply = await server.acquire(script, keys, "me", *more, floor=floor)
    assert reply[0] == 1
    return int(reply[1])


WAYS = ["lock", "slot", "batch", "multi", "read", "write"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_fence_is_above_the_counter_and_at_least_the_floor(way: str) -> None:
    for counter in (-1, 0, 1, 7):
        server = Server()
        floor = server.now() + 5
        await server.node.command("SET", "c", floor + counter, "PX", TTL)
        assert await granted(server, way, floor) == max(floor, floor + counter + 1)
        assert await server.get("c") == str(max(floor, floor + counter + 1))
        assert await server.left("c") == DAY + 1, "1 ms longer, because it is ahead"


@pytest.mark.parametrize("way", WAYS)
async def test_a_missing_counter_counts_as_if_it_stood_a_minute_ago(way: str) -> None:
    for ahead in (-MINUTE - 1, -MINUTE, -MINUTE + 1, -MINUTE + 2, 0):
        server = Server()
        fence = server.now() + max(ahead, -MINUTE + 1)
        assert await granted(server, way, server.now() + ahead) == fence
        assert await server.get("c") == str(fence)


@pytest.mark.parametrize("way", WAYS)
async def test_a_floor_is_believed_up_to_a_minute_ahead(way: str) -> None:
    for ahead, fence in ((MINUTE, MINUTE), (MINUTE + 1, -MINUTE + 1)):
        server = Server()
        assert await granted(server, way, server.now() + ahead) == server.now() + fence
        assert await server.get("c") == str(server.now() + fence)


@pytest.mark.parametrize("way", WAYS)
async def test_an_unknown_floor_is_the_nodes_clock(way: str) -> None:
    server = Server()
    assert await granted(server, way, -1) == server.now()
    assert await server.get("c") == str(server.now()), "with all its digits"


@pytest.mark.parametrize("way", WAYS)
async def test_a_counter_stays_until_the_clock_shows_it_and_for_its_retention(way: str) -> None:
    for ahead, longer in ((0, 0), (1, 1), (1500, 2), (30_000_000, 30_000)):
        server = Server()
        await granted(server, way, server.now() + ahead)
        assert await server.left("c") == DAY + longer


@pytest.mark.parametrize("script", [lock.SCRIPT, multi.SCRIPT, readwrite.READ], ids=["l", "m", "r"])
async def test_a_raise_is_for_the_owner_and_never_downwards(script: Script) -> None:
    for counter in (6, 7, 8):
        server = Server()
        keys = "l c" if script is not readwrite.READ else "r c q w"
        await server.acquire(script, KEYS if script is lock.SCRIPT else keys, "me")
        await server.node.command("SET", "c", counter, "PX", TTL)
        assert (await server.call(script, keys, "raise", "you", 9, DAY))[0] == 0
        taken = counter <= 7 or script is readwrite.READ
        assert await server.call(script, keys, "raise", "me", 7, DAY) == [int(taken), counter]
        assert await server.get("c") == str(max(7, counter))
        assert await server.left("c") == (DAY if taken else TTL)


async def test_a_counter_that_is_days_ahead_expires_all_the_same(server: Server) -> None:
    await server.acquire(lock.SCRIPT, KEYS, "me")
    far = server.now() + 10 * DAY * 1000
    assert (await server.call(lock.SCRIPT, "l c", "raise", "me", far, DAY))[0] == 1
    assert await server.left("c") == 2 * DAY


async def test_a_renewal_shortens_the_life_of_no_counter(server: Server) -> None:
    await server.acquire(lock.SCRIPT, KEYS, "me")
    for before, after in ((DAY + 5, DAY + 5), (DAY - 5, DAY)):
        await server.node.command("PEXPIRE", "c", before)
        assert await server.call(lock.SCRIPT, "l c", "extend", TTL, DAY, "me") == ["1"]
        assert await server.left("c") == after
