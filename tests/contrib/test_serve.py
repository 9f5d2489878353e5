"""`asynclock serve` beside services: its address and token, settings that must agree, mistakes."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from asynclock.cli import main
from asynclock.fleet import Fleet
from asynclock.testing import LocalServer
from tests.waiting import until

ROOT = Path(__file__).parents[2]
OFF = ("--restart-guard", "off")
pytestmark = pytest.mark.timeout(240)


@contextlib.asynccontextmanager
async def serve(
    nodes: list[LocalServer], *options: str, token: str | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, str, subprocess.Popen[str]]]:
    """Run the program; yield a client that has its token, its address, and the process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ASYNCLOCK_")}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "asynclock", "serve", "--port", "0", *options),
            *(word for node in nodes for word in ("--node", node.url)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**env, **({"ASYNCLOCK_TOKEN": token} if token else {})},
    )
    assert process.stdout
    try:
        address = (await asyncio.to_thread(process.stdout.readline)).strip()
        (given,) = parse_qs(urlsplit(address).fragment)["token"]
        headers = {"Authorization": f"Bearer {given}"}
        url = address.partition("#")[0]
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            yield client, address, process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, 30)
        process.stdout.close()


async def state(client: httpx.AsyncClient) -> Any:
    return (await client.get("/state")).json()


async def test_it_prints_its_address_and_names_itself(asynclock_nodes: list[LocalServer]) -> None:
    """So that `nodes finish` knows that it holds no lock."""
    urls = [node.url for node in asynclock_nodes]
    async with Fleet(*urls) as fleet:
        await fleet.record(force=True)
        async with serve(asynclock_nodes, *OFF) as (client, address, process):
            url, _, token = address.partition("/#token=")
            assert url.startswith("http://127.0.0.1:")
            assert len(token) >= 16
            assert (await client.get("/state", headers={"Authorization": ""})).status_code == 401
            assert len((await state(client))["nodes"]) == 3

            async def tools() -> Any:
                clients = (await fleet.show()).clients or ()
                return [one.label for one in clients if not one.holds]

            (label,) = await until(tools)
            assert label.endswith(":serve")
            async with client.stream("GET", "/events") as stream:
                await anext(stream.aiter_lines())
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(process.wait, 30)


NODE = ("--node", "redis://127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ["no nodes"]),
        ((*NODE, "--restart-guard", "maybe"), ["restart-guard"]),
        ((*NODE, "--acks", "some"), ["acks"]),
        ((*NODE, "--max-ttl", "-1"), ["max-ttl"]),
        ((*NODE, "--port", "TAKEN"), ["can't be used: Address already in use", "--port 0 takes"]),
        ((*NODE, "WITHOUT"), ["pip install 'asynclock[cli,dashboard]'"]),
    ],
)
def test_it_says_what_is_wrong(
    options: tuple[str, ...],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith("ASYNCLOCK")]:
        monkeypatch.delenv(name)
    if "WITHOUT" in options:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
    handlers = [(one, signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [port if one == "TAKEN" else one for one in options if one != "WITHOUT"]
        monkeypatch.setattr(sys, "argv", ["asynclock", "serve", *given])
        with pytest.raises(SystemExit) as ended:
            main()
    for one, handler in handlers:
        signal.signal(one, handler)
    assert ended.value.code == 64
    said = capsys.readouterr().err.replace("max_ttl", "max-ttl").replace("restart_", "restart-")
    assert [one for one in words if one not in said] == [], said
