"""`asynclock doctor` names what keeps a node from granting locks, where it was planted."""

from __future__ import annotations

import asyncio
import datetime
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme

from asynclock._primitives.kinds import SCRIPTS
from asynclock.cli.doctor.findings import Severity
from asynclock.testing import LocalServer, make_certificates
from asynclock.testing.plugin import StartServers
from asynclock.testing.servers.tls import Certificates
from asynclock.testing.topology import REPLICATION, follow, in_sync
from tests.able_servers import server_with_tls
from tests.access.test_acl import minimal
from tests.waiting import until

from .conftest import PATIENCE, Program
from .test_doctor import at, codes


async def test_commands_renamed_away(program: Program, asynclock_servers: StartServers) -> None:
    """EVAL is fatal; without INFO hardly anything can be seen, which is not "all is well"."""

    async def without(*words: str) -> LocalServer:
        args = [part for word in words for part in ("--rename-command", word, "")]
        (server,) = await asynclock_servers(1, aof=True, args=args)
        return server

    no_eval, no_evalsha, no_info = await asyncio.gather(
        without("EVAL"), without("EVALSHA"), without("INFO")
    )
    found: dict[LocalServer, Any] = {}
    for server in (no_eval, no_evalsha, no_info):
        program.use([server])
        ended = await program("doctor", "--json", "--watch", "0.2")
        found[server] = ended.status, codes(ended.out)[at(server)], ended.out
    for server, word in ((no_eval, "EVAL"), (no_evalsha, "EVALSHA")):
        status, names, out = found[server]
        assert (status, names) == (Severity.ERROR, {"renamed"})
        assert f"it does not know {word}:" in out
    status, names, out = found[no_info]
    assert (status, names) == (Severity.WARNING, {"renamed", "young"} & names)
    assert "stays unknown" in out


async def test_the_documented_minimal_user(
    program: Program, asynclock_servers: StartServers
) -> None:
    """Enough for everything that the library does: no more than a note."""
    (server,) = await asynclock_servers(1, aof=True, users=[" ".join(minimal()), "default off"])
    program.use([server.url_for("locks", "secret")])
    ended = await program("doctor", "--json", "--watch", "0.2")
    assert (ended.status, codes(ended.out)[at(server)]) == (Severity.NOTE, {"rights-scan"})
    assert "ACL SETUSER locks +scan" in ended.out
    keys = await server.command("KEYS", "*")
    assert not [key for key in keys if not key.endswith((":#primary", ":#witness"))]


async def test_a_user_who_lacks_what_one_primitive_needs(
    program: Program, asynclock_servers: StartServers
) -> None:
    words = [word for word in minimal() if word not in ("+zadd", "+hset", "+client|tracking")]
    (server,) = await asynclock_servers(1, aof=True, users=[" ".join(words), "default off"])
    program.use([server.url_for("locks", "secret")])
    ended = await program("doctor", "--json", "--watch", "0.2")
    found = codes(ended.out)[at(server)]
    assert ended.status == Severity.WARNING
    assert found >= {"tracking", "cannot-rwlock", "cannot-event", "cannot-latch", "cannot-barrier"}
    assert "cannot-lock" not in found
    assert "ACL SETUSER locks +client|tracking" in ended.out
    assert "ACL SAVE" in ended.out  # this server's users are in a file of their own


async def test_it_takes_a_lock(program: Program, asynclock_servers: StartServers) -> None:
    """Rights that no single command shows: keys of another prefix."""
    words = [word.replace("asynclock:", "locks:") for word in minimal()]
    (server,) = await asynclock_servers(1, aof=True, users=[" ".join(words), "default off"])
    program.use([server.url_for("locks", "secret")], prefix="locks:")
    assert (await program("doctor", "--watch", "0.2")).status == Severity.NOTE
    program.use([server.url_for("locks", "secret")], prefix="other:")
    ended = await program("doctor", "--json", "--watch", "0.2")
    assert ended.status == Severity.ERROR


async def test_it_runs_every_script(program: Program, asynclock_servers: StartServers) -> None:
    (server,) = await asynclock_servers(1, aof=True)
    await server.command("CONFIG", "SET", "slowlog-max-len", 10_000)
    await server.command("CONFIG", "SET", "slowlog-log-slower-than", 0)  # so it logs everything
    program.use([server])
    assert (await program("doctor", "--watch", "0.2")).status == Severity.NOTE
    logged = [entry[3] for entry in await server.command("SLOWLOG", "GET", 10_000)]
    used = {words[1] for words in logged if words[0].upper() == "EVALSHA"}
    assert used >= {script.sha for script in SCRIPTS}


async def test_no_connection_left(program: Program, asynclock_servers: StartServers) -> None:
    none, one, few = await asynclock_servers(3, aof=True)
    others = [await asyncio.open_connection(node.host, node.port) for node in (none, none)]
    # The last connection that is let in is the one which says so.
    await few.command("CONFIG", "SET", "maxclients", "12")
    await one.command("CONFIG", "SET", "maxclients", "1")
    await none.command("CONFIG", "SET", "maxclients", "2")
    program.use([none, one, few])
    ended = await program("doctor", "--json", "--watch", "0.2")
    for _, writer in others:
        writer.close()
    found = codes(ended.out)
    assert [found[at(node)] - {"young"} for node in (none, one, few)] == [{"maxclients"}] * 3
    assert ended.status == Severity.ERROR
    assert "CONFIG SET maxclients 10000" in ended.out
    findings = json.loads(ended.out)["findings"]
    bad = {one["node"] for one in findings if one["severity"] == "error" and one["node"]}
    assert bad == {at(none), at(one)}


async def test_replicas_too_few_for_acks(program: Program, asynclock_servers: StartServers) -> None:
    (alone,) = await asynclock_servers(1, aof=True)
    master, replica = await asynclock_servers(2, aof=True, args=REPLICATION)
    await follow(replica, master)
    await in_sync(master, [replica])
    await master.command("CONFIG", "SET", "min-replicas-to-write", "1")

    async def accepts_writes() -> bool:
        # A connected replica counts as good once it is online and has told its offset.
        return "min_slaves_good_slaves:1" in await master.command("INFO", "replication")

    await until(accepts_writes, "the master counts its replica as good", timeout=PATIENCE)
    for nodes, acks, wanted in (
        ([alone], 1, {"too-few-replicas"}),
        ([alone], "all", {"too-few-replicas"}),
        ([master], 2, {"too-few-replicas"}),
        ([master], 1, set()),
        ([master], "majority", set()),
    ):
        program.use(nodes, acks=acks)
        ended = await program("doctor", "--json", "--watch", "0.2")
        found = codes(ended.out)[at(nodes[0])]
        assert found - {"young"} == wanted, (acks, ended.out)
        assert ended.status == (Severity.ERROR if wanted else Severity.NOTE)


async def test_one_replica_is_not_advised_to_be_waited_for(
    program: Program, asynclock_servers: StartServers
) -> None:
    """With acks=1 and one replica, its loss would end all grants."""
    master, replica = await asynclock_servers(2, aof=True, args=REPLICATION)
    await follow(replica, master)
    await in_sync(master, [replica])
    program.use([master])
    ended = await program("doctor", "--watch", "0.2")
    assert "[replicas-without-acks]" in ended.out
    assert "add a second replica" in ended.out


@pytest.mark.parametrize("count", [1, 2])
async def test_writes_are_not_made_to_hang_on_a_single_replica(
    program: Program, asynclock_servers: StartServers, count: int
) -> None:
    master, *replicas = await asynclock_servers(count + 1, aof=True, args=REPLICATION)
    for replica in replicas:
        await follow(replica, master)
    await in_sync(master, replicas)
    program.use([master])
    ended = await program("doctor", "--json", "--watch", "0.2")
    (fix,) = (
        found["fix"]
        for found in json.loads(ended.out)["findings"]
        if found["code"] == "min-replicas-unset"
    )
    assert "min-replicas-to-write 1" in fix
    assert fix.startswith("add a second replica first") is (count == 1)


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
        ended = await program("doctor", "--json", "--watch", "0.2")
        assert ended.status == Severity.ERROR
        (found,) = (names for where, names in codes(ended.out).items() if where is not None)
        assert found == {code}, ended.out
    program.use([url(fine, good.ca)])
    ended = await program("doctor", "--json", "--watch", "0.2")
    assert ended.status == Severity.NOTE, ended.out


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
        before = await program("doctor", "--json", "--watch", "0.2")
        (names,) = codes(before.out).values()
        assert names - {"young"} == {"fsync", "idle-timeout"}
        for fix in (fix for fix in _fixes(before.out) if "CONFIG SET" in fix):
            assert fix.endswith("CONFIG REWRITE")
            subprocess.run(["sh", "-c", fix], check=True, capture_output=True, timeout=PATIENCE)
        assert (await program("doctor", "--watch", "0.2")).status == Severity.NOTE
    finally:
        server.kill()
        server.wait()
    written = file.read_text()
    assert "appendfsync always" in written
    assert "timeout 30" not in written


def _fixes(out: str) -> Sequence[str]:
    return [finding["fix"] for finding in json.loads(out)["findings"]]
