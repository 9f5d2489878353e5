"""Whatever the timeout, an error says what the nodes last answered; what never works fails at once.

A server out of memory answers each request. Near the end of the caller's timeout there is no time
for another answer, but that is not the cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock.testing import FaultProxy, LocalServer, all_servers, make_certificates
from asynclock.testing.plugin import StartServers
from tests.conftest import Connect

NODE_TIMEOUT = 0.5
PATIENT = 5.0
"""Node timeout of tests in which no node is silent."""
FULL = "OOM command not allowed"
WRONG_TYPE = "WRONGTYPE Operation against a key"
TIMEOUTS = (0.01, 0.3, 0.6, 1.2)


@pytest.fixture
def connect(connecting: Connect) -> Connect:
    """`asynclock.connect` without guards, which are not the matter here."""

    def make(*addresses: object, **options: Any) -> asynclock.LockManager:
        settings = {"node_timeout": NODE_TIMEOUT, "restart_guard": False}
        return connecting(*addresses, **{**settings, **options})

    return make


async def fill(server: LocalServer) -> None:
    """Let the server refuse every write: it has no memory left."""
    await server.command("SET", "large", "x" * 3_000_000)
    await server.command("CONFIG", "SET", "maxmemory", "1mb")


@pytest.mark.parametrize("timeout", TIMEOUTS)
async def test_a_server_out_of_memory_says_so_whatever_the_timeout(
    asynclock_servers: StartServers, connect: Connect, timeout: float
) -> None:
    (server,) = await asynclock_servers(1)
    await fill(server)
    locks = connect(server.url)
    with pytest.raises(asynclock.QuorumUnavailableError, match=FULL) as caught:
        await locks.lock("a").acquire(timeout=timeout)
    (cause,) = caught.value.nodes.values()
    assert cause == locks.nodes()[0].cause
    assert "script:" not in cause


async def test_the_last_answer_counts_where_there_is_no_time_for_another(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    (server,) = await asynclock_servers(1)
    await fill(server)
    async with FaultProxy(server) as proxy:
        locks = connect(proxy.url)
        with pytest.raises(asynclock.QuorumUnavailableError, match=FULL):
            await locks.lock("a").try_acquire()
        proxy.delay(0.0, 0.3)  # so the deadline is in the middle of an attempt
        with pytest.raises(asynclock.QuorumUnavailableError, match=FULL):
            await locks.lock("a").acquire(timeout=0.8)


async def test_tasks_that_wait_behind_each_other_all_learn_the_cause(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    (server,) = await asynclock_servers(1)
    await fill(server)
    locks = connect(server.url)
    tries = (locks.lock("a").acquire(timeout=timeout) for timeout in (0.8, 0.3, 0.4, 0.8))
    for error in await asyncio.gather(*tries, return_exceptions=True):
        assert isinstance(error, asynclock.QuorumUnavailableError), error
        assert FULL in str(error)


async def test_what_a_node_answers_instead_of_votes_is_shown_and_logged_once(
    asynclock_servers: StartServers, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    (server,) = await asynclock_servers(1)
    await fill(server)
    locks = connect(server.url)
    with caplog.at_level(logging.INFO, "asynclock.nodes"):
        for _ in range(3):
            with pytest.raises(asynclock.QuorumUnavailableError):
                await locks.lock("a").try_acquire()
        (health,) = locks.nodes()
        assert (health.state, health.cause[: len(FULL)]) == ("up", FULL)
        await server.command("CONFIG", "SET", "maxmemory", 0)
        assert await locks.lock("a").try_acquire()
        await server.command("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(asynclock.QuorumUnavailableError):
            await locks.lock("b").try_acquire()
    told = [record.message for record in caplog.records if "vote" in record.message]
    where = health.node
    assert told == [f"{where} does not vote: {health.cause}", f"{where} votes again"]
    assert locks.nodes()[0].cause.startswith(FULL)


async def test_what_a_node_answers_to_renewals_is_shown(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """Also to a process that has nothing else to ask for."""
    (server,) = await asynclock_servers(1)
    locks = connect(server.url, ttl=60, max_ttl=60, node_timeout=PATIENT)
    lease = await locks.lock("a").acquire()
    await server.command("CONFIG", "SET", "min-replicas-to-write", 1)
    with pytest.raises(asynclock.QuorumUnavailableError) as caught:
        await lease.extend()
    (cause,) = caught.value.nodes.values()
    assert cause.startswith("NOREPLICAS")
    assert locks.nodes()[0].cause == cause
    await server.command("CONFIG", "SET", "min-replicas-to-write", 0)
    await lease.extend()
    assert locks.nodes()[0].cause == ""


async def test_a_renewal_does_not_hide_that_a_node_grants_nothing(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    (server,) = await asynclock_servers(1)
    locks = connect(server.url, ttl=60, max_ttl=60, node_timeout=PATIENT)
    lease = await locks.lock("a").acquire()
    await fill(server)
    with pytest.raises(asynclock.QuorumUnavailableError, match=FULL):
        await locks.lock("b").try_acquire()
    await lease.extend()  # it takes no memory
    assert locks.nodes()[0].cause.startswith(FULL)


def calls(locks: asynclock.LockManager) -> dict[str, Callable[[], Any]]:
    """A call of each kind that asks the nodes."""
    return {
        "lock": lambda: locks.lock("a").acquire(),
        "try": lambda: locks.lock("a").try_acquire(),
        "fair": lambda: locks.fair_lock("a").acquire(),
        "semaphore": lambda: locks.semaphore("a", 1).acquire(),
        "read": lambda: locks.rwlock("a").read().acquire(),
        "event": lambda: locks.event("a").set(),
        "latch": lambda: locks.latch("a", 1).count_down(),
    }


KINDS = ("lock", "try", "fair", "semaphore", "read", "event", "latch")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_key_of_another_type_is_a_mistake_and_no_wait(
    asynclock_servers: StartServers, connect: Connect, kind: str
) -> None:
    (server,) = await asynclock_servers(1)
    seen = connect(server.url, prefix="seen:")
    lease = await calls(seen)[kind]()
    keys = await server.command("KEYS", "seen:*")
    del lease
    for key in keys:
        if key != "seen:#primary":
            await server.command("LPUSH", key.replace("seen:", "wrong:", 1), "a list")
    locks = connect(server.url, prefix="wrong:")
    with pytest.raises(asynclock.ConfigurationError, match=WRONG_TYPE):
        async with asyncio.timeout(2):
            await calls(locks)[kind]()
    assert locks.nodes()[0].cause.startswith(WRONG_TYPE)
    assert await locks.lock("of the right type").try_acquire()
    assert locks.nodes()[0].cause == ""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_missing_right_is_a_mistake_and_no_wait(
    asynclock_servers: StartServers, connect: Connect, kind: str
) -> None:
    (server,) = await asynclock_servers(1, users=["locks on >secret ~others:* &* +@all"])
    locks = connect(server.url_for("locks", "secret"))
    with pytest.raises(asynclock.ConfigurationError, match="NOPERM"):
        async with asyncio.timeout(2):
            await calls(locks)[kind]()
    assert "NOPERM" in locks.nodes()[0].cause


async def test_what_one_node_of_three_can_never_do_is_no_mistake_of_the_call(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    servers = await asynclock_servers(3)
    await servers[0].command("LPUSH", "asynclock:a", "a list")
    locks = connect(*(server.url for server in servers))
    assert await locks.lock("a").acquire(timeout=5)


TLS_SERVERS = [binary for binary in all_servers() if binary.tls]


@pytest.mark.skipif(not TLS_SERVERS, reason="no server with TLS on this machine")
@pytest.mark.parametrize("refused", ["the server's", "ours", "none"])
async def test_a_wrong_certificate_is_a_mistake_and_no_wait(
    connect: Connect, tmp_path: Path, refused: str
) -> None:
    right, wrong = make_certificates(tmp_path / "right"), make_certificates(tmp_path / "wrong")
    demanded = refused != "the server's"
    server = LocalServer(binary=TLS_SERVERS[0], tls=right, tls_client_certs=demanded)
    async with server:
        url = f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={(right if demanded else wrong).ca}"
        if refused == "ours":
            url += f"&ssl_certfile={wrong.client_cert}&ssl_keyfile={wrong.client_key}"
        locks = connect(url)
        with pytest.raises(asynclock.ConfigurationError, match=r"CERTIFICATE|UNKNOWN_CA"):
            async with asyncio.timeout(5):
                await locks.lock("a").acquire()
        assert locks.nodes()[0].state == "down"


@pytest.mark.skipif(not TLS_SERVERS, reason="no server with TLS on this machine")
async def test_a_node_that_was_reached_before_may_have_a_wrong_certificate_for_a_while(
    connect: Connect, tmp_path: Path
) -> None:
    """A certificate that is replaced by mistake is an outage, which passes."""
    right = make_certificates(tmp_path / "right")
    other = make_certificates(tmp_path / "other")
    binary = TLS_SERVERS[0]
    async with (
        LocalServer(binary=binary, tls=right) as server,
        LocalServer(binary=binary, tls=other) as next_one,
        FaultProxy(server) as proxy,
    ):
        locks = connect(f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={right.ca}")
        assert await locks.lock("a").acquire(timeout=5)
        proxy.target = (next_one.host, next_one.port)
        proxy.cut()
        with pytest.raises(asynclock.QuorumUnavailableError, match="CERTIFICATE"):
            await locks.lock("b").acquire(timeout=1)
