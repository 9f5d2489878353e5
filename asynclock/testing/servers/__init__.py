"""Real Redis or Valkey servers as processes of this machine, with a switch for every fault.

    async with local_servers(3) as servers:
        locks = asynclock.connect(*(server.url for server in servers))
        await servers[0].kill()

Servers listen only on loopback and keep everything in a temporary folder. They never outlive the
process that started them, however that process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import mmap
import shutil
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack
from urllib.parse import quote, urlencode

import hiredis

from asynclock import _settings
from asynclock.errors import ConfigurationError
from asynclock.testing.servers.process import (
    ReservedPort,
    ServerBinary,
    ServerProcess,
    find_server,
    new_folder,
)

# ---- Makes the wall clock of a running server jump -----------------------------------------------
# A small shared library (`clock_shift.c`, compiled once per process with the machine's C compiler)
# is preloaded into the server and adds an offset to its wall clock. Keys expire, and TIME and
# `uptime_in_seconds` jump, as after `date -s`. The monotonic clock stays unchanged. We don't use
# libfaketime, because it deadlocks in servers that are linked with jemalloc, as most are.


_SOURCE = Path(__file__).with_name("clock_shift.c")
_COMPILERS = ("cc", "gcc", "clang")


def why_no_clock_jumps() -> str | None:
    """Return None if clocks can jump here, otherwise the reason why not, in one sentence."""
    try:
        _compiler()
    except ConfigurationError as reason:
        return str(reason)
    return None


class ShiftedClock:
    """The wall clock of one server: true time plus `shift` seconds."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        self.shift: float = 0.0
        self.env: dict[str, str] = {
            "LD_PRELOAD": str(_library()),
            "ASYNCLOCK_CLOCK": str(self._file),
        }

    def jump(self, seconds: float) -> None:
        """Add `seconds` (negative: backward) to the shift, which the server sees soon."""
        self.shift += seconds
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
            memory[:] = struct.pack("=q", round(self.shift * 1e6))


def _compiler() -> str:
    if not sys.platform.startswith("linux"):
        raise ConfigurationError("clock jumps need Linux: a library is preloaded into the server")
    for name in _COMPILERS:
        if path := shutil.which(name):
            return path
    raise ConfigurationError(f"clock jumps need a C compiler on PATH ({', '.join(_COMPILERS)})")


@functools.cache
def _library() -> Path:
    compiler = _compiler()
    target = new_folder("clock") / "clock_shift.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(target), str(_SOURCE)]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(
            f"clock jumps: {compiler} failed: {error.stderr.strip()}"
        ) from None
    return target


# ---- Certificates for tests: a private authority, and a server's and a client's certificate ------
# This needs `trustme`, which no extra of asynclock installs.


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
        raise ConfigurationError(_settings.needs("make_certificates", "test")) from error
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
        cert.cert_chain_pems[0].write_to_path(str(cert_file))
    return files


_FILES = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")


# ---- Commands to a server over a connection of their own, without the client that is under test --


class ServerReplyError(Exception):
    """The server answered a command with an error; its text is the message."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address and login of a server: TCP, TLS or a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 0
    unix: str | None = None
    tls: ssl.SSLContext | None = None
    credentials: tuple[str, ...] = ()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect without a handshake. Raises OSError."""
        if self.unix is not None:
            return await asyncio.open_unix_connection(self.unix)
        return await asyncio.open_connection(self.host, self.port, ssl=self.tls)


async def ask(endpoint: ServerAddress, *command: str | bytes | float, timeout: float = 5.0) -> Any:
    """Send one command; an error reply is raised."""
    (reply,) = await ask_all(endpoint, [command], timeout=timeout)
    if isinstance(reply, ServerReplyError):
        raise reply
    return reply


async def ask_all(
    endpoint: ServerAddress,
    commands: Sequence[Sequence[str | bytes | float]],
    *,
    timeout: float = 5.0,
) -> list[Any]:
    """Send commands as one pipeline; error replies are returned in their place.

    Raises OSError (TimeoutError included) if the server can't be reached, hangs up, or has not
    answered everything after `timeout` seconds.
    """
    login = [("AUTH", *endpoint.credentials)] if endpoint.credentials else []
    parser = hiredis.Reader(replyError=ServerReplyError, encoding="utf-8", errors="surrogateescape")
    replies: list[Any] = []
    async with asyncio.timeout(timeout):
        reader, writer = await endpoint.open()
        try:
            writer.write(b"".join(map(_packed, [*login, *commands])))
            while len(replies) < len(login) + len(commands):
                if (reply := parser.gets()) is not False:
                    replies.append(reply)
                elif data := await reader.read(65_536):
                    parser.feed(data)
                else:
                    raise ConnectionError(f"{endpoint} hung up without an answer")
        except hiredis.ProtocolError as error:
            raise ConnectionError(f"broken reply from {endpoint}: {error}") from error
        finally:
            # Not closed politely: a frozen server would never answer a TLS goodbye.
            writer.transport.abort()
    if login and isinstance(replies[0], ServerReplyError):
        raise replies[0]
    return replies[len(login) :]


def _packed(command: Sequence[str | bytes | float]) -> bytes:
    # hiredis declares a tuple of one element, and takes any number.
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]
    return packed


# ---- The command line of a local server ----------------------------------------------------------


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


# Long, because a new process may get no CPU for seconds on a busy CI machine.
_START_TIMEOUT = 15.0
_STOP_TIMEOUT = 5.0


class ServerStartError(RuntimeError):
    """A server did not start. The message ends with the last lines of its log."""


class LocalServer:
    """One server on a free port of loopback; `await start()` or `async with` starts it.

    A server belongs to no event loop and may be used from many loops, one after another.

    Args:
        args: more settings as on the command line, e.g. ("--maxmemory", "10mb").
        binary: the server program; default `find_server()`.
        host: "127.0.0.1" or "::1".
        aof: keep an append-only file with `appendfsync always`, so that a killed server that
            restarts with its data has everything that it confirmed. Without it, a restart loses
            all data.
        unix: listen on a Unix socket instead of a port.
        tls: listen with TLS instead of plain TCP.
        tls_client_certs: require a client certificate.
        password: the password of the default user.
        users: more ACL users (or another "default"), each a line of an ACL file without "user".
        clock: make `jump_clock` available (Linux with a C compiler).
    """

    _with_bus: ClassVar[bool] = False

    def __init__(
        self,
        *,
        args: Sequence[str] = (),
        binary: ServerBinary | None = None,
        host: str = "127.0.0.1",
        aof: bool = False,
        unix: bool = False,
        tls: Certificates | None = None,
        tls_client_certs: bool = False,
        password: str | None = None,
        users: Sequence[str] = (),
        clock: bool = False,
    ) -> None:
        if tls and unix:
            raise ConfigurationError("a server listens with tls or on a Unix socket, not both")
        self.binary: ServerBinary = binary or find_server()
        if tls and not self.binary.tls:
            raise ConfigurationError(f"{self.binary} was built without TLS")
        self.host = host
        self.password = password
        self.tls = tls
        self.tls_client_certs = tls_client_certs
        self.folder: Path = new_folder(self.binary.kind)
        self.unix_path: Path | None = self.folder / "s" if unix else None
        self._clock = ShiftedClock(self.folder) if clock else None
        self._port = None if unix else ReservedPort(host, bus=self._with_bus)
        self._process: ServerProcess | None = None
        self._data = self.folder / "data"
        self._data.mkdir()
        self._users = list(users)
        if password is not None and users:
            self._users.append(f"default on >{password} ~* &* +@all")
        self._arguments = [*self._command_line(aof), *args]

    def __repr__(self) -> str:
        state = "alive" if self.alive else "not running"
        return f"<{type(self).__name__} {self.url_for(None, None)} {state}>"

    # ---- address -----------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The TCP port, which stays the same over restarts; 0 with a Unix socket."""
        return self._port.number if self._port else 0

    @property
    def url(self) -> str:
        """The URL for clients, with the default user's password and the CA if they exist."""
        return self.url_for(None, self.password)

    def url_for(self, user: str | None, password: str | None) -> str:
        """Return the URL for another user."""
        login = f"{quote(user or '', safe='')}:{quote(password, safe='')}@" if password else ""
        if self.unix_path:
            return f"unix://{login}{self.unix_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        if not self.tls:
            return f"redis://{login}{host}:{self.port}"
        query = {"ssl_ca_certs": str(self.tls.ca)}
        if self.tls_client_certs:
            query["ssl_certfile"] = str(self.tls.client_cert)
            query["ssl_keyfile"] = str(self.tls.client_key)
        return f"rediss://{login}{host}:{self.port}?{urlencode(query)}"

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the server has never been started."""
        return self._started().pid

    @property
    def alive(self) -> bool:
        """True while the process exists; a frozen server is alive."""
        return self._process is not None and self._process.alive

    @property
    def frozen(self) -> bool:
        """True between `freeze` and `thaw`."""
        return self.alive and self._started().frozen

    @property
    def log(self) -> str:
        """Everything the server has written to its log."""
        return (self.folder / "output.log").read_text(errors="replace")

    # ---- life and death ----------------------------------------------------------------------

    async def start(self) -> None:
        """Start the server and wait until it answers PING; does nothing if it is running."""
        if not self.alive:
            self._spawn()
            await self._ready()

    async def stop(self) -> None:
        """Shut the server down (SHUTDOWN NOSAVE); a frozen server is thawed first."""
        if not self.alive:
            return
        await self.thaw()
        with contextlib.suppress(OSError, ServerReplyError):
            await self.command("SHUTDOWN", "NOSAVE", timeout=_STOP_TIMEOUT)
        if not await self._started().gone(_STOP_TIMEOUT):
            await self.kill()

    async def kill(self) -> None:
        """Kill the server with SIGKILL, frozen or not, and wait until the process has ended."""
        if self._process:
            await self._process.kill()

    async def restart(self, *, keep_data: bool = True, args: Sequence[str] = ()) -> None:
        """Kill the server if it is running, and start it again on the same port.

        keep_data: load the data on disk again (there is none without `aof`). If False, the disk is
        erased too, and a cluster node loses its identity.
        args: more settings from now on, e.g. ("--appendonly", "yes").
        """
        await self.kill()
        self._arguments += args
        if not keep_data:
            shutil.rmtree(self._data)
            self._data.mkdir()
        await self.start()

    async def freeze(self) -> None:
        """Stop the process (SIGSTOP): connections stay open and are accepted, without replies."""
        await self._started().freeze()

    async def thaw(self) -> None:
        """Continue the process (SIGCONT); does nothing if it is not frozen."""
        self._started().thaw()

    async def flush(self) -> None:
        """Remove all keys (FLUSHALL) from the running server."""
        await self.command("FLUSHALL")

    def jump_clock(self, seconds: float) -> None:
        """Move the server's wall clock by `seconds` at once, forward or backward.

        The shift stays over restarts. Raises ConfigurationError unless made with `clock=True`.
        """
        if self._clock is None:
            raise ConfigurationError("start the server with clock=True to make its clock jump")
        self._clock.jump(seconds)

    def close(self) -> None:
        """Kill the server, release its port, remove its folder; works without an event loop."""
        if self._process:
            self._process.kill_now()
        if self._port:
            self._port.release()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def __aenter__(self) -> LocalServer:
        try:
            await self.start()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def command(self, *command: str | bytes | float, timeout: float = 5.0) -> Any:
        """Send one command over a new connection, with all rights.

        Returns str, int, None or a list of these. Raises ServerReplyError for an error reply and
        OSError (TimeoutError included) if there is no answer within `timeout` seconds.
        """
        return await ask(self.endpoint, *command, timeout=timeout)

    @property
    def endpoint(self) -> ServerAddress:
        """How this package itself connects to the server."""
        credentials = KEEPER if self._users else (self.password,) if self.password else ()
        context = self.tls.client_context(with_client_cert=True) if self.tls else None
        unix = str(self.unix_path) if self.unix_path else None
        return ServerAddress(self.host, self.port, unix, context, credentials)

    # ---- inside ------------------------------------------------------------------------------

    def _started(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{self!r} has not been started")
        return self._process

    def _command_line(self, aof: bool) -> list[str]:
        settings = {
            "bind": self.host,
            "port": str(0 if self.tls else self.port),
            "dir": str(self._data),
            "save": "",
            "appendonly": "yes" if aof else "no",
            "appendfsync": "always",
        }
        if self.binary.version >= (7, 0, 0):
            settings["enable-debug-command"] = "local"  # always on in 6.2
        if self.unix_path:
            settings["unixsocket"] = str(self.unix_path)
        if self._users:
            file, (name, password) = self.folder / "users.acl", KEEPER
            lines = [*self._users, f"{name} on >{password} ~* &* +@all"]
            file.write_text("".join(f"user {line}\n" for line in lines))
            settings["aclfile"] = str(file)
            settings |= dict(zip(("masteruser", "masterauth"), KEEPER, strict=True))
        elif self.password is not None:
            settings |= {"requirepass": self.password, "masterauth": self.password}
        if self.tls:
            files = self.tls.copied_to(self.folder)
            settings |= tls_settings(files, self.port, client_certs=self.tls_client_certs)
        return [part for key, value in settings.items() for part in (f"--{key}", value)]

    def _spawn(self) -> None:
        env = self._clock.env if self._clock else {}
        self._process = self.binary.launch(self._arguments, self.folder, env)

    async def _ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        endpoint, process = self.endpoint, self._started()
        while process.alive and time.monotonic() < deadline:
            with contextlib.suppress(OSError, ServerReplyError):  # not listening, or loading
                await ask(endpoint, "PING", timeout=1.0)
                return
            await asyncio.sleep(0.002)
        fate = "is mute" if process.alive else f"ended with status {process.exit_status}"
        await self.kill()
        raise ServerStartError(f"{self.binary} {fate}; its log ends with:\n{self.log[-2000:]}")


@contextlib.asynccontextmanager
async def local_servers(
    n: int, **options: Unpack[ServerOptions]
) -> AsyncIterator[list[LocalServer]]:
    """Start servers at once; end all at the end.

    Args:
        n: number of servers.
        options: those of `LocalServer`.
    """
    servers = await start_servers(n, **options)
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


async def start_all(servers: Sequence[LocalServer]) -> None:
    """Start these servers at once; raise the error of the first that fails when all have ended."""
    starts = (server.start() for server in servers)
    for outcome in await asyncio.gather(*starts, return_exceptions=True):
        if outcome:
            raise outcome


async def start_servers(n: int, **options: Unpack[ServerOptions]) -> list[LocalServer]:
    """Start servers at once; the caller closes them. If one fails, all are closed.

    Args:
        n: number of servers.
        options: those of `LocalServer`.
    """
    servers: list[LocalServer] = []
    try:
        for _ in range(n):
            servers.append(LocalServer(**options))  # noqa: PERF401 - if the next fails, close this
        await start_all(servers)
    except BaseException:
        for server in servers:
            server.close()
        raise
    return servers
