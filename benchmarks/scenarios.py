"""The scenarios. Each one measures one round of one system in one case.

Latencies are in milliseconds, CPU in microseconds per cycle; a cycle is acquire and release.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asynclock.testing import FaultProxy
from asynclock.testing.history.load import quantile

from . import judged
from .nodes import Nodes
from .remote import Remote
from .results import Case, Sample
from .systems import System


@dataclass(frozen=True)
class Settings:
    """How long and how often. The defaults keep a whole run short; a quiet machine allows more."""

    rounds: int = 3
    seconds: float = 1.0
    warmup: float = 0.3
    ttl: float = 10.0
    hold_seconds: float = 15.0
    """How long held leases are watched: renewal and waiting."""
    handovers: int = 30
    max_ttl: float = 10.0
    """The longest ttl of asynclock's fleet, for which its guards keep a young node from voting."""


@dataclass
class Round:
    """One system in one case: its nodes, and worker processes that are started when asked for."""

    case: Case
    system: System
    nodes: Nodes
    settings: Settings
    command: list[str]
    pool: list[Remote]
    """Warm workers from earlier rounds; those that are alive at the end go back into it."""
    name: str
    """No other round uses it."""
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def workers(self, count: int, urls: Sequence[str] | None = None) -> list[Remote]:
        """Workers with open connections, warm ones first."""
        while len(self.pool) < count:
            self.pool.append(await Remote(self.command).__aenter__())
        chosen = self.pool[:count]
        await asyncio.gather(*(self.open(worker, urls) for worker in chosen))
        for worker in chosen:
            self.stack.push_async_callback(_close, worker)
        return chosen

    async def fresh(self) -> Remote:
        """A process of its own for this round, not connected."""
        return await self.stack.enter_async_context(Remote(self.command))

    async def open(self, worker: Remote, urls: Sequence[str] | None = None) -> dict[str, Any]:
        options = {**self.system.options, "max_ttl": self.settings.max_ttl}
        where = list(urls or self.nodes.urls)
        return await worker.ask("open", urls=where, ttl=self.settings.ttl, options=options)


async def _close(worker: Remote) -> None:
    if worker.alive:
        await worker.ask("close")


# ---------------------------------------------------------------- cycles under load


def load_sample(replies: Sequence[dict[str, Any]]) -> Sample:
    """What several processes saw in the same time, as one sample."""
    count = sum(reply["count"] for reply in replies)
    cpu = sum(reply["cpu"] for reply in replies)
    sample: Sample = {
        "cycles_per_s": sum(reply["count"] / reply["seconds"] for reply in replies),
        "client_us": cpu / max(count, 1) * 1e6,
        "gap_ms": max(reply["gap"] for reply in replies) * 1000,
        "overlaps": sum(reply["overlaps"] for reply in replies),
        "unfinished": sum(reply["unfinished"] for reply in replies),
        "errors": sum(sum(reply["errors"].values()) for reply in replies),
    }
    for name, key in (("wait", "waits"), ("cycle", "cycles")):
        ordered = sorted(value for reply in replies for value in reply[key])
        for label, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
            sample[f"{name}_{label}_ms"] = quantile(ordered, share) * 1000
    if len(replies) > 1:
        sample["least_share"] = min(r["count"] for r in replies) * len(replies) / max(count, 1)
    return sample


async def under_load(
    round_: Round,
    names: Sequence[Sequence[str]],
    workers: Sequence[Remote],
    folder: Path | None = None,
) -> Sample:
    """Warm up, then load all workers at once and count both sides; cycles go into `folder`."""
    seconds, warmup = round_.settings.seconds, round_.settings.warmup
    # Warm without contention: a poller that is interrupted may leave its lock for a whole ttl.
    warm = [[f"{round_.name}:warm:{w}:{i}" for i in range(len(n))] for w, n in enumerate(names)]
    await _load_all(workers, warm, warmup)
    before = await round_.nodes.counters()
    replies = await _load_all(workers, names, seconds, folder)
    used = await round_.nodes.counters() - before
    sample = load_sample(replies)
    count = max(sum(reply["finished"] for reply in replies), 1)
    sample["server_us"] = used.cpu / count * 1e6
    sample["commands"] = used.commands / count
    if sample["unfinished"]:  # its connections may be in any state
        await asyncio.gather(*(worker.end() for worker in workers))
    return sample


async def _load_all(
    workers: Sequence[Remote],
    names: Sequence[Sequence[str]],
    seconds: float,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    patience = seconds + 20
    asks = (
        worker.ask(
            "load",
            patience=patience,
            names=own,
            seconds=seconds,
            record=None if folder is None else str(folder / str(number)),
        )
        for number, (worker, own) in enumerate(zip(workers, names, strict=True))
    )
    return await asyncio.gather(*asks)


def distinct(round_: Round) -> list[str]:
    return [f"{round_.name}:{i}" for i in range(round_.case.tasks)]


async def cycle(round_: Round) -> Sample:
    """Uncontended: every task has a name of its own."""
    return await under_load(round_, [distinct(round_)], await round_.workers(1))


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
    await _load_all(workers, [distinct(round_)], round_.settings.warmup)
    failing = asyncio.create_task(restart())
    replies = await _load_all(workers, [distinct(round_)], seconds + round_.settings.warmup)
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


async def handover(round_: Round) -> Sample:
    """From the call of release in one process to the next body in another."""
    workers = await round_.workers(2)
    latencies: list[float] = []
    bodies: list[judged.Body] = []
    taken = await workers[0].ask("take", name=round_.name)
    for turn in range(round_.settings.handovers):
        holder, waiter = workers[turn % 2], workers[(turn + 1) % 2]
        waiting = asyncio.create_task(waiter.ask("take", name=round_.name))
        await asyncio.sleep(0.02 + 0.007 * (turn % 5))  # surely waiting, at no fixed beat
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


@dataclass(frozen=True)
class Scenario:
    """A scenario and the cells of the matrix that a whole run measures."""

    run: Callable[[Round], Awaitable[Sample]]
    metric: str
    """The figure that charts and tables show first."""
    nodes: tuple[int, ...]
    tasks: tuple[int, ...]
    contends: bool = False
    renews: bool = False
    least_nodes: int = 1
    """With fewer there is no majority left."""
    systems: tuple[str, ...] = ()
    """Where it compares variants of one system; else all systems."""
    loops: tuple[str, ...] = ("asyncio",)

    def measures(self, system: System) -> bool:
        """Whether it makes sense for this system."""
        return (system.contends or not self.contends) and (system.renews or not self.renews)


BOTH = ("asyncio", "uvloop")
SCENARIOS = {
    "cycle": Scenario(cycle, "cycles_per_s", (1, 3, 5), (1, 10, 100, 1000), loops=BOTH),
    "guards": Scenario(
        cycle, "cycles_per_s", (1, 5), (100,), systems=("asynclock", "asynclock-unguarded")
    ),
    "observers": Scenario(
        cycle, "cycles_per_s", (1, 5), (100,), systems=("asynclock", "asynclock-observed")
    ),
    "hot": Scenario(hot, "cycles_per_s", (1, 3, 5), (100,), contends=True, loops=BOTH),
    "hot4": Scenario(hot4, "cycles_per_s", (1, 5), (100,), contends=True),
    "share": Scenario(hot4, "least_share", (1, 5), (100,), contends=True),
    "handover": Scenario(handover, "handover_p50_ms", (1, 5), (2,), contends=True),
    "orphan": Scenario(orphan, "late_ms", (1, 5), (2,), contends=True),
    "waiters": Scenario(waiters, "commands_per_s_and_node", (1, 5), (1000,), contends=True),
    "frozen": Scenario(frozen, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "slow": Scenario(slow, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "renewal": Scenario(renewal, "cores_percent", (1, 3), (1000, 10_000), renews=True),
    "memory": Scenario(memory, "bytes_per_lease", (1, 5), (5000,)),
    "cold": Scenario(cold, "cold_ms", (1, 5), (1,)),
    # Last: their nodes are young afterwards, and the next scenario has to wait for them.
    "killed": Scenario(killed, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "restarting": Scenario(restarting, "gap_ms", (1, 5), (10,)),
}
