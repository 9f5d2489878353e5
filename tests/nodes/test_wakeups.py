"""When the pushes of several nodes wake a waiter, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from asynclock import _clock
from asynclock._nodes.wakeup import PUSH_WINDOW, QUORUM_PUSH_WINDOW, Wakeups, Watch
from tests.waiting import in_virtual_time

LONG = 1.0


async def slept(watch: Watch) -> float | None:
    """Return for how long a waiter slept; None if nobody woke it."""
    began = _clock.now()
    return _clock.now() - began if await watch.wait(LONG) else None


def soon(seconds: float) -> object:
    return pytest.approx(seconds, abs=0.0001)


@pytest.mark.parametrize(
    ("nodes", "seconds"),
    [
        ((0,), PUSH_WINDOW),
        ((0, 0, 0), PUSH_WINDOW),
        ((0, 1), QUORUM_PUSH_WINDOW),
        ((2, 1), QUORUM_PUSH_WINDOW),
        ((0, 1, 2), 0.0),
    ],
)
@in_virtual_time
async def test_a_waiter_wakes_once_for_the_pushes_of_all_nodes(
    nodes: tuple[int, ...], seconds: float
) -> None:
    """At once if none is missing, a moment after a quorum, a little later after a single one."""
    wakeups = Wakeups(3, 2)
    watch = wakeups.watch(("a", "b"))
    for node, key in zip(nodes, "abb", strict=False):
        wakeups.wake(key, node)
    assert watch.called
    assert await slept(watch) == soon(seconds)


@in_virtual_time
async def test_a_ticket_wakes_its_waiter_at_a_quorum_and_a_change_of_the_name_a_little_later() -> (
    None
):
    """So of all who wait for the name, the one goes first whose turn it is."""
    wakeups = Wakeups(3, 2)
    ours, theirs = (wakeups.watch(("name",), ticket=one) for one in ("ours", "theirs"))
    for node in (0, 1):
        wakeups.wake("name", node)
        wakeups.wake("ours", node)
    assert ours.called
    assert not theirs.called, "a change of the name says nothing of its ticket"
    assert await slept(ours) == soon(0)
    assert await slept(theirs) == soon(PUSH_WINDOW)


@in_virtual_time
async def test_more_changes_of_the_name_do_not_delay_a_waiter() -> None:
    wakeups = Wakeups(3, 2)
    watch = wakeups.watch(("name",), ticket="ours")
    asleep = asyncio.ensure_future(slept(watch))
    for _ in range(5):
        await asyncio.sleep(PUSH_WINDOW / 2)
        wakeups.wake("name", 0)
    assert await asleep == soon(1.5 * PUSH_WINDOW)


@in_virtual_time
async def test_more_pushes_of_a_node_that_has_pushed_do_not_delay_a_waiter() -> None:
    wakeups = Wakeups(3, 2)
    watch = wakeups.watch(("a",))
    wakeups.wake("a", 0)
    asleep = asyncio.ensure_future(slept(watch))
    await asyncio.sleep(0)
    for _ in range(5):
        wakeups.wake("a", 1)
        await asyncio.sleep(QUORUM_PUSH_WINDOW / 2)
    assert await asleep == soon(QUORUM_PUSH_WINDOW)


@in_virtual_time
async def test_what_the_nodes_said_in_replies_counts_with_their_pushes() -> None:
    wakeups = Wakeups(3, 2)
    watch = wakeups.watch((), ticket="ours")
    wakeups.count("ours", 0)
    assert await slept(watch) is None, "one node alone starts no timer"
    wakeups.count("theirs", 1)
    assert await slept(watch) is None
    wakeups.count("ours", 1)
    assert await slept(watch) == soon(0)


@in_virtual_time
async def test_a_change_of_our_own_and_a_new_connection_wake_all_at_once() -> None:
    wakeups = Wakeups(3, 2)
    first, second = wakeups.watch(("a",)), wakeups.watch(("a", "b"))
    elsewhere = wakeups.watch(("c",))
    wakeups.wake("a")
    assert [await slept(one) for one in (first, second, elsewhere)] == [0, 0, None]
    for one in (first, second):
        one.reset()
    wakeups.wake(None)
    assert [await slept(one) for one in (first, second, elsewhere)] == [0, 0, 0]


@in_virtual_time
async def test_pushes_from_before_the_request_wake_nobody_behind_it() -> None:
    wakeups = Wakeups(3, 2)
    watch = wakeups.watch(("a",))
    wakeups.wake("a", 0)
    watch.reset()
    assert not watch.called
    assert await slept(watch) is None
    wakeups.wake("a", 0)
    assert await slept(watch) == soon(PUSH_WINDOW), "the same node's next push is a new one"
    watch.reset()
    wakeups.wake("a", 0)
    wakeups.wake("a", 1)
    watch.reset()
    wakeups.wake("a", 2)
    assert await slept(watch) == soon(PUSH_WINDOW), "one of three, whatever came before"


@in_virtual_time
async def test_a_push_between_the_request_and_the_sleep_is_not_missed() -> None:
    wakeups = Wakeups(1, 1)
    watch = wakeups.watch(("a",))
    wakeups.wake("a", 0)
    assert await slept(watch) == soon(0)


@in_virtual_time
async def test_a_watch_that_is_closed_leaves_nothing_behind() -> None:
    wakeups = Wakeups(3, 2)
    watches = [wakeups.watch(("name",), ticket=ticket) for ticket in ("ours", "theirs")]
    wakeups.wake("name", 0)
    watches[0].close()
    assert set(wakeups.watched) == {"name", "theirs"}
    watches[0].close()
    assert await slept(watches[1]) == soon(PUSH_WINDOW), "the other one still watches"
    assert not watches[0].woken, "its timer is gone"
    watches[1].close()
    assert wakeups.watched == {}


@in_virtual_time
async def test_a_waiter_that_a_quorum_woke_is_not_woken_again_for_the_first_push() -> None:
    """It would ask all nodes once more."""
    wakeups = Wakeups(3, 2)
    watch = wakeups.watch(("a",))
    for node in (0, 1):
        wakeups.wake("a", node)
    assert await slept(watch) == soon(QUORUM_PUSH_WINDOW)
    watch.reset()
    assert await slept(watch) is None
