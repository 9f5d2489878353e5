"""What a process remembers of reentrant holds: nothing of those that have ended."""

from asynclock._primitives.reentrant import _inherited
from tests.engine.virtual_nodes import Nodes, start, virtual_single


@virtual_single
async def test_a_task_remembers_no_holds_that_have_ended(on: Nodes) -> None:
    async with on.connect() as others:
        for number in range(20):
            for locks in (on.locks, others):
                async with locks.reentrant_lock(str(number), inherit=True):
                    pass
        async with on.locks.reentrant_lock("a", inherit=True):
            assert len(_inherited.get()) == 1
            async with others.reentrant_lock("b", inherit=True):
                assert len(_inherited.get()) == 2
                assert await start(others.reentrant_lock("a", inherit=True).try_acquire()) is None


@virtual_single
async def test_a_manager_remembers_no_name_that_nobody_holds(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    holds = [await lock.acquire() for _ in range(4)]
    for ended in (3, 0, 1, 2):
        assert on.locks._nestings
        await holds[ended].release()
    assert not on.locks._nestings
