"""Nodes and connections that fail cost no name of a batch, and leave no key behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import asynclock
from asynclock._nodes.link import LATE_TIMER_FACTOR
from asynclock._primitives.lock import SCRIPT
from tests.engine.batches import NAMES, deny, forbid, free, lease_of, listen, together
from tests.engine.virtual_nodes import COUNTER, NODE_TIMEOUT, Nodes, busy
from tests.waiting import until


@busy
async def test_a_node_that_is_down_breaks_no_batch(on: Nodes) -> None:
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down", every=0.01)
    seen = [listen(node) for node in on.nodes]
    leases = await together(on)
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    assert seen == [["batch", "batch"], ["batch", "batch"], []]
    await free(on, *NAMES)


@busy
async def test_a_quarantined_node_gets_the_releases_alone(on: Nodes) -> None:
    first = await together(on, "ab")
    on.nodes[2].restart(keep_data=True)
    await until(lambda: on.locks.nodes()[2].state == "quarantined", every=0.01)
    seen = [listen(node) for node in on.nodes]
    *_, third = await asyncio.gather(*(one.release() for one in first), lease_of(on, "c"))
    assert third.held
    assert seen == [["batch"], ["batch"], ["release", "release"]]
    await free(on, *"ab")


@busy
async def test_a_name_that_is_held_elsewhere_is_refused_while_a_node_is_down(on: Nodes) -> None:
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down", every=0.01)
    await on.ghost(only="a")
    calls = [on.locks.lock(name).try_acquire() for name in "abc"]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert first is None
    assert second.held
    assert third.held


@busy
async def test_too_few_nodes_for_a_batch_fail_every_name(on: Nodes) -> None:
    for number in (1, 2):
        on.nodes[number].kill()
    await until(lambda: [n.state for n in on.locks.nodes()].count("down") == 2, every=0.01)
    errors = await together(on, timeout=1.0)
    assert Counter(map(type, errors)) == {asynclock.QuorumUnavailableError: len(NAMES)}
    await free(on, *NAMES)


@busy
async def test_a_connection_that_breaks_in_between_costs_no_name(on: Nodes) -> None:
    on.slow(0.1)
    gathered = asyncio.ensure_future(together(on))
    await asyncio.sleep(0.05)
    on.nodes[0].cut()
    leases = await gathered
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@busy
async def test_releases_that_a_node_did_not_answer_are_sent_again(on: Nodes) -> None:
    leases = await together(on)
    on.nodes[0].freeze()
    await asyncio.gather(*(lease.release() for lease in leases))
    # By now the link counts all as failed: the connection breaks later.
    await until(lambda: on.locks.nodes()[0].state == "stalled", every=0.01)
    on.nodes[0].restart(keep_data=True)
    assert await on.nodes[0].command("EXISTS", "asynclock:a")
    await free(on, *NAMES)


@busy
async def test_a_stalled_node_gets_no_release_of_a_lease_that_it_was_not_asked_for(
    on: Nodes,
) -> None:
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


@busy
async def test_a_late_error_about_the_script_does_not_cost_the_releases(on: Nodes) -> None:
    leases = await together(on)
    on.nodes[0].forget_scripts()
    on.nodes[0].freeze()
    await asyncio.gather(*(lease.release() for lease in leases))
    on.nodes[0].thaw()
    await free(on, *NAMES)


@busy
async def test_a_late_denial_of_one_name_does_not_cost_the_other_releases(on: Nodes) -> None:
    leases = await together(on, "ab")
    forbid(on.nodes[0], "a")
    on.nodes[0].freeze()
    await asyncio.gather(*(lease.release() for lease in leases))
    await until(lambda: on.locks.nodes()[0].state == "stalled", every=0.01)
    on.nodes[0].thaw()
    await free(on, "b")


@busy
async def test_too_few_answers_fail_every_name(on: Nodes) -> None:
    for way in on.ways[:2]:
        way.go_mute()
    errors = await together(on, timeout=2.0)
    assert Counter(map(type, errors)) == {asynclock.QuorumUnavailableError: len(NAMES)}
    await free(on, *NAMES)


@busy
async def test_nodes_that_forgot_the_script_get_it_again(on: Nodes) -> None:
    for node in on.nodes:
        node.forget_scripts()
    leases = await together(on)
    assert all(lease.held for lease in leases)
    for node in on.nodes:
        node.forget_scripts()
    assert all(await asyncio.gather(*(lease.release() for lease in leases)))
    await free(on, *NAMES)


@busy
async def test_releases_that_ran_before_their_acquires_are_repeated(on: Nodes) -> None:
    """The acquires met a server without its script, which another client then loaded."""
    node = on.nodes[2]
    node.forget_scripts()
    on.ways[2].seconds = 0.1
    leases = await together(on, "ab")
    await asyncio.sleep(0.05)
    assert all(await asyncio.gather(*(lease.release() for lease in leases)))
    await asyncio.sleep(0.075)
    await node.command("SCRIPT", "LOAD", SCRIPT.source)
    await asyncio.sleep(0.5)
    assert await node.command("EXISTS", "asynclock:a:#fence", "asynclock:b:#fence") == 2
    assert await node.command("EXISTS", "asynclock:a", "asynclock:b") == 0


@busy
async def test_a_late_refusal_leaves_no_ticket(on: Nodes) -> None:
    await on.ghost("ghost", only="c", ttl=5.0)
    on.ways[2].seconds = 0.2
    leases = await together(on)
    assert all(lease.held for lease in leases)

    async def left() -> bool:
        return not await on.nodes[2].command("EXISTS", "asynclock:a:#queue")

    await asyncio.sleep(0.5)
    await until(left, "the ticket is gone", every=0.01)


@busy
async def test_a_release_that_nodes_deny_is_a_loss_of_its_name_only(on: Nodes) -> None:
    leases = await together(on)
    for node in on.nodes[:2]:
        await node.command("DEL", "asynclock:a")
    held = await asyncio.gather(*(lease.release() for lease in leases))
    assert held == [False, True, True, True, True]
    with pytest.raises(asynclock.LeaseLostError):
        await leases[0].extend()


@busy
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
    assert first.held
    assert second.held
    assert on.locks.statistics().write_backs == before
    fences = [await node.command("GET", COUNTER) for node in on.nodes]
    assert fences[0] == fences[2] == str(first.fence)
    assert [seen[0], seen[2]] == [["batch"]] * 2, "no node is told a fence that it gave"


@busy
async def test_of_two_names_the_one_without_a_right_to_it_fails_alone(on: Nodes) -> None:
    for node in on.nodes:
        forbid(node, "a")
    error, other = await together(on, "ab")
    assert isinstance(error, asynclock.ConfigurationError)
    assert other.held
    held = await lease_of(on, "c")
    _, released = await asyncio.gather(
        on.locks.lock("a").acquire(), held.release(), return_exceptions=True
    )
    assert released is True
    await free(on, "c")


@busy
async def test_a_batch_may_be_executed_while_a_late_timer_may_still_wait_for_it(on: Nodes) -> None:
    """And no later: the key would outlive a caller that has given up."""
    began, node = on.nodes[0].wall(), on.nodes[0]
    limits: dict[bytes, float] = {}
    answer = node.answer

    def noting(client: Any, words: Any) -> Any:
        if words[0].upper() == b"EVALSHA":
            operation, *args = words[3 + int(words[2]) :]
            if operation in (b"acquire", b"batch"):
                limits[operation] = int(args[3]) / 1_000_000 - began
        return answer(client, words)

    node.answer = noting  # type: ignore[method-assign]
    single = await lease_of(on, "x")
    several = await together(on, "ab")
    assert set(limits) == {b"acquire", b"batch"}
    latest = LATE_TIMER_FACTOR * NODE_TIMEOUT
    assert list(limits.values()) == [pytest.approx(latest, abs=0.05)] * 2
    assert all(lease.held for lease in (single, *several))
