"""asynclock with its defaults: fences, deadlines, guards and renewal are on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asynclock
from asynclock import blocking

from . import PERMITS, Adapter


def _observe(event: object) -> None:
    """Do nothing: with this cheapest observer the cost is that of creating events."""


class Asynclock(Adapter):
    async def open(self) -> None:
        options = dict(self.options)
        if options.pop("observed", False):
            options["observers"] = (_observe,)
        self.kind = options.pop("kind", "lock")
        self.terms = {name: options.pop(name) for name in ("handoff",) if name in options}
        self.locks = asynclock.connect(*self.urls, **{"ttl": self.ttl, **options})
        await self.locks.__aenter__()

    async def acquire(self, name: str) -> Any:
        match self.kind:
            case "lock":
                return await self.locks.lock(name, **self.terms).acquire()
            case "fair_lock":
                return await self.locks.fair_lock(name).acquire()
            case "write":
                return await self.locks.rwlock(name).write().acquire()
            case "read":
                return await self.locks.rwlock(name).read().acquire()
            case "semaphore":
                return await self.locks.semaphore(name, PERMITS).acquire()
            case "election":
                return (await self.locks.election(name).campaign("bench")).lease
        raise ValueError(f"asynclock has no {self.kind!r}")

    async def try_acquire(self, name: str) -> Any:
        return await self.locks.lock(name, **self.terms).try_acquire()

    async def acquire_within(self, name: str, seconds: float) -> Any:
        try:
            return await self.locks.lock(name).acquire(timeout=seconds)
        except asynclock.AcquireTimeoutError:
            return None

    def entered(self, name: str) -> AbstractAsyncContextManager[Any]:
        return self.locks.lock(name)

    def blocking(self) -> tuple[Callable[[str], Any], Callable[[Any], object]]:
        options = {name: self.options[name] for name in self.options if name == "max_ttl"}
        locks = blocking.connect(*self.urls, ttl=self.ttl, **options)
        return lambda name: locks.lock(name).acquire(), lambda lease: lease.release()

    async def release(self, lease: Any) -> None:
        await lease.release()

    async def close(self) -> None:
        await self.locks.aclose()

    def held(self, lease: Any) -> bool:
        return bool(lease.held)


ADAPTER = Asynclock
