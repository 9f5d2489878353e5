"""One connection through a fault proxy, in virtual time; the test plays both sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock import _clock
from asynclock.testing.faults.connection import Connection, Fault
from tests.waiting import in_virtual_time

from .test_bytes_in_transit import Side


class Socket(Side):
    """A side of the connection that can be reset, too."""

    aborted = False

    def abort(self) -> None:
        self.aborted = self.closing = True


class Accepted:
    """The socket of a client before anything uses it."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Through:
    """A connection that is open in both directions, with a fault that the test may set."""

    def __init__(self) -> None:
        self.fault = Fault()
        self.forgotten: list[Connection] = []
        self.sock = Accepted()
        sock: Any = self.sock
        self.connection = Connection(sock, lambda: self.fault, self.forgotten.append)
        self.client, self.server = Socket(), Socket()
        self._began = _clock.now()

    def open(self) -> None:
        """Let both sockets be there."""
        for end, pipe, side in zip(
            self.connection._ends,
            reversed(self.connection._pipes),
            (self.client, self.server),
            strict=True,
        ):
            end.connection_made(side)
            pipe.lead_to(side)
        task: Any = Done()
        self.connection.opened(task)

    def asks(self, data: bytes) -> None:
        self.connection._ends[0].data_received(data)

    def answers(self, data: bytes) -> None:
        self.connection._ends[1].data_received(data)

    def hangs_up(self, which: int) -> None:
        self.connection._ends[which].connection_lost(None)


class Done:
    """The task that opened a connection."""

    def __init__(self, *, cancelled: bool = False) -> None:
        self._cancelled = cancelled

    def cancelled(self) -> bool:
        return self._cancelled


@in_virtual_time
async def test_requests_and_replies_have_delays_of_their_own() -> None:
    through = Through()
    through.open()
    through.fault = Fault(delays=(1.0, 2.0))
    through.asks(b"PING")
    through.answers(b"PONG")
    through.fault = Fault()
    through.asks(b"later")
    await asyncio.sleep(3.0)
    assert through.server.got == [(1.0, b"PING"), (1.0, b"later")], "they stay in order"
    assert through.client.got == [(2.0, b"PONG")]
    assert not through.connection.broken


@in_virtual_time
async def test_bytes_are_dropped_or_replaced_in_one_direction_only() -> None:
    through = Through()
    through.open()
    through.fault = Fault(swallows=(False, True))
    through.asks(b"one")
    assert not through.connection.broken, "nothing has been dropped so far"
    through.answers(b"dropped")
    assert through.connection.broken
    assert (through.server.got, through.client.got) == ([(0.0, b"one")], [])
    other = Through()
    other.open()
    other.fault = Fault(garbage=b"nonsense")
    other.asks(b"two")
    assert not other.connection.broken
    other.answers(b"reply")
    other.answers(b"another")
    assert other.connection.broken
    assert other.server.got == [(0.0, b"two")]
    assert other.client.got == [(0.0, b"nonsense")] * 2


@in_virtual_time
async def test_a_rate_is_that_of_each_direction() -> None:
    through = Through()
    through.open()
    through.fault = Fault(rate=100.0)
    through.asks(bytes(100))
    through.answers(bytes(200))
    await asyncio.sleep(5.0)
    assert through.server.got[-1][0] == pytest.approx(1.0, abs=0.01)
    assert through.client.got[-1][0] == pytest.approx(2.0, abs=0.01)


@in_virtual_time
async def test_the_end_of_one_side_reaches_the_other_after_the_bytes_before_it() -> None:
    through = Through()
    through.open()
    through.fault = Fault(delays=(1.0, 0.0))
    through.asks(b"last")
    through.hangs_up(0)
    await asyncio.sleep(0.5)
    assert not through.server.closing
    await asyncio.sleep(1.0)
    assert through.server.got == [(1.0, b"last")]
    assert through.server.closing
    assert through.forgotten == [], "the other side is still there"
    through.hangs_up(1)
    assert through.forgotten == [through.connection]


@in_virtual_time
async def test_an_end_takes_as_long_as_a_request() -> None:
    through = Through()
    through.open()
    through.fault = Fault(delays=(1.0, 0.0))
    through.hangs_up(0)
    await asyncio.sleep(0.9)
    assert not through.server.closing
    await asyncio.sleep(0.2)
    assert through.server.closing


@in_virtual_time
async def test_a_reset_drops_what_is_on_its_way() -> None:
    through = Through()
    through.open()
    through.fault = Fault(delays=(1.0, 1.0))
    through.asks(b"lost")
    through.answers(b"lost too")
    through.connection.abort()
    assert (through.client.aborted, through.server.aborted) == (True, True)
    assert through.forgotten == []
    await asyncio.sleep(2.0)
    assert (through.client.got, through.server.got) == ([], [])
    through.hangs_up(0)
    through.hangs_up(1)
    assert through.forgotten[-1] is through.connection


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "cancelled"])
@in_virtual_time
async def test_a_connection_that_is_ended_before_it_is_open_leaves_no_socket(cut: bool) -> None:
    through = Through()
    if cut:
        through.connection.abort()
        assert not through.sock.closed, "it is about to be taken over"
        assert through.forgotten == []
    task: Any = Done(cancelled=not cut)
    through.connection.opened(task)
    assert through.sock.closed
    assert through.forgotten[-1] is through.connection


@in_virtual_time
async def test_an_open_connection_without_a_server_is_kept_until_its_client_leaves() -> None:
    """Half-open: the client is connected to a machine from which nothing comes."""
    through = Through()
    through.connection._ends[0].connection_made(through.client)
    task: Any = Done()
    through.connection.opened(task)
    assert not through.client.closing
    assert through.forgotten == []
    through.hangs_up(0)
    assert through.forgotten == [through.connection]
