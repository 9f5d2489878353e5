"""Replies of a shape that no script of ours gives: an outage with a bound, never a hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import asynclock
from asynclock.testing import LocalServer


@asynccontextmanager
async def liar(node: LocalServer, operation: bytes, lie: bytes) -> AsyncIterator[str]:
    """Passes all on to `node`, but answers each script's `operation` itself. Return its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node_reader, node_writer = await asyncio.open_connection(node.host, node.port)
        back = asyncio.create_task(pass_back(node_reader, writer))
        while data := await reader.read(1 << 16):
            if b"EVALSHA" in data and operation in data:
                writer.write(lie)
            else:
                node_writer.write(data)
        back.cancel()
        node_writer.close()
        writer.close()

    async def pass_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


LIES = (b"$-1\r\n", b":1\r\n", b"+OK\r\n", b"*0\r\n", b"*1\r\n:0\r\n", b"*1\r\n:1\r\n")


@asynccontextmanager
async def lied_to(
    nodes: list[LocalServer], operation: bytes, lie: bytes
) -> AsyncIterator[asynclock.LockManager]:
    """A manager on such a liar; whatever is done with it must end in time."""
    async with (
        asyncio.timeout(20),
        liar(nodes[0], operation, lie) as url,
        asynclock.connect(url, restart_guard=False) as locks,
    ):
        yield locks


@pytest.mark.parametrize("lie", LIES)
async def test_of_an_acquire(asynclock_nodes: list[LocalServer], lie: bytes) -> None:
    async with lied_to(asynclock_nodes, b"acquire", lie) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError):
            await locks.lock("a").try_acquire()


@pytest.mark.parametrize("lie", LIES)
async def test_of_a_release(asynclock_nodes: list[LocalServer], lie: bytes) -> None:
    async with lied_to(asynclock_nodes, b"release", lie) as locks:
        lease = await locks.lock("a").acquire()
        await lease.release()
        assert not lease.held


@pytest.mark.parametrize("lie", LIES)
async def test_of_a_renewal(asynclock_nodes: list[LocalServer], lie: bytes) -> None:
    async with lied_to(asynclock_nodes, b"extend", lie) as locks:
        lease = await locks.lock("a").acquire()
        with pytest.raises((asynclock.QuorumUnavailableError, asynclock.LeaseLostError)):
            await lease.extend()
