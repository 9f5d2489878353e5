"""One connection through a fault proxy, in virtual time: what either socket gets, and when."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from asynclock.testing import FaultProxy
from asynclock.testing.faults import Connection, Fault
from tests.tables.inside import now
from tests.waiting import in_virtual_time


class Side(asyncio.Transport):
    """The socket of one side: what it got, and after how many seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[tuple[float, bytes]] = []
        self.closing = self.aborted = False
        self._began = now()

    def write(self, data: Any) -> None:
        assert not self.closing, "a closed socket gets nothing more"
        self.got.append((round(now() - self._began, 3), bytes(data)))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = self.closing = True


class Through:
    """A connection whose steps a row names."""

    def __init__(self) -> None:
        self.fault = Fault()
        self.forgotten: list[Connection] = []
        self.sock: Any = SimpleNamespace(closed=False)
        self.sock.close = lambda: setattr(self.sock, "closed", True)
        self.connection = Connection(self.sock, lambda: self.fault, self.forgotten.append)
        self.client, self.server = Side(), Side()

    async def do(self, step: Any) -> None:
        client, server = self.connection._sides
        match step:
            case Fault():
                self.fault = step
            case float():
                await asyncio.sleep(step)
            case (">", data):
                client.data_received(data)
            case ("<", data):
                server.data_received(data)
            case "accepted":
                client.connection_made(self.client)
                server.lead_to(self.client)
            case "connected":
                server.connection_made(self.server)
                client.lead_to(self.server)
            case "opened" | "cancelled":
                task: Any = SimpleNamespace(cancelled=lambda: step == "cancelled")
                self.connection.opened(task)
            case "client leaves":
                client.connection_lost(None)
            case "server leaves":
                server.connection_lost(None)
            case "cut":
                self.connection.abort()
            case _:
                raise ValueError(step)

    def state(self) -> set[str]:
        facts = {
            "broken": self.connection.broken,
            "client closed": self.client.closing,
            "server closed": self.server.closing,
            "reset": self.client.aborted and self.server.aborted,
            "socket closed": self.sock.closed,
            "forgotten": bool(self.forgotten),
        }
        return {fact for fact, true in facts.items() if true}


OPEN = ("accepted", "connected", "opened")
HALF = ("accepted", "opened")
PIECES = [(0.02, bytes(20)), (0.04, bytes(20)), (0.06, bytes(20)), (0.08, bytes(20))]


@pytest.mark.parametrize(
    ("steps", "to_server", "to_client", "state"),
    [
        pytest.param(
            (*OPEN, (">", b"PING"), ("<", b"PONG")),
            *([(0, b"PING")], [(0, b"PONG")], set()),
            id="without a fault at once",
        ),
        pytest.param(
            ("accepted", (">", b"PING"), 1.0, "connected", "opened"),
            *([(1, b"PING")], [], set()),
            id="bytes that came before the connection to the server wait for it",
        ),
        pytest.param(
            (*OPEN, Fault(delays=(1, 2)), (">", b"a"), ("<", b"b"), Fault(), (">", b"later"), 3.0),
            *([(1, b"a"), (1, b"later")], [(2, b"b")], set()),
            id="requests and replies have their own delays and stay in order",
        ),
        pytest.param(
            (*OPEN, Fault(swallows=(False, True)), (">", b"a"), ("<", b"b")),
            *([(0, b"a")], [], {"broken"}),
            id="replies are dropped",
        ),
        pytest.param(
            (*OPEN, Fault(swallows=(False, True)), (">", b"a")),
            *([(0, b"a")], [], set()),
            id="nothing has been dropped so far",
        ),
        pytest.param(
            (*OPEN, Fault(garbage=b"no"), (">", b"a"), ("<", b"b"), ("<", b"c")),
            *([(0, b"a")], [(0, b"no")] * 2, {"broken"}),
            id="replies are replaced",
        ),
        pytest.param(
            (*OPEN, Fault(garbage=b"no"), (">", b"a")),
            *([(0, b"a")], [], set()),
            id="nothing has been replaced so far",
        ),
        pytest.param(
            (*OPEN, Fault(rate=1000.0), (">", bytes(100)), ("<", bytes(80)), 1.0),
            *([*PIECES, (0.1, bytes(20))], PIECES, set()),
            id="a rate sends small pieces all the time in each direction",
        ),
        pytest.param(
            (*OPEN, Fault(rate=10.0), (">", b"ab"), 1.0),
            *([(0.1, b"a"), (0.2, b"b")], [], set()),
            id="a rate below a byte per piece sends bytes",
        ),
        pytest.param(
            (*OPEN, Fault((0.5, 0), rate=100.0), (">", b"0123"), Fault(), (">", b"next"), 1.0),
            *([(0.52, b"01"), (0.54, b"23"), (0.54, b"next")], [], set()),
            id="later bytes begin when the earlier ones have arrived",
        ),
        pytest.param(
            (*OPEN, Fault((1, 0)), (">", b"last"), Fault(), "client leaves", 0.9),
            *([], [], set()),
            id="the end of one side is not ahead of its bytes",
        ),
        pytest.param(
            (*OPEN, Fault((1, 0)), (">", b"last"), "client leaves", 1.1),
            *([(1, b"last")], [], {"server closed"}),
            id="the end of one side comes behind its bytes",
        ),
        pytest.param(
            (*OPEN, Fault((1, 0)), "client leaves", 0.9),
            *([], [], set()),
            id="an end is no faster than a request",
        ),
        pytest.param(
            (*OPEN, Fault((1, 0)), "client leaves", 1.1),
            *([], [], {"server closed"}),
            id="an end takes as long as a request",
        ),
        pytest.param(
            (*OPEN, "client leaves", ("<", b"late"), "server leaves"),
            *([], [(0, b"late")], {"server closed", "client closed", "forgotten"}),
            id="a connection without sides is forgotten",
        ),
        pytest.param(
            (*OPEN, "server leaves", ("<", b"late")),
            *([], [], {"client closed"}),
            id="a closed socket gets nothing more",
        ),
        pytest.param(
            (*OPEN, Fault((1, 1)), (">", b"lost"), ("<", b"too"), "cut", 2.0),
            *([], [], {"client closed", "server closed", "reset"}),
            id="a reset drops what is on its way",
        ),
        pytest.param(
            (*OPEN, "cut", "client leaves", "server leaves"),
            *([], [], {"client closed", "server closed", "reset", "forgotten"}),
            id="a reset connection is forgotten when both sockets are gone",
        ),
        pytest.param(("cut",), [], [], set(), id="a socket that is about to be taken over"),
        pytest.param(
            ("cut", "opened"), [], [], {"socket closed", "forgotten"}, id="cut before it is open"
        ),
        pytest.param(
            ("cancelled",), [], [], {"socket closed", "forgotten"}, id="cancelled before it is open"
        ),
        pytest.param(HALF, [], [], set(), id="half-open until the client leaves"),
        pytest.param(
            (*HALF, "client leaves"), [], [], {"forgotten"}, id="half-open and the client leaves"
        ),
    ],
)
@in_virtual_time
async def test_what_arrives(
    steps: tuple[Any, ...],
    to_server: list[tuple[float, bytes]],
    to_client: list[tuple[float, bytes]],
    state: set[str],
) -> None:
    through = Through()
    for step in steps:
        await through.do(step)
    assert through.server.got == to_server
    assert through.client.got == to_client
    assert through.state() == state


@pytest.mark.parametrize("error", [BlockingIOError, ConnectionAbortedError])
async def test_clients_that_have_gone_again_are_not_accepted(error: type[OSError]) -> None:
    async with FaultProxy(("127.0.0.1", 1)) as proxy:
        listener: Any = SimpleNamespace(accept=Mock(side_effect=error))
        proxy._accept(listener)
        assert (proxy.accepted, proxy.connections) == (0, 0)
