"""What an address of a node means: host, port, database, login and TLS."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.asyncio.connection import RedisSSLContext
from redis.asyncio.sentinel import Sentinel

import asynclock
from asynclock.testing import make_certificates
from asynclock.testing.plugin import StartServers
from tests.nodes.virtual_servers import Server
from tests.tables import inside
from tests.waiting import becomes, in_virtual_time

CA = "ssl_ca_certs"


class Anywhere(dict[Any, Any]):
    """A server at every address, and where it was dialled."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.server = Server("any", 1)
        self.dialled: list[tuple[str, int]] = []
        inside.reach(patch, self)

    def get(self, place: Any, _default: Any = None) -> Any:
        self.dialled.append(place)
        return self.server

    async def login(self, node: Any) -> tuple[Any, ...]:
        """Return where a client dials first, the words of its login, and its database."""
        self.dialled.clear()
        self.server.asked.clear()
        async with asynclock.connect(node) as locks:
            await locks.ready()
        hello = [word.decode() for word in self.server.asked[0][3:]]
        select = self.server.asked_for("SELECT")
        return (*self.dialled[0], tuple(hello), int(select[0][1]) if select else 0)


@pytest.mark.parametrize(
    ("url", "host", "port", "login", "db"),
    [
        (" redis://h:7/2 ", "h", 7, (), 2),
        ("redis://h?db=3&", "h", 6379, (), 3),
        ("redis://u:0@h?db=3", "h", 6379, ("u", "0"), 3),
        ("redis://u:0,x@h?client_name=a", "h", 6379, ("u", "0,x"), 0),
        ("redis://h?client_name=a,b", "h", 6379, (), 0),
        ("redis://u:a,b@h", "h", 6379, ("u", "a,b"), 0),
        ("redis://u@h", "h", 6379, ("u", ""), 0),
        ("redis://:p%40%3A@h", "h", 6379, ("default", "p@:"), 0),
        ("redis://u%40:p@h", "h", 6379, ("u@", "p"), 0),
        ("redis+cluster://u:0@a", "a", 6379, ("u", "0"), 0),
        ("redis+cluster://u:p[@a,[::1]:7", "a", 6379, ("u", "p["), 0),
        ("redis+cluster://u:p%40@[fe80::1%25eth0]:7", "fe80::1%eth0", 7, ("u", "p@"), 0),
        ("redis+sentinel://u:p@h1,h2/name", "h1", 26379, (), 0),
        (
            "redis+sentinel://u:p@h1:1/n?db=3&sentinel_username=w%2Fer&sentinel_password=a%2Fb%40c",
            "h1",
            1,
            ("w/er", "a/b@c"),
            0,
        ),
    ],
)
@in_virtual_time
async def test_an_address(
    monkeypatch: pytest.MonkeyPatch, url: str, host: str, port: int, login: tuple[str, ...], db: int
) -> None:
    assert await Anywhere(monkeypatch).login(url) == (host, port, login, db)


@in_virtual_time
async def test_a_plain_url_is_read_as_redis_py_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    anywhere = Anywhere(monkeypatch)
    for part in (
        *("h", "Host.example.org", "127.0.0.1", "[::1]", ""),
        *("u@h", "u:p@h", ":p@h", "%75:%40%2f@", "u:@h:7000/0"),
        *("h:7000", "[::1]/3", "h:7000/0", "h/", ":7000"),
    ):
        theirs = await anywhere.login(redis.asyncio.Redis.from_url(f"redis://{part}"))
        assert await anywhere.login(f"redis://{part}") == theirs, part


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("redis://Host", "host:6379"),
        ("redis://[::1]:7", "[::1]:7"),
        ("unix:///run/redis?db=3", "unix:/run/redis"),
        (" memory://a ", "memory://a"),
        ("rediss://a", "a:6379"),
        ("redis+cluster://a,b", "cluster a:6379,b:6379"),
        ("rediss+cluster://a,b", "cluster a:6379,b:6379"),
        ("valkey://a:1", "a:1"),
        ("valkeys://a:1", "a:1"),
        ("valkey+cluster://a:1,b:1", "cluster a:1,b:1"),
        ("redis+cluster://u:p[@a,[::1]:7", "cluster a:6379,[::1]:7"),
        ("redis+cluster://[fe80::1%25eth0]:7,[fe80::2%25eth0]:8", None),
        ("redis+sentinel://a,b/mine", "mine@a:26379,b:26379"),
        ("rediss+sentinel://a,b/mine", "mine@a:26379,b:26379"),
        ("redis+sentinel://u:p%40@a, b:7 ,,[::1]/mine?db=2", "mine@a:26379,b:7,[::1]:26379"),
        (
            Sentinel([("h1", 1), ("h2", 2), ("h3", 3)]).master_for("name", db=3),
            "name@h1:1,h2:2,h3:3",
        ),
    ],
)
def test_the_name_of_a_node_has_all_its_addresses_and_no_login(node: Any, name: str | None) -> None:
    (found,) = asynclock.connect(node).nodes()
    assert found.node == (name or "cluster [fe80::1%eth0]:7,[fe80::2%eth0]:8")


def test_a_manager_shows_its_nodes_and_no_login() -> None:
    locks = asynclock.connect("redis://u:canary@a:1", "redis://b:2", "redis://c:3")
    assert repr(locks) == "<LockManager on a:1, b:2, c:3>"


async def test_a_socket_file_is_reached(asynclock_servers: StartServers, tmp_path: Path) -> None:
    (server,) = await asynclock_servers(1, password="right")
    path = tmp_path / "socket"

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies, requests = await asyncio.open_connection(server.host, server.port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, requests), copy(replies, writer))

    async with await asyncio.start_unix_server(relay, path):
        url = f"unix://:right@{path}?db=3"
        async with asynclock.connect(url, restart_guard=False) as locks, locks.lock("a") as lease:
            client = redis.asyncio.Redis(port=server.port, password="right", db=3)
            assert await client.get("asynclock:a") == lease.owner.encode()
            await client.aclose()


@in_virtual_time
async def test_a_look_up_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        asyncio.get_running_loop(), "getaddrinfo", lambda *_, **__: asyncio.sleep(60)
    )
    async with asynclock.connect("redis://node.test") as locks:
        with pytest.raises(asynclock.QuorumUnavailableError):
            await locks.lock("a").try_acquire()
        words = "can't look up node.test: no answer within 30 s"
        await becomes(lambda: locks.nodes()[0].cause, words, timeout=31)


# ---- TLS
@pytest.mark.parametrize("kind", ["url", "client"])
def test_nodes_share_a_tls_context_only_if_all_their_tls_settings_are_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """To load the authorities blocks the event loop for tens of milliseconds each time."""
    ca, loaded = str(make_certificates(tmp_path).ca), list[Any]()
    load = RedisSSLContext.get

    def counted(self: Any) -> Any:
        loaded.append(self)
        return load(self)

    monkeypatch.setattr(RedisSSLContext, "get", counted)

    def node(number: int, authority: str | None, *, check: bool = True) -> Any:
        if kind == "client":
            settings: dict[str, Any] = {CA: authority, "ssl_check_hostname": check}
            return redis.asyncio.Redis(host=f"h{number}", ssl=True, **settings)
        query = f"ssl_check_hostname={check}" + (f"&{CA}={authority}" if authority else "")
        return f"rediss://h{number}?{query}"

    for nodes, times in (
        ([node(1, ca), node(2, ca), node(3, ca)], 1),
        ([node(1, ca), node(2, ca), node(3, None)], 2),
        ([node(1, ca), node(2, ca), node(3, ca, check=False)], 2),
    ):
        loaded.clear()
        asynclock.connect(*nodes).nodes()
        assert len(loaded) == times


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_port_that_does_not_speak_tls_is_told_from_a_server_that_is_down(acks: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel connects, nobody answers
        url = f"rediss://127.0.0.1:{server.getsockname()[1]}"
        async with asynclock.connect(url, acks=acks, node_timeout=0.3) as locks:
            with pytest.raises(asynclock.QuorumUnavailableError, match="does this port speak TLS"):
                await locks.lock("a").try_acquire()
