"""The command line of a server, the files beside it, and the addresses of its clients."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from asynclock.errors import ConfigurationError, UnsupportedDeploymentError
from asynclock.testing import (
    LocalServer,
    RedisCluster,
    Replicated,
    SentinelGroup,
    ServerBinary,
    ServerStartError,
    make_certificates,
)
from asynclock.testing.servers import Certificates
from asynclock.testing.topology import REPLICATION

T = TypeVar("T", bound=Any)
OLD = ServerBinary(Path("/bin/redis-server"), (6, 2, 14), "redis")


@pytest.fixture
def seven(tmp_path: Path) -> ServerBinary:
    """A program that logs what it is told, a word a line, and ends."""
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    return ServerBinary(program, (7, 0, 0), "redis", tls=True)


@contextlib.contextmanager
def closing(made: T) -> Iterator[T]:
    """What is not started."""
    try:
        yield made
    finally:
        made.close()


async def told(server: LocalServer) -> dict[str, str]:
    """Return the settings of a command line; each of them has one value here."""
    with pytest.raises(ServerStartError):
        await server.start()
    words = server.log.split("\n")[:-1]
    assert all(word.startswith("--") for word in words[::2])
    return {
        key.removeprefix("--"): value for key, value in zip(words[::2], words[1::2], strict=True)
    }


def usual(server: LocalServer, **more: str) -> dict[str, str]:
    return {
        "bind": "127.0.0.1",
        "dir": str(server.folder / "data"),
        "save": "",
        "appendonly": "no",
        "appendfsync": "always",
        "port": str(server.port),
        "enable-debug-command": "local",
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


async def test_a_server_keeps_nothing_and_listens_on_loopback_only(seven: ServerBinary) -> None:
    with closing(LocalServer(binary=seven)) as server:
        assert await told(server) == usual(server)
    with closing(LocalServer(binary=replace(seven, version=(6, 2, 14)))) as server:
        wanted = usual(server)
        del wanted["enable-debug-command"]  # 6.2 does not know it, and would not start
        assert await told(server) == wanted


async def test_options_change_what_a_server_is_told(seven: ServerBinary) -> None:
    more = ("--maxmemory", "10mb")
    with closing(LocalServer(binary=seven, aof=True, host="::1", args=more)) as server:
        wanted = usual(server, appendonly="yes", bind="::1", maxmemory="10mb")
        assert list((await told(server)).items())[-1] == ("maxmemory", "10mb"), "own settings win"
        assert await told(server) == wanted
    with closing(LocalServer(binary=seven, unix=True)) as server:
        socket = str(server.folder / "s")
        assert await told(server) == usual(server, port="0", unixsocket=socket)
        assert (server.url, server.endpoint.unix) == (f"unix://{socket}", socket)
    with closing(LocalServer(binary=seven, password="hush")) as server:
        assert await told(server) == usual(server, requirepass="hush", masterauth="hush")
        assert server.endpoint.credentials == ("hush",)


async def test_users_are_in_a_file_beside_one_who_may_do_everything(seven: ServerBinary) -> None:
    users = ["bob on >b ~x* +get"]
    with closing(LocalServer(binary=seven, users=users, password="hush")) as server:
        file = server.folder / "users.acl"
        assert await told(server) == usual(
            server, aclfile=str(file), masteruser="asynclock-testing", masterauth="loopback-only"
        )
        assert file.read_text().splitlines() == [
            "user bob on >b ~x* +get",
            "user default on >hush ~* &* +@all",
            "user asynclock-testing on >loopback-only ~* &* +@all",
        ]
        assert server.endpoint.credentials == ("asynclock-testing", "loopback-only")
        assert server.url == f"redis://:hush@127.0.0.1:{server.port}"


@pytest.mark.parametrize(("client_certs", "word"), [(False, "no"), (True, "yes")])
async def test_with_tls_replicas_and_cluster_nodes_use_it_too(
    seven: ServerBinary, tmp_path: Path, *, client_certs: bool, word: str
) -> None:
    files = make_certificates(tmp_path)
    certs = client_certs
    with closing(LocalServer(binary=seven, tls=files, tls_client_certs=certs)) as server:
        assert await told(server) == usual(
            server,
            port="0",
            tls_port=str(server.port),
            tls_ca_cert_file=str(server.folder / "ca.pem"),
            tls_cert_file=str(server.folder / "server.pem"),
            tls_key_file=str(server.folder / "server.key"),
            tls_auth_clients=word,
            tls_replication="yes",
            tls_cluster="yes",
        )
        sentinel: Any
        options: Any = {"binary": seven, "tls": files, "tls_client_certs": certs}
        with closing(SentinelGroup(1, **options)) as group:
            sentinel = group.sentinels[0]
            with pytest.raises(ServerStartError):
                await sentinel.start()
            lines = (sentinel.folder / "data" / "sentinel.conf").read_text().splitlines()
            assert {"port 0", f"tls-port {sentinel.port}", f"tls-auth-clients {word}"} <= {*lines}
        copy = (server.folder / "server.key").read_text()
        assert copy == files.server_key.read_text(), "a container can read it there"
        mine = f"&ssl_certfile={files.client_cert}&ssl_keyfile={files.client_key}"
        query = f"ssl_ca_certs={files.ca}" + mine * client_certs
        assert server.url == f"rediss://127.0.0.1:{server.port}?{query.replace('/', '%2F')}"


def test_a_server_without_tls_is_not_told_to_use_it(tmp_path: Path) -> None:
    files = Certificates(*[tmp_path] * 5)
    with pytest.raises(ConfigurationError, match=r"redis 6\.2\.14 \(/bin/redis-server\) was built"):
        LocalServer(binary=OLD, tls=files)


def test_a_login_in_a_url_is_quoted() -> None:
    with closing(LocalServer(host="::1")) as server:
        place = f"[::1]:{server.port}"
        assert (
            server.url_for("a:b@c/d", "p:q@r/s") == f"redis://a%3Ab%40c%2Fd:p%3Aq%40r%2Fs@{place}"
        )
        assert server.url_for(None, "p") == f"redis://:p@{place}"
        assert server.url_for("user", None) == f"redis://{place}"


def test_a_closed_server_leaves_no_folder() -> None:
    with closing(LocalServer()) as server:
        assert (server.folder / "data").is_dir()
        assert (server.alive, server.frozen) == (False, False)
    assert not server.folder.exists()


# ---- deployments ---------------------------------------------------------------------------------
async def test_servers_are_told_whom_they_follow_and_own_settings_win(seven: ServerBinary) -> None:
    own = ("--repl-diskless-sync", "no")
    with closing(Replicated(2, binary=seven, args=own)) as group:
        assert group.addresses == [group.servers[0].url]
        assert group.replicas == group.servers[1:]
        group.primary = group.servers[2]
        assert group.addresses == [group.servers[2].url]
        assert group.replicas == group.servers[:2]
        for server in group.servers:
            with pytest.raises(ServerStartError):
                await server.start()
            assert tuple(server.log.split()[-len(REPLICATION) - 2 :]) == (*REPLICATION, *own)


async def test_nodes_of_a_cluster_know_each_other_from_the_start(seven: ServerBinary) -> None:
    cluster = RedisCluster(3, 1, node_timeout=1.5, binary=seven, args=("--maxmemory", "10mb"))
    with closing(cluster):
        nodes: Any = cluster.servers
        ids = [node.identity for node in nodes]
        assert len(set(ids)) == 6
        places = [f"127.0.0.1:{node.port}@{node.port + 10_000}" for node in nodes]
        for number, node in enumerate(nodes):
            lines = [
                f"{ids[0]} {places[0]} master - 0 0 1 connected 0-5460",
                f"{ids[1]} {places[1]} slave {ids[0]} 0 0 1 connected",
                f"{ids[2]} {places[2]} master - 0 0 2 connected 5461-10921",
                f"{ids[3]} {places[3]} slave {ids[2]} 0 0 2 connected",
                f"{ids[4]} {places[4]} master - 0 0 3 connected 10922-16383",
                f"{ids[5]} {places[5]} slave {ids[4]} 0 0 3 connected",
                "vars currentEpoch 3 lastVoteEpoch 0",
            ]
            kind = "slave" if number % 2 else "master"
            lines[number] = lines[number].replace(f" {kind} ", f" myself,{kind} ")
            assert (node.folder / "data" / "nodes.conf").read_text().splitlines() == lines
            cluster_words = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1500")
            wanted = (*cluster_words, *REPLICATION, "--maxmemory", "10mb")
            with pytest.raises(ServerStartError):
                await node.start()
            assert tuple(node.log.split()[-len(wanted) :]) == wanted


async def test_where_there_is_no_replica_nothing_fails_over() -> None:
    with closing(RedisCluster(1, 0)) as cluster:
        with pytest.raises(UnsupportedDeploymentError, match="RedisCluster has no replica"):
            await cluster.fail_over()


@pytest.mark.parametrize("kind", [Replicated, RedisCluster])
def test_servers_that_follow_each_other_need_ports(kind: Any) -> None:
    with pytest.raises(UnsupportedDeploymentError, match="by TCP only"):
        kind(unix=True)


def test_one_url_has_the_login_every_node_and_the_service() -> None:
    with closing(RedisCluster(3, 1, password="p@ss")) as cluster:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
        assert cluster.addresses == [f"redis+cluster://:p%40ss@{hosts}"]
        assert [len(shard) for shard in cluster.shards] == [2, 2, 2]
        assert [one for shard in cluster.shards for one in shard] == cluster.servers
    with closing(RedisCluster(2, 0, host="::1", password="p@ss")) as cluster:
        hosts = ",".join(f"[::1]:{server.port}" for server in cluster.servers)
        assert cluster.addresses == [f"redis+cluster://:p%40ss@{hosts}"]
    with closing(SentinelGroup(1, 3, service="main", password="p@ss")) as group:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
        assert group.addresses == [f"redis+sentinel://:p%40ss@{hosts}/main"]
        assert len({one.identity for one in group.sentinels}) == 3  # type: ignore[attr-defined]
    with closing(SentinelGroup()) as group:
        assert (len(group.servers), len(group.sentinels)) == (3, 3)
