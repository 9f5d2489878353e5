"""How servers start, fail to start and start again; which programs are servers; what is awaited."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from asynclock.errors import ConfigurationError
from asynclock.testing import (
    LocalServer,
    RedisCluster,
    ServerBinary,
    ServerReplyError,
    ServerStartError,
    make_certificates,
    until,
)
from asynclock.testing.faults.proxy import FaultProxy
from asynclock.testing.servers import binaries, clock, containers
from asynclock.testing.servers.ports import ReservedPort
from asynclock.testing.servers.process import ServerProcess
from asynclock.testing.servers.several import start_servers
from tests.waiting import in_virtual_time

Script = Callable[[str, str], Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return a function that writes a program."""

    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    return write


# ---- a start ------------------------------------------------------------------------------------


async def test_a_start_that_fails_tells_the_program_its_fate_and_the_end_of_its_log(
    script: Script,
) -> None:
    program = script("redis-server", "seq 1 2000; printf '\\377 the end'; exit 3")
    binary = ServerBinary(program, (7, 0, 0))
    server = LocalServer(binary=binary)
    try:
        with pytest.raises(ServerStartError) as error:
            await server.start()
        begin = f"redis 7.0.0 ({program}) ended with status 3; its log ends with:\n"
        numbers = "\n".join(map(str, range(1, 2001))) + "\n\ufffd the end"
        assert str(error.value) == begin + numbers[-2000:]
        assert server.log == numbers
    finally:
        server.close()


async def test_a_server_that_stays_mute_is_killed(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynclock.testing.servers.local._START_TIMEOUT", 0.05)
    server = LocalServer(binary=ServerBinary(script("redis-server", "exec sleep 600"), (7, 0, 0)))
    try:
        with pytest.raises(ServerStartError, match="is mute; its log ends with:"):
            await server.start()
        assert not server.alive
        assert server._started().exit_status == -signal.SIGKILL
    finally:
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


async def test_a_frozen_server_is_shut_down_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asynclock.testing.servers.local._STOP_TIMEOUT", 20.0)
    async with LocalServer() as server:
        await server.freeze()
        await server.stop()
        assert not server.alive
        assert server._started().exit_status == 0, "it was not killed"


async def test_the_log_of_a_process_goes_on_where_the_one_before_has_ended(tmp_path: Path) -> None:
    for word in ("one", "two"):
        process = ServerProcess(["echo", word], tmp_path, {})
        assert not process.frozen
        assert await process.gone(30)
    assert (tmp_path / "output.log").read_text() == "one\ntwo\n"


async def test_if_one_of_several_servers_does_not_start_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[LocalServer] = []

    def make(**options: Any) -> LocalServer:
        args = ("--no-such-setting", "1") if made else ()
        made.append(LocalServer(args=args, **options))
        return made[-1]

    monkeypatch.setattr("asynclock.testing.servers.several.LocalServer", make)
    with pytest.raises(ServerStartError, match="no-such-setting"):
        await start_servers(2)
    assert [(one.alive, one.folder.exists()) for one in made] == [(False, False)] * 2


def test_certificates_are_made_anew_in_a_folder_that_has_some(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    first = make_certificates(folder)
    before = {file.name: file.read_text() for file in folder.iterdir()}
    assert make_certificates(folder) == first
    after = {file.name: file.read_text() for file in folder.iterdir()}
    assert (
        before.keys()
        == after.keys()
        == {*("ca.pem", "server.pem", "server.key", "client.pem", "client.key")}
    )
    for name, text in after.items():
        assert text.count("BEGIN") == before[name].count("BEGIN"), name
        assert text != before[name]
    first.client_context(with_client_cert=True)


def test_clients_that_have_gone_again_are_not_accepted() -> None:
    proxy = FaultProxy(("127.0.0.1", 1))
    try:
        for error in (BlockingIOError, ConnectionAbortedError):
            listener: Any = SimpleNamespace(accept=Mock(side_effect=error))
            proxy._accept(listener)
        assert (proxy.accepted, proxy.connections) == (0, 0)
    finally:
        proxy._reserved.release()


# ---- programs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answer", "shown"),
    [
        ("redis-server", "Redis server v=7.2.4 sha=0", "redis 7.2.4"),
        ("redis-server", "Valkey server v=8.0.1 sha=0", "valkey 8.0.1"),
        ("valkey-server", "Redis server v=7.2.4 sha=0", "valkey 7.2.4"),
        ("server", "Redis server v=10.11.12", "redis 10.11.12"),
    ],
)
def test_a_program_is_known_by_its_name_and_its_answer(
    script: Script, name: str, answer: str, shown: str
) -> None:
    path = script(name, f"echo '{answer}'")
    found = ServerBinary.at(path)
    assert str(found) == f"{shown} ({path})"
    assert not found.tls


def test_a_program_is_found_by_a_relative_path_and_its_link_is_kept(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program may act by the name that it is called by; servers run in other folders."""
    script("redis-check", "echo 'Redis server v=7.2.4 sha=0'")
    (tmp_path / "redis-server").symlink_to("redis-check")
    monkeypatch.chdir(tmp_path)
    assert ServerBinary.at("redis-server").path == tmp_path.resolve() / "redis-server"


def test_the_oldest_version_that_is_supported_is_no_older_one(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        script(f"redis-{v}", f"echo 'Redis server v={v}'") for v in ("6.2.0", "6.1.9", "5.9.0")
    ]
    monkeypatch.setattr(binaries, "_paths", lambda: iter(paths))
    assert [one.version for one in binaries.all_servers()] == [(6, 2, 0)]


def test_a_server_in_the_environment_of_python_does_not_hide_the_machines_own(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = script("env/bin/redis-server", "echo 'Redis server v=6.2.0'").parent
    machines = script("usr/redis-server", "echo 'Redis server v=7.0.0'")
    newer = script("usr/valkey-server", "echo 'Valkey server v=8.0.0'")
    monkeypatch.setattr(sys, "prefix", str(own.parent))
    monkeypatch.setattr(binaries, "_WHEELS", {})
    monkeypatch.setenv("PATH", os.pathsep.join((str(own), str(machines.parent))))
    assert list(binaries._paths()) == [machines, newer]


def test_what_a_wheel_contains_must_be_a_program(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = script("of_a_wheel/bin/b/redis-server", "")
    script("of_a_wheel/bin/a/redis-server", "").chmod(0o644)
    (tmp_path / "of_a_wheel" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(binaries._inside("of_a_wheel", "bin/*/redis-server")) == [good]
    assert list(binaries._inside("of_no_wheel", "bin/*/redis-server")) == []


def test_any_compiler_on_the_path_will_do(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    assert clock.why_no_clock_jumps() == "clock jumps need a C compiler on PATH (cc, gcc, clang)"
    for name in ("clang", "gcc", "cc"):
        path = script(f"tools/{name}", "")
        assert clock.why_no_clock_jumps() is None
        assert clock._compiler() == str(path), "the first of these names wins"


# ---- containers, with an engine that is a script -------------------------------------------------

INTRODUCTION = "Valkey server v=8.0.2 sha=0"


@pytest.fixture
def engine(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that makes the docker of the machine one that answers like this."""

    def answers(version: str, run: str = "") -> None:
        log = tmp_path / "asked"
        script(
            "tools/docker", f'echo "$@" >>{log}\ncase "$1" in version) {version};; *) {run};; esac'
        )

    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    return answers


def test_why_there_are_no_containers(engine: Callable[..., None]) -> None:
    assert containers.why_no_containers() == "containers need a docker command on PATH"
    for version, why in (
        ("echo ' no daemon ' >&2; exit 1", "no container engine answers: no daemon"),
        ("echo windows", "containers need a Linux engine"),
        ("echo linux", None),
    ):
        engine(version)
        assert containers.why_no_containers() == why


def test_an_image_is_asked_for_its_version(
    engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ASYNCLOCK_TEST_IMAGE", raising=False)
    engine("echo linux", f"echo '{INTRODUCTION}'")
    assert str(containers.container_image("some/image:1")) == "valkey 8.0.2 (some/image:1)"
    assert str(containers.container_image()) == "valkey 8.0.2 (redis:7.2)"
    monkeypatch.setenv("ASYNCLOCK_TEST_IMAGE", "other:2")
    assert containers.container_image().path == Path("other:2")
    assert containers.container_image().tls, "official images are built with TLS"
    assert containers.container_image("given:3").path == Path("given:3")
    last = (tmp_path / "asked").read_text().splitlines()[-1]
    assert last == "run --rm --network=none --entrypoint=redis-server given:3 -v"


@pytest.mark.parametrize(
    ("run", "said"),
    [("echo 'no such image' >&2; exit 125", "no such image"), ("echo hello", "it says 'hello")],
)
def test_an_image_without_a_server_says_why(
    engine: Callable[..., None], run: str, said: str
) -> None:
    engine("echo linux", run)
    with pytest.raises(
        ConfigurationError, match=f"no server can be started from image 'x': {said}"
    ):
        containers.container_image("x")
    engine("exit 1")
    with pytest.raises(ConfigurationError, match="no container engine answers"):
        containers.container_image("x")


# ---- what is awaited ----------------------------------------------------------------------------


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


# ---- ports --------------------------------------------------------------------------------------


def is_bound(port: int) -> bool:
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def test_with_the_port_of_a_cluster_node_that_of_its_bus_is_reserved() -> None:
    with ReservedPort(bus=True) as port:
        assert is_bound(port)
        assert is_bound(port + 10_000)


async def test_a_proxy_that_has_ended_keeps_no_port() -> None:
    for _ in range(20):  # another process may be faster, but hardly each time
        async with FaultProxy(("127.0.0.1", 1)) as proxy:
            assert is_bound(proxy.port)
        if not is_bound(proxy.port):
            return
    pytest.fail("the ports are still reserved")


def test_both_ports_of_a_cluster_node_are_kept_before_it_starts() -> None:
    cluster = RedisCluster(1, 0)
    try:
        (node,) = cluster.servers
        assert is_bound(node.port)
        assert is_bound(node.port + 10_000)
    finally:
        cluster.close()
