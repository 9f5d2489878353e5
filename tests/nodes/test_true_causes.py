"""Whatever the timeout, an error says what the nodes last answered; what never works fails at once.

A server out of memory answers each request. Near the end of the caller's timeout there is no time
for another answer, but that is not the cause.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock.testing import FaultProxy, LocalServer, all_servers, make_certificates
from asynclock.testing.memory.commands import ReplyError
from asynclock.testing.plugin import StartServers
from tests.conftest import Connect
from tests.nodes.virtual_servers import Server, alone, played_on

FULL = "OOM command not allowed"
WRONG_TYPE = "WRONGTYPE Operation against a key"
SETTINGS: dict[str, Any] = {"ttl": 60, "max_ttl": 60, "node_timeout": 0.5, "restart_guard": False}


@pytest.fixture
def connect(connecting: Connect) -> Connect:
    """`asynclock.connect` without guards, which are not the matter here."""

    def make(*addresses: object, **options: Any) -> asynclock.LockManager:
        return connecting(*addresses, **{"node_timeout": 0.5, "restart_guard": False, **options})

    return make


def refuse(server: Server, error: str = FULL, *operations: bytes) -> None:
    """Let a server answer scripts, or these operations of them, with an error."""

    def reply(words: Any) -> Any:
        refused = not operations or words[3 + int(words[2])] in operations
        return ReplyError(error) if refused else server.answer(None, words)

    server.instead[b"EVALSHA"] = server.instead[b"EVAL"] = reply


def here() -> asynclock.LockManager:
    return asynclock.connect("redis://p0", **SETTINGS)


@pytest.mark.parametrize("timeout", [0, 0.01, 0.3, 0.6, 1.2])
@pytest.mark.parametrize("slow", [0.0, 0.15])
@played_on(alone)
async def test_a_server_out_of_memory_says_so_whatever_the_timeout(
    server: Server, timeout: float, slow: float
) -> None:
    """Also where the deadline is in the middle of an attempt, and to tasks behind each other."""
    async with here() as locks:
        await locks.ready()
        refuse(server)
        with pytest.raises(asynclock.QuorumUnavailableError, match=FULL):
            await locks.lock("a").try_acquire()
        server.way.seconds = slow
        timeouts = (timeout,) if slow else (timeout, 0.3, 0.4, timeout)
        tries = [locks.lock("a").acquire(timeout=one) for one in timeouts]
        for error in await asyncio.gather(*tries, return_exceptions=True):
            assert isinstance(error, asynclock.QuorumUnavailableError), error
            assert [*error.nodes.values(), locks.nodes()[0].cause] == [FULL, FULL]


@played_on(alone)
async def test_what_a_node_answers_instead_of_votes_is_shown_and_logged_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asynclock.nodes")
    async with here() as locks:
        await locks.ready()
        for refuses in (True, True, True, False, True):
            server.instead.clear()
            if refuses:
                refuse(server)
                with pytest.raises(asynclock.QuorumUnavailableError):
                    await locks.lock("a").try_acquire()
            else:
                assert await locks.lock("b").try_acquire()
            found = FULL if refuses else ""
            assert (locks.nodes()[0].state, locks.nodes()[0].cause) == ("up", found)
    told = [record.message for record in caplog.records if "vote" in record.message]
    assert told == [f"p0:6379 does not vote: {FULL}", "p0:6379 votes again"]


@played_on(alone)
async def test_answers_to_renewals_are_shown_and_hide_no_other_error(server: Server) -> None:
    """Also to a process that has nothing else to ask for. A renewal takes no memory."""
    error = "NOREPLICAS Not enough good replicas"
    async with here() as locks:
        lease = await locks.lock("a").acquire()
        refuse(server, error, b"extend")
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await lease.extend()
        assert [*caught.value.nodes.values(), locks.nodes()[0].cause] == [error, error]
        server.instead.clear()
        await lease.extend()
        assert locks.nodes()[0].cause == ""
        refuse(server, FULL, b"acquire")
        with pytest.raises(asynclock.QuorumUnavailableError, match=FULL):
            await locks.lock("b").try_acquire()
        await lease.extend()
        assert locks.nodes()[0].cause == FULL


@played_on(alone)
async def test_a_caller_whose_time_is_over_says_nothing_of_the_node(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The node answers, only not before that."""
    async with here() as locks, here() as others:
        await asyncio.gather(locks.ready(), others.lock("a").acquire())
        server.way.seconds = 0.15
        with pytest.raises(asynclock.AcquireTimeoutError):
            await locks.lock("a").acquire(timeout=0.6)
        assert (locks.nodes()[0].cause, "does not vote" in caplog.text) == ("", False)


CALLS: dict[str, Callable[[asynclock.LockManager], Any]] = {
    "lock": lambda locks: locks.lock("a").acquire(),
    "try": lambda locks: locks.lock("a").try_acquire(),
    "fair": lambda locks: locks.fair_lock("a").acquire(),
    "semaphore": lambda locks: locks.semaphore("a", 1).acquire(),
    "read": lambda locks: locks.rwlock("a").read().acquire(),
    "event": lambda locks: locks.event("a").set(),
    "once": lambda locks: locks.once("a").acquire(),
    "latch": lambda locks: locks.latch("a", 1).count_down(),
}
"""A call of each kind that asks the nodes."""


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_key_of_another_type_or_a_missing_right_is_a_mistake_and_no_wait(
    asynclock_servers: StartServers, connect: Connect, call: Callable[..., Any]
) -> None:
    (server,) = await asynclock_servers(1, users=["locks on >secret ~others:* &* +@all"])
    lease = await call(connect(server.url, prefix="seen:"))
    keys = await server.command("KEYS", "seen:*")
    del lease
    for key in keys:
        if key != "seen:#primary":
            await server.command("LPUSH", key.replace("seen:", "wrong:", 1), "a list")
    wrong, other = connect(server.url, prefix="wrong:"), connect(server.url_for("locks", "secret"))
    for locks, error in ((wrong, WRONG_TYPE), (other, "NOPERM")):
        with pytest.raises(asynclock.ConfigurationError, match=error):
            async with asyncio.timeout(2):
                await call(locks)
        assert error in locks.nodes()[0].cause
    assert await wrong.lock("of the right type").try_acquire()
    assert wrong.nodes()[0].cause == ""


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
async def test_a_wrong_certificate_is_a_mistake(
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
