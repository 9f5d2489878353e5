"""How a fault proxy keeps bytes back: one direction of a connection, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock import _clock
from asynclock.testing.faults.connection import _Pipe
from tests.waiting import in_virtual_time


class Side(asyncio.Transport):
    """The socket at the end of a direction: what it got, and after how many seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[tuple[float, bytes]] = []
        self.closing = False
        self._began = _clock.now()

    def write(self, data: Any) -> None:
        assert not self.closing, "a closed socket gets nothing more"
        self.got.append((round(_clock.now() - self._began, 3), bytes(data)))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


def pipe_to(side: Side) -> _Pipe:
    pipe = _Pipe()
    pipe.lead_to(side)
    return pipe


@in_virtual_time
async def test_without_a_fault_bytes_arrive_at_once() -> None:
    side = Side()
    pipe_to(side).push(b"PING", 0.0, None)
    assert side.got == [(0.0, b"PING")]


@in_virtual_time
async def test_bytes_that_came_before_the_connection_to_the_server_wait_for_it() -> None:
    side, pipe = Side(), _Pipe()
    pipe.push(b"PING", 0.0, None)
    await asyncio.sleep(1.0)
    pipe.lead_to(side)
    assert side.got == [(1.0, b"PING")]


@in_virtual_time
async def test_a_rate_sends_small_pieces_all_the_time() -> None:
    """Not one second's worth at the end of each second."""
    side = Side()
    pipe_to(side).push(bytes(range(100)), 0.0, 1000.0)
    await asyncio.sleep(0.05)
    assert side.got == [(0.02, bytes(range(20))), (0.04, bytes(range(20, 40)))]
    await asyncio.sleep(1.0)
    assert b"".join(piece for _, piece in side.got) == bytes(range(100))
    assert side.got[-1][0] == 0.1


@in_virtual_time
async def test_a_rate_below_a_byte_per_piece_sends_bytes() -> None:
    side = Side()
    pipe_to(side).push(b"ab", 0.0, 10.0)
    await asyncio.sleep(1.0)
    assert side.got == [(0.1, b"a"), (0.2, b"b")]


@in_virtual_time
async def test_later_bytes_begin_when_the_earlier_ones_have_arrived() -> None:
    side = Side()
    pipe = pipe_to(side)
    pipe.push(b"0123456789", 0.5, 100.0)
    pipe.push(b"next", 0.0, None)
    await asyncio.sleep(1.0)
    assert side.got[-1] == (0.6, b"next")


@pytest.mark.parametrize("delay", [0.0, 0.3])
@in_virtual_time
async def test_a_hang_up_comes_after_the_bytes_before_it(delay: float) -> None:
    side = Side()
    pipe = pipe_to(side)
    pipe.push(b"SET", 0.3, None)
    pipe.push(b"", delay, None)
    await asyncio.sleep(0.2)
    assert not side.closing
    await asyncio.sleep(0.2)
    assert side.got == [(0.3, b"SET")]
    assert side.closing
    pipe.push(b"late", 0.0, None)
    assert len(side.got) == 1


@in_virtual_time
async def test_bytes_in_transit_that_are_dropped_never_arrive() -> None:
    side = Side()
    pipe = pipe_to(side)
    pipe.push(b"SET", 0.3, None)
    pipe.clear()
    await asyncio.sleep(1.0)
    assert side.got == []
    pipe.push(b"GET", 0.0, None)
    assert side.got == [(1.0, b"GET")]
