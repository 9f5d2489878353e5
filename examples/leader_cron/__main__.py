"""Starts three candidates, kills two leaders, reads the journal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from itertools import groupby

import asynclock
from asynclock.testing import LocalServer
from examples._stage import process, stage, until
from examples.leader_cron.journal import Journal

NODES, CANDIDATES, TICKS = 3, ("anna", "ben", "cleo"), 3


async def main() -> int:
    """Run the example and return the exit status."""
    async with stage(NODES) as (folder, servers), contextlib.AsyncExitStack() as stack:
        file = folder / "journal.sqlite"
        journal = Journal(file)
        urls = [server.url for server in servers]
        candidates = {}
        for name in CANDIDATES:
            started = process("examples.leader_cron.candidate", name, str(file), *urls)
            candidates[name] = await stack.enter_async_context(started)
        await until(lambda: len(journal.entries()) >= TICKS, "somebody leads")
        for _ in range(2):
            leader = journal.entries()[-1][1]
            print(f"{leader} leads{await asked(servers)} and is killed", flush=True)
            candidates.pop(leader).kill()
            await until(lambda: enough(journal, set(candidates)), "somebody else leads")
        return report(journal.entries())


def enough(journal: Journal, living: set[str]) -> bool:
    """Return whether a live candidate has led for some ticks."""
    last = [leader for _, leader in journal.entries()[-TICKS:]]
    return len(last) == TICKS and set(last) <= living


async def asked(servers: list[LocalServer]) -> str:
    """Print what an observer learns from the nodes."""
    async with asynclock.connect(*(server.url for server in servers), node_timeout=2) as locks:
        leader = await locks.election("cron").leader()
        return "" if leader is None else f" (the nodes say {leader.value!r})"


def report(entries: list[tuple[int, str]]) -> int:
    """Print what happened; return 0 if terms rose, each with one leader, and the work went on."""
    terms = [(term, {leader for _, leader in group}) for term, group in groupby(entries, _term)]
    for term, leaders in terms:
        ticks = sum(one == term for one, _ in entries)
        print(f"term {term}: {', '.join(leaders)}, {ticks} ticks")
    numbers = [term for term, _ in terms]
    rising = numbers == sorted(set(numbers))
    right = rising and len(terms) >= 3 and all(len(leaders) == 1 for _, leaders in terms)
    print("right" if right else "WRONG")
    return 0 if right else 1


def _term(entry: tuple[int, str]) -> int:
    return entry[0]


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
