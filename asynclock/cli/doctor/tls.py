"""Why a connection to one server fails, where TLS is the reason: as a code of findings.toml."""

from __future__ import annotations

import asyncio
import socket
import ssl

from ..._nodes.endpoint import Endpoint

CONNECT_TIMEOUT = 2.0
"""Seconds for each connection."""


_PLAIN_PORT = "tls-plain-port"
_CLIENT = "tls-client-certificate"
_AUTHORITY = "tls-authority"
# Codes of OpenSSL's X509_V_ERR_*.
_VERIFY = {
    10: "tls-expired",
    **dict.fromkeys((18, 19, 20, 21), _AUTHORITY),
    **dict.fromkeys((62, 64), "tls-name"),
}


async def diagnose(endpoint: Endpoint) -> str | None:
    """Connect once more; return the fault of TLS, None if the failure has another reason."""
    unseen = endpoint.path or endpoint.opaque
    return None if unseen else await asyncio.to_thread(_look, endpoint)


def _look(endpoint: Endpoint) -> str | None:
    context = endpoint.tls()
    try:
        if context is None:
            return "tls-only" if _speaks_tls(endpoint) else None
        _listen(endpoint, context)
    except ssl.SSLCertVerificationError as error:
        return _VERIFY.get(error.verify_code, "tls-certificate")
    except ssl.SSLError as error:
        return _by_reason(error.reason or str(error))
    except OSError:
        pass  # a plain server waits for an end of line, which TLS does not send
    try:
        answer = _listen(endpoint, None)
    except OSError:
        return None
    return _PLAIN_PORT if answer.startswith((b"+", b"-")) else None


def _speaks_tls(endpoint: Endpoint) -> bool:
    anything = ssl.create_default_context()
    anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), CONNECT_TIMEOUT) as plain,
            anything.wrap_socket(plain),
        ):
            return True
    except ssl.SSLError as error:
        return _by_reason(error.reason or str(error)) is _CLIENT
    except OSError:
        return False


def _by_reason(reason: str) -> str | None:
    reason = reason.upper().replace(" ", "_")
    # TLS 1.3 has an alert for a missing certificate; older versions report any failure.
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return _CLIENT
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason or "EOF" in reason:
        return _PLAIN_PORT
    return _CLIENT if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason else None


def _listen(endpoint: Endpoint, context: ssl.SSLContext | None) -> bytes:
    """Connect, send PING if there is no TLS, and return the reply. Raises OSError."""
    with socket.create_connection((endpoint.host, endpoint.port), CONNECT_TIMEOUT) as plain:
        if context is None:
            plain.sendall(b"PING\r\n")
            return plain.recv(64)
        # In TLS 1.3 the server checks our certificate after the handshake has ended for us, and
        # resets a connection with unread bytes, which would hide the reason: so send nothing.
        with context.wrap_socket(plain, server_hostname=endpoint.host) as secure:
            return secure.recv(64)
