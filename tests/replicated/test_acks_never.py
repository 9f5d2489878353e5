"""Acks that can never be met are a mistake, and the error names what is missing."""

from collections.abc import Callable

import pytest

import asynclock
from asynclock.testing import RedisCluster, SentinelGroup, Single, Topology
from tests.replicated.conftest import Connect

ALONE: dict[str, Callable[[], Topology]] = {
    "single": Single,
    "sentinel": lambda: SentinelGroup(0, 3),
    "cluster": lambda: RedisCluster(3, 0),
}


@pytest.mark.parametrize("kind", list(ALONE))
async def test_acks_without_any_replica_are_a_mistake_and_no_wait(
    connect: Connect, kind: str
) -> None:
    async with ALONE[kind]() as alone:
        for acks in (1, "majority", "all"):
            locks = connect(*alone.addresses, acks=acks)
            told = f"acks={acks!r} needs 1 replica, and it has none"
            with pytest.raises(asynclock.UnsupportedDeploymentError, match=told):
                await locks.lock("a").acquire()
            assert told in locks.nodes()[0].cause
        for server in alone.servers:
            assert await server.command("KEYS", "*") == []
