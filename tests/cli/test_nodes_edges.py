"""Steps of a fleet at rare moments, with nodes in memory and in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asynclock.errors import ConfigurationError
from asynclock.fleet import Fleet
from asynclock.testing import MemoryNode
from asynclock.testing.memory.keyspace import ReplyError
from tests.waiting import in_virtual_time

OLD, NEW = [[f"memory://{name}" for name in names] for names in ("abc", "abcd")]


def fleet(urls: list[str], **more: Any) -> Fleet:
    return Fleet(*urls, **{"restart_guard": False, "ttl": 1.0, "max_ttl": 4.0, **more})


@in_virtual_time
async def test_a_finish_whose_step_was_begun_anew_settles_nothing() -> None:
    waiting = asyncio.Event()
    old = fleet(OLD, progress=lambda _: waiting.set())
    async with old, fleet(NEW) as new:
        await old.record()
        await old.add(NEW[-1])
        waiting.clear()
        finishing = asyncio.create_task(old.finish())
        await waiting.wait()
        await new.remove(NEW[-1])
        with pytest.raises(ConfigurationError, match="begun anew while this call waited"):
            await finishing
        record = (await new.show()).record
        assert record is not None
        assert record.phase == "open"


@in_virtual_time
async def test_without_the_right_to_list_clients_a_step_ends_only_by_force() -> None:
    def refuse(self: MemoryNode, client: Any, words: Any) -> Any:
        if words[:2] == (b"CLIENT", b"LIST"):
            return ReplyError("NOPERM this user has no permissions")
        return answer(self, client, words)

    answer = MemoryNode.answer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryNode, "answer", refuse)
        async with fleet(OLD) as old:
            with pytest.raises(ConfigurationError, match="no node shows its clients"):
                await old.record()
            state = await old.record(force=True)
            assert state.clients is None
            await old.add(NEW[-1])
            with pytest.raises(ConfigurationError, match="or use force"):
                await old.finish()
            ended = (await old.finish(force=True)).record
            assert ended is not None
            assert ended.phase == "settled"
