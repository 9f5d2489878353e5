"""Servers that one test after another gets, and the fixtures that lend them."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import LocalServer, find_server, plugin, servers
from asynclock.testing.plugin import WarmServers
from asynclock.testing.servers import ServerAddress, ask_all
from asynclock.testing.servers.process import CHOICE


@pytest.fixture
def warm() -> Iterator[WarmServers]:
    servers = WarmServers()
    yield servers
    servers.close()


async def lent_again(warm: WarmServers, server: LocalServer) -> None:
    """Give the server back and take it, as the next test does."""
    warm.give_back([server])
    assert await warm.take(1) == [server]


async def test_the_next_test_gets_a_server_that_forgot_the_last(warm: WarmServers) -> None:
    (server,) = await warm.take(1)
    await server.command("SET", "a", 1)
    sha = await server.command("SCRIPT", "LOAD", "return 1")
    reader, writer = await ServerAddress(server.host, server.port).open()
    writer.write(b"PING\r\n")
    assert await reader.readline() == b"+PONG\r\n"
    await lent_again(warm, server)
    assert await asyncio.wait_for(reader.read(), 30) == b"", "its connections are broken"
    writer.transport.abort()
    assert await server.command("EXISTS", "a") == 0
    assert await server.command("SCRIPT", "EXISTS", sha) == [0]


async def test_a_server_whose_writes_a_test_paused_answers_the_next_one(warm: WarmServers) -> None:
    (server,) = await warm.take(1)
    await server.command("CLIENT", "PAUSE", 60_000, "WRITE")
    await lent_again(warm, server)
    assert await server.command("SET", "a", 1) == "OK"


async def test_no_server_is_lent_twice_and_all_end_with_the_pool(warm: WarmServers) -> None:
    (one,), (other,) = await warm.take(1), await warm.take(1)
    assert one is not other
    warm.give_back([one])
    servers = await warm.take(2)
    assert servers[0] is one
    assert other not in servers
    (last,) = await warm.take(1)
    assert last not in (other, *servers)
    warm.close()
    assert not any(server.alive for server in (other, last, *servers))


async def test_a_server_that_cannot_be_renewed_is_not_lent_again(
    warm: WarmServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard_once(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(servers, "ask_all", ask_all)
        raise ConnectionError

    (first,) = await warm.take(1)
    warm.give_back([first])
    monkeypatch.setattr(servers, "ask_all", unheard_once)
    (second,) = await warm.take(1)
    assert second is not first
    assert (first.alive, second.alive) == (False, True)


# ---- the plugin ----------------------------------------------------------------------------------
def configured(path: str) -> list[Any]:
    """Let the plugin read its option; return what it does at the end of the run."""
    ends: list[Any] = []
    config: Any = SimpleNamespace(getoption=lambda *_, **__: path, add_cleanup=ends.append)
    plugin.pytest_configure(config)
    return ends


@pytest.mark.parametrize("before", [None, "/before"])
def test_a_server_that_was_chosen_is_that_of_the_run_only(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.setenv(CHOICE, "/before")
    chosen = find_server_without_choice(monkeypatch)
    if before is None:
        monkeypatch.delenv(CHOICE)
    (end,) = configured(str(chosen))
    assert os.environ[CHOICE] == str(find_server().path)
    end()
    assert os.environ.get(CHOICE) == before


def find_server_without_choice(monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.delenv(CHOICE)
        return find_server().path


def test_a_wrong_choice_says_why() -> None:
    with pytest.raises(pytest.UsageError, match="--asynclock-server-binary: /nowhere is not a se"):
        configured("/nowhere")


class Lent(list[asynclock.LockManager]):
    """Managers that a fixture has lent."""


@pytest.fixture
def lent() -> Iterator[Lent]:
    """Is set up before the fixtures that lend managers, and ends after them."""
    managers = Lent()
    yield managers
    assert [node.state for locks in managers for node in locks.nodes()] == ["down"] * 3


async def test_locks_of_the_fixture_work_at_once_and_are_closed_after_the_test(
    lent: Lent, asynclock_locks: asynclock.LockManager
) -> None:
    lent.append(asynclock_locks)
    await asynclock_locks.ready()
    assert {node.state for node in asynclock_locks.nodes()} == {"up"}, "and none is quarantined"


class Started(list[LocalServer]):
    """Servers that a test has started, the last one without options."""


@pytest_asyncio.fixture
async def started(_asynclock_warm_servers: WarmServers) -> AsyncIterator[Started]:
    """Is set up before the fixture that starts servers, and ends after it."""
    servers = Started()
    yield servers
    own, warm = servers
    assert (own.alive, own.folder.exists()) == (False, False)
    idle = [await _asynclock_warm_servers.take(1)]
    while warm not in idle[-1]:
        assert len(idle) < 20, "it is not lent again"
        idle.append(await _asynclock_warm_servers.take(1))
    _asynclock_warm_servers.give_back([server for one in idle for server in one])


async def test_servers_with_options_end_with_the_test_and_others_are_lent_again(
    started: Started, asynclock_servers: plugin.StartServers
) -> None:
    started += await asynclock_servers(1, aof=True)
    started += await asynclock_servers()
    assert len(started) == 2
