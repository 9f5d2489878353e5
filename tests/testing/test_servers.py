"""Every switch of a local server does to a real server what it says."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from asynclock.testing import LocalServer, ServerBinary, all_servers, local_servers, start_servers
from tests.waiting import until_in_thread as wait_until

BINARIES = all_servers()


@pytest.fixture(params=BINARIES, ids=lambda b: f"{b.kind}-{b.version[0]}.{b.version[1]}")
def binary(request) -> ServerBinary:
    return request.param


def answers(server: LocalServer) -> bool:
    """Whether the kernel lets anybody connect to the server's port."""
    with socket.socket() as sock:
        return sock.connect_ex((server.host, server.port)) == 0


# ---- life and death ------------------------------------------------------------------------------
async def test_start_and_close(binary):
    async with LocalServer(binary=binary) as server:
        assert server.alive
        assert await server.command("PING") == "PONG"
        info = str(await server.command("INFO", "server"))
        assert f"process_id:{server.pid}" in info
        folder = server.folder
    assert (server.alive, answers(server), folder.exists()) == (False, False, False)


async def test_kill_refuses_connections_and_restart_keeps_the_port(binary):
    async with LocalServer(binary=binary) as server:
        await server.command("SET", "a", "1")
        pid, port = server.pid, server.port
        await server.kill()
        assert (server.alive, answers(server)) == (False, False)
        with pytest.raises(ConnectionRefusedError):
            await server.command("PING")
        await server.restart()
        assert server.port == port
        assert server.pid != pid
        assert await server.command("GET", "a") is None, "nothing is on disk without aof"


async def test_a_killed_server_with_aof_remembers_unless_told_to_forget(binary):
    async with LocalServer(binary=binary, aof=True) as server:
        await server.command("SET", "a", "1")
        await server.kill()
        await server.restart()
        assert await server.command("GET", "a") == "1"
        await server.restart(keep_data=False)
        assert await server.command("GET", "a") is None


async def test_while_a_server_is_down_nobody_is_given_its_port():
    async with LocalServer() as server:
        await server.kill()
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ports = set()
            for _ in range(200):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", 0))
                    ports.add(sock.getsockname()[1])
            assert server.port not in ports
            with pytest.raises(OSError, match="in use"):
                # With SO_REUSEADDR it could; an ordinary bind cannot.
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                thief.bind(("127.0.0.1", server.port))
        await server.start()


async def test_freeze_is_mute_and_thaw_is_as_if_nothing_had_been(binary):
    async with LocalServer(binary=binary) as server:
        await server.command("SET", "a", "1")
        async with asyncio.timeout(5):
            await server.freeze()
        assert server.frozen
        assert server.alive
        assert answers(server), "the kernel still accepts"
        with pytest.raises(TimeoutError):
            await server.command("PING", timeout=0.1)
        await server.thaw()
        assert not server.frozen
        assert await server.command("GET", "a") == "1"


async def test_a_frozen_server_can_be_killed_stopped_and_closed():
    async with local_servers(3) as servers:
        for server in servers:
            await server.freeze()
        await servers[0].kill()
        await servers[1].stop()
        assert [server.alive for server in servers] == [False, False, True]
    assert not servers[2].alive


async def test_stop_then_start():
    async with LocalServer() as server:
        await server.stop()
        assert not server.alive
        await server.stop()
        await server.start()
        pid = server.pid
        await server.start()
        assert server.pid == pid, "starting twice starts once"


# ---- ways to listen ------------------------------------------------------------------------------
async def test_a_server_never_started_says_so():
    server = LocalServer()
    try:
        assert not server.alive
        await server.kill()
        with pytest.raises(RuntimeError, match="not been started"):
            await server.freeze()
    finally:
        server.close()


# ---- nothing is left behind ----------------------------------------------------------------------
def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


async def test_a_cancelled_start_leaves_no_process():
    task = asyncio.create_task(start_servers(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    before = children()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(before - children()) == 2


ORPHANS = """
import asyncio, os, sys, time
from asynclock.testing import local_servers

async def main():
    async with local_servers(2, aof=True) as servers:
        await servers[1].freeze()
        print(*(server.pid for server in servers), servers[0].folder.parent, flush=True)
        if sys.argv[1] == "leave":
            os._exit(3)
        child = os.fork() if sys.argv[1] == "with a fork" else None
        if child != 0:  # one process alone: without a buffer, lines of two would mix
            print(child or 0, flush=True)
        time.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["kill", "kill the group", "with a fork", "leave"])
def test_servers_die_with_the_process_that_started_them(end):
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS, end],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        *pids, folder = parent.stdout.readline().split()
        survivor = int(parent.stdout.readline() or 0)
        if end == "kill the group":
            os.killpg(parent.pid, signal.SIGKILL)
        else:
            parent.kill()
        parent.wait()
        try:
            wait_until(lambda: not any(map(running, pids)))
            wait_until(lambda: not Path(folder).exists())
            assert bool(survivor) is (end == "with a fork")
            assert not survivor or running(str(survivor))
        finally:
            if survivor:
                os.kill(survivor, signal.SIGKILL)


def running(pid: str) -> bool:
    """Return whether the process exists and isn't an unreaped zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while we read
        return False
