"""What may happen while a request is on its way. In virtual time, to the millisecond."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import asynclock
from tests.engine.virtual_nodes import COUNTER, KEY, NODE_TIMEOUT, TTL, Nodes, start, virtual
from tests.waiting import until

Wish = Callable[[Nodes], Awaitable[asynclock.Lease]]


def of_kinds(scenario: Callable[[Nodes, Wish], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a mutex and of a permit, whose requests are in no batch."""
    wishes: dict[str, Wish] = {
        "lock": lambda on: on.locks.lock("a", renew=False).acquire(),
        "permit": lambda on: on.locks.semaphore("a", 1, renew=False).acquire(),
    }

    @pytest.mark.parametrize("kind", wishes)
    def test(kind: str) -> None:
        async def play(on: Nodes) -> None:
            await scenario(on, wishes[kind])

        virtual(play)()

    return test


@virtual
async def test_a_grant_of_a_node_that_was_flushed_meanwhile_does_not_count(on: Nodes) -> None:
    """It may have been free only because it forgot who had it."""
    on.nodes[2].kill()
    on.ways[0].seconds = 0.3
    await until(lambda: on.locks.nodes()[2].state == "down")
    asking = start(on.locks.lock("a").try_acquire())
    await asyncio.sleep(0.1)
    on.nodes[0].flush()  # the news of it takes 0.3 s, so the request arrives before
    with pytest.raises(asynclock.QuorumUnavailableError) as caught:
        await asking
    assert "its keys were flushed" in caught.value.nodes["memory://a"]


@virtual
async def test_a_raise_on_a_node_whose_clock_jumped_meanwhile_does_not_count(on: Nodes) -> None:
    """Its key may end sooner than we think, so it can't hold the fence for us."""
    await on.nodes[0].command("SET", COUNTER, int((on.nodes[0].wall() + 30) * 1e6))
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down")
    on.ways[1].seconds = 0.2
    asking = start(on.locks.lock("a").try_acquire())
    await until(lambda: on.nodes[1].keys.get(KEY))
    on.nodes[1].jump_clock(5)  # the answer to the acquire tells the old time, that to the raise not
    with pytest.raises(asynclock.QuorumUnavailableError) as caught:
        await asking
    assert "its clock jumped" in caught.value.nodes["memory://b"]
    assert on.locks.statistics().write_backs == 1


@of_kinds
async def test_a_request_that_comes_late_is_not_executed(on: Nodes, wish: Wish) -> None:
    """Its client has given up, and another owner may have been granted the name rightfully."""
    on.ways[0].seconds = 8 * NODE_TIMEOUT + 0.5
    lease = await wish(on)
    assert await lease.release()
    await asyncio.sleep(10 * NODE_TIMEOUT)
    late, in_time = ([key for key in node.keys.values if b":a" in key] for node in on.nodes[:2])
    assert in_time
    assert not late


@virtual
async def test_a_vote_that_is_won_when_its_lease_is_over_is_no_lease(on: Nodes) -> None:
    """All of us stood still between the request and the answers."""
    on.slow(0.2)
    asking = start(on.locks.lock("a").try_acquire())
    await until(lambda: all(node.keys.get(KEY) for node in on.nodes))
    loop: Any = asyncio.get_running_loop()
    loop.now += TTL
    with contextlib.suppress(asynclock.QuorumUnavailableError):
        assert await asking is None
