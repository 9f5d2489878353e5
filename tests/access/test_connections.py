"""TLS, Unix sockets, IPv6, databases, users, passwords that rotate."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

import asynclock
from asynclock.testing import Certificates, make_certificates
from asynclock.testing.plugin import StartServers
from tests.able_servers import server_with_tls
from tests.access.conftest import Connect
from tests.access.tls import tls_in_front
from tests.tables.inside import sentinels_name
from tests.waiting import PATIENCE, comes_to_say


async def used(locks: asynclock.LockManager) -> None:
    async with locks.lock("a", timeout=20) as lease:
        await lease.extend()


OWN_CERTIFICATE = "&ssl_certfile={client_cert}&ssl_keyfile={client_key}"
OUTAGE = asynclock.QuorumUnavailableError
MISTAKE = asynclock.ConfigurationError


@pytest.mark.parametrize(
    ("asks_clients", "query", "error", "words"),
    [
        (False, "", None, None),
        (True, "", OUTAGE, None),
        (True, OWN_CERTIFICATE, None, None),
        (False, "&stranger", MISTAKE, "CERTIFICATE_VERIFY_FAILED"),
    ],
    ids=["own authority and SNI", "no certificate", "own certificate", "a stranger"],
)
async def test_tls(
    asynclock_servers: StartServers,
    connect: Connect,
    certificates: Certificates,
    tmp_path: Path,
    asks_clients: bool,
    query: str,
    error: type[Exception] | None,
    words: str | None,
) -> None:
    (server,) = await asynclock_servers()
    own = query.format(**{one: getattr(certificates, one) for one in ("client_cert", "client_key")})
    trusted = certificates
    if own == "&stranger":
        own, trusted = "", make_certificates(tmp_path / "other", "elsewhere.test")
    async with tls_in_front(server, certificates, client_certs=asks_clients) as (port, names):
        url = f"rediss://localhost:{port}?ssl_ca_certs={trusted.ca}{own}"
        locks = connect(url, **({"node_timeout": 2} if error else {}))
        if error is None:
            await used(locks)
            assert set(names) == {"localhost"}
        else:
            with pytest.raises(error, match=words):
                await locks.lock("a").try_acquire()
        await locks.aclose()


async def answers_with_text(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.write(b"-ERR unknown command\r\n")
        await writer.drain()
        await reader.read()
    writer.close()


NO_HANDSHAKE = r"no answer to the TLS handshake within .* s: does this port speak TLS\?"


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize(
    ("url", "speaks", "words"),
    [
        ("rediss://127.0.0.1:{}", "plain", r"does this port speak TLS\?"),
        ("rediss://127.0.0.1:{}", "nothing", NO_HANDSHAKE),
        ("rediss+sentinel://127.0.0.1:1/group", "nothing", "TLS handshake"),
        ("rediss://127.0.0.1:{}", "text", r"can't connect: .*: does this port speak TLS\?"),
        ("redis://127.0.0.1:{}", "TLS", "if this port wants TLS, the URL must begin with rediss"),
    ],
)
async def test_no_answer_or_a_plain_one_to_the_handshake_of_tls_is_named(
    asynclock_servers: StartServers,
    connect: Connect,
    certificates: Certificates,
    url: str,
    speaks: str,
    words: str,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if speaks == "nothing":  # the system takes connections for it
            silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = silent.getsockname()[1]
        elif speaks == "text":
            listener = await asyncio.start_server(answers_with_text, "127.0.0.1", 0)
            await stack.enter_async_context(listener)
            port = listener.sockets[0].getsockname()[1]
        else:
            (server,) = await asynclock_servers()
            port = server.port
        if speaks == "TLS":
            port, _ = await stack.enter_async_context(tls_in_front(server, certificates))
        if "sentinel" in url:
            stack.enter_context(sentinels_name("127.0.0.1", port))
        locks = connect(url.format(port))
        await comes_to_say(locks, words)
        await locks.aclose()


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


class Older:
    """A provider with the one method that older versions of redis-py ask for."""

    def get_credentials(self) -> tuple[str, str]:
        return "app", "secret"


class Broken(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        raise RuntimeError("the vault is closed")


@pytest.mark.parametrize(
    ("provider", "words"),
    [(Older, None), (Broken, "provider raised RuntimeError")],
    ids=["one_of_older_versions", "one_that_fails"],
)
async def test_a_provider(
    asynclock_servers: StartServers, connect: Connect, provider: Any, words: str | None
) -> None:
    (server,) = await asynclock_servers(1, users=["app on >secret ~* &* +@all", "default off"])
    async with redis.asyncio.Redis(port=server.port, credential_provider=provider()) as client:
        locks = connect(client, **({"node_timeout": 2} if words else {}))
        if words is None:
            await used(locks)
            return
        with pytest.raises(asynclock.QuorumUnavailableError, match=words):
            await locks.lock("a").try_acquire()


def test_a_certificate_that_is_missing_is_a_mistake() -> None:
    with pytest.raises(asynclock.ConfigurationError, match="wrong setting"):
        asynclock.connect("rediss://localhost?ssl_ca_certs=/no/such/file.pem")
