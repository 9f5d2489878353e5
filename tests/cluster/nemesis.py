"""Breaks a few of five real servers at a time, never a majority, until told to stop."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence

from asynclock.testing import FaultProxy, LocalServer

Fault = Callable[["Nemesis", int], Awaitable[None]]


class Nemesis:
    """Its faults; `settle` is how long a node may be out of the vote after one."""

    def __init__(
        self,
        servers: Sequence[LocalServer],
        proxies: Sequence[FaultProxy],
        clients: Sequence[subprocess.Popen[bytes]],
        *,
        seed: int,
        settle: float,
        kinds: Sequence[str] = (),
    ) -> None:
        self.servers, self.proxies, self.clients = servers, proxies, clients
        self.random = random.Random(seed)
        self.settle = settle
        self.done: list[str] = []
        self._kinds = [FAULTS[kind] for kind in kinds or FAULTS]
        self._out: dict[int, float] = {}
        self._most = (len(servers) - 1) // 2

    async def rage(self, seconds: float) -> None:
        """One fault after the other, each undone before the next on that node."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until:
                await asyncio.sleep(self.random.uniform(0.1, 0.6))
                now = time.monotonic()
                self._out = {n: at for n, at in self._out.items() if at > now}
                whole = [n for n in range(len(self.servers)) if n not in self._out]
                if len(self._out) < self._most:
                    number = self.random.choice(whole)
                    self._out[number] = float("inf")
                    group.create_task(self._strike(number))

    async def _strike(self, number: int) -> None:
        fault = self.random.choice(self._kinds)
        self.done.append(f"{fault.__name__} {number}")
        await fault(self, number)
        self._out[number] = time.monotonic() + self.settle

    def pause(self) -> Awaitable[None]:
        return asyncio.sleep(self.random.uniform(0.1, 1.0))


FAULTS: dict[str, Fault] = {}


def _fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


@_fault
async def kill(nemesis: Nemesis, number: int) -> None:
    await nemesis.servers[number].kill()
    await nemesis.pause()
    await nemesis.servers[number].start()


@_fault
async def restart(nemesis: Nemesis, number: int) -> None:
    await nemesis.servers[number].restart()


@_fault
async def freeze(nemesis: Nemesis, number: int) -> None:
    await nemesis.servers[number].freeze()
    await nemesis.pause()
    await nemesis.servers[number].thaw()


@_fault
async def flush_all(nemesis: Nemesis, number: int) -> None:
    await nemesis.servers[number].flush()


@_fault
async def flush_scripts(nemesis: Nemesis, number: int) -> None:
    await nemesis.servers[number].command("SCRIPT", "FLUSH")


@_fault
async def kill_clients(nemesis: Nemesis, number: int) -> None:
    await nemesis.servers[number].command("CLIENT", "KILL", "TYPE", "normal")


@_fault
async def jump_clock(nemesis: Nemesis, number: int) -> None:
    # Forward and back by as much, so that floors of fences don't wander off with the clocks.
    by = nemesis.random.choice((-120.0, 120.0))
    nemesis.servers[number].jump_clock(by)
    await asyncio.sleep(nemesis.settle)
    nemesis.servers[number].jump_clock(-by)


@_fault
async def partition(nemesis: Nemesis, number: int) -> None:
    nemesis.proxies[number].partition()
    await nemesis.pause()
    nemesis.proxies[number].heal()


@_fault
async def half_open(nemesis: Nemesis, number: int) -> None:
    nemesis.proxies[number].half_open()
    await nemesis.pause()
    nemesis.proxies[number].heal()


@_fault
async def slow(nemesis: Nemesis, number: int) -> None:
    nemesis.proxies[number].delay(0.1, 0.1)
    await nemesis.pause()
    nemesis.proxies[number].heal()


@_fault
async def freeze_client(nemesis: Nemesis, number: int) -> None:
    """A whole client process stops for longer than its ttl; the node is left alone."""
    client = nemesis.clients[number % len(nemesis.clients)]
    if client.poll() is None:
        os.kill(client.pid, signal.SIGSTOP)
        await asyncio.sleep(nemesis.settle + nemesis.random.random())
        os.kill(client.pid, signal.SIGCONT)
