"""A name that rests after a release (`at_least`), where things fail."""

import asyncio
from typing import Any

import pytest

import asynclock
from tests.cancel.stepping import cancelled_at
from tests.engine.virtual_nodes import TTL, Nodes, virtual
from tests.leftovers import left


@virtual
async def test_a_holder_and_a_node_that_die(on: Nodes) -> None:
    dead = await on.locks.lock("a", renew=False, at_least=60).acquire()
    async with on.locks.lock("a", at_least=60, timeout=TTL + 1) as lease:  # only the ttl counts
        assert not dead.held
        on.nodes[0].kill()
    assert await lease.release()
    with pytest.raises(asynclock.LeaseLostError, match="it was released"):
        await lease.extend()
    on.nodes[0].restart()
    await asyncio.sleep(50)
    assert (await on.locks.inspect("a")).rests
    assert await on.locks.lock("a").try_acquire() is None
    async with on.locks.lock("a", timeout=11) as after:
        assert after.fence > lease.fence
    assert not await left(on.nodes)


@pytest.mark.parametrize("moment", ["waiting", "resuming"])
@virtual
async def test_cancelled_at_each_await(on: Nodes, moment: Any) -> None:
    on.slow(0.01)
    point = 0
    while True:
        lease = await on.locks.lock(f"a{point}", at_least=60).acquire()
        if not await cancelled_at(lease.release(), point, moment):
            break
        assert (await on.locks.inspect(f"a{point}")).rests
        point += 1
    assert point
    await asyncio.sleep(60)
    assert not await left(on.nodes)
