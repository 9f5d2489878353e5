"""One process of an everyday scene: what users do with a lock, for any system with an adapter.

Run as ``python -m tests.everyday.worker ADAPTER LOOP``. It answers what ``benchmarks.worker``
answers, and some more. Peers run it in their own environments, so it imports only the standard
library and the benchmarks.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from typing import Any

from benchmarks import worker


class Plain:
    """A plain connection to a server on which one exchange follows another, and their number.

    What takes as long as three of these exchanges takes three round trips, on a busy machine too:
    both share the process, the link and the server.
    """

    def __init__(self) -> None:
        self.count = 0
        self._going: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Connect, make the first exchange, and go on in a task."""
        reader, writer = await asyncio.open_connection(host, port)
        await self._exchange(reader, writer)
        self._going = asyncio.create_task(self._go_on(reader, writer))

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"PING\r\n")
        await reader.readuntil(b"\r\n")
        self.count += 1

    async def _go_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._exchange(reader, writer)


class User(worker.Worker):
    """A process of an application."""

    def __init__(self, adapter: str) -> None:
        super().__init__(adapter)
        self.plain = Plain()

    async def beside(self, host: str, port: int) -> dict[str, Any]:
        """Let a plain connection make exchanges from now on; `open` and `take` count them."""
        await self.plain.start(host, port)
        return {}

    async def open(self, urls: list[str], ttl: float, options: dict[str, Any]) -> dict[str, Any]:
        before = self.plain.count
        opened = await super().open(urls, ttl, options)
        return {**opened, "exchanges": self.plain.count - before}

    async def take(self, name: str) -> dict[str, Any]:
        before = self.plain.count
        taken = await super().take(name)
        return {**taken, "exchanges": self.plain.count - before}

    async def wakeups(self) -> dict[str, Any]:
        """Return how many waits each cause has ended; peers do not count them."""
        counts: Counter[str] = Counter()
        for adapter in self.adapters:
            if (locks := getattr(adapter, "locks", None)) is not None:
                counts.update(locks.statistics().wakeups)
        return dict(counts)

    async def serve(
        self, name: str, start: float, seconds: float, every: float, timeout: float, body: float
    ) -> dict[str, Any]:
        """Handle a request now and then; each needs `name` and waits for it for `timeout`."""
        answers: Counter[str] = Counter()
        slowest = inside = 0.0

        async def handle() -> None:
            nonlocal slowest, inside
            asked = time.monotonic()
            try:
                lease = await self.adapter.acquire_within(name, timeout)
                if lease is not None:
                    began = time.monotonic()
                    await asyncio.sleep(body)
                    inside += time.monotonic() - began
                    await self.adapter.release(lease)
                answers["served" if lease is not None else "busy"] += 1
            except Exception as error:
                answers[type(error).__name__] += 1
            slowest = max(slowest, time.monotonic() - asked)

        await asyncio.sleep(start - time.monotonic())
        async with asyncio.TaskGroup() as group:
            for request in range(round(seconds / every)):
                await asyncio.sleep(start + request * every - time.monotonic())
                group.create_task(handle())
        lasted = time.monotonic() - start
        return {"answers": answers, "slowest": slowest, "inside": inside, "lasted": lasted}

    async def jobs(
        self, customers: list[str], start: float, tasks: int, body: float
    ) -> dict[str, Any]:
        """Do the jobs of a list, several at once; each locks its customer. Return when each ran."""
        todo, done = list(reversed(customers)), []

        async def runner() -> None:
            while todo:
                customer = todo.pop()
                lease = await self.adapter.acquire(customer)
                began = time.monotonic()
                await asyncio.sleep(body)
                done.append((customer, began, time.monotonic()))
                await self.adapter.release(lease)

        await asyncio.sleep(start - time.monotonic())
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(runner())
        return {"done": done}

    async def work_until_told(self, name: str) -> dict[str, Any]:
        """Take `name` with ``async with`` and work on; SIGTERM ends this as a deploy does."""
        inside = asyncio.Event()

        async def use() -> None:
            async with self.adapter.entered(name):
                inside.set()
                await asyncio.sleep(600)

        async def shut_down() -> None:
            using.cancel()
            await asyncio.gather(using, return_exceptions=True)
            await self.adapter.close()
            os._exit(0)

        using = asyncio.create_task(use())
        loop = asyncio.get_running_loop()

        def told() -> None:
            self.ending = loop.create_task(shut_down())

        loop.add_signal_handler(signal.SIGTERM, told)
        await inside.wait()
        return {"at": time.monotonic()}

    async def keeps(self) -> dict[str, Any]:
        """Return whether the lease of `take` is held, as the system believes."""
        return {"held": self.adapter.held(self.lease)}

    async def block(self, name: str, seconds: float) -> dict[str, Any]:
        """Block the event loop inside the lock; return whether the work after that still ran."""
        seen: dict[str, Any] = {"went_on": False, "outcome": "done"}
        try:
            async with self.adapter.entered(name):
                seen["began"] = time.monotonic()
                time.sleep(seconds)  # noqa: ASYNC251 - the mistake that the scene is about
                await asyncio.sleep(0.01)  # the next thing that a body awaits
                seen["went_on"] = True
                seen["ended"] = time.monotonic()  # leaving the block is no work any more
        except Exception as error:
            seen["outcome"] = type(error).__name__
        seen.setdefault("ended", time.monotonic())
        return seen


if __name__ == "__main__":
    worker.main(User)
