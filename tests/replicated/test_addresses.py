"""Host names: several addresses of which some are dead, slow look-ups, and what errors say of them.

Every kind of node finds its servers by name: a server, Sentinels and the primary that they name,
and the servers that a Cluster announces.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import RedisCluster, SentinelGroup
from asynclock.testing.plugin import StartServers
from tests.conftest import Connect
from tests.replicated.topologies import Topologies
from tests.tables.inside import named_by_watchers
from tests.waiting import comes_to_say, go_through

DEAD = "127.0.0.9"
MUTE = "127.0.0.10"
SLOW = 2.5
"""Seconds of a look-up: more than any attempt to connect takes."""
KINDS = ("single", "quorum", "sentinel", "cluster")


class Names:
    """The names of this test's hosts: all that end with `.test`."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = ("127.0.0.1",)
        self.takes = 0.0
        self.way = 0.0
        self.asked: list[tuple[str, int]] = []
        self._holes: dict[int, list[socket.socket]] = {}

    async def getaddrinfo(self, host: str, port: int, **settings: Any) -> list[Any]:
        self.asked.append((host, port))
        assert settings == {"type": socket.SOCK_STREAM}
        await asyncio.sleep(self.takes)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if DEAD in self.addresses and port not in self._holes:
            self._holes[port] = list(_hole(port))
        if MUTE in self.addresses and port not in self._holes:
            self._holes[port] = [socket.create_server((MUTE, port))]
        tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*tcp, (address, port)) for address in self.addresses]

    def close(self) -> None:
        for sockets in self._holes.values():
            for one in sockets:
                one.close()


def _hole(port: int) -> Iterator[socket.socket]:
    """A port that swallows all packets, because its queue of connections is full."""
    yield (hole := socket.create_server((DEAD, port), backlog=0))
    for _ in range(3):
        filler = socket.socket()
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filler.connect(hole.getsockname())
        yield filler


@pytest_asyncio.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    made, loop = Names(), asyncio.get_running_loop()
    connect, at_once = loop.sock_connect, socket.getaddrinfo

    def of_a_number(*place: Any, **settings: Any) -> Any:
        plain = {"type": socket.SOCK_STREAM, "flags": socket.AI_NUMERICHOST}
        assert settings == plain, "the loop would stand still"
        return at_once(*place, **settings)

    async def after_a_while(sock: socket.socket, address: Any) -> None:
        await asyncio.sleep(made.way)
        await connect(sock, address)

    monkeypatch.setattr(socket, "getaddrinfo", of_a_number)
    monkeypatch.setattr(loop, "getaddrinfo", made.getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", after_a_while)
    yield made
    made.close()
    assert {host[-5:] for host, _ in made.asked} <= {".test"}, "a number needs no look-up"


@pytest_asyncio.fixture(params=KINDS)
async def urls(
    request: pytest.FixtureRequest,
    names: Names,
    asynclock_servers: StartServers,
    topologies: Topologies,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The addresses of one deployment, whose servers are all known by name."""
    named_by_watchers(monkeypatch, "primary.test")
    if request.param == "sentinel":
        group = await topologies.get("sentinel", lambda: SentinelGroup(2, 3))
        found = group.addresses
    elif request.param == "cluster":
        cluster = await topologies.get("cluster", lambda: RedisCluster(3, 1))
        found = cluster.addresses
    else:
        servers = await asynclock_servers(3 if request.param == "quorum" else 1)
        found = [server.url for server in servers]
    here = found[: len(found) // 2] if request.param == "quorum" else []  # this needs no look-up
    return here + [url.replace("127.0.0.1", "node.test") for url in found[len(here) :]]


@pytest.mark.parametrize("dead", [DEAD, "127.0.0.8"], ids=["swallows", "refuses"])
async def test_the_second_address_serves_if_the_first_is_dead(
    names: Names, urls: list[str], connect: Connect, dead: str
) -> None:
    names.addresses = (dead, "127.0.0.1")
    locks = connect(*urls, restart_guard=False)
    await go_through(locks.lock("a", timeout=10))
    await locks.aclose()


async def test_a_look_up_outlives_an_attempt_to_connect(
    names: Names, urls: list[str], connect: Connect
) -> None:
    names.takes = SLOW
    locks = connect(*urls, restart_guard=False, node_timeout=0.25)
    await comes_to_say(
        locks, r"the look-up of node\.test has no result within node_timeout=0\.25 s"
    )
    await go_through(locks.lock("a", timeout=20))
    # Once for each connection: a primary of a Cluster also reports the view.
    assert all(times <= 2 for times in Counter(names.asked).values()), names.asked
    await locks.aclose()


async def test_a_manager_closes_while_it_looks_up_a_name(
    names: Names, urls: list[str], connect: Connect
) -> None:
    names.takes = 60
    locks = connect(*urls, node_timeout=0.25)
    with pytest.raises(asynclock.QuorumUnavailableError):
        await locks.lock("a").try_acquire()
    async with asyncio.timeout(5):
        await locks.aclose()


def unknown(names: Names) -> str:
    names.addresses = ()
    return r"can't look up node\.test: Name or service not known"


def refusing(names: Names) -> str:
    names.addresses = ("127.0.0.8", "127.0.0.7")
    return r"127\.0\.0\.8: Connection refused; 127\.0\.0\.7: Connection refused"


def swallowing(names: Names) -> str:
    names.addresses = (DEAD,)
    return r"node\.test:\d+: no connection within \S+ s"


def far(names: Names) -> str:
    names.addresses, names.way = (MUTE,), 0.3
    return r"the login within node_timeout=0\.25 s; a round trip took 0\.\d+ s: raise node_timeout"


@pytest.mark.parametrize("fault", [unknown, refusing, swallowing, far])
async def test_errors_name_the_host_and_what_failed(
    names: Names, urls: list[str], connect: Connect, fault: Callable[[Names], str]
) -> None:
    words = fault(names)
    locks = connect(*urls, node_timeout=0.25)
    await comes_to_say(locks, words)
    await locks.aclose()
