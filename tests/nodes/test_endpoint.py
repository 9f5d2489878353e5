"""What an address of a node means: host, port, database, login and TLS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

import asynclock
from asynclock._nodes.endpoint import Endpoint, PlainSettings, Seeds
from asynclock._nodes.handshake import HandshakeError, greet
from asynclock._nodes.spelling import check_arguments
from asynclock.testing import make_certificates
from tests.waiting import until


@pytest.mark.parametrize(
    ("url", "address", "db", "login"),
    [
        ("redis://Host", "host:6379", 0, ()),
        (" redis://h:7/2 ", "h:7", 2, ()),
        ("redis://[::1]:7", "[::1]:7", 0, ()),
        ("redis://h?db=3&", "h:6379", 3, ()),
        ("redis://u:0@h?db=3", "h:6379", 3, ("u", "0")),
        ("redis://u:0,x@h?client_name=a", "h:6379", 0, ("u", "0,x")),
        ("redis://h?client_name=a,b", "h:6379", 0, ()),
        ("redis://u:a,b@h", "h:6379", 0, ("u", "a,b")),
        ("unix:///run/redis?db=3", "unix:/run/redis", 3, ()),
        ("redis://u@h", "h:6379", 0, ("u", "")),
        ("redis://:p%40%3A@h", "h:6379", 0, ("default", "p@:")),
        ("redis://u%40:p@h", "h:6379", 0, ("u@", "p")),
    ],
)
async def test_an_address(url: str, address: str, db: int, login: tuple[str, ...]) -> None:
    end = Endpoint.of(url)
    assert (end.address, end.db, await end.credentials()) == (address, db, login)
    assert Endpoint.of(end) is end


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_a_port_that_cannot_be_is_a_mistake(port: int) -> None:
    with pytest.raises(asynclock.ConfigurationError):
        Endpoint.of(f"redis://h:{port}")


def test_what_settings_show_is_no_password() -> None:
    settings = PlainSettings.from_url("redis://u:canary@h")
    assert settings is not None
    assert settings.password == "canary"
    assert "canary" not in repr(settings)


def test_an_address_in_memory_may_have_spaces_around_it() -> None:
    assert Endpoint.of(" memory://a ").address == "memory://a"


def test_another_server_of_a_deployment_has_the_same_login_and_no_socket_file() -> None:
    other = Endpoint.of("unix:///run/redis?db=3").at("h", 7)
    assert (other.address, other.db) == ("h:7", 3)


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("redis://h", True),
        ("rediss://h", False),
        ("unix:///run/redis", False),
        ("memory://a", False),
    ],
)
def test_only_tcp_without_tls_can_be_told_to_want_tls(url: str, *, plain: bool) -> None:
    assert Endpoint.of(url).plain is plain


class Provider(CredentialProvider):
    """Gives what a test tells it to."""

    def __init__(self, *found: str | None) -> None:
        self.found = found

    async def get_credentials_async(self) -> Any:
        return self.found


@pytest.mark.parametrize(
    ("found", "login"),
    [
        (("pw",), ("default", "pw")),
        (("u", "pw"), ("u", "pw")),
        ((None, "pw"), ("default", "pw")),
        (("", "pw"), ("default", "pw")),
        (("u", None), ("u", "")),
    ],
)
async def test_a_provider_may_name_a_password_alone(
    found: tuple[str | None, ...], login: tuple[str, str]
) -> None:
    client = redis.asyncio.Redis(credential_provider=Provider(*found))
    end = Endpoint.of(client)
    assert await end.credentials() == login
    assert end.rotates
    assert not Endpoint.of("redis://u:pw@h").rotates


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (({"redis://a"},), r"connect\(\*nodes\)"),
        ((frozenset({"redis://a"}),), r"connect\(\*nodes\)"),
        (("redis://a",), r"connect\(\*nodes\)"),
        (("a", "b", 6379), "write redis://localhost:6379$"),
        (("h", 7), "write redis://h:7$"),
        ((("h", 7), "b"), r"connect\(\*nodes\)"),
    ],
)
def test_arguments_that_are_meant_for_another_function(nodes: tuple[Any, ...], said: str) -> None:
    if nodes == ("redis://a",):
        nodes = (nodes,)
    with pytest.raises(asynclock.ConfigurationError, match=said):
        check_arguments(nodes)


# ---- TLS


@pytest.mark.parametrize("kind", ["url", "client"])
def test_nodes_share_a_tls_context_only_if_all_their_tls_settings_are_the_same(
    tmp_path: Path, kind: str
) -> None:
    ca, system = str(make_certificates(tmp_path).ca), None

    def end(authority: str | None, *like: Endpoint, check: bool = True) -> Endpoint:
        if kind == "client":
            settings: dict[str, Any] = {"ssl_ca_certs": authority, "ssl_check_hostname": check}
            return Endpoint.of(redis.asyncio.Redis(ssl=True, **settings), like)
        query = f"ssl_check_hostname={check}" + (f"&ssl_ca_certs={authority}" if authority else "")
        return Endpoint.of(f"rediss://h?{query}", like)

    first = end(ca)
    assert first.tls() is not None
    assert end(ca, Endpoint.of("redis://x"), first).tls() is first.tls()
    assert end(system, first).tls() not in (None, first.tls())
    assert end(ca, first, check=False).tls() not in (None, first.tls())


async def test_a_handshake_of_tls_is_only_named_as_long_as_it_goes_on() -> None:
    """It is over when the connection is open, and has not begun when the next one is opened."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel connects, nobody answers
        end = Endpoint.of(f"rediss://127.0.0.1:{server.getsockname()[1]}")
        await end.look_up()
        opening = asyncio.ensure_future(end.open(asyncio.Protocol))
        await until(lambda: "TLS handshake within 2 s" in end.late(2.0).cause)
        opening.cancel()
        await asyncio.wait([opening])
        again = asyncio.ensure_future(end.open(asyncio.Protocol))
        await asyncio.sleep(0)
        assert "TLS" not in end.late(2.0).cause
        again.cancel()
        await asyncio.wait([again])


async def test_what_comes_after_a_handshake_of_tls_has_nothing_to_do_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connected(make: Callable[[], Any], *, sock: socket.socket, **_settings: Any) -> Any:
        sock.close()
        assert "TLS" in end.late(2.0).cause
        return None, make()

    async def silent(*_: Any) -> Any:
        assert end.late(2.0).cause == "no answer to the login within 2 s"
        raise OSError("it ends")

    with socket.create_server(("127.0.0.1", 0)) as server:
        end = Endpoint.of(f"rediss://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connected)
        monkeypatch.setattr(Endpoint, "credentials", silent)
        with pytest.raises(HandshakeError):
            await greet(end, Mock(), 1.0, 1.0)


# ---- several hosts in one URL


async def test_hosts_of_a_url_share_its_login_its_path_and_its_settings() -> None:
    seeds = Seeds("redis+sentinel://u:p%40@a, b:7 ,,[::1],[::2]:8/my%2Fservice/3?db=2", port=26379)
    assert (seeds.scheme, seeds.kind, seeds.path) == ("redis", "sentinel", "my/service/3")
    ends = seeds.endpoints()
    addresses = ["a:26379", "b:7", "[::1]:26379", "[::2]:8"]
    assert [end.address for end in ends] == addresses
    for end in ends:
        assert (await end.credentials(), end.db) == (("u", "p@"), 2)
    (other, *_) = seeds.endpoints("x:y@")
    assert await other.credentials() == ("x", "y")
    (nobody, *_) = seeds.endpoints("")
    assert await nobody.credentials() == ()


async def test_a_bracket_in_a_password_of_several_hosts_is_no_address() -> None:
    """`urlsplit` takes it for one, and so, in newer Pythons, an IPv6 address behind a host."""
    ends = Seeds("redis+cluster://u:p[@a,[::1]:7", port=6379).endpoints()
    assert [end.address for end in ends] == ["a:6379", "[::1]:7"]
    for end in ends:
        assert await end.credentials() == ("u", "p[")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+cluster://a#b", "is not a Redis address"),
        ("//a,b", "is not a Redis address"),
        ("redis+cluster://a:0", "no server has port 0"),
        ("redis+cluster://a:00,b:7", "no server has port 0"),
        ("redis+cluster://u@", "names no host"),
        ("redis+cluster://,", "names no host"),
    ],
)
def test_hosts_that_cannot_be(url: str, said: str) -> None:
    with pytest.raises(asynclock.ConfigurationError, match=said):
        Seeds(url, port=6379)


def test_a_password_that_looks_like_a_port_is_none() -> None:
    assert Seeds("redis+cluster://u:0@a", port=6379).endpoints()[0].address == "a:6379"


def test_an_address_of_one_network_card_is_one_for_each_host() -> None:
    seeds = Seeds("redis+cluster://[fe80::1%25eth0]:7,[fe80::2%25eth0]:8", port=6379)
    assert [end.host for end in seeds.endpoints()] == ["fe80::1%eth0", "fe80::2%eth0"]


async def test_a_socket_file_is_connected_to(tmp_path: Path) -> None:
    path, loop = str(tmp_path / "socket"), asyncio.get_running_loop()

    class Once(asyncio.Protocol):
        def __init__(self) -> None:
            self.opened, self.ended = loop.create_future(), loop.create_future()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.opened.set_result(transport)

        def connection_lost(self, error: Exception | None) -> None:
            self.ended.set_result(error)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        link = await Endpoint.of(f"unix://{path}").open(Once)
        (await link.opened).abort()
        await link.ended
