"""One round of one system in one case: its workers, its load and what both sides used.

Latencies are in milliseconds, CPU in microseconds per cycle; a cycle is acquire and release.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asynclock.testing.load import quantile

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
    votes: int = 200
    """Rounds in which many processes ask at one moment."""
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

    async def workers(
        self,
        count: int,
        urls: Sequence[str] | None = None,
        options: Sequence[dict[str, Any]] = ({},),
    ) -> list[Remote]:
        """Workers with open connections, warm ones first; they take `options` in turn."""
        lacking = max(0, count - len(self.pool))
        made = (Remote(self.command).__aenter__() for _ in range(lacking))
        self.pool += await asyncio.gather(*made)
        chosen = self.pool[:count]
        each = zip(chosen, itertools.cycle(options))
        await asyncio.gather(*(self.open(worker, urls, own) for worker, own in each))
        for worker in chosen:
            self.stack.push_async_callback(_close, worker)
        return chosen

    async def fresh(self) -> Remote:
        """A process of its own for this round, not connected."""
        return await self.stack.enter_async_context(Remote(self.command))

    async def open(
        self,
        worker: Remote,
        urls: Sequence[str] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Connect a worker; `own` are options of this worker alone."""
        options = {**self.system.options, "max_ttl": self.settings.max_ttl, **(own or {})}
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
    *,
    ever_new: bool = False,
    threads: bool = False,
) -> Sample:
    """Warm up, then load all workers at once and count both sides; cycles go into `folder`."""
    seconds, warmup = round_.settings.seconds, round_.settings.warmup
    # Warm without contention: a poller that is interrupted may leave its lock for a whole ttl.
    warm = [[f"{round_.name}:warm:{w}:{i}" for i in range(len(n))] for w, n in enumerate(names)]
    await load_all(workers, warm, warmup, threads=threads)
    before = await round_.nodes.counters()
    kind = {"ever_new": ever_new, "threads": threads}
    replies = await load_all(workers, names, seconds, folder, **kind)
    used = await round_.nodes.counters() - before
    sample = load_sample(replies)
    count = max(sum(reply["finished"] for reply in replies), 1)
    sample["server_us"] = used.cpu / count * 1e6
    sample["commands"] = used.commands / count
    if ever_new:
        sample["node_bytes_per_name"] = used.memory / used.nodes / count
    if sample["unfinished"]:  # its connections may be in any state
        await asyncio.gather(*(worker.end() for worker in workers))
    return sample


async def load_all(
    workers: Sequence[Remote],
    names: Sequence[Sequence[str]],
    seconds: float,
    folder: Path | None = None,
    *,
    ever_new: bool = False,
    threads: bool = False,
) -> list[dict[str, Any]]:
    patience = seconds + 20
    asks = (
        worker.ask(
            "load",
            patience=patience,
            names=own,
            seconds=seconds,
            record=None if folder is None else str(folder / str(number)),
            ever_new=ever_new,
            threads=threads,
        )
        for number, (worker, own) in enumerate(zip(workers, names, strict=True))
    )
    return await asyncio.gather(*asks)


def distinct(round_: Round) -> list[str]:
    return [f"{round_.name}:{i}" for i in range(round_.case.tasks)]
