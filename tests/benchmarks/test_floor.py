"""The floor does on the servers what asynclock does there, or it would be no limit."""

from __future__ import annotations

from asynclock._primitives.lock import SCRIPT
from asynclock.testing import local_servers
from benchmarks.adapters.floor import Floor


async def test_the_floor_locks_and_frees_with_the_script_of_the_library() -> None:
    async with local_servers(1) as [server]:
        floor = Floor([server.url], 10.0, {})
        await floor.open()
        assert floor.sha.decode() == SCRIPT.sha
        lease = await floor.acquire("name")
        assert await server.command("GET", "name") == lease[1].decode()
        await floor.release(lease)
        assert await server.command("GET", "name") is None
        await floor.close()
