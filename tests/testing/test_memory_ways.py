"""The way between a client and a node in memory: routes that hold pieces back, and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock.testing import memory_node
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.address import MemoryEndpoint
from asynclock.testing.memory.wire import Route, Stream
from tests.waiting import in_virtual_time

from .test_memory_connections import VARIABLE, Client, client_of, settled


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
    assert await client.told() == [b"OK", b"OK", b"OK", b"c"]


class Late(Route):
    """Each piece takes a second."""

    def delay(self) -> float:
        return 1.0


@in_virtual_time
async def test_what_takes_long_knows_as_little_of_the_task_that_sent_it() -> None:
    node, seen = MemoryNode(), list[str]()
    arrived = node.arrived

    def noted(client: Any, data: bytes) -> None:
        seen.append(VARIABLE.get())
        arrived(client, data)

    node.arrived = noted  # type: ignore[method-assign]
    VARIABLE.set("opens")
    client = await client_of(node, Late())
    VARIABLE.set("asks")
    client.send("PING")
    await asyncio.sleep(1.5)
    assert (seen, client.got) == (["nobody"], [])
    await asyncio.sleep(1.0)
    assert (client.got, client.contexts) == ([b"PONG"], {"opens"})


@in_virtual_time
async def test_a_connection_takes_the_route_of_its_endpoint() -> None:
    node = MemoryNode("given")
    client: Client = await MemoryEndpoint("a", node, Late()).open(Client)
    client.send("SET", "key", 1)
    await settled()
    assert await node.command("EXISTS", "key") == 0
    await asyncio.sleep(1.1)
    assert await node.command("EXISTS", "key") == 1
    found: Client = await MemoryEndpoint("found").open(Client)
    assert await found.ask("SET", "key", 1) == b"OK"
    assert await memory_node("found").command("EXISTS", "key") == 1
    assert await memory_node("a").command("EXISTS", "key") == 0


@in_virtual_time
async def test_a_dead_node_is_named_in_its_refusal() -> None:
    node = MemoryNode("cellar")
    node.kill()
    with pytest.raises(ConnectionRefusedError, match=r"^cellar is down$"):
        await node.open(Client)


@in_virtual_time
async def test_a_node_tells_of_its_settings_those_that_it_has() -> None:
    client = await client_of(MemoryNode())
    wanted = {b"appendfsync": b"everysec"}
    assert await client.ask("CONFIG", "GET", "save", "appendfsync", "timeout") == wanted
    assert await client.ask("CONFIG", "GET", "save") == {}


@in_virtual_time
async def test_what_a_node_says_of_itself() -> None:
    node = MemoryNode("a", clock=lambda: 1_700_000_000.25, entropy=bytes)
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
        "aof_enabled:0",
    ]
    for words in (("AUTH", "x"), ("SELECT", 1), ("CLIENT", "SETNAME", "x"), ("FLUSHDB",)):
        assert await client.ask(*words) == b"OK"
    assert await client.ask("PING") == b"PONG"
