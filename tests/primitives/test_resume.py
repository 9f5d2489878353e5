"""A detached lease where things fail: at most one call resumes it, and it ends by its ttl."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest

import asynclock
from asynclock import events
from tests.cancel.stepping import cancelled_at
from tests.engine.virtual_nodes import KEY, TTL, Nodes, start, virtual, virtual_four
from tests.leftovers import left
from tests.waiting import becomes, go_through, until


async def detached(on: Nodes, name: str = "a", **settings: Any) -> tuple[asynclock.Lease, bytes]:
    lease = await on.locks.lock(name, **settings).acquire()
    return lease, await lease.detach()


@virtual
async def test_it_ends_by_its_ttl_if_nobody_resumes_it(on: Nodes) -> None:
    seen: list[events.Event] = []
    on.locks.observe(seen.append)
    async with on.locks.lock("a") as lease:
        ours = start(on.locks.lock("a").acquire())
        lost = asyncio.create_task(lease.wait_lost())
        await asyncio.sleep(TTL / 4)  # detaching makes the ttl whole
        began = asyncio.get_running_loop().time()
        ticket = await lease.detach()
        await asyncio.wait_for(lost, 1)
        with pytest.raises(asynclock.LeaseLostError, match="it was released"):
            await lease.detach()
    assert any(isinstance(one, events.Released) for one in seen)
    assert not any(isinstance(one, events.Lost) for one in seen)
    assert (await ours).fence > lease.fence
    assert TTL - 0.1 <= asyncio.get_running_loop().time() - began <= TTL + 1
    assert await (await ours).release()
    with pytest.raises(asynclock.LeaseLostError, match="it has ended") as caught:
        await on.locks.resume(ticket)  # nor does it take a name that is free
    assert (caught.value.owner, caught.value.fence) == (lease.owner, lease.fence)
    assert not await left(on.nodes)


@pytest.mark.parametrize("scenario", [virtual, virtual_four])
def test_at_most_one_of_many_resumes_wins(scenario: Any) -> None:
    @scenario
    async def test(on: Nodes) -> None:
        won = 0
        async with on.connect() as others, on.connect() as third:
            for number in range(20):
                lease, ticket = await detached(on)
                on.slow(0.01 * (number % 5))
                calls = [start(one.resume(ticket)) for one in (on.locks, others, third, others)]
                results = await asyncio.gather(*calls, return_exceptions=True)
                got = [one for one in results if isinstance(one, asynclock.Lease)]
                failed = [one for one in results if isinstance(one, BaseException)]
                assert all(isinstance(one, asynclock.LeaseLostError) for one in failed), failed
                assert len(got) <= 1
                won += len(got)
                for one in got:
                    assert one.fence > lease.fence
                    assert await one.check()
                    assert await one.release()
                async with on.locks.lock("a", timeout=1) as after:  # also if all have failed
                    assert after.fence > max([lease.fence, *(one.fence for one in got)])
        assert won
        assert not await left(on.nodes)

    test()


@virtual
async def test_a_node_that_dies_in_between(on: Nodes) -> None:
    lease, ticket = await detached(on)
    on.nodes[0].kill()
    resumed = await on.locks.resume(ticket)
    assert resumed.fence > lease.fence
    on.nodes[0].restart()
    keys = partial(on.nodes[0].command, "GET", KEY)
    await becomes(keys, resumed.owner, timeout=10 * TTL, every=1)  # put back as for any lease
    ticket = await resumed.detach()
    on.nodes[0].kill()
    on.nodes[1].kill()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await on.locks.resume(ticket)
    for node in on.nodes[:2]:
        node.restart(keep_data=True)
    await asyncio.sleep(TTL)
    async with on.locks.lock("a", timeout=60) as after:
        assert after.fence > resumed.fence
    assert not await left(on.nodes)


@virtual
async def test_an_outage_detaches_nothing(on: Nodes) -> None:
    async with on.locks.lock("a") as lease:
        on.kill("ab")
        with pytest.raises(asynclock.QuorumUnavailableError):
            await lease.detach()
        assert lease.held
        for node in on.nodes[:2]:
            node.restart(keep_data=True)
        await until(lambda: lease.remaining() > TTL / 2)
    assert lease.lost_reason is None


@pytest.mark.parametrize("moment", ["waiting", "resuming"])
@virtual
async def test_cancelled_at_each_await(on: Nodes, moment: Any) -> None:
    on.slow(0.01)

    async def detach(lease: asynclock.Lease) -> None:
        await lease.detach()

    async def resume(ticket: bytes) -> None:
        await (await on.locks.resume(ticket)).release()

    point = 0
    while True:
        lease = await on.locks.lock(f"a{point}").acquire()
        if not await cancelled_at(detach(lease), point, moment):
            break
        assert await lease.check()
        assert await lease.release()
        point += 1
    assert point
    point = 0
    while True:
        _, ticket = await detached(on, f"b{point}")
        if not await cancelled_at(resume(ticket), point, moment):
            break
        point += 1
    assert point
    assert not on.locks.leases()
    await asyncio.sleep(TTL + 0.1)
    assert not await left(on.nodes)


@virtual
async def test_what_comes_along(on: Nodes) -> None:
    _, ticket = await detached(on, ttl=8, at_least=30)
    await asyncio.sleep(5)
    async with await on.locks.resume(ticket, interrupt=False) as lease:
        assert lease.ttl == 8
        await asyncio.sleep(12)  # it is renewed
        assert await lease.check()
    assert (await on.locks.inspect("a")).rests
    assert await on.locks.lock("a").try_acquire() is None
    await go_through(on.locks.lock("a", timeout=60))
    _, ticket = await detached(on)
    assert (await on.locks.resume(ticket, ttl=5, renew=False)).ttl == 5
    with pytest.raises(TypeError, match="timeout"):
        await on.locks.resume(ticket, timeout=5)  # type: ignore[call-arg]  # on purpose


PARTS = ("version", "name", "key", "owner", "fence", "ttl", "at_least")


def _changed(ticket: bytes, **values: Any) -> bytes:
    fields = dict(zip(PARTS, json.loads(ticket), strict=True))
    return json.dumps([*{**fields, **values}.values()]).encode()


@virtual
async def test_what_is_no_ticket_of_this_manager(on: Nodes) -> None:
    _, ticket = await detached(on)
    for wrong, why in (
        (b"", "no ticket"),
        (b"[" * 5000, "no ticket"),
        (b" " * 8192 + ticket, "no ticket"),
        (b"\xff", "no ticket"),
        (b"[1]", "no ticket"),
        (ticket.decode(), "ticket.encode()"),
        (None, "must be bytes"),
        (_changed(ticket, version=2), "no ticket .* of this version"),
        (_changed(ticket, owner="theirs"), "damaged"),
        (_changed(ticket, owner="0" * 32 + ":\ud800"), "UTF-8"),
        (_changed(ticket, fence="1"), "no ticket"),
        (_changed(ticket, ttl=60.0), "max_ttl"),
        (_changed(ticket, at_least=-1.0), "at_least"),
        (_changed(ticket, name="b"), "damaged"),
    ):
        with pytest.raises(asynclock.ConfigurationError, match=why) as caught:
            await on.locks.resume(wrong)  # type: ignore[arg-type]  # on purpose
        assert json.loads(ticket)[3] not in str(caught.value)
    async with on.connect(prefix="other:") as others:
        with pytest.raises(asynclock.ConfigurationError, match="not of prefix 'other:'"):
            await others.resume(ticket)
    assert await (await on.locks.resume(ticket)).release()
    async with on.locks.multi_lock("a", "b") as several:
        for one in (several, *several.leases):
            with pytest.raises(asynclock.ConfigurationError, match="'a, b' can't be detached"):
                await one.detach()
    for lock in (on.locks.semaphore("s", 2), on.locks.rwlock("s").read()):
        async with lock as lease:
            with pytest.raises(asynclock.ConfigurationError, match="'s' can't be detached"):
                await lease.detach()
    async with on.locks.lock("a" * 9000) as lease:
        with pytest.raises(asynclock.ConfigurationError, match="too long") as caught:
            await lease.detach()
        assert caught.value.name == lease.name
        assert lease.held
