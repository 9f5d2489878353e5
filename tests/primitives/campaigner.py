"""A process that campaigns, leads, and is killed: `campaigner.py HISTORY TTL URL...`."""

import asyncio
import os
import sys

from asynclock.testing import History
from tests import patient


async def main(path: str, ttl: float, urls: list[str]) -> None:
    history = History(path)
    async with patient.connect(*urls, ttl=ttl, restart_guard=False) as locks:
        print("ready", flush=True)
        began = history.now()
        async with locks.election("scheduler").campaign(str(os.getpid())) as term:
            lease = term.lease
            body = history.acquired(
                lease.name,
                lease.owner,
                lease.fence,
                began=began,
                until=history.now() + lease.remaining(),
            )
            print(f"leads {term.number}", flush=True)
            while True:
                await asyncio.sleep(0.02)
                body.extended(history.now() + lease.remaining())


asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
