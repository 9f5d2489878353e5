"""The floor does on the servers what a plain Redlock does there, or it would be no limit."""

from asynclock.testing import local_servers
from benchmarks.adapters.floor import Floor


async def test_the_floor_locks_with_a_ttl_and_frees_only_its_own_lock() -> None:
    async with local_servers(1) as [server]:
        floor = Floor([server.url], 10.0, {})
        await floor.open()
        lease = await floor.acquire("name")
        assert await server.command("GET", "name") == lease[1].decode()
        left = await server.command("PTTL", "name")
        assert isinstance(left, int)
        assert 0 < left <= 10_000
        await floor.release((lease[0], b"another owner"))
        assert await server.command("GET", "name") == lease[1].decode()
        await floor.release(lease)
        assert await server.command("GET", "name") is None
        await floor.close()
