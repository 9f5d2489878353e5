"""What one tick of the loop asks for travels as one command per node, and each name stays alone."""

from __future__ import annotations

import asyncio
import traceback

import pytest

import asynclock
from asynclock._engine.batch import ALONE, MOST_NAMES, Batch
from asynclock._nodes.requests import ServerRequests
from tests.engine.batches import NAMES, forbid, free, listen, together
from tests.engine.virtual_nodes import Nodes, busy, virtual, virtual_single


@busy
async def test_one_command_per_node_and_tick(on: Nodes) -> None:
    seen = [listen(node) for node in on.nodes]
    leases = await together(on)
    assert len({lease.owner for lease in leases}) == len(NAMES)
    await asyncio.gather(*(lease.release() for lease in leases))
    assert seen == [["batch", "batch"]] * 3
    await free(on, *NAMES)


@virtual
async def test_the_first_request_is_sent_at_once(on: Nodes) -> None:
    """What else its tick asks for travels together, because its own verdict is not there yet."""
    nodes = on.locks._engine.multiplexer
    several = await together(on, "xyz")
    await asyncio.gather(*(lease.release() for lease in several))
    assert nodes.singles == 0
    for _ in range(ALONE // 2):  # it takes a while until one task seems to be alone
        async with on.locks.lock("x"):
            pass
    seen = listen(on.nodes[0])
    call = on.locks.lock("a").acquire()
    call.send(None)
    assert nodes.undecided == 1
    assert not nodes.unsent
    leases = await together(on, "bcd")
    assert seen == ["acquire", "batch"]
    await leases[0].release()
    assert seen == ["acquire", "batch", "release"]
    call.close()
    await free(on, "a", "b")


@busy
async def test_one_name_needs_no_batch(on: Nodes) -> None:
    seen = [listen(node) for node in on.nodes]
    async with on.locks.lock("a"):
        pass
    assert seen == [["acquire", "release"]] * 3


@busy
async def test_releases_and_acquires_of_a_tick_share_a_command(on: Nodes) -> None:
    first = await together(on, "ab")
    seen = listen(on.nodes[0])
    *_, third = await asyncio.gather(
        *(lease.release() for lease in first), on.locks.lock("c").acquire()
    )
    assert third.held
    assert seen == ["batch"]


async def one_after_the_other(on: Nodes) -> list[str]:
    """Have three tasks of the process hold one name in turn; return what a node executes."""
    seen = listen(on.nodes[0])

    async def hold() -> None:
        async with on.locks.lock("a", handoff=False):
            await asyncio.sleep(0.01)

    await asyncio.gather(*(hold() for _ in range(3)))
    assert on.locks.statistics().handovers == 0
    return seen


@busy
async def test_a_release_and_the_next_task_of_the_process_share_a_command(on: Nodes) -> None:
    assert await one_after_the_other(on) == ["acquire", "batch", "batch", "release"]
    await free(on, "a")


@virtual
async def test_they_do_if_this_name_is_all_that_the_process_asks_for(on: Nodes) -> None:
    for _ in range(ALONE):
        async with on.locks.lock("x"):
            pass
    assert await one_after_the_other(on) == ["acquire", "batch", "batch", "release"]


@virtual_single
async def test_a_single_node_is_told_of_the_release_at_once(on: Nodes) -> None:
    assert await one_after_the_other(on) == ["acquire", "release"] * 3


@busy
async def test_a_released_name_can_be_taken_in_the_same_tick(on: Nodes) -> None:
    lease, other = await together(on, "ab")
    release = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    again = await on.locks.lock("a").try_acquire()
    assert again is not None
    assert again.fence > lease.fence
    assert await release
    assert await other.release()


@busy
async def test_it_can_be_taken_in_the_same_tick_where_each_name_goes_alone(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerRequests, "takes_batches", False)
        _, _, again = await asyncio.gather(
            on.locks.lock("x", ttl=5.0).acquire(), lease.release(), on.locks.lock("a").try_acquire()
        )
    assert again is not None


@busy
async def test_a_held_name_keeps_no_other_name_back(on: Nodes) -> None:
    await on.ghost()
    tries = [on.locks.lock(name).try_acquire() for name in NAMES]
    first, *others = await asyncio.gather(*tries)
    assert first is None
    assert all(lease is not None and lease.held for lease in others)
    assert on.locks.statistics().refused == 1


@busy
async def test_a_waiter_of_a_batch_gets_the_name_once_it_is_free(on: Nodes) -> None:
    await on.ghost(ttl=3.0)
    leases = await together(on)
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@busy
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


@busy
async def test_a_name_without_a_right_to_it_fails_alone(on: Nodes) -> None:
    held = await together(on, "xy")
    for node in on.nodes:
        forbid(node, "a")
    wanted = asyncio.ensure_future(together(on))
    assert all(await asyncio.gather(*(lease.release() for lease in held)))
    error, *leases = await wanted
    assert isinstance(error, asynclock.ConfigurationError)
    assert "NOPERM" in str(error)
    assert all(lease.held for lease in leases)
    await free(on, *"axy")


@busy
async def test_nodes_that_disagree_about_one_fence_agree_about_the_rest(on: Nodes) -> None:
    now = int(on.nodes[0].wall() * 1_000_000)
    for ahead, node in enumerate(on.nodes):
        await node.command("SET", "asynclock:b:#fence", now + ahead * 5_000_000, "PX", 60_000)
    leases = await together(on)
    fences = [lease.fence for lease in leases]
    # Two of three nodes decide, whichever reply first.
    assert fences[1] > max(fences[0], *fences[2:]) + 4_000_000
    assert on.locks.statistics().write_backs == 1


@busy
async def test_each_ttl_has_a_command_of_its_own(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    ttls = (4.0, 5.0, 4.0, 5.0)
    calls = [on.locks.lock(f"{number}", ttl=ttl).acquire() for number, ttl in enumerate(ttls)]
    leases = await asyncio.gather(*calls)
    assert [lease.ttl for lease in leases] == [*ttls]
    assert seen == ["batch", "batch"]
    assert 4000 < await on.nodes[0].command("PTTL", "asynclock:3") <= 5000
    assert await on.nodes[0].command("PTTL", "asynclock:0") <= 4000


@busy
async def test_any_number_of_ttls_in_one_tick(on: Nodes) -> None:
    """No batch is sent within another: there may be more than calls can nest."""
    depths: list[int] = []
    many, send = 100, Batch.send

    def counted(batch: Batch, *, now: bool) -> None:
        depths.append(sum(1 for _ in traceback.walk_stack(None)))
        send(batch, now=now)

    held = await on.locks.lock("held").acquire()
    calls = [
        on.locks.lock(f"n{number}", ttl=5.0 + number / 1000).acquire() for number in range(many)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "send", counted)
        *leases, checked = await asyncio.gather(*calls, held.check())
    assert checked
    assert all(lease.held for lease in leases)
    assert len(depths) == many
    assert max(depths) - min(depths) < many / 2


@busy
async def test_a_command_has_a_maximum_number_of_names(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    calls = [on.locks.lock(f"n{number}").acquire() for number in range(2 * MOST_NAMES + 2)]
    leases = await asyncio.gather(*calls)
    assert all(lease.held for lease in leases)
    assert seen == ["batch"] * 3


@busy
async def test_a_full_command_is_sent_at_once(on: Nodes) -> None:
    await (await on.locks.lock("connected").acquire()).release()
    nodes = on.locks._engine.multiplexer
    calls = [on.locks.lock(f"n{number}").acquire() for number in range(MOST_NAMES)]
    for call in calls:
        assert len(nodes.unsent) == (call is not calls[0])
        call.send(None)
    assert not nodes.unsent  # nodes work on it while other tasks of this tick go on
    for call in calls:
        call.close()
    await free(on, *(f"n{number}" for number in range(MOST_NAMES)))
