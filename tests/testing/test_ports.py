"""A reserved port belongs to one reservation, and to the server that is told of it."""

from __future__ import annotations

import contextlib
import socket

import pytest

from asynclock.testing.servers.ports import ReservedPort


def test_a_reserved_port_is_not_reserved_twice() -> None:
    first, second = ReservedPort(), ReservedPort()
    try:
        with pytest.raises(OSError, match="in use"):
            second._take("127.0.0.1", first.number)
    finally:
        first.release()
        second.release()


def test_a_server_listens_beside_the_reservation() -> None:
    port = ReservedPort(bus=True)
    try:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port.number))
            server.listen()
            with socket.create_connection(("127.0.0.1", port.number), 5):
                pass
    finally:
        port.release()


def is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as other:
        other.bind(("127.0.0.1", port))
        return True
    return False


def test_at_the_end_of_the_block_anybody_may_have_the_port() -> None:
    for _ in range(20):  # another process may be faster, but hardly each time
        with ReservedPort() as port:
            assert not is_free(port)
        if is_free(port):
            return
    pytest.fail("the ports are still reserved")
