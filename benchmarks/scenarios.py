"""The scenarios. Each one measures one round of one system in one case."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from asynclock.testing import FaultProxy, RedisCluster, Replicated, Topology
from asynclock.testing.load import quantile

from . import judged
from .nodes import Nodes
from .remote import Remote
from .results import Sample
from .rounds import Round, distinct, load_all, load_sample, under_load


async def cycle(round_: Round) -> Sample:
    """Uncontended: every task has a name of its own."""
    return await under_load(round_, [distinct(round_)], await round_.workers(1))


async def new(round_: Round) -> Sample:
    """Uncontended, and every cycle takes a name that was never used before."""
    workers = await round_.workers(1)
    return await under_load(round_, [distinct(round_)], workers, ever_new=True)


async def threads(round_: Round) -> Sample:
    """Code that blocks: every thread of one process has a name of its own."""
    return await under_load(round_, [distinct(round_)], await round_.workers(1), threads=True)


async def cycle4(round_: Round) -> Sample:
    """Uncontended: the names and tasks of `cycle`, shared by four processes."""
    names = distinct(round_)
    each = [names[first::4] for first in range(4)]
    return await under_load(round_, each, await round_.workers(4))


async def acked(round_: Round) -> Sample:
    """The load of `cycle` on a primary with two replicas, one of which must acknowledge."""
    async with Replicated(2) as group:
        return await _on(round_, group, acks=1)


async def sharded(round_: Round) -> Sample:
    """The load of `cycle` on a Cluster of three primaries."""
    async with RedisCluster(3, 0) as group:
        return await _on(round_, group)


async def _on(round_: Round, group: Topology, **options: Any) -> Sample:
    # With the guard on, these young servers would not vote yet.
    own = {"restart_guard": False, "node_timeout": 2.0, **options}
    there = replace(round_, nodes=Nodes(group.servers, {}))
    workers = await there.workers(1, group.addresses, [own])
    return await under_load(there, [distinct(round_)], workers)


async def hot(round_: Round) -> Sample:
    """All tasks of one process want one name."""
    return await contended(round_, [[round_.name] * round_.case.tasks])


async def hot4(round_: Round) -> Sample:
    """The tasks of four processes want one name."""
    return await contended(round_, [[round_.name] * (round_.case.tasks // 4)] * 4)


async def contended(round_: Round, names: Sequence[Sequence[str]]) -> Sample:
    """One name under load, and the verdict on its history where leases have fences."""
    with tempfile.TemporaryDirectory(prefix="asynclock-") as place:
        folder = Path(place)
        workers = await round_.workers(len(names))
        sample = await under_load(round_, names, workers, folder if round_.system.fences else None)
        if round_.system.fences:
            bodies = judged.recorded([folder / str(number) for number in range(len(names))])
            sample["violations"] = judged.violations(bodies)
            sample["waited_bodies"] = judged.longest_wait(bodies, len(names))
    return sample


# ---------------------------------------------------------------- cycles while a node fails


async def against_healthy(
    round_: Round, worker: Remote, fail: Callable[[], Awaitable[None]]
) -> Sample:
    """Load with all nodes well, then the same load after ``fail``: one machine, one minute."""
    healthy = await under_load(round_, [distinct(round_)], [worker])
    await fail()
    sample = await under_load(round_, [distinct(round_)], [worker])
    return sample | {f"healthy_{name}": value for name, value in healthy.items()}


async def frozen(round_: Round) -> Sample:
    """The last node is stopped (SIGSTOP) while distinct names are locked."""
    (worker,) = await round_.workers(1)
    victim = round_.nodes.servers[-1]
    try:
        return await against_healthy(round_, worker, victim.freeze)
    finally:
        await victim.thaw()


async def killed(round_: Round) -> Sample:
    """The last node is dead (SIGKILL) while distinct names are locked."""
    (worker,) = await round_.workers(1)
    try:
        return await against_healthy(round_, worker, round_.nodes.servers[-1].kill)
    finally:
        await round_.nodes.restart(round_.case.nodes - 1)


async def restarting(round_: Round) -> Sample:
    """The last node is killed and restarted, empty, a third of the way into the run."""
    workers = await round_.workers(1)

    async def restart() -> None:
        await asyncio.sleep(round_.settings.warmup)
        await asyncio.sleep(round_.settings.seconds / 3)
        await round_.nodes.restart(round_.case.nodes - 1)

    seconds = round_.settings.seconds
    await load_all(workers, [distinct(round_)], round_.settings.warmup)
    failing = asyncio.create_task(restart())
    replies = await load_all(workers, [distinct(round_)], seconds + round_.settings.warmup)
    await failing
    sample = load_sample(replies)
    if sample["unfinished"]:
        await workers[0].end()
    return sample


async def slow(round_: Round) -> Sample:
    """The last node answers 20 ms later than the rest."""
    async with FaultProxy(round_.nodes.servers[-1]) as proxy:
        (worker,) = await round_.workers(1, [*round_.nodes.urls[:-1], proxy.url])

        async def delay() -> None:
            proxy.delay(0.020)

        return await against_healthy(round_, worker, delay)


# ---------------------------------------------------------------- from one holder to the next


def _beat(turn: int) -> float:
    return 0.02 + 0.007 * (turn % 5)  # seconds, and no fixed beat


async def paced(round_: Round) -> Sample:
    """One process locks a free name after each of the pauses that `handover` makes.

    The name's servers and its process sleep before, as they do before a hand-over. Where one
    request follows the other, nobody has to be woken up, so that a round trip is much shorter.
    """
    (worker,) = await round_.workers(1)
    took = []
    for turn in range(round_.settings.handovers):
        await asyncio.sleep(_beat(turn))
        took.append((await worker.ask("take", name=round_.name))["took"])
        await worker.ask("drop")
    took.sort()
    return {"wait_p50_ms": quantile(took, 0.5) * 1000, "wait_p99_ms": quantile(took, 0.99) * 1000}


async def handover(round_: Round) -> Sample:
    """From the call of release in one process to the next body in another."""
    workers = await round_.workers(2)
    latencies: list[float] = []
    bodies: list[judged.Body] = []
    taken = await workers[0].ask("take", name=round_.name)
    for turn in range(round_.settings.handovers):
        holder, waiter = workers[turn % 2], workers[(turn + 1) % 2]
        waiting = asyncio.create_task(waiter.ask("take", name=round_.name))
        await asyncio.sleep(_beat(turn))  # surely waiting
        released = (await holder.ask("drop"))["at"]
        bodies.append(judged.body(taken, released, turn % 2))
        taken = await waiting
        latencies.append(taken["at"] - released)
    latencies.sort()
    sample: Sample = {
        "handover_p50_ms": quantile(latencies, 0.5) * 1000,
        "handover_p99_ms": quantile(latencies, 0.99) * 1000,
    }
    if round_.system.fences:
        sample["violations"] = judged.violations(bodies)
    return sample


async def orphan(round_: Round) -> Sample:
    """The holder is killed (SIGKILL); from the end of its lease to the next body."""
    (survivor,) = await round_.workers(1)
    holder = await round_.fresh()
    await round_.open(holder)
    lost = await holder.ask("take", name=round_.name)
    waiting = asyncio.create_task(survivor.ask("take", patience=60, name=round_.name))
    await asyncio.sleep(0.2)
    await holder.end()
    expiry = time.monotonic() + await round_.nodes.remaining(round_.name)
    taken = await waiting
    released = (await survivor.ask("drop"))["at"]
    sample: Sample = {"late_ms": (taken["at"] - expiry) * 1000}
    if round_.system.fences:
        # Nobody knows when its body ended: its lease may have been relied on to the last moment.
        bodies = [judged.body(lost, lost["until"], 0), judged.body(taken, released, 1)]
        sample["violations"] = judged.violations(bodies)
    return sample


async def waiters(round_: Round) -> Sample:
    """Tasks in ten processes wait for a name that is held all the time."""
    (holder,) = await round_.workers(1)
    await holder.ask("take", name=round_.name)
    processes = [await round_.fresh() for _ in range(10)]
    await asyncio.gather(*(round_.open(process) for process in processes))
    each = round_.case.tasks // 10
    await asyncio.gather(*(p.ask("wait", name=round_.name, count=each) for p in processes))
    await asyncio.sleep(1)
    before, begin = await round_.nodes.counters(), time.monotonic()
    await asyncio.sleep(round_.settings.hold_seconds)
    used, passed = await round_.nodes.counters() - before, time.monotonic() - begin
    await asyncio.gather(*(process.end() for process in processes))
    await holder.ask("drop")
    return {"commands_per_s_and_node": used.commands / len(round_.nodes.servers) / passed}


# ---------------------------------------------------------------- leases held, and the first one


async def renewal(round_: Round) -> Sample:
    """Leases held by one process, watched for a while."""
    (worker,) = await round_.workers(1)
    seconds, count = round_.settings.hold_seconds, round_.case.tasks
    await worker.ask("hold", patience=120, prefix=f"{round_.name}:", count=count)
    before = await round_.nodes.counters()
    seen = await worker.ask("watch", patience=seconds + 30, seconds=seconds)
    used = await round_.nodes.counters() - before
    await worker.ask("free", patience=120)
    return {
        "cores_percent": seen["cpu"] / seen["seconds"] * 100,
        "lost": seen["lost"],
        "commands_per_s": used.commands / seen["seconds"],
        "server_cores_percent": used.cpu / seen["seconds"] * 100,
    }


async def memory(round_: Round) -> Sample:
    """Resident memory of a fresh process per lease that it holds."""
    worker = await round_.fresh()
    await round_.open(worker)
    count = round_.case.tasks
    held = await worker.ask("hold", patience=120, prefix=f"{round_.name}:", count=count)
    return {"bytes_per_lease": held["bytes"] / count}


async def cold(round_: Round) -> Sample:
    """A fresh process: import, connect, first lock. The interpreter's own start is left out."""
    worker = await round_.fresh()
    opened = await round_.open(worker)
    taken = await worker.ask("take", name=round_.name)
    await worker.ask("drop")
    return {
        "import_ms": opened["import"] * 1000,
        "first_lock_ms": (opened["connect"] + taken["took"]) * 1000,
        "cold_ms": (opened["import"] + opened["connect"] + taken["took"]) * 1000,
    }
