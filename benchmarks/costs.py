"""Scenarios of single costs: round trips of a far link, a million names, a program's start."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

from asynclock.testing import FaultProxy

from .remote import Remote, WorkerError, environment
from .results import Sample
from .rounds import Round

LINK = 0.040
"""Seconds that a far link takes in each direction: a connection must open within 0.25 s."""
TURNS = 6
"""Number of times that each step is measured over far links; the median counts."""
IN_FLIGHT = 100
"""Number of tasks that share the names of `names`."""
STARTS = 15
"""Number of times that each program is started; the median counts."""

_IMPORT = "import time; begin = time.perf_counter(); {}; print(time.perf_counter() - begin)"


# ---------------------------------------------------------------- round trips


async def far(round_: Round) -> Sample:
    """Over links with a delay, in round trips: connect and first lock, acquire, release, hand-over.

    The worker has imported everything before. The links delay bytes, not the handshake of TCP,
    which costs a round trip more where there is a real distance.
    """
    enter = round_.stack.enter_async_context
    links = [await enter(FaultProxy(server)) for server in round_.nodes.servers]
    urls = [link.url for link in links]
    workers = await round_.workers(2)
    for link in links:
        link.delay(LINK, LINK)
    new = [f"{round_.name}:{turn}" for turn in range(TURNS)]
    cold = [await _first_lock(round_, workers[0], urls, name) for name in new]
    again = [await _first_lock(round_, workers[0], urls, round_.name) for _ in new]
    await _first_lock(round_, workers[1], urls, round_.name)
    acquired, released = [], []
    for _ in range(TURNS):
        acquired.append((await workers[0].ask("take", name=round_.name))["took"])
        released.append((await workers[0].ask("drop"))["took"])
    sample = {"cold_trips": cold, "again_trips": again}
    sample |= {"acquire_trips": acquired, "release_trips": released}
    if round_.system.contends:
        sample["handover_trips"] = await _hand_over(round_, workers)
    return {name: statistics.median(took) / (2 * LINK) for name, took in sample.items()}


async def _first_lock(round_: Round, worker: Remote, urls: Sequence[str], name: str) -> float:
    """Return the seconds from `connect` to the first lease of a process that is not connected."""
    await worker.ask("close")
    opened = await round_.open(worker, urls)
    taken = await worker.ask("take", name=name)
    await worker.ask("drop")
    return float(opened["connect"] + taken["took"])


async def _hand_over(round_: Round, workers: Sequence[Remote]) -> list[float]:
    """Return the seconds from the call of release in one process to the body in the other."""
    took = []
    await workers[0].ask("take", name=round_.name)
    for turn in range(TURNS):
        holder, waiter = workers[turn % 2], workers[(turn + 1) % 2]
        waiting = asyncio.create_task(waiter.ask("take", name=round_.name))
        await asyncio.sleep(6 * LINK)  # surely waiting
        released = (await holder.ask("drop"))["at"]
        took.append((await waiting)["at"] - released)
    await workers[TURNS % 2].ask("drop")
    return took


# ---------------------------------------------------------------- names that come once


async def names(round_: Round) -> Sample:
    """One process takes every name once; measure how its memory and the node's have grown."""
    worker = await round_.fresh()
    await round_.open(worker)
    before, count = await round_.nodes.counters(), round_.case.tasks
    fields = {"prefix": f"{round_.name}:", "count": count, "tasks": IN_FLIGHT}
    seen = await worker.ask("names", patience=1200, **fields)
    used = await round_.nodes.counters() - before
    kept = sum([int(str(await s.command("DBSIZE"))) for s in round_.nodes.servers])
    early, *later = seen["bytes"]
    return {
        "client_growth_percent": (max(later) / early - 1) * 100,
        "client_mb": max(later) / 1e6,
        "node_bytes_per_name": used.memory / max(kept, 1),
        "names_per_s": count / seen["seconds"],
    }


# ---------------------------------------------------------------- the start of a program


async def start(round_: Round) -> Sample:
    """Start programs in turns, each in a new process: two imports, and `asynclock run x -- true`.

    `asynclock run` is timed with the start and the end of its interpreter.
    """
    python, (node, *_) = round_.command[0], round_.nodes.urls
    # On a busy machine a node may answer late; the patience for it costs nothing.
    options = ("--node", node, "--node-timeout", "2")
    run = ("-m", "asynclock", "run", *options, round_.name, "--", "true")
    took: dict[str, list[float]] = {"redis_import_ms": [], "import_ms": [], "run_ms": []}
    for turn in range(STARTS + 1):
        redis, _ = await _program(python, "-c", _IMPORT.format("import redis.asyncio"))
        ours, _ = await _program(python, "-c", _IMPORT.format("from asynclock import connect"))
        _, ran = await _program(python, *run)
        if turn:  # the first one compiles
            for figures, seconds in zip(
                took.values(), (float(redis), float(ours), ran), strict=True
            ):
                figures.append(seconds * 1000)
    sample = {name: statistics.median(figures) for name, figures in took.items()}
    return sample | {"over_redis_ms": sample["import_ms"] - sample["redis_import_ms"]}


async def _program(*argv: str) -> tuple[str, float]:
    """Return the output of a program, and its seconds. Raises WorkerError if it fails."""
    begin = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, env=environment()
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise WorkerError(f"{' '.join(argv)}: exit status {process.returncode}")
    return output.decode(), time.perf_counter() - begin
