"""Each setting of `connect` and of a manager's methods takes effect; a manager ends as it says."""

import asyncio
import functools
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock import ConfigurationError, events
from asynclock.testing.memory import memory_node
from tests.engine.virtual_nodes import TTL, Nodes, virtual
from tests.tables.inside import now
from tests.waiting import in_virtual_time

# ---- locks ---------------------------------------------------------------------------------------
MAKERS: dict[str, Callable[..., Any]] = {
    "lock": lambda locks, **given: locks.lock("a", **given),
    "reentrant_lock": lambda locks, **given: locks.reentrant_lock("a", **given),
    "multi_lock": lambda locks, **given: locks.multi_lock("a", "b", **given),
    "read": lambda locks, **given: locks.rwlock("a", **given).read(),
    "write": lambda locks, **given: locks.rwlock("a", **given).write(),
    "fair_lock": lambda locks, **given: locks.fair_lock("a", **given),
    "semaphore": lambda locks, **given: locks.semaphore("a", 1, **given),
    "election": lambda locks, **given: locks.election("a", **given),
    "synchronized": lambda locks, **given: Decorated(locks, **given),
}


class Decorated:
    """A function that a lock decorates: its call is an acquire."""

    def __init__(self, locks: asynclock.LockManager, **given: Any) -> None:
        @locks.synchronized("a", lease="held", **given)
        async def work(*, held: asynclock.Lease | None = None) -> Any:
            return held

        self.acquire = work


@pytest.mark.parametrize(
    "flag", ["renew", "interrupt", "clock_guard", "durable", "set_guard", "strict", "observers"]
)
def test_a_flag_is_true_or_false_and_observers_are_a_list(flag: str) -> None:
    with pytest.raises(ConfigurationError, match=flag):
        if flag in ("renew", "interrupt"):
            asynclock.connect("memory://").lock("a", **{flag: "no"})
        asynclock.connect("memory://", **{flag: print if flag == "observers" else 1})


async def took(made: Any) -> Any:
    """Acquire what was made."""
    return await (made.campaign("me") if hasattr(made, "campaign") else made.acquire())


@pytest.mark.parametrize("kind", MAKERS)
@virtual
async def test_each_kind_waits_for_as_long_as_it_was_made_for(on: Nodes, kind: str) -> None:
    async with on.connect() as others:
        holder = {"read": "write", "synchronized": "lock"}.get(kind, kind)
        held = await took(MAKERS[holder](others))
        began = now()
        with pytest.raises(asynclock.AcquireTimeoutError):
            async with asyncio.timeout(60):
                await took(MAKERS[kind](on.locks, timeout=2.0))
        assert now() - began == pytest.approx(2.0)
        assert held.held


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "election"])
@virtual
async def test_each_kind_is_held_for_the_ttl_that_it_was_made_with(on: Nodes, kind: str) -> None:
    lease = await took(MAKERS[kind](on.locks, ttl=TTL / 2))
    assert lease.ttl == TTL / 2
    if kind != "synchronized":  # after its function it is released
        assert TTL * 0.45 < lease.remaining() < TTL * 0.5


@virtual
async def test_a_leader_that_is_gone_is_missed_for_the_ttl_of_its_election(on: Nodes) -> None:
    for ttl in (TTL / 2, None):
        async with on.connect() as others:
            await others.election(f"e {ttl}", ttl=ttl).campaign("me")
            keys = await on.nodes[0].command("KEYS", f"*e {ttl}*")
            left = [await on.nodes[0].command("PTTL", key) for key in keys]
            assert pytest.approx((ttl or TTL) * 1000, abs=5) in left


@pytest.mark.parametrize(
    ("kind", "call"), [("event", "set"), ("latch", "count_down"), ("barrier", "wait")]
)
@virtual
async def test_how_long_shared_state_is_kept(on: Nodes, kind: str, call: str) -> None:
    count = () if kind == "event" else (1,)
    await getattr(getattr(on.locks, kind)("shared", *count, keep=40.0), call)()
    (key,) = await on.nodes[0].command("KEYS", "*shared*")
    assert 35_000 < await on.nodes[0].command("PTTL", key) <= 45_000


# ---- settings of `connect` -----------------------------------------------------------------------
@virtual
async def test_only_what_has_the_managers_prefix_is_listed(on: Nodes) -> None:
    async with on.connect(prefix="shop:") as shop:
        mine = await shop.lock("b").acquire()
        await on.locks.lock("a").acquire()
        found = [one async for one in shop.inspect_all()]
        assert [(one.name, one.owner) for one in found] == [("b", mine.owner)]


@virtual
async def test_an_observer_added_twice_watches_until_it_is_removed_twice(on: Nodes) -> None:
    telemetry = Watched()
    async with on.connect(observers=[telemetry]) as locks:
        locks.observe(telemetry)
        for left in ([locks], []):
            locks.unobserve(telemetry)
            assert telemetry.watched == left


class Watched(events.Watcher):
    """An observer that looks at managers, as OpenTelemetry's does."""

    def __call__(self, event: events.Event) -> None: ...


# ---- what is refused -----------------------------------------------------------------------------
@functools.cache
def unused() -> Any:
    return asynclock.connect("redis://127.0.0.1:1")


@virtual
async def test_a_look_at_a_name_or_a_wait_for_nodes_checks_what_it_is_given(on: Nodes) -> None:
    wrong: Any
    for wrong in (7, ""):
        with pytest.raises(ConfigurationError, match="name"):
            await on.locks.inspect(wrong)
    for wrong in (-1, "1"):
        with pytest.raises(ConfigurationError, match=r"^timeout"):
            await on.locks.ready(timeout=wrong)
    await on.locks.ready(timeout=0)


async def late(event: events.Event) -> None: ...


@pytest.mark.parametrize("wrong", [late, None, "print"])
def test_an_observer_is_a_function_without_async(wrong: Any) -> None:
    for add in (unused().observe, lambda one: asynclock.connect("memory://", observers=[one])):
        with pytest.raises(ConfigurationError, match=r"^an observer must be a function"):
            add(wrong)


# ---- the manager itself --------------------------------------------------------------------------
def tasks() -> set[str]:
    return {name for task in asyncio.all_tasks() if "asynclock" in (name := task.get_name())}


@in_virtual_time
async def test_entering_a_manager_in_vain_leaves_nothing_open() -> None:
    """Whether it is cancelled or the nodes can't work."""
    memory_node().freeze()
    locks = asynclock.connect("memory://", node_timeout=4.0, ttl=19.0, max_ttl=20.0)
    entering = asyncio.create_task(locks.__aenter__())
    await asyncio.sleep(1)
    assert tasks()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    memory_node().thaw()
    await asyncio.sleep(0.01)
    assert tasks() == set()


@in_virtual_time
async def test_only_a_manager_that_was_used_and_not_closed_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asynclock.connect("memory://")
        async with asynclock.connect("memory://") as locks, locks.lock("a"):
            pass
        del locks
        with pytest.raises(ConfigurationError):
            asynclock.connect()
        gc.collect()


@virtual
async def test_what_a_manager_holds_is_counted_and_listed_in_order(on: Nodes) -> None:
    leases = [await on.locks.lock(name).acquire() for name in "cab"]
    assert on.locks.leases() == tuple(leases)
    assert on.locks.statistics().held == 3
    await leases[1].release()
    with pytest.warns(ResourceWarning, match="'b'.*dropped"):
        del leases[1:]
        gc.collect()
    assert on.locks.leases() == (leases[0],)


def test_a_closed_manager_opens_again_in_the_next_loop() -> None:
    locks = asynclock.connect("memory://")

    async def once() -> None:
        async with locks, locks.lock("a", timeout=2) as lease:
            assert lease.held

    async def closed() -> None:
        with pytest.raises(ConfigurationError, match="closed"):
            await locks.lock("a").try_acquire()

    for work in (once, once, closed):
        asyncio.run(work())
