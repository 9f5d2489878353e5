"""`asynclock doctor`: the servers behind one URL, and faults that no local server can have."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._nodes.acks import Acks
from asynclock._nodes.endpoint import Endpoint
from asynclock._rules.trust import Facts
from asynclock.cli.doctor.checkup import examine
from asynclock.cli.doctor.groups import Group, resolve
from asynclock.cli.doctor.probe import Probe, Purpose
from asynclock.testing import RedisCluster, SentinelGroup
from asynclock.testing.servers.ports import ReservedPort

PURPOSE = Purpose(1, 10.0, 0.25, "asynclock:", Acks(), 1.0)


def codes(group: Group) -> list[str]:
    return sorted(finding.code for finding in group.findings)


def ports(group: Group) -> set[int]:
    return {server.port for server, _ in group.servers}


async def test_a_cluster_is_its_primaries_by_any_seed_that_answers() -> None:
    port = ReservedPort()  # it answers with a refusal as long as it is ours
    closed = f"127.0.0.1:{port.number}"
    async with RedisCluster(primaries=3, replicas=1) as cluster:
        seed = cluster.shards[2][1]
        found = await resolve(f"redis+cluster://{closed},{seed.host}:{seed.port}")
        assert ports(found) == {shard[0].port for shard in cluster.shards}
        assert not codes(found)
    found = await resolve(f"redis+cluster://{closed},{seed.host}:{seed.port}")
    assert len(found.servers) == 2, "the seeds, so that the checks say why none answers"
    port.release()


async def test_a_cluster_without_all_slots() -> None:
    async with RedisCluster(primaries=3, replicas=0) as cluster:
        server = cluster.servers[0]
        await server.command("CLUSTER", "DELSLOTS", "0")
        found = await resolve(f"redis+cluster://{server.host}:{server.port}")
    assert codes(found) == ["cluster-state"]


async def test_sentinels_that_disagree_or_do_not_know_the_service() -> None:
    async with (
        SentinelGroup(replicas=0, sentinels=1) as one,
        SentinelGroup(replicas=0, sentinels=1) as other,
    ):
        both = ",".join(f"127.0.0.1:{group.sentinels[0].port}" for group in (one, other))
        found = await resolve(f"redis+sentinel://{both}/{one.service}")
        assert codes(found) == ["few-sentinels", "sentinels-disagree"]
        assert len(found.servers) == 1
        found = await resolve(f"redis+sentinel://{both}/unheard-of")
        assert codes(found) == ["few-sentinels", "sentinel-service", "sentinel-service"]
        assert not found.servers


async def test_sentinels_that_are_too_few_to_fail_over() -> None:
    async with SentinelGroup(replicas=0, sentinels=1) as group:
        (sentinel,) = group.sentinels
        await sentinel.command("SENTINEL", "SET", group.service, "quorum", "2")
        found = await resolve(group.addresses[0])
    assert codes(found) == ["few-sentinels", "sentinel-quorum"]
    assert ports(found) == {group.primary.port}


def probed(url: str, **reported: Any) -> Probe:
    return Probe(Endpoint.from_url(url), url, login="@" in url, **reported)


@pytest.mark.parametrize(
    ("servers", "wanted"),
    [
        ([probed("redis://10.0.0.1")], {"open", "plain"}),
        ([probed("redis://:secret@10.0.0.1")], {"plain"}),
        ([probed("rediss://10.0.0.1")], {"open"}),
        ([probed("rediss://:secret@10.0.0.1")], set[str]()),
        ([probed("redis://localhost", facts=Facts(run_id="a"), other_run_id="b")], {"proxy"}),
        ([probed("redis://localhost", unusable={"lock": "a script"})], {"cannot-lock"}),
        ([probed("redis://localhost", unusable={"fair_lock": "one"})], {"cannot-fair-lock"}),
        (
            [probed(f"rediss://:secret@10.0.0.1:{port}") for port in (1, 2, 3)],
            {"one-machine"},
        ),
    ],
)
def test_what_tests_on_one_machine_can_not_plant(servers: list[Probe], wanted: set[str]) -> None:
    found = examine([[server] for server in servers], PURPOSE)
    assert {"open", "plain", "proxy", "cannot-lock", "cannot-fair-lock", "one-machine"} & {
        finding.code for finding in found
    } == wanted
