"""Connections of a node in memory behave like those of a server; commands by hand."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import hiredis
import pytest

import asynclock
from asynclock import _clock
from asynclock.testing import memory_node, run_virtual
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.keyspace import ReplyError
from asynclock.testing.memory.virtual import VirtualLoop
from asynclock.testing.memory.wire import Route
from tests.waiting import in_virtual_time

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="nobody")


class Client(asyncio.Protocol):
    """A connection: what arrived on it, and how it ended."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=ReplyError)
        self.transport: Any = None
        self.got: list[Any] = []
        self.ends: list[Exception | None] = []
        self.contexts: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.contexts.add(VARIABLE.get())
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self.got.append(list(reply) if isinstance(reply, list) else reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)

    def send(self, *words: Any) -> None:
        packed: Any = hiredis.pack_command(words)  # type: ignore[arg-type]  # any number of words
        self.transport.write(packed)

    async def ask(self, *words: Any) -> Any:
        """Send a command and return its reply, which comes before anything else."""
        self.got.clear()
        self.send(*words)
        await settled()
        return self.got[0]

    async def told(self) -> list[Any]:
        """Return what arrived since the last call or reply."""
        await settled()
        told, self.got = self.got, []
        return told


async def settled() -> None:
    """Let everything happen that is due now."""
    await asyncio.sleep(0.0001)


async def client_of(node: MemoryNode, route: Route | None = None) -> Client:
    return await node.open(Client, route)


async def watching(node: MemoryNode, *keys: str) -> Client:
    client = await client_of(node)
    await client.ask("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
    for key in keys:
        await client.ask("CLIENT", "CACHING", "YES")
        await client.ask("GET", key)
    await client.told()
    await node.command("PING")
    return client


def gone(*keys: bytes) -> list[Any]:
    return [[b"invalidate", [key]] for key in keys]


# ---- pushes --------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_client_is_told_once_of_a_change_by_another() -> None:
    node = MemoryNode()
    watcher, other = await watching(node, "a"), await client_of(node)
    await other.ask("SET", "b", 1)
    assert await watcher.told() == []
    await other.ask("SET", "a", 1)
    await other.ask("SET", "a", 2)
    assert await watcher.told() == gone(b"a")


@in_virtual_time
async def test_a_client_is_not_told_of_its_own_change() -> None:
    node = MemoryNode()
    watcher = await watching(node, "a")
    await watcher.ask("SET", "a", 1)
    assert await watcher.told() == [b"OK"]


@in_virtual_time
async def test_only_the_keys_of_the_next_command_are_watched() -> None:
    node = MemoryNode()
    watcher = await client_of(node)
    await watcher.ask("CLIENT", "TRACKING", "ON", "OPTIN")
    await watcher.ask("CLIENT", "CACHING", "YES")
    await watcher.ask("MGET", "a", "b")
    await watcher.ask("GET", "c")
    await watcher.told()
    for key in "abc":
        await node.command("SET", key, 1)
    assert await watcher.told() == gone(b"a", b"b")


@in_virtual_time
async def test_a_client_that_has_switched_tracking_off_is_told_nothing() -> None:
    node = MemoryNode()
    watcher = await client_of(node)
    await watcher.ask("CLIENT", "TRACKING", "OFF")
    await watcher.ask("CLIENT", "CACHING", "YES")
    await watcher.ask("GET", "a")
    await watcher.told()
    await node.command("SET", "a", 1)
    node.flush()
    assert await watcher.told() == []


@in_virtual_time
async def test_a_key_that_expires_is_a_change() -> None:
    """A server notices it by itself, although nobody asks for the key."""
    node = MemoryNode()
    await node.command("SET", "a", 1, "PX", 5000)
    watcher = await watching(node, "a")
    await asyncio.sleep(4.9)
    assert await watcher.told() == []
    await asyncio.sleep(0.2)
    assert await watcher.told() == gone(b"a")


@in_virtual_time
async def test_a_client_that_asked_last_is_told_of_an_expiry() -> None:
    """It is nobody's own change."""
    node = MemoryNode()
    watcher = await watching(node, "a")
    await watcher.ask("SET", "a", 1, "PX", 1000)
    await watcher.ask("CLIENT", "CACHING", "YES")
    await watcher.ask("GET", "a")
    await watcher.told()
    await asyncio.sleep(2)
    assert await watcher.told() == gone(b"a")


@in_virtual_time
async def test_a_key_that_was_prolonged_is_watched_until_its_new_end() -> None:
    node = MemoryNode()
    await node.command("SET", "a", 1, "PX", 5000)
    watcher = await watching(node, "a")
    node.keys.expiries[b"a"] += 5000
    await asyncio.sleep(9.9)
    assert await watcher.told() == []
    await asyncio.sleep(0.2)
    assert await watcher.told() == gone(b"a")


@in_virtual_time
async def test_a_value_that_is_overwritten_keeps_no_end_and_a_score_its_fraction() -> None:
    node = MemoryNode("a")
    await node.command("SET", "a", "1", "PX", 1000)
    await node.command("SET", "a", "2")
    assert await node.command("PTTL", "a") == -1
    await node.command("ZADD", "z", "1.5", "m", "2", "n")
    assert [await node.command("ZSCORE", "z", member) for member in "mn"] == ["1.5", "2"]


@in_virtual_time
async def test_after_a_flush_nothing_is_watched() -> None:
    node = MemoryNode()
    watcher = await watching(node, "a")
    node.flush()
    await node.command("SET", "a", 1)
    assert await watcher.told() == [[b"invalidate", None]]


# ---- ends ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_connection_that_the_node_breaks_is_reset_once() -> None:
    node = MemoryNode()
    client, other = await client_of(node), await client_of(node)
    node.cut()
    node.cut()
    await settled()
    for one in (client, other):
        (error,) = one.ends
        assert isinstance(error, ConnectionResetError)
        assert one.transport.is_closing()
        one.send("SET", "a", 1)
    await settled()
    assert await node.command("EXISTS", "a") == 0
    assert await (await client_of(node)).ask("PING") == b"PONG"


@in_virtual_time
async def test_an_operator_can_break_all_connections() -> None:
    node = MemoryNode()
    client = await client_of(node)
    await node.command("CLIENT", "KILL", "TYPE", "normal")
    await settled()
    assert len(client.ends) == 1


@pytest.mark.parametrize("end", ["close", "abort"])
@in_virtual_time
async def test_what_was_sent_before_a_hang_up_is_executed_without_a_reply(end: str) -> None:
    node = MemoryNode()
    client = await client_of(node)
    client.send("SET", "a", 1)
    getattr(client.transport, end)()
    client.send("SET", "b", 1)
    await settled()
    assert client.ends == [None]
    assert client.got == []
    assert await node.command("EXISTS", "a", "b") == 1
    assert not node._clients


@in_virtual_time
async def test_a_client_that_has_gone_is_told_of_no_change() -> None:
    node = MemoryNode()
    watcher = await watching(node, "a")
    watcher.transport.close()
    await settled()
    await node.command("SET", "a", 1)
    assert await watcher.told() == []


class Slow(Route):
    """Takes this long for the first piece, and no time for the others."""

    def __init__(self) -> None:
        self.delays = [1.0]

    def delay(self) -> float:
        return self.delays.pop() if self.delays else 0.0


@in_virtual_time
async def test_a_piece_that_takes_long_holds_up_those_behind_it() -> None:
    node = MemoryNode()
    client = await client_of(node, Slow())
    client.send("SET", "a", "first")
    client.send("SET", "a", "second")
    await asyncio.sleep(2)
    assert await node.command("GET", "a") == "second"


@in_virtual_time
async def test_requests_know_nothing_of_the_task_that_sent_them() -> None:
    """A server has no variables of its clients; their replies come to the client's own."""
    node, seen = MemoryNode(), list[str]()
    arrived = node.arrived

    def noted(client: Any, data: bytes) -> None:
        seen.append(VARIABLE.get())
        arrived(client, data)

    node.arrived = noted  # type: ignore[method-assign]
    VARIABLE.set("a task")
    client = await client_of(node)
    await client.ask("PING")
    assert seen == ["nobody"]
    assert client.contexts == {"a task"}


# ---- faults --------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_frozen_node_executes_in_order_what_came_meanwhile() -> None:
    node = MemoryNode()
    client, other = await client_of(node), await client_of(node)
    node.freeze()
    client.send("SET", "a", "first")
    other.send("SET", "a", "second")
    late = await client_of(node)
    late.send("GET", "a")
    await settled()
    assert [one.got for one in (client, other, late)] == [[], [], []]
    node.thaw()
    await settled()
    assert late.got == [b"second"]
    node.thaw()
    assert await client.told() == [b"OK"], "each request is executed once"


@in_virtual_time
async def test_what_a_frozen_node_had_not_executed_is_lost_with_it() -> None:
    node = MemoryNode(durable=True)
    client = await client_of(node)
    node.freeze()
    client.send("SET", "a", 1)
    await settled()
    node.restart()
    assert not node.frozen
    node.thaw()
    assert await node.command("EXISTS", "a") == 0


@in_virtual_time
async def test_a_request_under_way_to_a_process_that_has_ended_gets_nowhere() -> None:
    node = MemoryNode()
    client = await client_of(node)
    client.send("SET", "a", 1)
    node.restart()
    await settled()
    assert await node.command("EXISTS", "a") == 0


@pytest.mark.parametrize(
    ("durable", "asked", "kept"),
    [(False, None, 0), (True, None, 1), (False, True, 1), (True, False, 0)],
)
@in_virtual_time
async def test_a_restart_is_another_process(durable: bool, asked: bool | None, kept: int) -> None:
    node = MemoryNode(durable=durable)
    await node.command("SET", "a", 1)
    sha = await node.command("SCRIPT", "LOAD", "return 7")
    before = node.run_id
    node.born_ago(3600)
    node.restart(keep_data=asked)
    assert node.run_id != before
    assert node.durable is durable
    assert "uptime_in_seconds:0\r" in await node.command("INFO")
    assert await node.command("EXISTS", "a") == kept
    with pytest.raises(ReplyError, match="NOSCRIPT"):
        await node.command("EVALSHA", sha, 0)


@in_virtual_time
async def test_a_clock_that_jumps_back_makes_no_uptime_below_zero() -> None:
    node = MemoryNode()
    node.jump_clock(-60.5)
    assert node.wall() == pytest.approx(_clock.wall() - 60.5)
    assert "uptime_in_seconds:0\r" in await node.command("INFO")
    seconds, micros = await node.command("TIME")
    assert int(seconds) + int(micros) / 1e6 == pytest.approx(node.wall(), abs=0.01)
    assert len(micros) == 6
    node.jump_clock(120)
    assert "uptime_in_seconds:59\r" in await node.command("INFO")


@pytest.mark.parametrize(("durable", "says"), [(True, "always"), (False, "everysec")])
@in_virtual_time
async def test_a_node_says_whether_it_keeps_its_data(*, durable: bool, says: str) -> None:
    node = MemoryNode(durable=durable)
    client = await client_of(node)
    await client.ask("CONFIG", "GET", "appendfsync", "nonsense")
    (found,) = client.got
    assert found == {b"appendfsync": says.encode()}
    assert f"aof_enabled:{int(durable)}\r" in await node.command("INFO")


# ---- addresses and virtual time ------------------------------------------------------------------


@pytest.mark.parametrize("mark", list("/?#@,"))
def test_a_name_is_plain(mark: str) -> None:
    with pytest.raises(asynclock.ConfigurationError, match="a plain name"):
        asynclock.connect(f"memory://a{mark}b")


@in_virtual_time
async def test_blanks_around_an_address_are_no_part_of_the_name() -> None:
    async with asynclock.connect(" memory://a ") as locks, locks.lock("x"):
        assert [node.node for node in locks.nodes()] == ["memory://a"]
        assert await memory_node("a").command("EXISTS", "asynclock:x") == 1


def test_afterwards_the_clocks_are_those_of_before() -> None:
    before = _clock.now, _clock.wall
    loops: list[Any] = []

    async def fails() -> None:
        loops.append(asyncio.get_running_loop())
        began, wall = _clock.now(), _clock.wall()
        await asyncio.sleep(3600)
        assert _clock.now() - began == pytest.approx(3600)
        assert _clock.wall() - wall == pytest.approx(3600)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_virtual(fails())
    assert (_clock.now, _clock.wall) == before
    (loop,) = loops
    assert isinstance(loop, VirtualLoop)
    assert loop.is_closed()


def test_a_timer_that_is_due_lets_a_moment_pass() -> None:
    """Otherwise code that waits until a moment has passed would wait for ever."""

    async def waits() -> int:
        loop = asyncio.get_running_loop()
        due, turns = loop.time() + 1e-5, 0
        while loop.time() < due:
            await asyncio.sleep(1e-9)
            turns += 1
        return turns

    assert 1 <= run_virtual(waits()) <= 100
