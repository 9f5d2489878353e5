"""`asynclock doctor` on real servers: it finds what was planted, and nothing on healthy ones."""

import asyncio
import datetime
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

import asynclock
from asynclock.testing import LocalServer, RedisCluster, SentinelGroup, make_certificates
from asynclock.testing.plugin import StartServers
from asynclock.testing.servers import Certificates
from asynclock.testing.topology import REPLICATION, follow, in_sync
from tests.able_servers import server_with_tls
from tests.access.test_acl import hand_over, minimal
from tests.nodes.test_handshake import spreading
from tests.waiting import until

from .conftest import PATIENCE, Program

NOTE, WARNING, ERROR = range(3)
QUICK = ("doctor", "--json", "--watch", "0.2")


def codes(out: str) -> dict[str | None, set[str]]:
    """Node (None: the set) → codes of what was found."""
    found: dict[str | None, set[str]] = defaultdict(set)
    for finding in json.loads(out)["findings"]:
        assert finding["what"]
        assert finding["why"]
        assert finding["fix"]
        found[finding["node"]].add(finding["code"])
    return found


def at(server: LocalServer) -> str:
    return f"{server.host}:{server.port}"


async def test_nothing_on_a_healthy_set(program: Program, asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(3, aof=True)
    program.use(servers)
    ended = await program(*QUICK)
    assert ended.status == 0, ended.out
    # A fresh server might have been another process a moment ago, which said nothing of its disk.
    assert all(found <= {"young", "set-unrecorded"} for found in codes(ended.out).values())
    program.use(servers, restart_guard="disk")  # a promise that settles that question
    assert codes((await program(*QUICK)).out) == {None: {"set-unrecorded"}}
    program.use(servers[:1])  # whose first contact is free
    ended = await program("doctor")
    assert "all is well" in ended.out


PLANTS: tuple[tuple[tuple[str, ...], set[str]], ...] = (
    (("CONFIG SET maxmemory 100mb", "CONFIG SET maxmemory-policy volatile-lru"), {"evicts"}),
    (("CONFIG SET appendfsync everysec",), {"fsync"}),
    (("CONFIG SET appendonly no",), {"no-persistence"}),
    (("CONFIG SET min-replicas-to-write 2",), {"min-replicas", "refuses-writes"}),
    (("CONFIG SET timeout 30",), {"idle-timeout"}),
    (("ACL SETUSER default -client +client|id",), {"tracking"}),
    (
        ("ACL SETUSER default -pexpire -scan -config -info",),
        {"rights", "rights-scan", "rights-info", "rights-config-get"},
    ),
    (("CONFIG SET maxmemory 100kb",), {"memory", "refuses-writes"}),
)


async def test_planted_misconfigurations(program: Program, asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(len(PLANTS) + 4, aof=True, args=REPLICATION)
    for server, (commands, _) in zip(servers, PLANTS, strict=False):
        for command in commands:
            await server.command(*command.split())
    master, replica, frozen, refusing = servers[len(PLANTS) :]
    await follow(replica, master)
    await in_sync(master, [replica])
    await frozen.freeze()
    await refusing.command("CONFIG", "SET", "requirepass", "secret")
    program.use([*(server.url for server in servers), "redis://127.0.0.1:1"])
    ended = await program(*QUICK)
    assert ended.status == ERROR
    found = codes(ended.out)
    for server, (_, wanted) in zip(servers, PLANTS, strict=False):
        assert wanted <= found[at(server)], (wanted, found[at(server)])
    assert "replica" in found[at(replica)]
    assert "min-replicas-unset" in found[at(master)]
    assert found[at(frozen)] == {"unreachable"}
    assert found["127.0.0.1:1"] == {"unreachable"}
    assert found[at(refusing)] == {"login"}


async def test_a_sentinel_or_cluster_node_taken_for_a_server(program: Program) -> None:
    async with (
        SentinelGroup(replicas=0, sentinels=1) as group,
        RedisCluster(primaries=3, replicas=0) as cluster,
    ):
        part = cluster.servers[0]
        program.use([group.sentinels[0], part])
        found = codes((await program(*QUICK)).out)
    assert "sentinel" in found[at(group.sentinels[0])]
    assert "cluster" in found[at(part)]


async def test_the_documented_minimal_user(
    program: Program, asynclock_servers: StartServers
) -> None:
    """Enough for everything that the library does: no more than a note."""
    (server,) = await asynclock_servers(1, aof=True, users=[" ".join(minimal()), "default off"])
    program.use([server.url_for("locks", "secret")])
    ended = await program(*QUICK)
    assert (ended.status, codes(ended.out)[at(server)]) == (NOTE, {"rights-scan"})
    assert "ACL SETUSER locks +scan" in ended.out
    keys = await server.command("KEYS", "*")
    assert not [key for key in keys if not key.endswith((":#primary", ":#witness"))]


@dataclass(frozen=True)
class Service:
    """What is known of a managed service, as docs/managed.md says it."""

    kind: str = "server"
    """A server, a "cluster", or a cluster behind "one address", where CLUSTER is refused."""
    unknown: str = ""
    """Commands that it does not know."""
    forbidden: str = "-config -acl"
    """Rights that no user has."""
    says: frozenset[str] = frozenset({"rights-config-get"})


RENAMED, POLLS = frozenset({"renamed"}), frozenset({"rights-config-get", "tracking"})
SERVICES = {
    "ElastiCache, cluster mode disabled": Service(unknown="CONFIG", forbidden="", says=RENAMED),
    "ElastiCache, cluster mode enabled": Service("cluster", "CONFIG", "", RENAMED),
    "ElastiCache serverless": Service(
        "cluster", forbidden="-config -acl -client +client|id", says=POLLS
    ),
    "MemoryDB, or Memorystore for Valkey, cluster mode enabled": Service("cluster"),
    "Azure Managed Redis or Redis Cloud, OSS policy": Service("cluster", "", "-config -acl -wait"),
    "Azure Managed Redis or Redis Cloud, Enterprise policy": Service(
        "one address", forbidden="-config -acl -wait -cluster"
    ),
    "Redis Cloud, RESP2": Service(unknown="HELLO", says=frozenset({"rights-config-get", "resp2"})),
    "Memorystore for Redis": Service(
        unknown="CLIENT CLUSTER CONFIG", forbidden="", says=RENAMED | {"tracking"}
    ),
    "Memorystore for Valkey, cluster mode disabled": Service(),
    "Upstash": Service(forbidden="-wait -cluster -client +client|id", says=frozenset({"tracking"})),
}


@pytest.mark.parametrize("name", SERVICES)
async def test_managed_services(
    program: Program, asynclock_servers: StartServers, name: str
) -> None:
    """Locks, waiters and inspections work; doctor proposes what a user of a service can do."""
    service = SERVICES[name]
    args = ["--maxmemory-policy", "volatile-lru"]  # what most of them begin with
    args += [part for word in service.unknown.split() for part in ("--rename-command", word, "")]
    prefix = {"prefix": "{locks}:"} if service.kind == "one address" else {}
    async with AsyncExitStack() as stack:
        if service.kind == "server":
            (server,) = await asynclock_servers(1, args=args)
            url = server.url_for("app", "secret")
        else:
            cluster = await stack.enter_async_context(RedisCluster(1, 0, args=args))
            (server,) = cluster.servers
            url = server.url_for("app", "secret")
            url = url if prefix else url.replace("redis://", "redis+cluster://")
        rights = f"on >secret ~* &* +@all {service.forbidden}"
        await server.command("ACL", "SETUSER", "app", *rights.split())
        options = {**prefix, "restart_guard": False, "node_timeout": 2.0}
        here = await stack.enter_async_context(asynclock.connect(url, **options))
        there = await stack.enter_async_context(asynclock.connect(url, **options))
        await hand_over(here, there)
        program.use([url], **prefix)
        async with here.lock("b", timeout=20) as lease:
            assert (await there.inspect("b")).owner == lease.owner
            seen = await program("inspect", "--all", "--json")
        ended = await program(*QUICK)
        assert not await server.command("KEYS", "*doctor*")
    assert [lock["name"] for lock in json.loads(seen.out)["locks"]] == ["b"]
    assert codes(ended.out)[at(server)] == {"evicts", "no-persistence", *service.says}
    if "CLIENT" in service.unknown:
        assert "the rights" not in "".join(_fixes(ended.out)), "no rights bring an unknown command"
    if "config" in f"{service.unknown} {service.forbidden}".lower():
        assert not re.search("redis-cli|CONFIG|rename-command|ACL S", "".join(_fixes(ended.out)))


@pytest.mark.parametrize("prefix", ["asynclock:", "{locks}:"])
async def test_a_proxy_that_spreads_the_keys_of_a_script(
    program: Program, asynclock_servers: StartServers, prefix: str
) -> None:
    """It knows neither HELLO nor TIME; where all keys are on one server, scripts may use TIME."""
    servers = await asynclock_servers(2)
    async with spreading(servers) as url:
        program.use([url], prefix=prefix)
        ended = await program.finish(await program.start(*QUICK))
    seen = codes(ended.out).pop(url.removeprefix("redis://"))
    assert (ended.status, seen) == {
        "asynclock:": (ERROR, {"no-use"}),
        "{locks}:": (WARNING, {"renamed", "resp2"}),
    }[prefix]


async def test_a_user_who_lacks_what_one_primitive_needs(
    program: Program, asynclock_servers: StartServers
) -> None:
    words = [word for word in minimal() if word not in ("+zadd", "+hset", "+client|tracking")]
    (server,) = await asynclock_servers(1, aof=True, users=[" ".join(words), "default off"])
    program.use([server.url_for("locks", "secret")])
    ended = await program(*QUICK)
    found = codes(ended.out)[at(server)]
    assert ended.status == WARNING
    assert found >= {"tracking", "cannot-rwlock", "cannot-event", "cannot-latch", "cannot-barrier"}
    assert "cannot-lock" not in found
    assert "ACL SETUSER locks +client|tracking" in ended.out
    assert "ACL SAVE" in ended.out  # this server's users are in a file of their own


# ---- TLS -----------------------------------------------------------------------------------------
def _expired(folder: Path) -> Certificates:
    """An authority and its certificates, the server's of which ended yesterday."""
    files = make_certificates(folder)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(files.ca))
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    old = authority.issue_cert("127.0.0.1", not_before=now - 9 * day, not_after=now - day)
    old.private_key_pem.write_to_path(str(files.server_key))
    old.cert_chain_pems[0].write_to_path(str(files.server_cert))
    return files


async def _served(
    start: StartServers, now: Certificates, later: Certificates | None = None, **more: Any
) -> LocalServer:
    """A server with TLS, which gets the certificate in `later` once it runs."""
    (server,) = await start(1, aof=True, tls=now, binary=server_with_tls(), **more)
    if later is not None:
        for setting, file in (
            ("tls-key-file", later.server_key),
            ("tls-cert-file", later.server_cert),
        ):
            _, path = await server.command("CONFIG", "GET", setting)
            shutil.copy(file, path)
        await server.command("CONFIG", "SET", "tls-cert-file", path)
    return server


async def test_tls(program: Program, asynclock_servers: StartServers, tmp_path: Path) -> None:
    good = make_certificates(tmp_path / "good")
    other = make_certificates(tmp_path / "other")
    foreign = make_certificates(tmp_path / "foreign", "elsewhere.example.org")
    expired = _expired(tmp_path / "expired")
    plain, fine, strict, named, old = await asyncio.gather(
        asynclock_servers(1, aof=True),
        _served(asynclock_servers, good),
        _served(asynclock_servers, make_certificates(tmp_path / "strict"), tls_client_certs=True),
        _served(asynclock_servers, make_certificates(tmp_path / "named"), foreign),
        _served(asynclock_servers, make_certificates(tmp_path / "old"), expired),
    )

    def url(server: LocalServer, ca: Path, scheme: str = "rediss") -> str:
        query = f"?ssl_ca_certs={ca}" if scheme == "rediss" else ""
        return f"{scheme}://127.0.0.1:{server.port}/0{query}"

    cases = {
        "tls-expired": url(old, expired.ca),
        "tls-authority": url(fine, other.ca),
        "tls-name": url(named, foreign.ca),
        "tls-client-certificate": url(strict, tmp_path / "strict" / "ca.pem"),
        "tls-plain-port": url(plain[0], good.ca),
        "tls-only": url(fine, good.ca, "redis"),
    }
    for code, node in cases.items():
        program.use([node])
        ended = await program(*QUICK)
        assert ended.status == ERROR
        (found,) = (names for where, names in codes(ended.out).items() if where is not None)
        assert found == {code}, ended.out
    program.use([url(fine, good.ca)])
    ended = await program(*QUICK)
    assert ended.status == NOTE, ended.out


# ---- what it advises -----------------------------------------------------------------------------
async def test_what_it_advises_outlives_a_restart(program: Program, tmp_path: Path) -> None:
    """A server with a configuration file: the printed command is run as it stands."""
    binary = shutil.which("redis-server")
    if binary is None or shutil.which("redis-cli") is None:
        pytest.skip("redis-server or redis-cli is not on PATH")
    file, socket = tmp_path / "redis.conf", tmp_path / "s"
    settings = [f"port 0\nunixsocket {socket}\ndir {tmp_path}\nsave ''\nappendonly yes\n"]
    file.write_text(settings[0] + "appendfsync everysec\ntimeout 30\n")
    server = subprocess.Popen([binary, str(file)], stdout=subprocess.DEVNULL)
    try:
        await until(socket.exists, "the server listens")
        program.use([f"unix://{socket}"])
        before = await program(*QUICK)
        (names,) = codes(before.out).values()
        assert names - {"young"} == {"fsync", "idle-timeout"}
        for fix in (fix for fix in _fixes(before.out) if "CONFIG SET" in fix):
            assert fix.endswith("CONFIG REWRITE")
            subprocess.run(["sh", "-c", fix], check=True, capture_output=True, timeout=PATIENCE)
        assert (await program("doctor", "--watch", "0.2")).status == NOTE
    finally:
        server.kill()
        server.wait()
    written = file.read_text()
    assert "appendfsync always" in written
    assert "timeout 30" not in written


def _fixes(out: str) -> Sequence[str]:
    return [finding["fix"] for finding in json.loads(out)["findings"]]
