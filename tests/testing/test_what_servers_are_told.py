"""The command line of a server, the files beside it, and the addresses of its clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asynclock.errors import ConfigurationError, UnsupportedDeploymentError
from asynclock.testing import LocalServer, RedisCluster, Replicated, ServerBinary
from asynclock.testing.servers.tls import Certificates
from asynclock.testing.topology import REPLICATION

SEVEN = ServerBinary(Path("/bin/redis-server"), (7, 0, 0), "redis", tls=True)
OLD = ServerBinary(Path("/bin/redis-server"), (6, 2, 14), "redis")


@contextlib.contextmanager
def made(**options: Any) -> Iterator[LocalServer]:
    """A server that is not started."""
    server = LocalServer(**{"binary": SEVEN, **options})
    try:
        yield server
    finally:
        server.close()


def told(server: LocalServer) -> dict[str, str]:
    """Return the settings of a command line; each of them has one value here."""
    words = server._arguments
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


def test_a_server_keeps_nothing_and_listens_on_loopback_only() -> None:
    with made() as server:
        assert told(server) == usual(server)
    with made(binary=OLD) as server:
        wanted = usual(server)
        del wanted["enable-debug-command"]  # 6.2 does not know it, and would not start
        assert told(server) == wanted


def test_options_change_what_a_server_is_told() -> None:
    with made(aof=True, host="::1", args=("--maxmemory", "10mb")) as server:
        wanted = usual(server, appendonly="yes", bind="::1", maxmemory="10mb")
        assert told(server) == wanted
        assert server._arguments[-2:] == ["--maxmemory", "10mb"], "own settings win"
    with made(unix=True) as server:
        socket = str(server.folder / "s")
        assert told(server) == usual(server, port="0", unixsocket=socket)
        assert (server.url, server.endpoint.unix) == (f"unix://{socket}", socket)
    with made(password="hush") as server:
        assert told(server) == usual(server, requirepass="hush", masterauth="hush")
        assert server.endpoint.credentials == ("hush",)


def test_users_are_in_a_file_beside_one_who_may_do_everything() -> None:
    with made(users=["bob on >b ~x* +get"], password="hush") as server:
        file = server.folder / "users.acl"
        assert told(server) == usual(
            server,
            aclfile=str(file),
            masteruser="asynclock-testing",
            masterauth="loopback-only",
        )
        assert file.read_text().splitlines() == [
            "user bob on >b ~x* +get",
            "user default on >hush ~* &* +@all",
            "user asynclock-testing on >loopback-only ~* &* +@all",
        ]
        assert server.endpoint.credentials == ("asynclock-testing", "loopback-only")
        assert server.url == f"redis://:hush@127.0.0.1:{server.port}"


@pytest.mark.parametrize(("client_certs", "word"), [(False, "no"), (True, "yes")])
def test_with_tls_replicas_and_cluster_nodes_use_it_too(
    tmp_path: Path, *, client_certs: bool, word: str
) -> None:
    files = Certificates(*(tmp_path / name for name in ("ca", "cert", "key", "mine", "my-key")))
    for file in (files.ca, files.server_cert, files.server_key, files.client_cert):
        file.write_text(file.name)
    files.client_key.write_text("my-key")
    with made(tls=files, tls_client_certs=client_certs) as server:
        assert told(server) == usual(
            server,
            port="0",
            tls_port=str(server.port),
            tls_ca_cert_file=str(server.folder / "ca"),
            tls_cert_file=str(server.folder / "cert"),
            tls_key_file=str(server.folder / "key"),
            tls_auth_clients=word,
            tls_replication="yes",
            tls_cluster="yes",
        )
        assert (server.folder / "key").read_text() == "key", "a container can read it there"
        mine = f"&ssl_certfile={tmp_path}/mine&ssl_keyfile={tmp_path}/my-key".replace("/", "%2F")
        query = f"ssl_ca_certs={tmp_path}/ca".replace("/", "%2F") + mine * client_certs
        assert server.url == f"rediss://127.0.0.1:{server.port}?{query}"


def test_a_server_without_tls_is_not_told_to_use_it(tmp_path: Path) -> None:
    files = Certificates(*[tmp_path] * 5)
    with pytest.raises(ConfigurationError, match=r"redis 6\.2\.14 \(/bin/redis-server\) was built"):
        LocalServer(binary=OLD, tls=files)


def test_a_login_in_a_url_is_quoted() -> None:
    with made(host="::1") as server:
        place = f"[::1]:{server.port}"
        assert (
            server.url_for("a:b@c/d", "p:q@r/s") == f"redis://a%3Ab%40c%2Fd:p%3Aq%40r%2Fs@{place}"
        )
        assert server.url_for(None, "p") == f"redis://:p@{place}"
        assert server.url_for("user", None) == f"redis://{place}"


def test_a_closed_server_leaves_no_folder() -> None:
    with made() as server:
        assert (server.folder / "data").is_dir()
        assert (server.alive, server.frozen) == (False, False)
    assert not server.folder.exists()


# ---- deployments ---------------------------------------------------------------------------------


def test_servers_that_follow_each_other_are_told_so_and_own_settings_win() -> None:
    own = ("--repl-diskless-sync", "no")
    group = Replicated(2, args=own)
    try:
        assert len(group.servers) == 3
        for server in group.servers:
            assert tuple(server._arguments[-len(REPLICATION) - 2 :]) == (*REPLICATION, *own)
    finally:
        group.close()


def test_nodes_of_a_cluster_start_with_full_knowledge_of_each_other() -> None:
    cluster = RedisCluster(3, 1, node_timeout=1.5, args=("--maxmemory", "10mb"))
    try:
        nodes = cluster._nodes
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
            assert tuple(node._arguments[-len(wanted) :]) == wanted
    finally:
        cluster.close()


async def test_where_there_is_no_replica_nothing_fails_over() -> None:
    cluster = RedisCluster(1, 0)
    try:
        with pytest.raises(UnsupportedDeploymentError, match="RedisCluster has no replica"):
            await cluster.fail_over()
    finally:
        cluster.close()
