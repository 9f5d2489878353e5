"""What goes wrong in a handshake, and what it leaves behind on the link."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

import asynclock
from asynclock._nodes import handshake
from asynclock._nodes.link import Link
from asynclock._nodes.replies import NOBODY, Failure
from asynclock._nodes.script import Command
from asynclock.testing import LocalServer, memory_node, run_virtual
from tests import patient


async def test_an_answer_that_nobody_expected_does_not_end_the_node(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_facts, failing = handshake.read_facts, True

    def malformed(info: Any, fsync: Any, *, tracking: bool) -> Any:
        if failing:
            info = info.replace(b"uptime_in_seconds:", b"uptime_in_seconds:x")
        return read_facts(info, fsync, tracking=tracking)

    monkeypatch.setattr(handshake, "read_facts", malformed)
    async with patient.connect(asynclock_nodes[0].url, restart_guard=False) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await locks.lock("a").try_acquire()
        (cause,) = caught.value.nodes.values()
        assert cause.startswith("the handshake failed: ValueError: ")
        failing = False
        async with locks.lock("a", timeout=20) as lease:
            assert lease.held


async def test_a_host_name_that_cannot_be_encoded_does_not_end_the_node() -> None:
    host = "a" * 70 + ".example"
    async with asynclock.connect(f"redis://{host}:6379") as locks:
        with pytest.raises(asynclock.QuorumUnavailableError, match="can't be encoded"):
            await locks.lock("a").try_acquire()
        (keeper,) = (t for t in asyncio.all_tasks() if t.get_name().startswith("asynclock: keep"))
        assert not keeper.done()


def test_a_slow_handshake_leaves_no_timer_behind() -> None:
    """A node that falls silent right after it costs one node timeout, not the dial's."""

    async def scenario() -> float:
        async with asynclock.connect("memory://a", restart_guard=False) as locks:
            node = memory_node("a")
            node.freeze()
            node.cut()
            while "within 2 s" not in (locks.nodes()[0].cause or ""):
                await asyncio.sleep(0.01)
            node.thaw()
            while locks.nodes()[0].state != "up":
                await asyncio.sleep(0.001)
            node.freeze()
            begin = asyncio.get_running_loop().time()
            with pytest.raises(asynclock.QuorumUnavailableError):
                await locks.lock("a").try_acquire()
            return asyncio.get_running_loop().time() - begin

    assert run_virtual(scenario()) <= 0.3


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
    target.close()


async def test_a_connection_opens_in_one_round_trip(asynclock_nodes: list[LocalServer]) -> None:
    """The login, the database and all questions are there before the first answer."""
    server = asynclock_nodes[0]

    async def hold_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b""
        while not all(word in data for word in (b"HELLO", b"SELECT", b"INFO", b"LOAD")):
            data += await reader.read(65536)
        replies, requests = await asyncio.open_connection(server.host, server.port)
        requests.write(data)
        await asyncio.gather(_copy(reader, requests), _copy(replies, writer))

    relay = await asyncio.start_server(hold_back, "127.0.0.1")
    port = relay.sockets[0].getsockname()[1]
    async with patient.connect(f"redis://127.0.0.1:{port}/3", restart_guard=False) as locks:
        lease = await locks.lock("a", timeout=5).acquire()
        assert (await locks.inspect("a")).owner == lease.owner
        await lease.release()
    relay.close()


class Slow(CredentialProvider):
    """Needs some time to find the password."""

    async def get_credentials_async(self) -> tuple[str, str]:
        await asyncio.sleep(0.05)
        return "default", "secret"


@pytest.mark.parametrize("provider", [None, Slow()])
async def test_a_server_that_refuses_before_it_is_asked_is_quoted(
    provider: CredentialProvider | None,
) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR max number of clients reached\r\n")
        writer.close()

    full = await asyncio.start_server(refuse, "127.0.0.1")
    port = full.sockets[0].getsockname()[1]
    client = redis.asyncio.Redis(port=port, credential_provider=provider)
    async with client, asynclock.connect(client) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await locks.lock("a").try_acquire()
        assert list(caught.value.nodes.values()) == ["ERR max number of clients reached"]
    full.close()


class Recorder(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def abort(self) -> None:
        pass


class Listener:
    """The owner of a link, which wants to know nothing."""

    def on_clock(self, *_: object) -> None:
        pass

    on_push = on_disconnect = on_clock


async def test_a_peer_that_catches_up_is_written_to_in_the_next_turn() -> None:
    """Within `resume_writing` asyncio can't bear a write that fails."""
    link, transport = Link(Listener(), 1.0), Recorder()
    link.connection_made(transport)
    link.pause_writing()
    link.send(Command.plain("TIME"), NOBODY, 0)
    await asyncio.sleep(0)
    link.resume_writing()
    assert not transport.written
    await asyncio.sleep(0)
    assert b"TIME" in transport.written
    link.connection_lost(None)


async def test_a_password_that_cannot_be_encoded_is_not_shown() -> None:
    error = UnicodeEncodeError("utf-8", "canary\udc80", 6, 7, "surrogates not allowed")
    failure = handshake.why_unready(error)
    assert isinstance(failure, Failure)
    assert "canary" not in failure.cause
