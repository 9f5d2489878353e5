"""Where clients find each deployment, without starting it; and what its Sentinels are told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing import RedisCluster, Replicated, SentinelGroup
from asynclock.testing.servers.process import ServerProcess


def test_a_cluster_has_one_url_with_the_login_and_every_node() -> None:
    cluster = RedisCluster(3, 1, password="p@ss")
    try:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
        assert cluster.addresses == [f"redis+cluster://:p%40ss@{hosts}"]
        assert [len(shard) for shard in cluster.shards] == [2, 2, 2]
        assert [one for shard in cluster.shards for one in shard] == cluster.servers
    finally:
        cluster.close()


def test_a_group_has_one_url_with_the_login_its_sentinels_and_its_service() -> None:
    group = SentinelGroup(1, 3, service="main", password="p@ss")
    try:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
        assert group.addresses == [f"redis+sentinel://:p%40ss@{hosts}/main"]
    finally:
        group.close()


def test_each_sentinel_is_told_all_servers_and_all_others() -> None:
    group = SentinelGroup(2, 4, service="main", down_after=0.75, password="secret")
    try:
        own, *others = group.sentinels
        primary, *replicas = group.servers
        watches: list[str] = group._watches(own)  # type: ignore[arg-type]  # it is a Sentinel
        assert sorted(line.removeprefix("sentinel ") for line in watches) == sorted(
            [
                f"monitor main 127.0.0.1 {primary.port} 3",
                "down-after-milliseconds main 750",
                "failover-timeout main 4000",
                "parallel-syncs main 3",
                "auth-pass main secret",
                *(f"known-replica main 127.0.0.1 {one.port}" for one in replicas),
                *(f"known-sentinel main 127.0.0.1 {one.port} {identity(one)}" for one in others),
            ]
        )
        assert len({identity(one) for one in group.sentinels}) == 4
    finally:
        group.close()


def identity(sentinel: Any) -> str:
    return str(sentinel.identity)


@pytest.mark.parametrize("kind", [Replicated, RedisCluster])
def test_servers_that_follow_each_other_need_ports(kind: Any) -> None:
    with pytest.raises(UnsupportedDeploymentError, match="by TCP only"):
        kind(unix=True)


def test_a_primary_is_what_clients_are_told() -> None:
    one = Replicated(2)
    try:
        assert one.addresses == [one.servers[0].url]
        assert one.replicas == one.servers[1:]
        one.primary = one.servers[2]
        assert one.addresses == [one.servers[2].url]
        assert one.replicas == one.servers[:2]
    finally:
        one.close()


# ---- processes -----------------------------------------------------------------------------------


def test_a_process_has_the_environment_of_the_tests_and_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_TESTS", "one")
    monkeypatch.setenv("OVERRIDDEN", "two")
    script = 'echo "$OF_THE_TESTS $OVERRIDDEN"; pwd; echo wrong >&2'
    process = ServerProcess(["sh", "-c", script], tmp_path, {"OVERRIDDEN": "three"})
    process._popen.wait(30)
    assert (tmp_path / "output.log").read_text().split() == [
        *("one", "three"),
        str(tmp_path.resolve()),
        "wrong",
    ]


async def test_a_process_that_has_ended_is_named_in_no_file(tmp_path: Path) -> None:
    """What is named there is killed at the end of the tests, and the number may be another's."""
    for end in ("kill", "kill_now"):
        process = ServerProcess(["sleep", "600"], tmp_path, {})
        assert (tmp_path / "pid").read_text() == str(process.pid)
        assert os.getpgid(process.pid) == process.pid
        if end == "kill":
            await process.kill()
        else:
            process.kill_now()
        assert process.exit_status == -9
        assert not (tmp_path / "pid").exists()
