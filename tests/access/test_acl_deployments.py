"""The least a user must be allowed where replicas, Sentinels or a Cluster take part."""

import asyncio
import re

import pytest

import asynclock
from asynclock.testing import RedisCluster, Replicated, SentinelGroup
from tests.access.conftest import Connect
from tests.access.test_acl import PAGE, fence, hand_over, minimal

WATCHER = "watch:w-secret"
OPTIONS = {"acks": 1, "restart_guard": False, "node_timeout": 1.0}


def also(deployment: str) -> list[str]:
    """What the page says that users in `deployment` need besides."""
    text = re.sub(r"\s+", " ", PAGE.read_text("utf-8"))
    sentence = re.split(r"[.;]", text[text.index(deployment) :])[0]
    return [word for code in re.findall(r"`([^`]+)`", sentence) for word in code.split()]


def user(*more: str) -> list[str]:
    return [" ".join([*minimal(), *more]), "default off"]


def logged_in(address: str) -> str:
    """The address of a deployment, without parameters, for the user of the page."""
    scheme, _, rest = address.partition("?")[0].partition("://")
    return f"{scheme}://locks:secret@{rest.rpartition('@')[2]}"


async def watched(group: SentinelGroup, *rights: str) -> str:
    """The URL of a user at the servers and of another at the Sentinels."""
    name, password = WATCHER.split(":")
    for sentinel in group.sentinels:
        await sentinel.command(
            "ACL", "SETUSER", name, "on", f">{password}", "resetchannels", "-@all", *rights
        )
    url = logged_in(group.addresses[0])
    return f"{url}?sentinel_username={name}&sentinel_password={password}"


async def test_replicas_need_wait_and_nothing_else(connect: Connect) -> None:
    async with Replicated(1, users=user()) as group:
        url = group.primary.url_for("locks", "secret")
        await hand_over(connect(url, **OPTIONS), connect(url, **OPTIONS))


async def test_sentinels_need_what_docs_say(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with SentinelGroup(1, users=user()) as group:
        rights = also("Sentinels needs")
        url = await watched(group, *rights)
        here, there = connect(url, **OPTIONS), connect(url, **OPTIONS)
        await hand_over(here, there)
        assert not [record for record in caplog.records if "refuses" in record.message]
        for missing in rights:
            less = connect(await watched(group, *(set(rights) - {missing})), **OPTIONS)
            with pytest.raises(asynclock.ConfigurationError, match="sentinel"):
                await less.lock("a").acquire(timeout=20)


async def test_a_cluster_needs_what_the_page_says(connect: Connect) -> None:
    rights = also("A Cluster needs")
    assert "+asking" in rights
    async with RedisCluster(3, 1, users=user(*rights)) as cluster:
        mine = logged_in(cluster.addresses[0])
        here = connect(mine, **OPTIONS)
        await hand_over(here, connect(mine, **OPTIONS))
        await asyncio.gather(*(fence(here, f"n{number}") for number in range(9)))
        for server in cluster.servers:
            await server.command("ACL", "SETUSER", "locks", "-cluster")
        less = connect(mine, **OPTIONS)
        with pytest.raises(asynclock.ConfigurationError, match="cluster"):
            await less.lock("a").acquire(timeout=20)
