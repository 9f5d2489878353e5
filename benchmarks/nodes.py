"""The servers under load: local ones with every fault, and their own figures."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from asynclock.testing import LocalServer, local_servers


@dataclass(frozen=True)
class Counters:
    """Sums over some nodes since their start."""

    nodes: int
    cpu: float
    commands: int
    scripts: int
    """Calls of EVAL, EVALSHA and FCALL."""
    memory: int
    """Bytes that the data of the nodes use."""

    def __sub__(self, other: Counters) -> Counters:
        """Return the difference, without the INFO per node that read it."""
        commands = self.commands - other.commands - self.nodes
        scripts, memory = self.scripts - other.scripts, self.memory - other.memory
        return Counters(self.nodes, self.cpu - other.cpu, commands, scripts, memory)


class Nodes:
    """Some local servers. A scenario over N nodes uses the first N of one shared set."""

    def __init__(self, servers: Sequence[LocalServer], started: dict[int, float]) -> None:
        self.servers = servers
        self._started = started

    def first(self, n: int) -> Nodes:
        return Nodes(self.servers[:n], self._started)

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    @property
    def version(self) -> str:
        return str(self.servers[0].binary)

    async def flush(self) -> None:
        """Remove all keys from all nodes, because an interrupted peer leaves keys."""
        await asyncio.gather(*(server.flush() for server in self.servers))

    async def counters(self) -> Counters:
        """Read the figures of all nodes that answer at this moment."""
        able = [server for server in self.servers if server.alive and not server.frozen]
        infos = await asyncio.gather(*map(_info, able))
        cpu = sum(float(i["used_cpu_user"]) + float(i["used_cpu_sys"]) for i in infos)
        commands = sum(int(i["total_commands_processed"]) for i in infos)
        scripts = sum(_calls(i, name) for i in infos for name in ("eval", "evalsha", "fcall"))
        memory = sum(int(i["used_memory"]) for i in infos)
        return Counters(len(able), cpu, commands, scripts, memory)

    async def restart(self, index: int) -> None:
        """Kill a node and start it again, empty, on the same port."""
        await self.servers[index].restart()
        self._started[index] = time.monotonic()

    async def settled(self, seconds: float) -> None:
        """Wait until every node has run for more than ``seconds``, because a young one has no vote.

        INFO has the uptime in whole seconds, and the guard subtracts 2 s: so wait 3 s more.
        """
        youngest = max(self._started[i] for i in range(len(self.servers)))
        await asyncio.sleep(max(0.0, youngest + seconds * 1.01 + 3.0 - time.monotonic()))

    async def remaining(self, name: str) -> float:
        """Return the seconds until the lock key of ``name`` has expired on every node.

        A counter beside the lock lives longer, so the shortest ttl on a node counts.
        """
        left = [0.0]
        for server in self.servers:
            keys = await server.command("KEYS", f"*{name}*")
            assert isinstance(keys, list)
            ttls = [await server.command("PTTL", str(key)) for key in keys]
            living = [ttl for ttl in ttls if isinstance(ttl, int) and ttl > 0]
            left.append(min(living, default=0) / 1000)
        return max(left)


async def _info(server: LocalServer) -> dict[str, str]:
    text = str(await server.command("INFO", "all"))
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def _calls(info: Mapping[str, str], command: str) -> int:
    """Return the number of calls of a command: `cmdstat_evalsha:calls=3,usec=…`."""
    stated = info.get(f"cmdstat_{command}", "calls=0,")
    return int(stated.removeprefix("calls=").partition(",")[0])


@contextlib.asynccontextmanager
async def local_nodes(count: int) -> AsyncIterator[Nodes]:
    """Start servers and end them afterwards."""
    async with local_servers(count) as servers:
        now = time.monotonic()
        yield Nodes(servers, dict.fromkeys(range(count), now))
