"""One scheduler at a time, and all processes know its address: a leader election."""

from __future__ import annotations

import asyncio
import contextlib

import asynclock
from asynclock.testing import local_servers


async def candidate(urls: list[str], address: str, retire: asyncio.Event) -> None:
    async with (
        asynclock.connect(*urls, restart_guard=False) as locks,  # normally a separate process
        locks.election("scheduler").campaign(address) as term,
    ):
        await term.publish(f"{address}, on duty")
        await retire.wait()  # here it schedules


async def main() -> None:
    async with local_servers(3) as servers:
        urls = [server.url for server in servers]
        async with asynclock.connect(*urls, restart_guard=False) as locks:
            retire = {f"10.0.0.{number}:8000": asyncio.Event() for number in (1, 2)}
            tasks = [asyncio.create_task(candidate(urls, *one)) for one in retire.items()]
            terms: list[int] = []
            async with contextlib.aclosing(locks.election("scheduler").observe()) as leaders:
                async for leader in leaders:
                    if "on duty" in leader.value:
                        terms.append(leader.term)
                        print(f"term {len(terms)}: {leader.value}")
                        retire[leader.value.partition(",")[0]].set()
                    if len(terms) == len(tasks):
                        break
            print(f"terms rise: {terms == sorted(set(terms))}")
            await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main())
