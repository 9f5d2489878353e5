"""Certificates for tests: a private authority, and a server's and a client's certificate.

This needs `trustme`, which no extra of asynclock installs.
"""

from __future__ import annotations

import shutil
import ssl
from dataclasses import dataclass, fields
from pathlib import Path

from asynclock import _extras
from asynclock.errors import ConfigurationError

_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files, all signed by the one authority in `ca`."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path

    def copied_to(self, folder: Path) -> Certificates:
        """Return copies in `folder`, where a container can read them."""
        return Certificates(
            *(Path(shutil.copy(getattr(self, f.name), folder)) for f in fields(self))
        )

    def client_context(self, *, with_client_cert: bool = False) -> ssl.SSLContext:
        """Return a context that trusts only this authority."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if with_client_cert:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


def make_certificates(folder: Path, *hosts: str) -> Certificates:
    """Make an authority and its certificates in `folder`, by default for loopback names.

    Raises ConfigurationError if trustme is not installed.
    """
    try:
        import trustme
    except ImportError as error:
        raise ConfigurationError(_extras.needs("make_certificates", "test")) from error
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    files = Certificates(*(folder / name for name in _FILES))
    authority.cert_pem.write_to_path(str(files.ca))
    server = authority.issue_cert(*(hosts or _HOSTS))
    client = authority.issue_cert("client@example.test")
    for cert, cert_file, key_file in (
        (server, files.server_cert, files.server_key),
        (client, files.client_cert, files.client_key),
    ):
        cert.private_key_pem.write_to_path(str(key_file))
        for number, pem in enumerate(cert.cert_chain_pems):
            pem.write_to_path(str(cert_file), append=number > 0)
    return files


_FILES = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
