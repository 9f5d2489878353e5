"""How servers start, fail to start, end and start again; their processes, ports and folders."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asynclock.errors import ConfigurationError
from asynclock.testing import (
    FaultProxy,
    LocalServer,
    RedisCluster,
    ServerBinary,
    ServerReplyError,
    ServerStartError,
    make_certificates,
    servers,
    until,
)
from asynclock.testing.servers import ServerAddress, ask_all, process, start_servers
from asynclock.testing.servers.process import ReservedPort, ServerProcess
from tests.docs.blocks import ROOT
from tests.waiting import in_virtual_time, until_in_thread

SLEEP = ["sleep", "600"]


def played(tmp_path: Path, text: str) -> LocalServer:
    """Return a server whose program is a script."""
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return LocalServer(binary=ServerBinary(program, (7, 0, 0)))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes at each look at the clock."""
    for module in (servers, process):
        clock = SimpleNamespace(monotonic=itertools.count().__next__)
        monkeypatch.setattr(module, "time", clock)


# ---- servers -------------------------------------------------------------------------------------
async def test_a_failed_start_tells_the_program_and_the_end_of_its_log(tmp_path: Path) -> None:
    server = played(tmp_path, "seq 1 2000; printf '\\377 the end'; exit 3")
    with pytest.raises(ServerStartError) as error:
        await server.start()
    begin = f"redis 7.0.0 ({server.binary.path}) ended with status 3; its log ends with:\n"
    numbers = "\n".join(map(str, range(1, 2001))) + "\n\ufffd the end"
    assert str(error.value) == begin + numbers[-2000:]
    assert server.log == numbers
    server.close()


@pytest.mark.usefixtures("hasty")
async def test_a_server_that_stays_mute_is_killed(tmp_path: Path) -> None:
    server = played(tmp_path, "exec sleep 600")
    with pytest.raises(ServerStartError, match="is mute; its log ends with:"):
        await server.start()
    assert not server.alive
    server.close()


async def test_settings_of_a_restart_stay() -> None:
    async with LocalServer(aof=True) as server:
        await server.command("SET", "a", "1")
        await server.restart(args=("--maxmemory", "10mb"))
        for _ in range(2):
            assert await server.command("CONFIG", "GET", "maxmemory") == ["maxmemory", "10485760"]
            assert await server.command("GET", "a") == "1"
            await server.restart()
        assert server.log.count("Ready to accept connections") >= 4, "the log goes on"
        await server.freeze()
        await server.kill()
        assert not server.frozen, "it is dead"
        await server.start()
        assert not server.frozen
        with pytest.raises(ConfigurationError, match="with clock=True"):
            server.jump_clock(1.0)


@pytest.mark.parametrize("heard", [True, False])
async def test_a_frozen_server_is_shut_down_in_order_or_killed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, *, heard: bool
) -> None:
    async def unheard(*_: Any, **__: Any) -> None:
        raise TimeoutError

    async with LocalServer() as server:
        await server.freeze()
        if not heard:
            request.getfixturevalue("hasty")
            monkeypatch.setattr(server, "command", unheard)
        await server.stop()
        assert not server.alive
        assert ("now ready to exit" in server.log) is heard


@pytest.mark.parametrize("several", [False, True])
async def test_servers_that_do_not_start_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, *, several: bool
) -> None:
    made: list[LocalServer] = []

    def make(**options: Any) -> LocalServer:
        args = ("--no-such-setting", "1") if made or not several else ()
        made.append(LocalServer(args=args, **options))
        return made[-1]

    monkeypatch.setattr("asynclock.testing.servers.LocalServer", make)
    with pytest.raises(ServerStartError, match="no-such-setting"):
        if several:
            await start_servers(2)
        else:
            async with make():
                raise AssertionError("the body began")
    gone = [(one.alive, one.folder.exists()) for one in made]
    assert gone == [(False, False)] * (2 if several else 1)


async def test_an_error_is_raised_for_one_command_and_returned_among_several() -> None:
    async with LocalServer(password="secret") as server:
        replies = await ask_all(server.endpoint, [("NONSENSE",), ("PING",)])
        assert "unknown command" in str(replies[0])
        assert replies[1:] == ["PONG"]
        with pytest.raises(ServerReplyError, match="unknown command"):
            await server.command("NONSENSE")
        assert await server.command("CONFIG", "GET", "save") == ["save", ""]
        assert await server.command("CONFIG", "GET", "appendfsync") == ["appendfsync", "always"]


@pytest.mark.parametrize(
    ("says", "error", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", ConnectionError, "broken reply from .*{port}"),
        (b"+OK\r\n", ConnectionError, "hung up without an answer"),
        (None, TimeoutError, "^$"),
    ],
    ids=["babble", "a hang-up after one reply", "mute"],
)
async def test_an_odd_server_is_an_error_and_not_an_endless_wait(
    says: bytes | None, error: type[OSError], text: str
) -> None:
    """With the address. One that is mute is waited for as long as the caller says."""
    gone = asyncio.Event()

    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if says is None:
            await reader.read()  # until the client hangs up
        else:
            await reader.read(1)
            writer.write(says)
            await writer.drain()
        writer.close()
        gone.set()

    server = await asyncio.start_server(odd, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    commands = [("PING",)] * (2 if says == b"+OK\r\n" else 1)
    async with server, asyncio.timeout(10.0):
        with pytest.raises(error, match=text.format(port=port)):
            timeout = 0.05 if says is None else 5.0
            await ask_all(ServerAddress("127.0.0.1", port), commands, timeout=timeout)
        await gone.wait()


# ---- what test helpers can't do ------------------------------------------------------------------
def test_certificates_are_made_anew_in_a_folder_that_has_some(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    first = make_certificates(folder)
    before = {file.name: file.read_text() for file in folder.iterdir()}
    assert make_certificates(folder) == first
    after = {file.name: file.read_text() for file in folder.iterdir()}
    names = {"ca.pem", "server.pem", "server.key", "client.pem", "client.key"}
    assert before.keys() == after.keys() == names
    for name, text in after.items():
        assert text.count("BEGIN") == before[name].count("BEGIN"), name
        assert text != before[name]
    first.client_context(with_client_cert=True)
    with pytest.raises(ConfigurationError, match="with tls or on a Unix socket, not both"):
        LocalServer(tls=first, unix=True)


def test_certificates_need_their_maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'asynclock\[test\]'"):
        make_certificates(tmp_path)


async def test_a_proxy_speaks_tcp() -> None:
    async with LocalServer(unix=True) as server:
        with pytest.raises(ConfigurationError, match="has a Unix socket only"):
            FaultProxy(server)
    async with FaultProxy(("127.0.0.1", 1)) as proxy:
        assert proxy.url == f"redis://127.0.0.1:{proxy.port}"


# ---- processes and folders -----------------------------------------------------------------------
@pytest.fixture
async def sleeper(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    made = ServerProcess(SLEEP, tmp_path, {})
    yield made
    await made.kill()


async def test_without_a_way_to_look_the_signal_is_trusted(
    sleeper: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "waitid")
    await sleeper.freeze()
    assert sleeper.frozen


async def test_a_process_that_another_has_reaped_is_no_longer_waited_for(tmp_path: Path) -> None:
    ended = ServerProcess(["true"], tmp_path, {})
    assert os.waitpid(ended.pid, 0) == (ended.pid, 0)  # noqa: ASYNC222 - it ends at once
    async with asyncio.timeout(5):
        await ended.freeze()
    assert not ended.alive


@pytest.mark.parametrize("now", [False, True])
async def test_a_process_that_has_ended_is_named_in_no_file(tmp_path: Path, *, now: bool) -> None:
    """What is named there is killed at the end of the tests, and the number may be another's."""
    ended = ServerProcess(SLEEP, tmp_path, {})
    assert (tmp_path / "pid").read_text() == str(ended.pid)
    assert os.getpgid(ended.pid) == ended.pid
    if now:
        ended.kill_now()
    else:
        await ended.kill()
    assert ended.exit_status == -signal.SIGKILL
    assert not (tmp_path / "pid").exists()


LEAVES = """
import subprocess
from asynclock.testing.servers.process import new_folder

left = subprocess.Popen(["sleep", "600"], start_new_session=True)
for text in (str(left.pid), "x", ""):
    (folder := new_folder("left")).joinpath("pid").write_text(text)
print(left.pid, folder.parent)
"""


def test_the_end_of_the_tests_kills_what_the_folders_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pid, root = done.stdout.split()
    until_in_thread(lambda: not Path(f"/proc/{pid}").exists())
    assert not Path(root).exists()


# ---- what is awaited -----------------------------------------------------------------------------
@in_virtual_time
async def test_a_condition_that_no_server_can_answer_yet_is_asked_again() -> None:
    """A server that starts refuses connections, then says that it is loading."""
    turns: list[Any] = [OSError("refused"), ServerReplyError("LOADING"), False, True]

    async def condition() -> bool:
        turn = turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return bool(turn)

    await until(condition, "all is well")
    assert turns == []


@in_virtual_time
async def test_a_fault_of_the_test_itself_is_not_waited_out() -> None:
    async def condition() -> bool:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        await until(condition, "never")


# ---- ports ---------------------------------------------------------------------------------------
def is_bound(port: int) -> bool:
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def test_with_the_port_of_a_cluster_node_that_of_its_bus_is_reserved() -> None:
    cluster = RedisCluster(1, 0)
    port = cluster.servers[0].port
    assert is_bound(port)
    assert is_bound(port + 10_000)
    cluster.close()


async def test_a_proxy_that_has_ended_keeps_no_port() -> None:
    for _ in range(20):  # another process may be faster, but hardly each time
        async with FaultProxy(("127.0.0.1", 1)) as proxy:
            assert is_bound(proxy.port)
        if not is_bound(proxy.port):
            return
    pytest.fail("the ports are still reserved")


def test_without_a_free_port_the_error_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(socket.socket):
        def bind(self, _address: Any) -> None:
            raise OSError("none is left")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Full)
        with pytest.raises(OSError, match=r"no free port on 127\.0\.0\.1"):
            ReservedPort()
