"""A loop that ends cancels all tasks together; what they held and waited for is free at once."""

import asyncio
import signal
import sys
from collections.abc import Iterable

import pytest

from asynclock.testing import LocalServer, RedisCluster, SentinelGroup
from tests.leftovers import left

LIMIT = 40.0
WAYS = {"return": 0, "error": 1, "exit": 3, "cancels": 0, "signal": 0, "signal twice": 0}


async def play(way: str, addresses: Iterable[str]) -> str:
    """Run the program to its end and return what it wrote to stderr."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.replicated.ending",
        way,
        *addresses,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT):
        try:
            assert program.stdout is not None
            assert await program.stdout.readline() == b"holds\n"
            if way.startswith("signal"):
                program.send_signal(signal.SIGINT)
                assert await program.stdout.readline() == b"ends\n"
            if way == "signal twice":
                program.send_signal(signal.SIGINT)
            _, errors = await program.communicate()
        except BaseException:
            program.kill()
            await program.communicate()
            raise
    assert program.returncode == WAYS[way] or way.startswith("signal")
    return errors.decode()


@pytest.mark.parametrize(("way", "n"), [("return", 1), *((way, 3) for way in WAYS)])
async def test_nothing_is_held_after_the_end_of_a_loop(
    asynclock_nodes: list[LocalServer], way: str, n: int
) -> None:
    errors = await play(way, (node.url for node in asynclock_nodes[:n]))
    assert not await left(asynclock_nodes)
    assert "was destroyed" not in errors
    assert "never retrieved" not in errors


@pytest.mark.parametrize("way", ["return", "signal twice"])
async def test_nothing_is_held_behind_sentinels(service: SentinelGroup, way: str) -> None:
    await play(way, service.addresses)
    assert not await left([service.primary])


@pytest.mark.parametrize("way", ["return", "signal twice"])
async def test_nothing_is_held_in_a_cluster(cluster: RedisCluster, way: str) -> None:
    await play(way, cluster.addresses)
    assert not await left([await cluster.primary(number) for number in range(3)])
