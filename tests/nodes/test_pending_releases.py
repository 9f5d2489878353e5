"""What is kept for a node that comes and goes: one entry per lease, nothing that can't matter."""

import asyncio

import pytest

import asynclock
from tests.nodes.virtual_servers import Server, played_on, reach
from tests.waiting import go_through, in_virtual_time, until

Three = tuple[Server, asynclock.LockManager]
LEASES = 20
NODE_TIMEOUT = 0.1


def three(patch: pytest.MonkeyPatch, ttl: float = 60.0) -> Three:
    """Return a server that keeps its data, and a manager of it and two others."""
    servers = [Server(f"p{number}", 6379) for number in range(3)]
    reach(patch, servers)
    servers[0].durable = True
    urls = [f"redis://{server.host}" for server in servers]
    settings = {"ttl": ttl, "max_ttl": 60.0, "node_timeout": NODE_TIMEOUT}
    return servers[0], asynclock.connect(*urls, restart_guard=False, **settings)  # type: ignore[arg-type]


async def comes_back(server: Server, locks: asynclock.LockManager, *, times: int = 1) -> None:
    for _ in range(times):
        server.kill()
        await until(lambda: locks.nodes()[0].state == "down")
        server.restart()
        await until(lambda: locks.nodes()[0].state == "up")


@pytest.mark.parametrize(("role", "state"), [("master", "down"), ("slave", "connecting")])
@played_on(three)
async def test_flapping_nodes_get_each_release_once(on: Three, role: str, state: str) -> None:
    server, locks = on
    async with locks:
        leases = [await locks.lock(f"n{number}").acquire() for number in range(LEASES)]
        await locks.inspect("n0")  # all before is answered, too
        server.kill()
        if role == "slave":
            server.info["role"] = role
            server.restart()
        await until(lambda: locks.nodes()[0].state == state, every=0)
        assert all(await asyncio.gather(*(lease.release() for lease in leases)))
        await until(lambda: locks.nodes()[0].state in ("down", "rejected"))
        server.info["role"] = "master"
        server.restart()
        await until(lambda: locks.nodes()[0].state == "up")
        await comes_back(server, locks, times=4)
        await asyncio.sleep(10 * NODE_TIMEOUT)  # until every repeat has been sent
        assert await server.command("EXISTS", *(f"asynclock:n{i}" for i in range(LEASES))) == 0
        released = server.operations("release")
        assert set(released) == {f"release {lease.owner}" for lease in leases}
        assert len(released) <= 2 * LEASES  # a cut may have swallowed the replies


@played_on(three)
async def test_a_release_that_comes_late_makes_no_rest_much_longer(on: Three) -> None:
    server, locks = on
    async with locks:
        lease = await locks.lock("n", at_least=30).acquire()
        await locks.inspect("n")
        server.kill()
        await until(lambda: locks.nodes()[0].state == "down")
        assert await lease.release()
        await asyncio.sleep(10)
        server.restart()
        await until(lambda: server.operations("rest"))
        await asyncio.sleep(NODE_TIMEOUT)
        assert (await locks.inspect("n")).agreed
        assert 15_000 < await server.command("PTTL", "asynclock:n") <= 21_000


@played_on(three)
async def test_nothing_is_kept_for_a_node_that_was_sent_nothing(on: Three) -> None:
    server, locks = on
    async with locks:
        await locks.ready()
        server.kill()
        await until(lambda: locks.nodes()[0].state == "down")
        for number in range(LEASES):
            await go_through(locks.lock(f"n{number}"))
        server.restart()
        await until(lambda: locks.nodes()[0].state == "up")
        await asyncio.sleep(10 * NODE_TIMEOUT)
        assert server.operations("release", "batch") == []


@pytest.mark.parametrize("ttl", [10.0, 60.0])
@in_virtual_time
async def test_the_backlog_of_a_flapping_node_is_bounded(
    monkeypatch: pytest.MonkeyPatch, ttl: float
) -> None:
    """0.5 s up and 0.8 s down, 40 locks a second, for eight rounds: few releases per return."""
    server, locks = three(monkeypatch, ttl)
    async with locks, asyncio.TaskGroup() as group:

        async def use(number: int) -> None:
            async with locks.lock(f"n{number}", timeout=5):
                await asyncio.sleep(0.05)

        for number in range(int(8 * 1.3 * 40)):
            phase = number / 40 % 1.3
            if phase < 0.5 and not server.alive:
                assert len(server.operations("release")) <= 20 + 10, "those of its life before"
                server.asked.clear()
                server.restart()
            elif phase >= 0.5 and server.alive:
                server.kill()
            group.create_task(use(number))
            await asyncio.sleep(1 / 40)
    assert locks.statistics().lost == 0
