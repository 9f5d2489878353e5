"""The command line of a local server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from asynclock.testing.servers.binaries import ServerBinary
from asynclock.testing.servers.tls import Certificates

# The user with which this package commands a server, whatever the rights of its other users.
KEEPER = ("asynclock-testing", "loopback-only")


class ServerOptions(TypedDict, total=False):
    """The keyword options of `LocalServer`, for functions that pass them on."""

    args: Sequence[str]
    binary: ServerBinary | None
    host: str
    aof: bool
    unix: bool
    tls: Certificates | None
    tls_client_certs: bool
    password: str | None
    users: Sequence[str]
    clock: bool


def basic_settings(host: str, data: Path, *, aof: bool) -> dict[str, str]:
    """Return the settings of every server: loopback only, and nothing on disk unless `aof`."""
    return {
        "bind": host,
        "dir": str(data),
        "save": "",
        "appendonly": "yes" if aof else "no",
        "appendfsync": "always",
    }


def tls_settings(tls: Certificates, port: int, *, client_certs: bool) -> dict[str, str]:
    """Return the settings for TLS with clients, replicas and cluster nodes."""
    return {
        "tls-port": str(port),
        "tls-ca-cert-file": str(tls.ca),
        "tls-cert-file": str(tls.server_cert),
        "tls-key-file": str(tls.server_key),
        "tls-auth-clients": "yes" if client_certs else "no",
        "tls-replication": "yes",
        "tls-cluster": "yes",
    }


def as_arguments(settings: Mapping[str, str]) -> list[str]:
    """Return settings in the form of a server's command line."""
    return [part for key, value in settings.items() for part in (f"--{key}", value)]


def write_users(file: Path, users: Sequence[str]) -> str:
    """Write an ACL file with these users and the keeper; return its name."""
    name, password = KEEPER
    lines = [*users, f"{name} on >{password} ~* &* +@all"]
    file.write_text("".join(f"user {line}\n" for line in lines))
    return str(file)
