"""The least a user must be allowed where replicas, Sentinels or a Cluster take part."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit

import pytest

import asynclock
from asynclock.testing import RedisCluster, Replicated, SentinelGroup
from tests.access.conftest import Connect
from tests.access.test_acl import PAGE, hand_over, minimal

WATCHER = "watch:w-secret"


def also(deployment: str) -> list[str]:
    """What the page says that users in `deployment` need besides."""
    text = re.sub(r"\s+", " ", PAGE.read_text("utf-8"))
    sentence = re.split(r"[.;]", text[text.index(deployment) :])[0]
    return [word for code in re.findall(r"`([^`]+)`", sentence) for word in code.split()]


def user(*more: str) -> list[str]:
    return [" ".join([*minimal(), *more]), "default off"]


async def watched(group: SentinelGroup, *rights: str) -> str:
    """The URL of a user at the servers and of another at the Sentinels."""
    name, password = WATCHER.split(":")
    for sentinel in group.sentinels:
        await sentinel.command(
            "ACL", "SETUSER", name, "on", f">{password}", "resetchannels", "-@all", *rights
        )
    url = urlsplit(group.addresses[0])
    netloc = f"locks:secret@{url.netloc.rpartition('@')[2]}"
    query = f"sentinel_username={name}&sentinel_password={password}"
    return url._replace(netloc=netloc, query=query).geturl()


async def test_replicas_need_wait_and_nothing_else(connect: Connect) -> None:
    async with Replicated(1, users=user()) as group:
        url = group.primary.url_for("locks", "secret")
        options = {"acks": 1, "restart_guard": False, "node_timeout": 1.0}
        await hand_over(connect(url, **options), connect(url, **options))


async def test_sentinels_need_what_the_page_says(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"acks": 1, "restart_guard": False, "node_timeout": 1.0}
    async with SentinelGroup(1, users=user()) as group:
        rights = also("Sentinels needs")
        url = await watched(group, *rights)
        here, there = connect(url, **options), connect(url, **options)
        await hand_over(here, there)
        assert not [record for record in caplog.records if "refuses" in record.message]
        for missing in rights:
            less = connect(await watched(group, *(set(rights) - {missing})), **options)
            with pytest.raises(asynclock.ConfigurationError, match="sentinel"):
                await less.lock("a").acquire(timeout=20)


async def test_a_cluster_needs_what_the_page_says(connect: Connect) -> None:
    rights = also("A Cluster needs")
    assert "+asking" in rights
    async with RedisCluster(3, 1, users=user(*rights)) as cluster:
        url = urlsplit(cluster.addresses[0])
        netloc = f"locks:secret@{url.netloc.rpartition('@')[2]}"
        mine = url._replace(netloc=netloc).geturl()
        options = {"acks": 1, "restart_guard": False, "node_timeout": 1.0}
        here = connect(mine, **options)
        await hand_over(here, connect(mine, **options))
        await asyncio.gather(*(fence_of(here, f"n{number}") for number in range(9)))
        for server in cluster.servers:
            await server.command("ACL", "SETUSER", "locks", "-cluster")
        less = connect(mine, **options)
        with pytest.raises(asynclock.ConfigurationError, match="cluster"):
            await less.lock("a").acquire(timeout=20)


async def fence_of(locks: asynclock.LockManager, name: str) -> int:
    async with locks.lock(name, timeout=20) as lease:
        return lease.fence
