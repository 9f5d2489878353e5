"""One system in its own interpreter: JSON lines in, JSON lines out.

``python -m benchmarks.worker ADAPTER LOOP`` prints a greeting, then answers one request per line,
in order, until its input ends. Only ``wait`` starts work that goes on after the answer.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import resource
import sys
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import looping

if TYPE_CHECKING:
    from benchmarks.adapters import Adapter

POINTS = 2000
"""Maximum number of latencies that a run reports, evenly spaced among all sorted ones."""
BURST = 200
"""Leases taken at once where many are held: no socket buffer or pool minds."""

_LIBRARIES = (
    "asynclock", "redis", "hiredis", "coredis", "pottery", "aioredlock", "redlock-ng", "uvloop",
)  # fmt: skip


def _load_by_path() -> Any:
    """Import the load generator without its package, whose dependencies a peer's place lacks."""
    path = Path(__file__).parent.parent / "asynclock" / "testing" / "load.py"
    spec = importlib.util.spec_from_file_location("load_generator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from asynclock.testing import load
else:
    load = _load_by_path()


def thin(values: Sequence[float]) -> list[float]:
    """The ordered values, or evenly spaced ones of them with the largest among them."""
    ordered = sorted(values)
    if len(ordered) <= POINTS:
        return ordered
    step = (len(ordered) - 1) / (POINTS - 1)
    return [ordered[round(i * step)] for i in range(POINTS)]


def write(path: str, bodies: Sequence[load.Body]) -> None:
    """Write all bodies of a run to a file: they are too many for an answer."""
    with Path(path).open("wb") as file:
        array("d", itertools.chain.from_iterable(bodies)).tofile(file)


def resident_bytes() -> int:
    """Memory of this process that is in RAM now (Linux; elsewhere the peak)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def wrappers() -> Any:
    """Import the wrappers after the adapter, as part of no measured import."""
    return importlib.import_module("benchmarks.adapters.wrappers")


class Worker:
    """The requests, one method each; the keyword arguments are the request's fields."""

    def __init__(self, adapter: str) -> None:
        self.name = adapter
        self.adapter: Adapter
        self.adapters: list[Adapter] = []
        """All managers of this process; a scenario that says nothing has one."""
        self.threaded: Any = None
        """What takes and releases names in threads, once a scenario has asked for it."""
        self.lease: Any = None
        self.leases: list[Any] = []
        self.waiting: list[asyncio.Task[Any]] = []

    async def open(self, urls: list[str], ttl: float, options: dict[str, Any]) -> dict[str, Any]:
        begin = time.perf_counter()
        module = importlib.import_module(f"benchmarks.adapters.{self.name}")
        imported = time.perf_counter()
        queued, managers = options.pop("queued", False), options.pop("managers", 1)
        self.adapters = [module.ADAPTER(urls, ttl, options) for _ in range(managers)]
        if queued:
            self.adapters = [wrappers().Queued(adapter) for adapter in self.adapters]
        self.adapter = self.adapters[0]
        for (
            adapter
        ) in self.adapters:  # not in tasks: coredis wants to be closed where it was opened
            await adapter.open()
        return {"import": imported - begin, "connect": time.perf_counter() - imported}

    async def load(
        self,
        names: list[str],
        seconds: float,
        record: str | None = None,
        ever_new: bool = False,
        threads: bool = False,
    ) -> dict[str, Any]:
        if threads:
            return await asyncio.to_thread(self.load_threads, names, seconds)
        subject = wrappers().EverNew(self.adapter) if ever_new else self.adapter
        seen = await load.run_load(subject, names, seconds, record=record is not None)
        if record is not None:
            write(record, seen.bodies)
        return {
            "count": seen.count,
            "finished": len(seen.cycles),
            "seconds": seen.seconds,
            "cpu": seen.cpu,
            "waits": thin(seen.waits),
            "cycles": thin(seen.cycles),
            "gap": seen.gap,
            "overlaps": seen.overlaps,
            "unfinished": seen.unfinished,
            "errors": seen.errors,
        }

    def load_threads(self, names: list[str], seconds: float) -> dict[str, Any]:
        """Run one thread per name, each of which takes and releases it as fast as it can."""
        if self.threaded is None:
            self.threaded = self.adapter.blocking()
        take, give = self.threaded
        waits: list[float] = []
        cycles: list[float] = []
        errors: Counter[str] = Counter()
        clock = time.perf_counter
        begin, cpu = clock(), load.processor_seconds()
        until = begin + seconds

        def work(name: str) -> None:
            while (started := clock()) < until:
                try:
                    lease = take(name)
                    entered = clock()
                    give(lease)
                except Exception as error:
                    errors[type(error).__name__] += 1
                    continue
                waits.append(entered - started)
                cycles.append(clock() - started)

        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        passed, used = clock() - begin, load.processor_seconds() - cpu
        seen = {"count": len(cycles), "finished": len(cycles), "seconds": passed, "cpu": used}
        seen |= {"gap": 0.0, "overlaps": 0, "unfinished": 0}
        return {**seen, "waits": thin(waits), "cycles": thin(cycles), "errors": errors}

    async def warm(self, name: str) -> dict[str, Any]:
        for number, adapter in enumerate(self.adapters):
            await adapter.release(await adapter.acquire(f"{name}:{number}"))
        return {}

    async def loop(
        self, terms: dict[str, Any], tasks: int, seed: int, record: str
    ) -> dict[str, Any]:
        subjects = self.adapters * tasks
        seen, cpu = await looping.work_all(subjects, looping.Terms(**terms), seed)
        write(record, [body for turns in seen for body in turns.bodies])
        return {
            "counts": [len(turns.bodies) for turns in seen],
            "waits": thin([wait for turns in seen for wait in turns.waits]),
            "unfinished": sum(turns.unfinished for turns in seen),
            "errors": dict(sum((turns.errors for turns in seen), Counter())),
            "cpu": cpu,
        }

    async def race(self, name: str, moments: list[float], kept: int) -> dict[str, Any]:
        """Try once at each moment, each time for another name; keep a name for `kept` moments.

        The last names are kept until `free`: a process that is late must lose. If it is so late
        that the winner may have released, it does not ask. An error, such as too few answers in
        time on a busy machine, is a defeat too. Both are counted.
        """
        won: list[bool] = []
        errors = late = 0
        held: deque[tuple[int, Any]] = deque()
        for turn, moment in enumerate(moments):
            while held and held[0][0] <= turn - kept:
                await asyncio.gather(
                    self.adapter.release(held.popleft()[1]), return_exceptions=True
                )
            await asyncio.sleep(moment - time.monotonic())
            lease, still_kept = None, turn + kept // 2
            if still_kept < len(moments) and time.monotonic() > moments[still_kept]:
                late += 1
                won.append(False)
                continue
            try:
                lease = await self.adapter.try_acquire(f"{name}:{turn}")
            except Exception:
                errors += 1
            won.append(lease is not None)
            if lease is not None:
                held.append((turn, lease))
        self.leases += [lease for _, lease in held]
        return {"won": won, "errors": errors, "late": late}

    async def take(self, name: str) -> dict[str, Any]:
        begin = time.monotonic()
        self.lease = await self.adapter.acquire(name)
        held = time.monotonic()
        until = held + self.lease.remaining() if hasattr(self.lease, "remaining") else None
        fence = getattr(self.lease, "fence", 0)
        return {"at": held, "took": held - begin, "fence": fence, "until": until}

    async def drop(self) -> dict[str, Any]:
        at = time.monotonic()
        await self.adapter.release(self.lease)
        return {"at": at, "took": time.monotonic() - at}

    async def wait(self, name: str, count: int) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        self.waiting += [loop.create_task(self.adapter.acquire(name)) for _ in range(count)]
        return {}

    async def hold(self, prefix: str, count: int) -> dict[str, Any]:
        await self.adapter.release(await self.adapter.acquire(f"{prefix}warm"))
        before = resident_bytes()
        for first in range(0, count, BURST):
            names = [f"{prefix}{i}" for i in range(first, min(first + BURST, count))]
            self.leases += await asyncio.gather(*map(self.adapter.acquire, names))
        return {"bytes": resident_bytes() - before}

    async def names(self, prefix: str, count: int, tasks: int) -> dict[str, Any]:
        """Take each of `count` names once; return the memory in RAM after each tenth of them."""
        numbers, begin, seen = iter(range(1, count + 1)), time.perf_counter(), []

        async def work() -> None:
            for number in numbers:
                await self.adapter.release(await self.adapter.acquire(f"{prefix}{number}"))
                if number % max(count // 10, 1) == 0:
                    seen.append(resident_bytes())

        await asyncio.gather(*(work() for _ in range(tasks)))
        return {"bytes": seen, "seconds": time.perf_counter() - begin}

    async def watch(self, seconds: float) -> dict[str, Any]:
        cpu, begin = load.processor_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        cpu, passed = load.processor_seconds() - cpu, time.perf_counter() - begin
        lost = sum(not self.adapter.held(lease) for lease in self.leases)
        return {"cpu": cpu, "seconds": passed, "lost": lost}

    async def free(self) -> dict[str, Any]:
        while self.leases:
            batch = [self.leases.pop() for _ in range(min(BURST, len(self.leases)))]
            await asyncio.gather(*map(self.adapter.release, batch), return_exceptions=True)
        return {}

    async def close(self) -> dict[str, Any]:
        for adapter in self.adapters:
            await adapter.close()
        return {}


def hello(loop: str) -> dict[str, Any]:
    """Return the versions of Python and of the libraries in this worker."""
    versions = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"versions": versions, "loop": loop}


async def serve(worker: Worker, loop_name: str, out: int) -> None:
    """Answer until end of input."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    _write(out, hello(loop_name))
    while line := await lines.readline():
        request = json.loads(line)
        try:
            answer = await getattr(worker, request.pop("op"))(**request)
        except Exception as error:  # an exception of a peer is its result and must not end us
            answer = {"failed": f"{type(error).__name__}: {error}"}
        _write(out, answer)


def _write(out: int, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(out, data) :]


def main(make: Callable[[str], Worker] = Worker) -> None:
    """Serve one system; other programs pass a worker that can do more."""
    adapter, loop = sys.argv[1:]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # peers: a socket per task and node
    out = os.dup(1)
    os.dup2(2, 1)  # output of a library must not get between the answers
    serving = serve(make(adapter), loop, out)
    if loop == "uvloop":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serving)
    else:
        asyncio.run(serving)


if __name__ == "__main__":
    main()
