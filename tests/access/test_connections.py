"""TLS, Unix sockets, IPv6, databases, users, passwords that rotate."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from pathlib import Path
from unittest.mock import AsyncMock, patch
from urllib.parse import quote

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

import asynclock
from asynclock._nodes.endpoint import Endpoint, Seeds
from asynclock._nodes.sentinel import SentinelNode, SentinelView
from asynclock.testing import Certificates, make_certificates
from asynclock.testing.plugin import StartServers
from tests.able_servers import server_with_tls
from tests.access.conftest import Connect
from tests.access.tls import tls_in_front
from tests.waiting import PATIENCE, until


async def used(locks: asynclock.LockManager) -> None:
    async with locks.lock("a", timeout=20) as lease:
        await lease.extend()


async def test_tls_with_an_authority_of_ones_own_and_sni(
    asynclock_servers: StartServers, connect: Connect, certificates: Certificates
) -> None:
    (server,) = await asynclock_servers()
    async with tls_in_front(server, certificates) as (port, names):
        locks = connect(f"rediss://localhost:{port}?ssl_ca_certs={certificates.ca}")
        await used(locks)
        await locks.aclose()
    assert set(names) == {"localhost"}


async def test_tls_with_a_client_certificate(
    asynclock_servers: StartServers, connect: Connect, certificates: Certificates
) -> None:
    (server,) = await asynclock_servers()
    async with tls_in_front(server, certificates, client_certs=True) as (port, _names):
        url = f"rediss://localhost:{port}?ssl_ca_certs={certificates.ca}"
        bare = connect(url, node_timeout=2)
        with pytest.raises(asynclock.QuorumUnavailableError):
            await bare.lock("a").try_acquire()
        await bare.aclose()
        own = f"&ssl_certfile={certificates.client_cert}&ssl_keyfile={certificates.client_key}"
        locks = connect(url + own)
        await used(locks)
        await locks.aclose()


async def test_tls_with_a_stranger_is_refused(
    asynclock_servers: StartServers, connect: Connect, certificates: Certificates, tmp_path: Path
) -> None:
    (server,) = await asynclock_servers()
    other = make_certificates(tmp_path / "other", "elsewhere.test")
    async with tls_in_front(server, certificates) as (port, _names):
        url = f"rediss://localhost:{port}?ssl_ca_certs={other.ca}"
        locks = connect(url, node_timeout=2)
        with pytest.raises(asynclock.ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
            await locks.lock("a").try_acquire()
        await locks.aclose()
    async with tls_in_front(server, other) as (port, _names):
        url = f"rediss://localhost:{port}?ssl_ca_certs={other.ca}"
        locks = connect(url, node_timeout=2)
        with pytest.raises(asynclock.ConfigurationError, match="ostname mismatch"):
            await locks.lock("a").try_acquire()
        await locks.aclose()
        lenient = connect(f"{url}&ssl_check_hostname=false")
        await used(lenient)
        await lenient.aclose()


async def comes_to_say(locks: asynclock.LockManager, words: str) -> None:
    """The first attempts on a busy machine may fail for another reason: there is no connection."""

    async def says() -> bool:
        with pytest.raises(asynclock.AsyncLockError) as caught:
            await locks.lock("a").try_acquire()
        return re.search(words, str(caught.value)) is not None

    await until(says, f"the error says {words!r}", every=0.01)


async def test_tls_to_a_plain_port_is_a_guess_in_the_cause(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    (server,) = await asynclock_servers()
    await comes_to_say(connect(f"rediss://127.0.0.1:{server.port}"), r"does this port speak TLS\?")


@pytest.mark.timeout(2 * PATIENCE)
async def test_no_answer_to_the_handshake_of_tls_is_named(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the system takes connections for it
        port = silent.getsockname()[1]
        words = r"no answer to the TLS handshake within .* s: does this port speak TLS\?"
        locks = connect(f"rediss://127.0.0.1:{port}")
        await comes_to_say(locks, words)
        await locks.aclose()


async def test_the_handshake_of_tls_is_named_also_behind_sentinels(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        view = SentinelView("127.0.0.1", silent.getsockname()[1], epoch=0, replicas=0, known=0)
        with patch.object(SentinelNode, "_ask_sentinels", AsyncMock(return_value=view)):
            locks = connect("rediss+sentinel://127.0.0.1:1/group", node_timeout=2)
            (node,) = locks._engine.multiplexer.nodes
            assert isinstance(node, SentinelNode)
            asking = asyncio.create_task(locks.lock("a").try_acquire())
            await until(lambda: "TLS handshake" in node.late(1.0).cause)
            asking.cancel()
            await locks.aclose()


async def test_a_server_that_answers_tls_with_text_is_named(connect: Connect) -> None:
    async def error(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"-ERR unknown command\r\n")
            await writer.drain()
            await reader.read()
        writer.close()

    listener = await asyncio.start_server(error, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        locks = connect(f"rediss://127.0.0.1:{port}")
        await comes_to_say(locks, r"can't connect: .*: does this port speak TLS\?")
        await locks.aclose()


@pytest.mark.timeout(2 * PATIENCE)
async def test_plain_text_to_a_tls_port_is_a_guess_in_the_cause(
    asynclock_servers: StartServers, connect: Connect, certificates: Certificates
) -> None:
    (server,) = await asynclock_servers()
    async with tls_in_front(server, certificates) as (port, _names):
        locks = connect(f"redis://127.0.0.1:{port}")
        await comes_to_say(locks, "if this port wants TLS, the URL must begin with rediss")
        await locks.aclose()


def test_authorities_are_loaded_once_for_all_nodes_that_trust_the_same(
    certificates: Certificates,
) -> None:
    trusting = f"?ssl_ca_certs={certificates.ca}"
    first = Endpoint.of(f"rediss://a{trusting}")
    same = Endpoint.of(f"rediss://user:pw@b/3{trusting}", [Endpoint.of("redis://x"), first])
    assert first.tls() is same.tls()
    for query in (f"{trusting}&ssl_check_hostname=false", ""):
        other = Endpoint.of(f"rediss://c{query}", [first])
        assert other.tls() not in (None, first.tls())
    assert Endpoint.of("redis://d", [first]).tls() is None
    seeds = Seeds(f"rediss+cluster://a,b:7,c{trusting}", port=6379).endpoints()
    assert {seed.tls() for seed in seeds} == {seeds[0].tls()}


async def test_a_servers_own_tls(
    asynclock_servers: StartServers, connect: Connect, certificates: Certificates
) -> None:
    (server,) = await asynclock_servers(
        1, binary=server_with_tls(), tls=certificates, tls_client_certs=True
    )
    await used(connect(server.url))


async def test_unix_socket(asynclock_servers: StartServers, connect: Connect) -> None:
    (server,) = await asynclock_servers(1, unix=True, password="p w")
    locks = connect(server.url)
    await used(locks)
    assert locks.nodes()[0].node == f"unix:{server.unix_path}"


async def test_ipv6(asynclock_servers: StartServers, connect: Connect) -> None:
    (server,) = await asynclock_servers(1, host="::1")
    locks = connect(server.url)
    await used(locks)
    assert locks.nodes()[0].node == f"[::1]:{server.port}"


async def test_databases_are_apart(asynclock_servers: StartServers, connect: Connect) -> None:
    (server,) = await asynclock_servers()
    first, second = connect(f"{server.url}/1"), connect(f"{server.url}/2")
    async with first.lock("a", timeout=20), second.lock("a", timeout=20):
        assert await first.lock("a").try_acquire() is None
    missing = connect(f"{server.url}/999", node_timeout=2)
    with pytest.raises(asynclock.ConfigurationError, match="CONFIG GET databases"):
        await missing.lock("a").acquire(timeout=20)


async def test_a_user_with_a_password_from_a_url_or_a_client(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    secret = "s:@/?#%&=ü"
    (server,) = await asynclock_servers(1, users=[f"app on >{secret} ~* &* +@all", "default off"])
    await used(connect(server.url_for("app", secret)))
    async with redis.asyncio.Redis(port=server.port, username="app", password=secret) as client:
        await used(connect(client))
    wrong = connect(server.url_for("app", "wrong"))
    with pytest.raises(asynclock.ConfigurationError) as caught:
        await wrong.lock("a").acquire(timeout=20)
    assert "WRONGPASS" in str(caught.value)
    for told in (secret, quote(secret, safe=""), ":wrong"):
        assert told not in str(caught.value) + repr(wrong.nodes())


class Rotating(CredentialProvider):
    def __init__(self) -> None:
        self.password = "old"
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return "app", self.password


async def test_passwords_that_rotate(asynclock_servers: StartServers, connect: Connect) -> None:
    (server,) = await asynclock_servers(1, users=["app on >old ~* &* +@all"])
    provider = Rotating()
    async with redis.asyncio.Redis(port=server.port, credential_provider=provider) as client:
        locks = connect(client, node_timeout=2, restart_guard=False)
        await used(locks)
        asked = provider.asked
        await server.command("ACL", "SETUSER", "app", "resetpass", ">new")
        await used(locks)  # what is open stays open
        assert provider.asked == asked
        await server.command("CLIENT", "KILL", "USER", "app")
        # The provider is late: that is an outage, not a mistake in the settings.
        with pytest.raises(asynclock.QuorumUnavailableError, match="WRONGPASS"):
            await locks.lock("a").try_acquire()
        provider.password = "new"
        await used(locks)


async def test_a_provider_with_the_one_method_of_older_versions_of_redis_py(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    class Older:
        def get_credentials(self) -> tuple[str, str]:
            return "app", "secret"

    (server,) = await asynclock_servers(1, users=["app on >secret ~* &* +@all", "default off"])
    async with redis.asyncio.Redis(port=server.port, credential_provider=Older()) as client:
        await used(connect(client))


async def test_a_provider_that_fails_is_a_cause(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    (server,) = await asynclock_servers()

    class Broken(CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            raise RuntimeError("the vault is closed")

    async with redis.asyncio.Redis(port=server.port, credential_provider=Broken()) as client:
        with pytest.raises(asynclock.QuorumUnavailableError, match="provider raised RuntimeError"):
            await connect(client, node_timeout=2).lock("a").try_acquire()


def test_a_certificate_that_is_missing_is_a_mistake() -> None:
    with pytest.raises(asynclock.ConfigurationError, match="wrong setting"):
        asynclock.connect("rediss://localhost?ssl_ca_certs=/no/such/file.pem")
