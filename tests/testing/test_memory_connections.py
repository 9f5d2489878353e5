"""Connections of a node in memory: their ends, its faults, and what it says of itself."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

import asynclock
from asynclock.events import Event
from asynclock.testing import memory_node, run_virtual
from asynclock.testing.memory import MemoryEndpoint, MemoryNode, Route, Stream
from asynclock.testing.memory.commands import ReplyError
from asynclock.testing.memory.virtual import VirtualLoop
from tests.tables.inside import now
from tests.waiting import in_virtual_time

from .clients import VARIABLE, Client, client_of, settled


# ---- expiries that are watched -------------------------------------------------------------------
@pytest.mark.parametrize("own", [False, True])
@in_virtual_time
async def test_a_key_that_expires_is_a_change(own: bool) -> None:
    """A server notices it by itself, although nobody asks for the key. It is nobody's own."""
    node = MemoryNode()
    client = await client_of(node, watches=True)
    await (client if own else await client_of(node)).ask("SET", "a", 1, "PX", 5000)
    await client.watch("GET", "a")
    await asyncio.sleep(4.9)
    assert await client.told() == []
    await asyncio.sleep(0.2)
    assert await client.told() == ["a"]


@in_virtual_time
async def test_a_key_that_lives_longer_than_it_seemed_is_watched_until_its_end() -> None:
    node = MemoryNode()
    await node.command("SET", "a", 1, "PX", 5000)
    client = await client_of(node, watches=True)
    await client.watch("GET", "a")
    node.jump_clock(-5)
    await asyncio.sleep(9.9)
    assert await client.told() == []
    await asyncio.sleep(0.2)
    assert await client.told() == ["a"]


# ---- ends ----------------------------------------------------------------------------------------
@in_virtual_time
async def test_a_client_that_left_is_forgotten_with_what_it_watched() -> None:
    """Otherwise a node would keep its manager until the key changes."""

    class Observer:
        def __call__(self, _: Event) -> None: ...

    observer = Observer()
    found = weakref.ref(observer)
    async with asynclock.connect("memory://a") as locks:
        locks.observe(observer)
        assert not await locks.event("never set").is_set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await locks.event("never set").wait()
    del locks, observer
    await settled()
    gc.collect()
    assert found() is None


@pytest.mark.parametrize("by_an_operator", [False, True])
@in_virtual_time
async def test_a_connection_that_the_node_breaks_is_reset_once(by_an_operator: bool) -> None:
    node = MemoryNode()
    clients = [await client_of(node), await client_of(node)]
    for _ in range(2):
        if by_an_operator:
            await node.command("CLIENT", "KILL", "TYPE", "normal")
        else:
            node.cut()
    await settled()
    for one in clients:
        (error,) = one.ends
        assert isinstance(error, ConnectionResetError)
        assert one.transport.is_closing()
        one.send("SET", "a", 1)
    await settled()
    assert await node.command("EXISTS", "a") == 0
    assert await (await client_of(node)).ask("PING") == b"PONG"


@pytest.mark.parametrize("end", ["close", "abort"])
@in_virtual_time
async def test_what_came_before_a_hang_up_is_executed_without_a_reply_or_a_push(end: str) -> None:
    node = MemoryNode()
    client = await client_of(node, watches=True)
    await client.watch("GET", "a")
    client.got.clear()
    client.send("SET", "b", 1)
    getattr(client.transport, end)()
    client.send("SET", "c", 1)
    await settled()
    await node.command("SET", "a", 1)
    await settled()
    assert (client.ends, client.got, client.pushed) == ([None], [], [])
    assert await node.command("KEYS", "*") == ["b", "a"]


# ---- the way -------------------------------------------------------------------------------------
class Late(Route):
    """Each piece takes its number of seconds, and all later ones take the last number."""

    def __init__(self, *delays: float) -> None:
        self.delays = list(delays)

    def delay(self) -> float:
        return self.delays.pop(0) if self.delays[1:] else self.delays[0]


@in_virtual_time
async def test_a_piece_that_takes_long_holds_up_those_behind_it() -> None:
    node = MemoryNode()
    client = await client_of(node, Late(1.0, 0.0))
    client.send("SET", "a", "first")
    client.send("SET", "a", "second")
    await asyncio.sleep(2)
    assert await node.command("GET", "a") == "second"


class Closed(Route):
    """Lets nothing through until it is opened."""

    def __init__(self) -> None:
        self.open = False
        self.waiting: dict[Stream, None] = {}

    def admit(self, stream: Stream, data: bytes) -> bool:
        self.waiting[stream] = None
        return self.open


@in_virtual_time
async def test_all_that_a_route_held_back_arrives_when_it_is_open_again() -> None:
    node, route = MemoryNode(), Closed()
    client = await client_of(node, route)
    for word in ("a", "b", "c"):
        client.send("SET", "key", word)
    client.send("GET", "key")
    await settled()
    assert await node.command("GET", "key") is None
    route.open = True
    for stream in list(route.waiting):
        stream.pump()
    await settled()
    assert client.got == [b"OK", b"OK", b"OK", b"c"]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
@in_virtual_time
async def test_requests_know_nothing_of_the_task_that_sent_them(seconds: float) -> None:
    """A server has no variables of its clients; their replies come to the client's own."""
    node, seen = MemoryNode(), list[str]()
    arrived = node.arrived

    def noted(client: Any, data: bytes) -> None:
        seen.append(VARIABLE.get())
        arrived(client, data)

    node.arrived = noted  # type: ignore[method-assign]
    VARIABLE.set("opens")
    client = await client_of(node, Late(seconds))
    VARIABLE.set("asks")
    began = now()
    assert await client.ask("PING") == b"PONG"
    assert now() - began == pytest.approx(2 * seconds, abs=0.01)
    assert (seen, client.contexts) == (["nobody"], {"opens"})


@in_virtual_time
async def test_a_connection_takes_the_route_of_its_endpoint() -> None:
    node = MemoryNode("given")
    client: Client = await MemoryEndpoint("a", node, Late(1.0)).open(Client)
    client.send("SET", "key", 1)
    await settled()
    assert await node.command("EXISTS", "key") == 0
    await asyncio.sleep(1.1)
    assert await node.command("EXISTS", "key") == 1
    found: Client = await MemoryEndpoint("found").open(Client)
    assert await found.ask("SET", "key", 1) == b"OK"
    assert await memory_node("found").command("EXISTS", "key") == 1
    assert await memory_node("a").command("EXISTS", "key") == 0


# ---- faults --------------------------------------------------------------------------------------
@in_virtual_time
async def test_a_frozen_node_executes_in_order_and_once_what_came_meanwhile() -> None:
    node = MemoryNode()
    client, other = await client_of(node), await client_of(node)
    node.freeze()
    client.send("SET", "a", "first")
    other.send("SET", "a", "second")
    late = await client_of(node)
    late.send("GET", "a")
    await settled()
    assert [one.got for one in (client, other, late)] == [[], [], []]
    for _ in range(2):
        node.thaw()
        await settled()
        assert [one.got for one in (client, other, late)] == [[b"OK"], [b"OK"], [b"second"]]


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "under way"])
@in_virtual_time
async def test_what_a_node_had_not_executed_is_lost_with_it(frozen: bool) -> None:
    node = MemoryNode(durable=True)
    client = await client_of(node)
    if frozen:
        node.freeze()
    client.send("SET", "a", 1)
    if frozen:
        await settled()
    node.restart()
    assert not node.frozen
    node.thaw()
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
async def test_a_dead_node_is_named_in_its_refusal() -> None:
    node = MemoryNode("cellar")
    node.kill()
    with pytest.raises(ConnectionRefusedError, match=r"^cellar is down$"):
        await node.open(Client)


# ---- what a node says of itself ------------------------------------------------------------------
@in_virtual_time
async def test_a_clock_that_jumps_back_makes_no_uptime_below_zero() -> None:
    node = MemoryNode(clock=lambda: 1_700_000_000.25)
    for jump, uptime in ((-60.5, 0), (120, 59)):
        node.jump_clock(jump)
        seconds, micros = await node.command("TIME")
        assert (int(seconds) + int(micros) / 1e6, len(micros)) == (node.wall(), 6)
        assert f"uptime_in_seconds:{uptime}\r" in await node.command("INFO")
    assert node.wall() == 1_700_000_000.25 + 59.5


@pytest.mark.parametrize(("durable", "says"), [(True, b"always"), (False, b"everysec")])
@in_virtual_time
async def test_what_a_node_says_of_itself(*, durable: bool, says: bytes) -> None:
    node = MemoryNode("a", clock=lambda: 1_700_000_000.25, entropy=bytes, durable=durable)
    node.born_ago(90.9)
    client = await client_of(node)
    assert await client.ask("HELLO", "3") == {
        b"server": b"redis",
        b"version": b"7.0.0",
        b"proto": 3,
    }
    assert await client.ask("TIME") == [b"1700000000", b"250000"]
    assert (await node.command("INFO")).splitlines() == [
        "redis_version:7.0.0",
        f"run_id:{'00' * 20}",
        "uptime_in_seconds:90",
        "role:master",
        "maxmemory:0",
        "maxmemory_policy:noeviction",
        f"aof_enabled:{int(durable)}",
    ]
    for words in (("AUTH", "x"), ("SELECT", 1), ("CLIENT", "SETNAME", "x"), ("FLUSHDB",)):
        assert await client.ask(*words) == b"OK"
    assert await client.ask("PING") == b"PONG"
    known = {b"appendfsync": says}
    assert await client.ask("CONFIG", "GET", "save", "appendfsync", "timeout") == known
    assert await client.ask("CONFIG", "GET", "save") == {}


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
    def clocks() -> tuple[float, float]:
        return now(), MemoryNode().wall()

    before, loops = clocks(), list[Any]()

    async def fails() -> None:
        loops.append(asyncio.get_running_loop())
        began = clocks()
        await asyncio.sleep(3600)
        for earlier, later in zip(began, clocks(), strict=True):
            assert later - earlier == pytest.approx(3600)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_virtual(fails())
    for earlier, later in zip(before, clocks(), strict=True):
        assert 0 <= later - earlier < 3600
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
