"""Servers in containers behave like servers that are processes, fault by fault."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from docker.errors import DockerException
from docker.models.containers import Container

from asynclock.errors import ConfigurationError
from asynclock.testing import LocalServer, ServerStartError, container_image, make_certificates
from tests.containers.conftest import containers
from tests.docs.blocks import ROOT, python_blocks
from tests.waiting import go_through

pytestmark = [pytest.mark.containers, pytest.mark.timeout(240)]


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
    assert not containers(name=folder.parent.name)
    assert not folder.exists()


async def test_every_way_to_listen(image, tmp_path):
    certificates = make_certificates(tmp_path)
    async with LocalServer(binary=image, tls=certificates, users=["default off"]) as server:
        assert await server.command("PING") == "PONG"
    async with LocalServer(binary=image, unix=True, password="secret") as server:
        assert await server.command("PING") == "PONG"


async def test_a_failing_start_says_why(image):
    with pytest.raises(ServerStartError, match="no-such-setting"):
        await go_through(LocalServer(binary=image, args=["--no-such-setting", "1"]))
    with pytest.raises(ConfigurationError, match="cannot jump in a container"):
        await go_through(LocalServer(binary=image, clock=True))
    with pytest.raises(ConfigurationError, match="localhost:1/no-such-image"):
        container_image("localhost:1/no-such-image")


async def test_a_container_that_the_engine_does_not_end_is_named(image, monkeypatch):
    def refuse(_container):
        raise DockerException("no such right")

    async with LocalServer(binary=image) as server:
        with monkeypatch.context() as patched:
            patched.setattr(Container, "kill", refuse)
            patched.setattr(threading.Thread, "join", lambda *_: None)  # at once, not after 60 s
            with pytest.raises(ConfigurationError, match=r"no such right.*docker rm --force"):
                await server.kill()
        assert await server.command("PING") == "PONG"


ORPHAN = """
import asyncio, sys
from asynclock.testing import LocalServer, container_image

async def main():
    server = LocalServer(binary=container_image())
    await server.start()
    print(server.folder, flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_container_ends_with_the_process_that_started_it(image, killed):
    """The process doesn't wait for the container."""
    command, pipe = [sys.executable, "-c", ORPHAN], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as parent:
        assert parent.stdout  # it ends once its stdin ends
        folder = Path(parent.stdout.readline().strip())
        assert containers(name=folder.parent.name)
        if killed:
            parent.kill()
    deadline = time.monotonic() + 60
    while containers(name=folder.parent.name):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_page_about_containers(image, tmp_path):
    """The block as it is printed, with the image that is here."""
    page = ROOT / "docs" / "testing.md"
    (block,) = [one for one in python_blocks(page) if "test_containers" in str(one.shown_by)]
    (tmp_path / "test_page.py").write_text(block.text.replace("redis:7.2", str(image.path)))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
