"""A Redis server of each test's own, and a PostgreSQL server of the run's own."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers


@pytest.fixture
async def server(asynclock_servers: StartServers) -> LocalServer:
    (server,) = await asynclock_servers(1)
    return server


@pytest.fixture
async def client(server: LocalServer) -> AsyncIterator[Redis]:
    """A client of it; the default of 5 s is not much on a busy machine."""
    async with Redis.from_url(server.url, socket_timeout=40) as client:
        yield client


def postgresql_binaries() -> Path | None:
    """The folder of `initdb` and `postgres`; Debian keeps it off PATH."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in folders), default=None)


def unprivileged() -> str | None:
    """Return another user if we are root, as which PostgreSQL refuses to run; else None."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """A connection string; the server listens on a Unix socket in its own folder only."""
    binaries = postgresql_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: no initdb on PATH or in /usr/lib/postgresql")
    user = unprivileged()
    # Not tmp_path: its parents are closed to other users, and sockets need a short path.
    folder = Path(tempfile.mkdtemp(prefix="asynclock-pg-"))
    try:
        if user:
            shutil.chown(folder, user)
        data = folder / "data"
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "asynclock", "-A", "trust", "-N"]
        subprocess.run(initdb, user=user, cwd=folder, check=True, capture_output=True, timeout=120)
        command = [str(binaries / "postgres"), "-D", str(data), "-k", str(folder)]
        command += ["-c", "listen_addresses="]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [*command, "-F"], user=user, cwd=folder, stdout=log, stderr=log
            )
        try:
            address = f"host={folder} user=asynclock dbname=postgres"
            wait_until_ready(server, address, folder / "log")
            yield address
        finally:
            server.send_signal(signal.SIGINT)  # ends its connections
            server.wait(30)
    finally:
        shutil.rmtree(folder)


def wait_until_ready(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    import psycopg

    end = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text("utf-8", "replace")) from None
            time.sleep(0.05)
        else:
            return
