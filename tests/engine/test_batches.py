"""What one tick of the loop asks for travels as one command per node, and each name stays alone.

Calls that end early and nodes that fail cost no other name, and leave no key behind.
"""

import asyncio
from collections import Counter
from typing import Any

import pytest

import asynclock
from tests.engine.batches import KINDS, NAMES, deny, forbid, free, lease_of, listen, teach, together
from tests.engine.virtual_nodes import (
    COUNTER,
    NODE_TIMEOUT,
    TTL,
    Nodes,
    instead,
    start,
    virtual,
    virtual_single,
)
from tests.waiting import go_through, until


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_one_command_per_node_and_tick(on: Nodes, kind: str) -> None:
    seen, owners = [listen(node) for node in on.nodes], set()

    async def hold(name: str) -> None:
        async with KINDS[kind](on.locks, name) as held:
            owners.add(getattr(held, "lease", held).owner)

    await asyncio.gather(*map(hold, NAMES))
    assert len(owners) == len(NAMES)
    assert seen == [["batch", "batch"]] * 3
    await free(on, *NAMES)


@virtual
async def test_one_name_needs_no_batch(on: Nodes) -> None:
    seen = [listen(node) for node in on.nodes]
    await go_through(on.locks.lock("a"))
    assert seen == [["acquire", "release"]] * 3


@virtual
async def test_releases_and_acquires_of_a_tick_share_a_command(on: Nodes) -> None:
    first = await together(on, "ab")
    seen = listen(on.nodes[0])
    *_, third = await asyncio.gather(
        *(lease.release() for lease in first), on.locks.lock("c").acquire()
    )
    assert third.held
    assert seen == ["batch"]


@virtual
async def test_what_begins_while_a_tick_ends_shares_the_next_command(on: Nodes) -> None:
    seen = listen(on.nodes[0])

    async def hold(name: str, ticks: int) -> asynclock.Lease:
        for _ in range(ticks):
            await asyncio.sleep(0)
        return await on.locks.lock(name).acquire()

    await asyncio.gather(hold("a", 0), hold("c", 1), hold("b", 0), hold("d", 1))
    assert seen == ["batch", "batch"]


async def one_after_the_other(on: Nodes) -> list[str]:
    """Have three tasks of the process hold one name in turn; return what a node executes."""
    seen = listen(on.nodes[0])

    async def hold() -> None:
        async with on.locks.lock("a", handoff=False):
            await asyncio.sleep(0.01)

    await asyncio.gather(*(hold() for _ in range(3)))
    assert on.locks.statistics().handovers == 0
    return seen


@pytest.mark.parametrize("others", [0, 20])
@virtual
async def test_a_release_and_the_next_task_share_a_command(on: Nodes, others: int) -> None:
    for _ in range(others):
        await go_through(on.locks.lock("x"))
    assert await one_after_the_other(on) == ["acquire", "batch", "batch", "release"]
    await free(on, "a")


@virtual_single
async def test_a_single_node_is_told_of_the_release_at_once(on: Nodes) -> None:
    assert await one_after_the_other(on) == ["acquire", "release"] * 3


@virtual
async def test_a_released_name_can_be_taken_in_the_same_tick(on: Nodes) -> None:
    lease, other = await together(on, "ab")
    release = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    again = await on.locks.lock("a").try_acquire()
    assert again is not None
    assert again.fence > lease.fence
    assert await release
    assert await other.release()


@virtual
async def test_a_held_name_keeps_no_other_name_back(on: Nodes) -> None:
    await on.ghost()
    tries = [on.locks.lock(name).try_acquire() for name in NAMES]
    first, *others = await asyncio.gather(*tries)
    assert first is None
    assert all(lease is not None and lease.held for lease in others)
    assert on.locks.statistics().refused == 1


@virtual
async def test_a_waiter_of_a_batch_gets_the_name_once_it_is_free(on: Nodes) -> None:
    await on.ghost(ttl=3.0)
    leases = await together(on)
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@virtual
async def test_another_programs_key_fails_its_own_name_only(on: Nodes) -> None:
    for node in on.nodes:
        await node.command("HSET", "asynclock:a", "x", "y")
        await node.command("HSET", "asynclock:b:#fence", "x", "y")
    first, second, *others = await together(on)
    for error in (first, second):
        assert isinstance(error, asynclock.ConfigurationError)
        assert "WRONGTYPE" in str(error)
    assert all(lease.held for lease in others)
    await asyncio.gather(*(lease.release() for lease in others))
    await free(on, *NAMES[1:])


@virtual
async def test_nodes_that_disagree_about_one_fence_agree_about_the_rest(on: Nodes) -> None:
    now = int(on.nodes[0].wall() * 1_000_000)
    for ahead, node in enumerate(on.nodes):
        await node.command("SET", "asynclock:b:#fence", now + ahead * 5_000_000, "PX", 60_000)
    leases = await together(on)
    fences = [lease.fence for lease in leases]
    # Two of three nodes decide, whichever reply first.
    assert fences[1] > max(fences[0], *fences[2:]) + 4_000_000
    assert on.locks.statistics().write_backs == 1


@virtual
async def test_each_ttl_has_a_command_of_its_own(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    ttls = (4.0, 5.0, 4.0, 5.0)
    calls = [on.locks.lock(f"{number}", ttl=ttl).acquire() for number, ttl in enumerate(ttls)]
    leases = await asyncio.gather(*calls)
    assert [lease.ttl for lease in leases] == [*ttls]
    assert seen == ["batch", "batch"]
    assert 4000 < await on.nodes[0].command("PTTL", "asynclock:3") <= 5000
    assert await on.nodes[0].command("PTTL", "asynclock:0") <= 4000


@virtual
async def test_each_number_of_keys_has_a_command_of_its_own(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    calls = [on.locks.lock(name).acquire() for name in "ab"]
    calls += [on.locks.semaphore(name, 2).acquire() for name in "cd"]
    calls += [on.locks.semaphore(name, 3).acquire() for name in "ef"]
    leases = await asyncio.gather(*calls)
    assert seen == ["batch"] * 3
    await asyncio.gather(*(lease.release() for lease in leases))
    assert seen == ["batch"] * 6
    await free(on, *"abcdef")


@virtual
async def test_acquires_that_change_the_side_go_alone(on: Nodes) -> None:
    both = [on.locks.rwlock(name) for name in "ab"]
    readers = await asyncio.gather(*(one.read().acquire() for one in both))
    upgrades = [one.upgrade(lease, timeout=1) for one, lease in zip(both, readers, strict=True)]
    writers = await asyncio.gather(*upgrades)
    await asyncio.gather(*(lease.release() for lease in readers))
    changes = [one.downgrade(lease) for one, lease in zip(both, writers, strict=True)]
    readers = await asyncio.gather(*changes)
    seen = listen(on.nodes[0])
    assert all(await asyncio.gather(*(lease.release() for lease in readers)))
    assert seen == ["batch"]
    assert on.locks.statistics().refused == 0


@pytest.mark.parametrize(("parts", "most"), [("a", 64), ("abc", 64), ("abcd", 48)])
@virtual
async def test_a_command_has_a_maximum_of_names_and_keys(on: Nodes, parts: str, most: int) -> None:
    seen, names = (
        listen(on.nodes[0]),
        [[f"{n}{part}" for part in parts] for n in range(2 * most + 2)],
    )
    leases = await asyncio.gather(*(on.locks.multi_lock(*each).acquire() for each in names))
    assert all(lease.held for lease in leases)
    assert seen == ["batch"] * 3


# calls that end early


@virtual
async def test_a_call_that_is_over_is_not_asked_for_alone(on: Nodes) -> None:
    for node in on.nodes:
        forbid(node, "a")
    on.slow(0.1)
    tasks = [asyncio.create_task(lease_of(on, name)) for name in NAMES]
    await asyncio.sleep(0.05)
    tasks[1].cancel()
    error, cancelled, *leases = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(error, asynclock.ConfigurationError)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(lease.held for lease in leases)
    await asyncio.sleep(0.5)
    await free(on, *"ab")


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_a_call_closed_before_the_tick_ends_is_never_sent(on: Nodes, kind: str) -> None:
    seen = listen(on.nodes[0])
    call = KINDS[kind](on.locks, "a")
    call.send(None)
    call.close()
    await asyncio.gather(*(on.locks.lock(name).acquire() for name in "bc"))
    assert seen == ["batch"]
    await free(on, "a")
    assert on.locks.statistics().waiting == 0


@virtual
async def test_a_call_that_is_begun_and_dropped_gives_its_name_up(on: Nodes) -> None:
    for rounds in range(3):  # 0: the batch is not sent yet
        calls = [on.locks.lock(name).acquire() for name in NAMES]
        for call in calls:
            call.send(None)
        for _ in range(rounds):
            await asyncio.sleep(0)
        del call, calls
        async with asyncio.timeout(TTL / 2), on.locks.lock("a"):
            pass
        await free(on, *NAMES)
        assert on.locks.statistics().waiting == 0


@virtual
async def test_a_cancelled_call_gives_up_its_name_only(on: Nodes) -> None:
    on.slow(0.1)
    tasks = [asyncio.create_task(lease_of(on, name)) for name in NAMES]
    await asyncio.sleep(0.05)
    tasks[0].cancel()
    leases = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(leases[0], asyncio.CancelledError)
    assert all(lease.held for lease in leases[1:])
    await free(on, "a")


@pytest.mark.parametrize("differ", [False, True])
@virtual
async def test_closing_the_manager_leaves_nothing_behind(on: Nodes, differ: bool) -> None:
    """All calls end, also if the replies that come meanwhile differ and a node sends none."""
    on.slow(0.1)
    async with on.connect(ttl=60.0, max_ttl=60.0) as other:
        for node in on.nodes:
            node.born_ago(3600)
        await go_through(other.lock("warm"))
        if differ:
            await on.command("SET", COUNTER, 2**52, only="b")
            on.ways[2].go_mute()
        tasks = [start(other.lock(name).acquire()) for name in NAMES]
        await asyncio.sleep(0.05)
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(error) for error in errors} == {asynclock.ConfigurationError}
    await free(on, *NAMES)


# nodes that fail


@virtual
async def test_a_node_that_is_down_breaks_no_batch(on: Nodes) -> None:
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down", every=0.01)
    seen = [listen(node) for node in on.nodes]
    leases = await together(on)
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    assert seen == [["batch", "batch"], ["batch", "batch"], []]
    await free(on, *NAMES)


@virtual
async def test_a_quarantined_node_gets_the_releases_alone(on: Nodes) -> None:
    first = await together(on, "ab")
    on.nodes[2].restart(keep_data=True)
    await until(lambda: on.locks.nodes()[2].state == "quarantined", every=0.01)
    seen = [listen(node) for node in on.nodes]
    *_, third = await asyncio.gather(*(one.release() for one in first), lease_of(on, "c"))
    assert third.held
    assert seen == [["batch"], ["batch"], ["release", "release"]]
    await free(on, *"ab")


@pytest.mark.parametrize("why", ["down", "silent"])
@virtual
async def test_too_few_nodes_for_a_batch_fail_every_name(on: Nodes, why: str) -> None:
    if why == "down":
        on.kill("bc")
        await until(lambda: [n.state for n in on.locks.nodes()].count("down") == 2, every=0.01)
    for way in on.ways[:2] if why == "silent" else ():
        way.go_mute()
    call = start(on.locks.lock("x").acquire())
    asyncio.get_running_loop().call_soon(call.cancel)  # in the tick whose end sends the batch
    seen = listen(on.nodes[0])
    errors = await together(on, timeout=2.0)
    assert why == "silent" or not seen, "there is no quorum to win"
    assert Counter(map(type, errors)) == {asynclock.QuorumUnavailableError: len(NAMES)}
    await free(on, *NAMES)


@virtual
async def test_a_connection_that_breaks_in_between_costs_no_name(on: Nodes) -> None:
    on.slow(0.1)
    gathered = asyncio.ensure_future(together(on))
    await asyncio.sleep(0.05)
    on.nodes[0].cut()
    leases = await gathered
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@virtual
async def test_releases_that_a_node_did_not_answer_are_sent_again(on: Nodes) -> None:
    leases = await together(on)
    on.nodes[0].freeze()
    await asyncio.gather(*(lease.release() for lease in leases))
    # By now the link counts all as failed: the connection breaks later.
    await until(lambda: on.locks.nodes()[0].state == "stalled", every=0.01)
    on.nodes[0].restart(keep_data=True)
    assert await on.nodes[0].command("EXISTS", "asynclock:a")
    await free(on, *NAMES)


@virtual
async def test_a_stalled_node_gets_no_release_of_a_lease_it_was_not_asked_for(on: Nodes) -> None:
    granted = await together(on, "ab")
    on.nodes[0].freeze()
    asked = await together(on, "cd")
    await until(lambda: on.locks.nodes()[0].state == "stalled", every=0.01)
    seen = listen(on.nodes[0])
    later = await together(on, "ef")
    assert all(lease.held for lease in later)
    await asyncio.gather(*(lease.release() for lease in (*granted, *asked, *later)))
    on.nodes[0].thaw()
    await free(on, *"abcdef")
    assert Counter(seen) == {"batch": 1, "leave": 2, "release": 4}, "nothing of e and f"


@pytest.mark.parametrize("denied", ["", "a"])
@virtual
async def test_a_late_error_does_not_cost_the_other_releases(on: Nodes, denied: str) -> None:
    """The server has forgotten the script, or the user has no right to a name."""
    leases = await together(on, "ab")
    on.nodes[0].forget_scripts()
    forbid(on.nodes[0], denied)
    on.nodes[0].freeze()
    await asyncio.gather(*(lease.release() for lease in leases))
    await until(lambda: on.locks.nodes()[0].state == "stalled", every=0.01)
    on.nodes[0].thaw()
    await free(on, *{*"ab"} - {denied})


@virtual
async def test_nodes_that_forgot_the_script_get_it_again(on: Nodes) -> None:
    for node in on.nodes:
        node.forget_scripts()
    leases = await together(on)
    assert all(lease.held for lease in leases)
    for node in on.nodes:
        node.forget_scripts()
    assert all(await asyncio.gather(*(lease.release() for lease in leases)))
    await free(on, *NAMES)


@virtual
async def test_releases_that_ran_before_their_acquires_are_repeated(on: Nodes) -> None:
    """The acquires met a server without its script, which another client then loaded."""
    node = on.nodes[2]
    node.forget_scripts()
    on.ways[2].seconds = 0.1
    leases = await together(on, "ab")
    await asyncio.sleep(0.05)
    assert all(await asyncio.gather(*(lease.release() for lease in leases)))
    await asyncio.sleep(0.075)
    await teach(on)
    await asyncio.sleep(0.5)
    assert await node.command("EXISTS", "asynclock:a:#fence", "asynclock:b:#fence") == 2
    assert await node.command("EXISTS", "asynclock:a", "asynclock:b") == 0


@virtual
async def test_a_late_refusal_leaves_no_ticket(on: Nodes) -> None:
    await on.ghost("ghost", only="c", ttl=5.0)
    on.ways[2].seconds = 0.2
    leases = await together(on)
    assert all(lease.held for lease in leases)

    async def left() -> bool:
        return not await on.nodes[2].command("EXISTS", "asynclock:a:#queue")

    await asyncio.sleep(0.5)
    await until(left, "the ticket is gone", every=0.01)


@virtual
async def test_a_waiter_that_won_leaves_the_queue_of_a_late_node(on: Nodes) -> None:
    await on.ghost()
    waiter = start(on.locks.lock("a").acquire())
    await asyncio.sleep(0.1)
    on.nodes[2].freeze()
    await on.command("DEL", "asynclock:a", only="ab")
    assert (await waiter).held
    await asyncio.sleep(1.5 * NODE_TIMEOUT)
    on.nodes[2].thaw()
    await asyncio.sleep(0.1)
    assert await on.nodes[2].command("GET", "asynclock:a") == "ghost"
    assert not await on.nodes[2].command("EXISTS", "asynclock:a:#queue")


@virtual
async def test_a_late_error_of_a_batch_that_was_won_is_seen(on: Nodes) -> None:
    deny(on.nodes[2])
    on.ways[2].seconds = 0.1
    assert all(lease.held for lease in await together(on))
    await asyncio.sleep(0.3)
    assert "OOM" in on.locks.nodes()[2].cause


@virtual
async def test_a_release_that_nodes_deny_is_a_loss_of_its_name_only(on: Nodes) -> None:
    leases = await together(on)
    await on.command("DEL", "asynclock:a", only="ab")
    held = await asyncio.gather(*(lease.release() for lease in leases))
    assert held == [False, True, True, True, True]
    with pytest.raises(asynclock.LeaseLostError):
        await leases[0].extend()


@virtual
async def test_a_batch_that_one_node_fails_keeps_what_the_others_have_granted(on: Nodes) -> None:
    """The releases stand first in each reply; no fence is taken from their places."""
    held = await together(on, "xyz")
    deny(on.nodes[1])
    seen = [listen(node) for node in on.nodes]
    before = on.locks.statistics().write_backs
    *released, first, second = await asyncio.gather(
        *(lease.release() for lease in held), lease_of(on, "a"), lease_of(on, "b")
    )
    assert released == [True] * 3
    assert (first.held, second.held) == (True, True)
    assert on.locks.statistics().write_backs == before
    fences = [await node.command("GET", COUNTER) for node in on.nodes]
    assert fences[0] == fences[2] == str(first.fence)
    assert [seen[0], seen[2]] == [["batch"]] * 2, "no node is told a fence that it gave"


@virtual
async def test_a_batch_may_be_executed_while_a_late_timer_may_still_wait_for_it(on: Nodes) -> None:
    """And no later: the key would outlive a caller that has given up."""
    began, node = on.nodes[0].wall(), on.nodes[0]
    limits: dict[tuple[bytes, bytes], float] = {}

    def noting(words: Any) -> None:
        if words[0].upper() == b"EVALSHA":
            keys, (operation, *args) = words[2], words[3 + int(words[2]) :]
            if operation in (b"acquire", b"batch"):
                limits[keys, operation] = int(args[3]) / 1_000_000 - began

    instead(node, noting)
    async with on.connect(node_timeout=0.5) as on.locks:
        await lease_of(on, "warm")
        await asyncio.sleep(0.1)
        limits.clear()
        await lease_of(on, "x")
        await together(on, "ab")
        await on.locks.semaphore("s", 2).acquire()
        assert {operation for _, operation in limits} == {b"acquire", b"batch"}
        assert list(limits.values()) == [pytest.approx(8 * 0.5, abs=0.2)] * 3
