"""The tasks of a manager, the clock that it reads, and its sockets in a forked child."""

import asyncio
import importlib.util
import subprocess
import sys
import time
from typing import Any

import anyio
import pytest

from asynclock._process import Background, wait_out
from asynclock.testing import FaultProxy, LocalServer
from tests import patient
from tests.waiting import until


async def test_no_task_outlives_the_end() -> None:
    background, ended = Background(), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.02)
            ended.append("slowly")

    task = background.spawn(work(), "slow")
    await asyncio.sleep(0)
    await background.aclose()
    assert ended == ["slowly"], "it waits until they have ended"
    assert task.cancelled()
    await background.aclose()


async def test_a_task_that_ends_them_all_does_not_wait_for_itself() -> None:
    background = Background()
    other = background.spawn(asyncio.sleep(3600), "other")
    await asyncio.wait_for(background.spawn(background.aclose(), "ending"), 5)
    assert other.cancelled()


async def test_a_task_that_has_ended_is_forgotten() -> None:
    background = Background()
    await background.spawn(asyncio.sleep(0), "brief")
    await asyncio.sleep(0)
    assert not background._tasks


async def test_an_error_goes_to_the_handler_of_the_loop_and_a_cancellation_does_not() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
    background = Background()

    async def fail() -> None:
        raise KeyError("x")

    failing = background.spawn(fail(), "a name")
    cancelled = background.spawn(asyncio.sleep(3600), "other")
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([failing, cancelled])
    await asyncio.sleep(0)
    (what,) = told
    assert "a name" in what["message"]
    assert isinstance(what["exception"], KeyError)


async def test_waiting_for_an_end_takes_a_cancellation_afterwards() -> None:
    task = asyncio.create_task(asyncio.sleep(0.05))
    waiting = asyncio.create_task(wait_out(task))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (task.done(), task.cancelled()) == (True, False)
    await wait_out(task)


def test_a_program_without_anyio_does_not_import_it_to_close() -> None:
    code = """
import asyncio, sys, asynclock
async def main():
    async with asynclock.connect("memory://a", restart_guard=False) as locks:
        async with locks.lock("a"):
            pass
asyncio.run(main())
print("anyio" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize(("boot_time", "shows"), [(True, 150.0), (False, 50.0)])
def test_the_clock_goes_on_while_the_machine_sleeps(
    monkeypatch: pytest.MonkeyPatch, *, boot_time: bool, shows: float
) -> None:
    """With the monotonic clock, which stands still meanwhile, a lease would outlive its keys."""
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    if not boot_time:  # then there is only the one that never jumps
        monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    monkeypatch.setattr(time, "clock_gettime", {7: 150.0}.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    found = importlib.util.find_spec("asynclock._clock")
    assert found is not None
    assert found.loader is not None
    fresh = importlib.util.module_from_spec(found)
    found.loader.exec_module(fresh)
    assert fresh.now() == shows


async def test_a_cancelled_scope_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope of anyio cancels again in each round of the loop, which would keep a core busy."""
    rounds, wait = 0, asyncio.wait

    async def counted(tasks: list[asyncio.Task[None]]) -> object:
        nonlocal rounds
        rounds += 1
        return await wait(tasks)

    task = asyncio.create_task(asyncio.sleep(0.05))
    monkeypatch.setattr(asyncio, "wait", counted)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await wait_out(task)
    assert task.done()
    assert rounds == 1


@pytest.mark.parametrize("when", ["before it is closed", "by the close"])
async def test_a_release_that_waits_for_a_connection_is_sent(
    asynclock_nodes: list[LocalServer], when: str
) -> None:
    """The connection broke a moment ago, and the next one is being opened."""
    node = asynclock_nodes[0]
    settings: dict[str, Any] = {"restart_guard": False, "node_timeout": 2.0, "ttl": 60.0}
    async with FaultProxy(node) as proxy:
        async with patient.connect(proxy.url, max_ttl=60.0, **settings) as locks:
            lease = await locks.lock("a").acquire()
            proxy.delay(0.2)
            proxy.cut()

            node_of_ours = locks._engine.multiplexer.nodes[0]
            await until(lambda: node_of_ours.link is None, "the client has seen it")
            if when == "before it is closed":
                releasing = asyncio.create_task(lease.release())
                await asyncio.sleep(0)
        assert await node.command("EXISTS", "asynclock:a") == 0
        if when == "before it is closed":
            await releasing
