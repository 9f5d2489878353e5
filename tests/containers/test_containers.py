"""Servers in containers behave like servers that are processes, fault by fault."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from asynclock.errors import ConfigurationError
from asynclock.testing import (
    LocalServer,
    RedisCluster,
    SentinelGroup,
    ServerStartError,
    container_image,
    local_servers,
    make_certificates,
    why_no_containers,
)
from tests import patient

pytestmark = [pytest.mark.containers, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def image():
    if reason := why_no_containers():
        pytest.skip(reason)
    return container_image()


def containers(folder: Path) -> str:
    return subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"name={folder.parent.name}-"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


async def test_every_switch(image):
    async with LocalServer(binary=image, aof=True) as server:
        await server.command("SET", "a", "1")
        await server.freeze()
        assert server.alive
        with pytest.raises(TimeoutError):
            await server.command("PING", timeout=0.2)
        await server.thaw()
        await server.kill()
        assert not server.alive
        with pytest.raises(ConnectionRefusedError):
            await server.command("PING")
        await server.restart()
        assert await server.command("GET", "a") == "1"
        await server.restart(keep_data=False)
        assert await server.command("GET", "a") is None
        await server.stop()
        await server.start()
        await server.freeze()
        await server.kill()
        assert not server.alive
        folder = server.folder
    assert containers(folder) == ""
    assert not folder.exists()


async def test_every_way_to_listen(image, tmp_path):
    certificates = make_certificates(tmp_path)
    async with LocalServer(binary=image, tls=certificates, users=["default off"]) as server:
        assert await server.command("PING") == "PONG"
    async with LocalServer(binary=image, unix=True, password="secret") as server:
        assert await server.command("PING") == "PONG"


async def test_a_failing_start_says_why(image):
    with pytest.raises(ServerStartError, match="no-such-setting"):
        async with LocalServer(binary=image, args=["--no-such-setting", "1"]):
            pass
    with pytest.raises(ConfigurationError, match="cannot jump in a container"):
        async with LocalServer(binary=image, clock=True):
            pass
    with pytest.raises(ConfigurationError, match="localhost:1/no-such-image"):
        container_image("localhost:1/no-such-image")


async def test_a_lock_over_three_containers_one_of_them_frozen(image):
    async with local_servers(3, binary=image) as servers:
        urls = [server.url for server in servers]
        async with patient.connect(*urls, restart_guard=False) as locks:
            async with locks.lock("orders:42", timeout=20) as lease:
                assert lease.held
            await servers[0].freeze()
            async with locks.lock("orders:42", timeout=20) as lease:
                assert lease.held


async def test_sentinels(image):
    async with SentinelGroup(replicas=1, sentinels=3, binary=image) as group:
        old = group.primary
        assert await group.fail_over() is not old


async def test_a_cluster(image):
    async with RedisCluster(primaries=3, replicas=1, binary=image) as cluster:
        assert len(cluster.servers) == 6


ORPHAN = """
import asyncio
from asynclock.testing import LocalServer, container_image

async def main():
    async with LocalServer(binary=container_image()) as server:
        print(server.folder, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_container_ends_with_the_process_that_started_it(image):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", ORPHAN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        assert parent.stdout
        folder = Path(parent.stdout.readline().strip())
        assert containers(folder)
        parent.kill()
    deadline = time.monotonic() + 60
    while containers(folder):
        assert time.monotonic() < deadline
        time.sleep(0.1)
