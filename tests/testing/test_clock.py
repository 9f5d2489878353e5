"""A jumped clock moves the server's wall clock, and nothing else."""

import time
from functools import partial

import pytest

from asynclock.errors import ConfigurationError
from asynclock.testing import LocalServer, all_servers
from tests.able_servers import need_clock_jumps
from tests.waiting import becomes

BINARIES = all_servers()


@pytest.fixture(params=BINARIES, ids=lambda b: f"{b.kind}-{b.version[0]}.{b.version[1]}")
async def server(request):
    need_clock_jumps()
    async with LocalServer(binary=request.param, clock=True) as server:
        yield server


async def lag(server: LocalServer) -> float:
    """Seconds by which the server's wall clock is ahead of ours."""
    seconds, micros = await server.command("TIME")
    return int(seconds) + int(micros) / 1e6 - time.time()


async def shows(server: LocalServer, ahead: float) -> None:
    """Wait until the server's clock is ahead by that much; Valkey 9 reads it once in a while."""
    await becomes(partial(lag, server), pytest.approx(ahead, abs=5), timeout=10)


async def uptime(server: LocalServer) -> int:
    return int(
        str(await server.command("INFO", "server")).split("uptime_in_seconds:")[1].split()[0]
    )


async def test_keys_and_uptime_follow_the_clock_whose_jumps_add_up(server):
    await shows(server, 0)
    await server.command("SET", "a", "1", "EX", "60")
    await server.command("SET", "b", "1", "EX", "600")
    server.jump_clock(100.5)
    server.jump_clock(20)
    await shows(server, 120.5)
    assert await server.command("MGET", "a", "b") == [None, "1"]
    assert await uptime(server) >= 120, "as on a real machine whose clock was set"
    server.jump_clock(-240)
    await shows(server, -119.5)
    assert int(await server.command("PTTL", "b")) > 700_000
    await server.restart()
    await shows(server, -119.5)


async def test_only_that_server_jumps(server):
    async with LocalServer() as other:
        server.jump_clock(3600)
        assert abs(await lag(other)) < 5
        with pytest.raises(ConfigurationError, match="clock=True"):
            other.jump_clock(1)
