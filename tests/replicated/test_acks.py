"""A grant counts once enough replicas have it; WAIT is shared; a held lease outlives a lag."""

import pytest

import asynclock
from asynclock.testing import Replicated
from tests.replicated.conftest import Connect
from tests.tables.inside import renew_now
from tests.waiting import becomes, go_through, refused, until


async def left(group: Replicated) -> list[str]:
    keys = await group.primary.command("KEYS", "*")
    return [key for key in keys if not key.endswith((":#fence", ":#primary", ":#witness"))]


async def calls(group: Replicated, command: str) -> int:
    stats = await group.primary.command("INFO", "commandstats")
    for line in stats.splitlines():
        if line.startswith(f"cmdstat_{command}:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


@pytest.mark.parametrize(("acks", "needed"), [(1, 1), (2, 2), ("majority", 1), ("all", 2)])
async def test_a_grant_is_on_the_replicas_when_it_counts(
    group: Replicated, connect: Connect, acks: int | str, needed: int
) -> None:
    locks = connect(*group.addresses, acks=acks, restart_guard=False)
    async with locks.lock("a") as lease:
        having = [await replica.command("GET", "asynclock:a") for replica in group.replicas]
        assert having.count(lease.owner) >= needed
        assert await refused(locks.lock("a"))
    assert await left(group) == []


async def test_all_means_all_and_says_what_is_missing(group: Replicated, connect: Connect) -> None:
    locks = connect(*group.addresses, acks="all", ttl=60, max_ttl=60, restart_guard=False)
    assert await locks.lock("a").acquire(timeout=20)
    await group.replicas[0].freeze()
    with pytest.raises(asynclock.QuorumUnavailableError, match="1 of 2 replicas acknowledged"):
        await locks.lock("b").try_acquire()
    enough = connect(*group.addresses, acks=1, restart_guard=False)
    other = await enough.lock("c").acquire(timeout=20)
    assert await other.release()
    # What was granted and not acknowledged is given back at once, not when its ttl ends.
    await becomes(lambda: left(group), ["asynclock:a"])


async def test_a_lagging_replica_kills_no_lease(group: Replicated, connect: Connect) -> None:
    locks = connect(*group.addresses, acks=2, restart_guard=False)
    lease = await locks.lock("a").acquire(timeout=20)
    await group.replicas[0].freeze()
    before, waits = locks.statistics().renewed, await calls(group, "wait")
    renew_now(locks)

    async def not_acknowledged() -> bool:
        blocked = "flags=b" in await group.primary.command("CLIENT", "LIST")
        return not blocked and await calls(group, "wait") > waits

    await until(not_acknowledged, "the primary has waited for its replicas in vain")
    await locks.inspect("a")  # answered behind the renewal
    assert locks.statistics().renewed == before
    assert lease.held
    await group.replicas[0].thaw()
    await until(lambda: locks.statistics().renewed > before, "a later renewal counts")
    assert lease.held
    assert lease.lost_reason is None


@pytest.mark.parametrize("timeout", [0.01, 1.2])
async def test_whatever_the_timeout_the_missing_acknowledgements_are_told(
    group: Replicated, connect: Connect, timeout: float
) -> None:
    """The last attempt is cut in the middle of its WAIT, which is not what went wrong."""
    locks = connect(*group.addresses, acks=2, restart_guard=False)
    await go_through(locks.lock("a", timeout=20))
    await group.replicas[0].freeze()
    with pytest.raises(asynclock.QuorumUnavailableError) as caught:
        await locks.lock("a").acquire(timeout=timeout)
    (cause,) = caught.value.nodes.values()
    assert cause.startswith("1 of 2 replicas acknowledged the grant within")
    assert locks.nodes()[0].cause == cause
