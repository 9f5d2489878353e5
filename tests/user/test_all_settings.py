"""All settings of `connect` and of a manager's methods, each at the place where it takes effect."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import Any

import pytest

import asynclock
from asynclock import ConfigurationError, _access, _clock, events
from asynclock._engine.context import EngineSettings
from asynclock._engine.options import LeaseOptions
from asynclock._nodes.node import NodeSettings
from asynclock._nodes.record import RECORD_KEY
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.engine.virtual_nodes import TTL, Nodes, virtual
from tests.waiting import in_virtual_time

URLS = ("redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3")


def settings_of(locks: asynclock.LockManager) -> tuple[EngineSettings, NodeSettings]:
    """What the engine and each node of a manager go by; the witness has no setting."""
    (nodes,) = {node.settings for node in locks._engine.multiplexer.nodes}
    return locks._engine.settings, replace(nodes, witness_key="")


def test_what_a_manager_goes_by_if_nothing_is_said() -> None:
    """docs/tuning.md has these figures."""
    assert settings_of(asynclock.connect(*URLS)) == (
        EngineSettings(0.25, 10.0, pytest.approx(1070.102), 0.01, None),
        NodeSettings(0.25, 10.0, True, True, True, False, "asynclock::#set"),
    )
    assert settings_of(asynclock.connect(URLS[0]))[1].guard_first is False
    lock = asynclock.connect(URLS[0]).lock("a")
    assert lock._options == LeaseOptions(10.0, True, None, True, True)


def test_what_a_manager_goes_by_if_all_is_said() -> None:
    locks = asynclock.connect(
        *URLS,
        ttl=4,
        max_ttl=20,
        node_timeout=0.5,
        turn=0.2,
        fence_retention=3000,
        prefix="shop:",
        label="web",
        restart_guard="disk",
        clock_guard=False,
        set_guard=False,
    )
    assert settings_of(locks) == (
        EngineSettings(0.5, 20.0, 3000.0, 0.2, "web"),
        NodeSettings(0.5, 20.0, True, True, False, True, ""),
    )
    assert locks.lock("a")._options.ttl == 4.0
    guards = settings_of(asynclock.connect(*URLS, restart_guard=False))[1]
    assert (guards.restart_guard, guards.disks_kept) == (False, False)


def test_the_longest_ttl_is_that_of_the_manager_but_at_least_ten_seconds() -> None:
    for ttl, longest in ((4.0, 10.0), (10.0, 10.0), (30.0, 30.0)):
        engine, node = settings_of(asynclock.connect(URLS[0], ttl=ttl))
        assert engine.max_ttl == node.max_ttl == longest


def test_on_a_cluster_each_name_has_a_slot_and_no_record_is_kept() -> None:
    locks = asynclock.connect("redis+cluster://127.0.0.1:1", prefix="shop:")
    assert locks.lock("a")._spec.keys[0] == "shop:{a}"
    assert settings_of(locks)[1].record_key == ""


@virtual
async def test_a_strict_manager_uses_no_server_that_may_evict_keys(on: Nodes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for node in on.nodes:
            said = node._said().replace("noeviction", "allkeys-lru")
            patch.setattr(node, "_said", lambda said=said: said)
        async with on.connect(restart_guard=False) as locks, locks.lock("a") as lease:
            assert lease.held
        with pytest.raises(ConfigurationError, match="may evict locks"):
            async with on.connect(strict=True, restart_guard=False):
                pass


WAITING: dict[str, Any] = {
    "lock": lambda locks, **given: locks.lock("a", **given).acquire(),
    "reentrant_lock": lambda locks, **given: locks.reentrant_lock("a", **given).acquire(),
    "multi_lock": lambda locks, **given: locks.multi_lock("a", "b", **given).acquire(),
    "read": lambda locks, **given: locks.rwlock("a", **given).read().acquire(),
    "write": lambda locks, **given: locks.rwlock("a", **given).write().acquire(),
    "election": lambda locks, **given: locks.election("a", **given).campaign("me"),
    "semaphore": lambda locks, **given: locks.semaphore("a", 1, **given).acquire(),
}
HOLDING = {**WAITING, "read": WAITING["write"]}


@pytest.mark.parametrize("kind", WAITING)
def test_each_kind_waits_for_as_long_as_it_was_made_for(kind: str) -> None:
    @virtual
    async def test(on: Nodes) -> None:
        async with on.connect() as others:
            held = await HOLDING[kind](others)
            began = _clock.now()
            with pytest.raises(asynclock.AcquireTimeoutError):
                async with asyncio.timeout(60):
                    await WAITING[kind](on.locks, timeout=2.0)
            assert _clock.now() - began == pytest.approx(2.0)
            assert held.held

    test()


@pytest.mark.parametrize("kind", [kind for kind in WAITING if kind != "election"])
def test_each_kind_is_held_for_the_ttl_that_it_was_made_with(kind: str) -> None:
    @virtual
    async def test(on: Nodes) -> None:
        lease = await WAITING[kind](on.locks, ttl=TTL / 2)
        assert lease.ttl == TTL / 2
        assert TTL * 0.45 < lease.remaining() < TTL * 0.5

    test()


@virtual
async def test_a_fair_lock_waits_and_is_held_as_it_was_made(on: Nodes) -> None:
    async with on.connect() as others, others.fair_lock("a").acquire():
        began = _clock.now()
        with pytest.raises(asynclock.AcquireTimeoutError):
            async with asyncio.timeout(60):
                await on.locks.fair_lock("a", timeout=2.0).acquire()
        assert _clock.now() - began == pytest.approx(2.0)
    async with on.locks.fair_lock("a", ttl=TTL / 2).acquire() as lease:
        assert lease.ttl == TTL / 2


@virtual
async def test_a_leader_that_is_gone_is_missed_for_the_ttl_of_its_election(on: Nodes) -> None:
    for ttl in (TTL / 2, None):
        async with on.connect() as others:
            election = others.election(f"e {ttl}", ttl=ttl)
            await election.campaign("me")
            left = await on.nodes[0].command("PTTL", election._spec.keys[0])
            assert left == pytest.approx((ttl or TTL) * 1000, abs=5)


@virtual
async def test_a_decorator_passes_its_settings_and_the_lease_on(on: Nodes) -> None:
    @on.locks.synchronized("a", lease="held", ttl=TTL / 2, timeout=2.0)
    async def work(*, held: asynclock.Lease | None = None) -> float:
        assert held is not None
        return held.ttl

    assert await work() == TTL / 2
    async with on.connect() as others, others.lock("a"):
        began = _clock.now()
        with pytest.raises(asynclock.AcquireTimeoutError):
            async with asyncio.timeout(60):
                await work()
        assert _clock.now() - began == pytest.approx(2.0)


async def waits_in_vain(lock: asynclock.ReentrantLock) -> bool:
    """Return whether the lock can't be acquired."""
    try:
        async with asyncio.timeout(60), lock.acquire():
            return False
    except asynclock.AcquireTimeoutError:
        return True


@virtual
async def test_a_nested_hold_is_inherited_only_if_the_lock_says_so(on: Nodes) -> None:
    for inherit in (True, False):
        lock = on.locks.reentrant_lock(f"a {inherit}", inherit=inherit, timeout=1.0)
        async with lock.acquire():
            waited = await asyncio.create_task(waits_in_vain(lock))
        assert waited is not inherit


@virtual
async def test_a_barrier_whose_parties_crash_counts_them_for_its_own_ttl(on: Nodes) -> None:
    assert on.locks.barrier("b", 2, ttl=TTL / 2)._ttl == TTL / 2
    assert on.locks.barrier("b", 2)._ttl == TTL
    with pytest.raises(ConfigurationError, match="ttl"):
        on.locks.barrier("b", 2, ttl=TTL * 2)


def test_each_method_that_takes_a_name_refuses_one_that_is_no_text() -> None:
    locks: Any = asynclock.connect(URLS[0])
    makers = (
        locks.lock,
        locks.reentrant_lock,
        locks.multi_lock,
        locks.rwlock,
        locks.fair_lock,
        locks.election,
        locks.event,
        lambda name: locks.latch(name, 2),
        lambda name: locks.barrier(name, 2),
        lambda name: locks.semaphore(name, 2),
    )
    for make in makers:
        for wrong in (7, "", "\ud800", b"a"):
            with pytest.raises(ConfigurationError):
                make(wrong)


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


@virtual
async def test_only_what_has_the_managers_prefix_is_listed(on: Nodes) -> None:
    async with on.connect(prefix="shop:") as shop:
        mine = await shop.lock("b").acquire()
        await on.locks.lock("a").acquire()
        found = [one async for one in shop.inspect_all()]
        assert [(one.name, one.owner) for one in found] == [("b", mine.owner)]
        assert _access.node_access(shop).prefix == "shop:"


@virtual
async def test_the_record_of_the_set_is_kept_under_the_managers_prefix_for_years(
    on: Nodes,
) -> None:
    async with on.connect(prefix="shop:") as shop:
        record = _access.fleet_record(shop)
        assert record.key == "shop:" + RECORD_KEY
        assert record.name == "the set of nodes"
        assert record._keep / (365 * 24 * 3600) == 10


@virtual
async def test_observers_are_called_in_the_order_in_which_they_came(on: Nodes) -> None:
    seen: list[str] = []

    def first(_event: events.Event) -> None:
        seen.append("first")

    def second(_event: events.Event) -> None:
        seen.append("second")

    async with on.connect(observers=[first]) as locks:
        locks.observe(second)
        seen.clear()
        async with locks.lock("a"):
            pass
    assert seen[:4] == ["first", "second"] * 2


@in_virtual_time
async def test_an_entered_manager_has_met_its_nodes() -> None:
    node = MemoryNode("n")
    node.born_ago(3600)
    place: Any = MemoryEndpoint("n", node)
    async with asynclock.connect(place) as locks:
        assert [one.state for one in locks.nodes()] == ["up"]


def test_what_connect_takes_is_what_its_signature_says() -> None:
    found = {
        name: parameter.default
        for name, parameter in inspect.signature(asynclock.connect).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert found == {
        "ttl": 10.0,
        "max_ttl": None,
        "node_timeout": 0.25,
        "turn": 0.01,
        "fence_retention": None,
        "acks": 0,
        "durable": False,
        "prefix": "asynclock:",
        "label": None,
        "restart_guard": True,
        "clock_guard": True,
        "set_guard": True,
        "strict": False,
        "observers": (),
    }
