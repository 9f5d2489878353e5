"""One process: `python -m examples.leader_cron.candidate NAME JOURNAL NODE…`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import asynclock
from examples.leader_cron.journal import DeposedError, Journal

TTL = 2.0
TICK = 0.2


async def main(name: str, file: str, *nodes: str) -> None:
    """Campaign, lead, and campaign again, until this process is ended."""
    journal = Journal(Path(file))
    async with asynclock.connect(*nodes, ttl=TTL, max_ttl=TTL, node_timeout=0.5) as locks:
        while True:
            try:
                async with locks.election("cron").campaign(name) as term:
                    while True:
                        journal.write(term.number, name)
                        await asyncio.sleep(TICK)
            except (asynclock.LeaseLostError, asynclock.QuorumUnavailableError, DeposedError):
                await asyncio.sleep(TICK)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
