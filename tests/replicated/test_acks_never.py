"""Acks that can never be met are a mistake, and the error names what is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import pytest

import asynclock
from asynclock.testing import (
    LocalServer,
    RedisCluster,
    Replicated,
    SentinelGroup,
    Single,
    Topology,
    until,
)
from asynclock.testing.topology.replicated import follow
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


async def test_a_replica_that_comes_later_is_enough(connect: Connect) -> None:
    async with Replicated(1) as group:
        (replica,) = group.replicas
        await replica.command("REPLICAOF", "NO", "ONE")
        await until(partial(replicas_left, group.primary, 0), "no replica is attached")
        locks = connect(*group.addresses, acks=1, restart_guard=False)
        with pytest.raises(asynclock.UnsupportedDeploymentError, match="has none"):
            await locks.lock("a").acquire()
        await follow(replica, group.primary)
        await group.ready()
        await until(partial(granted, locks), "the replica counts")


async def granted(locks: asynclock.LockManager) -> bool:
    with contextlib.suppress(asynclock.AsyncLockError):
        return await locks.lock("a").try_acquire() is not None
    return False


async def test_a_replica_that_was_there_before_is_only_away(connect: Connect) -> None:
    async with Replicated(1) as group:
        locks = connect(*group.addresses, acks=1, restart_guard=False)
        async with locks.lock("a", timeout=20):
            pass
        await group.replicas[0].kill()
        await until(partial(replicas_left, group.primary, 0), "no replica is attached")
        await group.primary.command("CLIENT", "KILL", "TYPE", "normal")
        with pytest.raises(asynclock.QuorumUnavailableError, match="0 of 1 replicas"):
            await locks.lock("a").acquire(timeout=2)


async def test_a_replica_that_the_sentinels_know_is_only_away(connect: Connect) -> None:
    async with SentinelGroup(1, 3) as group:
        await group.replicas[0].kill()
        await until(partial(replicas_left, group.primary, 0), "no replica is attached")
        newcomer = connect(*group.addresses, acks=1, restart_guard=False)
        with pytest.raises(asynclock.QuorumUnavailableError, match="0 of 1 replicas"):
            await newcomer.lock("a").acquire(timeout=3)


async def replicas_left(server: LocalServer, count: int) -> bool:
    return f"connected_slaves:{count}" in await server.command("INFO", "replication")
