"""Starts nodes and workers; kills one worker, freezes another, and counts what was done."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path

from redis.asyncio import Redis

from examples._stage import PATIENCE, end, stage
from examples.worker_queue.ledger import Ledger
from examples.worker_queue.worker import JOBS, TTL

NODES, WORKERS, COUNT = 3, 2, 30
WORK = 0.1
"""Seconds that a job takes."""
LONG = 60.0
"""Seconds that a job takes the worker that will be killed, so that it never finishes."""


class Crew:
    """The worker processes and their output."""

    def __init__(self, ledger: Path, urls: list[str]) -> None:
        self._ledger = ledger
        self._urls = urls
        self.said: dict[str, list[str]] = {}
        self._news = asyncio.Condition()
        self._readers: list[asyncio.Task[None]] = []

    async def start(self, name: str, seconds: float) -> asyncio.subprocess.Process:
        """Start one more worker."""
        command = ("-m", "examples.worker_queue.worker", name, str(seconds), str(self._ledger))
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *self._urls,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self._readers.append(asyncio.create_task(self._read(name, worker)))
        return worker

    async def _read(self, name: str, worker: asyncio.subprocess.Process) -> None:
        assert worker.stdout
        async for line in worker.stdout:
            async with self._news:
                self.said.setdefault(name, []).append(line.decode().strip())
                self._news.notify_all()

    async def says(self, name: str, beginning: str, after: int = 0) -> str:
        """Wait until a worker prints a line that begins like this."""
        async with asyncio.timeout(PATIENCE), self._news:
            while True:
                for line in self.said.get(name, [])[after:]:
                    if line.startswith(beginning):
                        return line
                await self._news.wait()

    async def heard_out(self) -> None:
        """Wait until all output has been read."""
        await asyncio.gather(*self._readers)


async def main() -> int:
    """Run the example and return the exit status."""
    async with stage(NODES + 1) as (folder, servers):
        urls = [server.url for server in servers]
        async with Redis.from_url(urls[0]) as redis:
            await redis.rpush(JOBS, *(f"job-{number}" for number in range(COUNT)))
        file = folder / "ledger.sqlite"
        ledger, crew = Ledger(file), Crew(file, urls)
        victims = [await crew.start("mortal", LONG), await crew.start("sleeper", TTL / 4)]
        workers: list[asyncio.subprocess.Process] = []
        try:
            await play(crew, victims, workers)
        finally:
            for process in (*victims, *workers):
                await end(process)
        await crew.heard_out()
        return report(ledger, crew)


async def play(
    crew: Crew,
    victims: list[asyncio.subprocess.Process],
    workers: list[asyncio.subprocess.Process],
) -> None:
    """Kill one worker, freeze another for too long, and let the others do all jobs."""
    mortal, sleeper = victims
    first, second = await crew.says("mortal", "begin"), await crew.says("sleeper", "begin")
    sleeper.send_signal(signal.SIGSTOP)
    mortal.kill()
    print(f"one worker is killed after {first!r}, one frozen after {second!r}", flush=True)
    heard = len(crew.said["sleeper"])
    for number in range(WORKERS):
        workers.append(await crew.start(f"worker-{number}", WORK))  # noqa: PERF401 - one by one
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(worker.wait() for worker in workers))
    print("all is done; the frozen worker wakes up", flush=True)
    sleeper.send_signal(signal.SIGCONT)
    print(f"sleeper: {await crew.says('sleeper', 'lost', heard)}")
    async with asyncio.timeout(PATIENCE):
        await sleeper.wait()


def report(ledger: Ledger, crew: Crew) -> int:
    """Print what happened; return 0 if each job was done exactly once."""
    results = ledger.results()
    done = Counter(job for job, _ in results)
    by_worker = Counter(worker for _, worker in results)
    begun = sum(line.startswith("begin") for lines in crew.said.values() for line in lines)
    print(f"{COUNT} jobs, begun {begun} times, {len(results)} results of {dict(by_worker)}")
    right = len(done) == COUNT == len(results)
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
