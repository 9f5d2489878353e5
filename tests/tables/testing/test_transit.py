"""Connections through a fault proxy that end before they are open."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from asynclock.testing import FaultProxy
from asynclock.testing.faults import Connection, Fault


@pytest.mark.parametrize("error", [BlockingIOError, ConnectionAbortedError])
async def test_clients_that_have_gone_again_are_not_accepted(error: type[OSError]) -> None:
    async with FaultProxy(("127.0.0.1", 1)) as proxy:
        listener: Any = SimpleNamespace(accept=Mock(side_effect=error))
        proxy._accept(listener)
        assert (proxy.accepted, proxy.connections) == (0, 0)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_connection_that_ends_before_it_opens_closes_its_socket(*, cancelled: bool) -> None:
    sock, forgotten = Mock(), Mock()
    connection = Connection(sock, Fault, forgotten)
    if not cancelled:
        connection.abort()
    sock.close.assert_not_called()  # it is about to be taken over
    opening: Any = SimpleNamespace(cancelled=lambda: cancelled)
    connection.opened(opening)
    sock.close.assert_called_once()
    forgotten.assert_called_with(connection)
