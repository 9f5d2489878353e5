"""Every fault of the proxy happens to a real client of a real server, and ends when healed."""

import asyncio
import time

import pytest

from asynclock.testing import FaultProxy, LocalServer
from asynclock.testing.servers import ServerAddress, ask
from tests.waiting import until


@pytest.fixture
async def server(asynclock_servers):
    (server,) = await asynclock_servers(1)
    return server


@pytest.fixture
async def proxy(server):
    async with FaultProxy(server) as proxy:
        yield proxy
    assert proxy.connections == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}, "a task outlived the proxy"


class Client:
    """One connection that stays open, so that cuts can be seen."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, line: str) -> None:
        self.writer.write(line.encode() + b"\r\n")

    async def reply(self, timeout: float = 10.0) -> bytes:
        return await asyncio.wait_for(self.reader.readline(), timeout)

    async def call(self, line: str) -> bytes:
        self.send(line)
        return await self.reply()

    async def silent(self, seconds: float = 0.2) -> bool:
        try:
            await self.reply(seconds)
        except TimeoutError:
            return True
        return False

    async def cut(self) -> bool:
        """Whether the other side hangs up (or already has)."""
        try:
            return await asyncio.wait_for(self.reader.read(1), 10) == b""
        except ConnectionError:
            return True


@pytest.fixture
async def connect(proxy):
    clients = []

    async def connect() -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.writer.transport.abort()


def stored(server: LocalServer, key: str):
    async def stored() -> bool:
        return await server.command("GET", key) == "1"

    return stored


async def test_it_passes_everything_on(proxy, server, connect):
    client = await connect()
    assert await client.call("PING") == b"+PONG\r\n"
    assert proxy.url == f"redis://127.0.0.1:{proxy.port}"
    assert proxy.connections == proxy.accepted == 1
    big = "x" * 300_000
    assert await ask(ServerAddress("127.0.0.1", proxy.port), "ECHO", big) == big
    client.writer.close()

    async def forgotten() -> bool:
        return proxy.connections == 0

    await until(forgotten)
    assert proxy.accepted == 2


async def test_the_url_keeps_what_else_is_in_it():
    server = LocalServer(password="p@ss")
    try:
        proxy = FaultProxy(server)
        assert proxy.url == f"redis://:p%40ss@127.0.0.1:{proxy.port}"
        await proxy.aclose()
    finally:
        server.close()


async def test_delayed_replies(proxy, connect):
    client = await connect()
    await client.call("PING")
    proxy.delay(0.0, replies=0.3)
    began = time.monotonic()
    client.send("PING")
    client.send("ECHO second")
    assert await client.reply() == b"+PONG\r\n"
    assert time.monotonic() - began >= 0.3
    assert await client.reply() == b"$6\r\n"
    proxy.heal()


async def test_a_delayed_request_reaches_the_server_after_its_client_left(proxy, server, connect):
    client = await connect()
    await client.call("PING")
    proxy.delay(0.3)
    began = time.monotonic()
    client.send("SET zombie 1")
    await client.writer.drain()
    client.writer.close()
    await until(stored(server, "zombie"))
    assert time.monotonic() - began >= 0.25


async def test_partition_cuts_and_refuses_and_heals(proxy, connect):
    client = await connect()
    await client.call("PING")
    proxy.partition()
    assert await client.cut()
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await connect()
    port = proxy.port
    proxy.heal()
    assert proxy.port == port
    assert await (await connect()).call("PING") == b"+PONG\r\n"


async def test_partition_while_a_connection_is_being_opened(proxy, connect):
    for _ in range(10):
        client = await connect()
        proxy.partition()
        assert await client.cut()
        proxy.heal()


async def test_half_open_swallows_old_and_new_connections(proxy, server, connect):
    old = await connect()
    await old.call("PING")
    proxy.half_open()
    new = await connect()
    for client in (old, new):
        client.send("SET a 1")
        assert await client.silent()
    assert await server.command("GET", "a") is None
    proxy.heal()
    assert await old.cut()
    assert await new.cut()
    assert await (await connect()).call("PING") == b"+PONG\r\n"


async def test_dropped_replies_are_dropped_after_the_server_has_acted(proxy, server, connect):
    client = await connect()
    await client.call("PING")
    proxy.drop_replies()
    client.send("SET a 1")
    await until(stored(server, "a"))
    assert await client.silent()
    proxy.heal()
    assert await client.cut()


async def test_garbage_replaces_replies(proxy, server, connect):
    client = await connect()
    proxy.garbage()
    assert not (await client.call("SET a 1")).startswith((b"+", b"-", b":", b"$"))
    assert await server.command("GET", "a") == "1"
    proxy.garbage(b"HTTP/1.1 400 Bad Request\r\n")
    assert await client.cut(), "its stream was broken"
    assert await (await connect()).call("PING") == b"HTTP/1.1 400 Bad Request\r\n"


async def test_throttle(proxy, connect):
    client = await connect()
    await client.call("PING")
    proxy.throttle(10_000)
    began = time.monotonic()
    client.send("ECHO " + "x" * 2_000)
    assert await client.reply() == b"$2000\r\n"
    assert len(await client.reply()) == 2_002
    assert time.monotonic() - began >= 0.35, "2 kB each way at 10 kB/s"


async def test_behind_it_a_dead_server_hangs_up_and_a_frozen_one_is_mute(proxy, server, connect):
    await server.freeze()
    client = await connect()
    client.send("PING")
    assert await client.silent()
    await server.thaw()
    assert await client.reply() == b"+PONG\r\n"
    await server.kill()
    assert await client.cut()
    assert await (await connect()).cut()


async def test_closing_in_the_middle_of_everything_leaves_nothing(server):
    for turn in range(6):
        proxy = FaultProxy(server)
        await proxy.start()
        proxy.delay(60, 60)
        clients = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(3)]
        for _, writer in clients:
            writer.write(b"PING\r\n")
        for _ in range(turn):
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks()
        await proxy.aclose()
        assert proxy.connections == 0
        assert asyncio.all_tasks() <= tasks
        for reader, writer in clients:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
