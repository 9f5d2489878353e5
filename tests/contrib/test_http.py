"""Locks in both frameworks: what clients are told, and what is left when they go."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest

import asynclock
from asynclock.contrib._problems import problem_of
from asynclock.errors import ConfigurationError
from asynclock.testing import LocalServer
from asynclock.testing.servers.ports import ReservedPort
from tests.contrib.apps import MAKERS, Witness
from tests.contrib.conftest import PATIENT, Start, lock_keys
from tests.waiting import until

CLIENTS = 200


def assert_problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.headers["cache-control"] == "no-store"
    body: dict[str, Any] = answer.json()
    assert (body["type"], body["status"]) == (f"urn:asynclock:{kind}", status)
    return body


async def test_a_handler_runs_under_the_lock(start: Start) -> None:
    async with start() as service:
        answers = [await service.client.post("/orders/42/quick") for _ in range(2)]
        fences = [answer.json()["fence"] for answer in answers]
        assert service.witness.entered == ["orders:42"] * 2
        assert 0 < fences[0] < fences[1]
        await until(service.free)


@pytest.mark.parametrize("status", [409, 423])
async def test_contention_says_when_to_come_back(start: Start, status: int) -> None:
    async with start(contended=status) as service:
        urls = [node.url for node in service.nodes]
        async with asynclock.connect(*urls, **PATIENT, label="secret-host:1") as others:
            async with others.lock("orders:42"):
                answer = await service.client.post("/orders/42/quick")
        body = assert_problem(answer, status, "contended")
        assert body["lock"] == "orders:42"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert body["retry_after"] == int(answer.headers["retry-after"])
        assert "secret" not in answer.text
        assert service.witness.entered == []


async def test_an_outage_is_no_contention(start: Start) -> None:
    async with start(node_timeout=0.5) as service:
        healthy = await service.client.get("/health/locks")
        assert (healthy.status_code, healthy.json()["voting"]) == (200, 3)
        for node in service.nodes[:2]:
            await node.kill()
        answer = await service.client.post("/orders/42/quick")
        assert_problem(answer, 503, "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert str(service.nodes[0].port) not in answer.text
        ill = await service.client.get("/health/locks")
        assert (ill.status_code, ill.json()["status"]) == (503, "unavailable")
        assert sorted(node["state"] == "up" for node in ill.json()["nodes"]) == [0, 0, 1]
        assert service.witness.entered == []


async def test_a_loss_ends_the_handler_and_is_told(start: Start) -> None:
    async with start(ttl=2.0, max_ttl=20.0, node_timeout=1.0) as service:
        request = asyncio.create_task(service.client.post("/orders/42/hold"))
        await until(lambda: bool(service.witness.entered))
        for node in service.nodes:
            await node.flush()
        assert_problem(await request, 500, "lease-lost")
        assert service.witness.left == ["interrupted"]


@pytest.mark.parametrize("order", ["%23b", "a:%23b"])
async def test_a_name_that_cannot_be_is_the_clients_fault(start: Start, order: str) -> None:
    async with start() as service:
        assert_problem(await service.client.post(f"/orders/{order}/quick"), 400, "unusable-name")


async def test_a_body_is_read_under_the_lock(start: Start) -> None:
    async def slowly() -> Any:
        for _ in range(30):
            yield b"x" * 10_000
            await asyncio.sleep(0)

    async with start() as service:
        answer = await service.client.post("/orders/42/upload", content=slowly())
        assert answer.json() == {"size": 300_000}


# ---- clients that go away ------------------------------------------------------------------------


async def ask_and_hang_up(url: str, path: str, until_then: asyncio.Event) -> None:
    address = httpx.URL(url)
    _reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()
    await until_then.wait()
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_goes_away_frees_the_lock(start: Start) -> None:
    async with start() as service:
        go = asyncio.Event()
        client = asyncio.create_task(ask_and_hang_up(service.url, "/orders/42/hold", go))
        await until(lambda: bool(service.witness.entered))
        assert not await service.free()
        go.set()
        await client
        await until(service.free)
        assert service.witness.left == ["interrupted"]


async def test_200_clients_go_away(start: Start) -> None:
    """Holders and waiters; leases live for a minute, so only a release frees a name."""
    async with start() as service:
        go = asyncio.Event()
        clients = [
            asyncio.create_task(ask_and_hang_up(service.url, f"/orders/{i % 20}/hold", go))
            for i in range(CLIENTS)
        ]
        await until(lambda: len(service.witness.entered) == 20)
        # Each request has come, so that none takes a name later.
        await until(lambda: service.locks.statistics().waiting == CLIENTS - 20)
        go.set()
        await asyncio.gather(*clients)
        gone = time.monotonic()
        await until(lambda: service.locks.statistics().waiting == 0)
        await until(service.free)
        assert service.locks.statistics().waiting == service.locks.statistics().held == 0
        assert time.monotonic() - gone < PATIENT["ttl"]
        answer = await service.client.post("/orders/3/quick")
        assert answer.status_code == 200


# ---- the end of the server -----------------------------------------------------------------------


async def test_a_server_that_ends_frees_its_locks(
    framework: str, asynclock_nodes: list[LocalServer]
) -> None:
    port, urls = ReservedPort(), [node.url for node in asynclock_nodes]
    command = [sys.executable, "-m", "tests.contrib.apps", framework, str(port.number), *urls]
    process = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port.number}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:

            async def answers() -> bool:
                assert process.poll() is None
                try:
                    return (await client.get("/health/locks")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(answers, timeout=60)
            request = asyncio.create_task(client.post("/orders/42/hold"))

            async def held() -> bool:
                return len(await lock_keys(asynclock_nodes)) == 3

            await until(held)
            process.send_signal(signal.SIGTERM)

            async def free() -> bool:
                return not await lock_keys(asynclock_nodes)

            await until(free)
            await asyncio.gather(request, return_exceptions=True)
    finally:
        process.kill() if process.poll() is None else None
        process.wait(30)
        port.release()


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("contended", [200, "409", None])
def test_the_status_of_contention_is_one_of_two(framework: str, contended: Any) -> None:
    with pytest.raises(ConfigurationError, match="409 or 423"):
        MAKERS[framework](Witness(), "redis://localhost", contended=contended)


def test_a_manager_has_its_settings_already(framework: str) -> None:
    locks = asynclock.connect("redis://localhost")
    with pytest.raises(ConfigurationError, match="settings already"):
        MAKERS[framework](Witness(), locks, ttl=5)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (asynclock.NotAcquiredError("x", name="a"), 409),
        (asynclock.AlreadyHeldError("x", name="a"), 500),
        (asynclock.ConfigurationError("secret"), 500),
    ],
)
def test_errors_have_a_status(
    error: asynclock.AsyncLockError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    problem = problem_of(error)
    assert problem.status == status
    assert b"secret" not in problem.body
    # The log has what the client must not see, if the fault is on our side.
    assert (str(error) in caplog.text) == (status >= 500)
