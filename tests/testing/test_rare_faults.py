"""What local servers and nodes in memory do when something goes wrong around them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asynclock.testing import LocalServer, ServerReplyError, ServerStartError, memory_node
from asynclock.testing.memory.keyspace import ReplyError
from asynclock.testing.servers import binaries, pool, ports, workspace
from asynclock.testing.servers.process import ServerProcess
from asynclock.testing.servers.resp import ServerAddress, ask
from asynclock.testing.topology.replicated import _replication
from tests.waiting import until

SLEEP = ["sleep", "600"]


# ---- ports, programs and folders -----------------------------------------------------------------


def test_without_a_free_port_the_error_names_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_HIGHEST", 0)
    with pytest.raises(OSError, match=r"no free port on 127\.0\.0\.1"):
        ports.ReservedPort(bus=True)
    ports.ReservedPort().release()


def test_where_ports_cannot_be_shared_one_is_only_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_CAN_SHARE", False)
    port = ports.ReservedPort()
    with socket.socket() as server:
        server.bind(("127.0.0.1", port.number))  # fails while another socket has it


def test_programs_that_are_no_servers_or_too_old_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    says = {"valkey-server": "hello", "redis-server": "Redis server v=6.0.16 sha=0"}
    for name, text in says.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "again").symlink_to(tmp_path / "redis-server")
    paths = [tmp_path / name for name in (*says, "again")]
    tried: list[Path] = []
    at = binaries.ServerBinary.at

    def noted(path: Path) -> binaries.ServerBinary:
        tried.append(path)
        return at(path)

    monkeypatch.setattr(binaries, "_paths", lambda: iter(paths))
    monkeypatch.setattr(binaries.ServerBinary, "at", noted)
    assert binaries.all_servers() == []
    assert tried == paths[:2], "a second name of a program is not tried"
    (tmp_path / "redis-7").write_text("#!/bin/sh\necho 'Redis server v=7.0.1 sha=0'\n")
    (tmp_path / "redis-7").chmod(0o755)
    paths.append(tmp_path / "redis-7")
    assert [one.version for one in binaries.all_servers()] == [(7, 0, 1)]


def test_the_end_of_the_tests_kills_what_the_folders_name() -> None:
    folders = workspace._Workspace()
    with subprocess.Popen(SLEEP, start_new_session=True) as left:
        for name, text in (("1-left", str(left.pid)), ("2-odd", "x"), ("3-over", "")):
            (folders.root / name).mkdir()
            (folders.root / name / "pid").write_text(text)
        workspace.atexit.unregister(folders.close)
        folders.close()
        assert left.wait(30) == -signal.SIGKILL
    assert not folders.root.exists()


# ---- processes -----------------------------------------------------------------------------------


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    made = ServerProcess(SLEEP, tmp_path, {})
    yield made
    await made.kill()


async def test_a_process_that_goes_on_is_not_gone(process: ServerProcess) -> None:
    assert not await process.gone(0.01)
    await process.kill()
    assert await process.gone(0.01)


async def test_without_a_way_to_look_the_signal_is_trusted(
    process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "waitid")
    await process.freeze()
    assert process.frozen


def test_a_process_that_another_has_reaped_is_no_longer_waited_for(tmp_path: Path) -> None:
    process = ServerProcess(["true"], tmp_path, {})
    assert os.waitpid(process.pid, 0) == (process.pid, 0)
    assert process._stopped()
    assert not process.alive


async def test_a_server_that_ignores_its_shutdown_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LocalServer() as server:

        async def unheard(*_: Any, **__: Any) -> None:
            raise TimeoutError

        monkeypatch.setattr(server, "command", unheard)
        monkeypatch.setattr("asynclock.testing.servers.local._STOP_TIMEOUT", 0.01)
        await server.stop()
        assert server._started().exit_status == -signal.SIGKILL


async def test_a_server_that_does_not_start_leaves_nothing() -> None:
    server = LocalServer(args=("--no-such-setting", "1"))
    with pytest.raises(ServerStartError):
        async with server:
            raise AssertionError("the body began")
    assert not server.alive
    assert not server.folder.exists()


async def test_beside_other_users_the_password_is_that_of_the_default_user() -> None:
    async with LocalServer(password="hush", users=["bob on >b ~* +ping"]) as server:
        assert [await who(server, *login) for login in (("hush",), ("bob", "b"))] == [
            "default",
            "bob",
        ]
        with pytest.raises(ServerReplyError):
            await who(server, "b")


async def who(server: LocalServer, *login: str) -> Any:
    """Log in, and return the name of the user that is logged in; bob may only ping."""
    address = ServerAddress("127.0.0.1", server.port, None, None, login)
    try:
        return await ask(address, "ACL", "WHOAMI")
    except ServerReplyError as error:
        if "NOPERM" not in str(error):
            raise
        assert await ask(address, "PING") == "PONG"
        return "bob"


async def test_a_server_that_cannot_be_renewed_is_not_lent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warm = pool.WarmServers()
    try:
        (first,) = await warm.take(1)
        warm.give_back([first])
        ask_all = pool.ask_all

        async def unheard_once(*_: Any, **__: Any) -> Any:
            monkeypatch.setattr(pool, "ask_all", ask_all)
            raise ConnectionError

        monkeypatch.setattr(pool, "ask_all", unheard_once)
        (second,) = await warm.take(1)
        assert second is not first
        assert second.alive
        assert not first.alive
    finally:
        warm.close()


async def test_a_broken_reply_is_an_error_with_the_address() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match=f"broken reply from .*{port}"):
            await ask(ServerAddress("127.0.0.1", port, None, None, ()), "PING")


async def test_a_field_that_a_server_does_not_report_is_minus_one(
    asynclock_nodes: list[LocalServer],
) -> None:
    assert await _replication(asynclock_nodes[0], "role") == "master"
    assert await _replication(asynclock_nodes[0], "master_port") == "-1"


# ---- nodes in memory -----------------------------------------------------------------------------


async def test_a_node_in_memory_answers_wrong_commands_as_a_server_does(
    asynclock_nodes: list[LocalServer],
) -> None:
    node, server = memory_node(), asynclock_nodes[0]
    for words in (("NONSENSE",), ("ZADD", "k"), ("GET", "z"), ("DEL", "missing")):
        for one in (node, server):
            await one.command("ZADD", "z", 1, "member")
        answers = [await answer(one, *words) for one in (node, server)]
        assert answers[0] == answers[1], words


async def answer(one: Any, *words: Any) -> Any:
    """Return the reply, or the first word of the error."""
    try:
        return await one.command(*words)
    except (ReplyError, ServerReplyError) as error:
        return str(error).partition(" ")[0]


async def test_the_commands_of_an_operator_work_on_a_node_in_memory() -> None:
    import asynclock

    node = memory_node()
    sha = await node.command("SCRIPT", "LOAD", "return 7")
    assert await node.command("EVALSHA", sha, 0) == 7
    await node.command("SCRIPT", "FLUSH")
    with pytest.raises(ReplyError, match="NOSCRIPT"):
        await node.command("EVALSHA", sha, 0)
    async with asynclock.connect("memory://") as locks, locks.lock("a", timeout=5) as lease:
        (client,) = node._clients
        assert not client.transport.is_closing()
        await node.command("CLIENT", "KILL", "TYPE", "normal")
        client.hang_up()  # has hung up already
        await until(client.transport.is_closing, "the connection breaks")
        assert await lease.check()


async def test_only_clients_that_watch_are_told_of_a_flush() -> None:
    node, told = memory_node(), list[bytes]()

    class Quiet(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            told.append(data)

    await node.open(Quiet)
    (quiet,) = node._clients
    node.flush()
    quiet.tracking = True
    node.flush()
    await until(lambda: told, "the push comes")
    assert b"".join(told).count(b"invalidate") == 1
