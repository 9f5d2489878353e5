"""Managers, locks and leases can't be copied or pickled, and say so once."""

import copy
import pickle

import pytest

import asynclock
from asynclock import blocking
from tests.engine.kinds import kinds

KINDS = kinds(
    *("strict", "one of two", "read"),
    manager=lambda locks: locks,
    rwlock=lambda locks: locks.rwlock("a"),
    event=lambda locks: locks.event("a"),
    latch=lambda locks: locks.latch("a", 2),
    once=lambda locks: locks.once("a"),
    barrier=lambda locks: locks.barrier("a", 2),
)


def tried(one: object) -> None:
    """Expect of each way an error that names what was to be copied."""
    for way in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=f"^{type(one).__name__} can't be copied or pickled"):
            way(one)


async def test_asynchronous(capsys: pytest.CaptureFixture[str]) -> None:
    async with asynclock.connect("memory://copies") as locks:
        for make in KINDS.values():
            tried(made := make(locks))
            if hasattr(made, "acquire"):
                tried(lease := await made.acquire())
                assert await lease.release()
        tried(locks.election("a"))
        async with await locks.election("a").campaign() as term:
            tried(term)
        async with locks.lock("a") as lease:
            with pytest.raises(TypeError, match="can't be copied"):
                copy.copy(lease)
            assert lease.held
    assert not capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_blocking(kind: str) -> None:
    with blocking.connect("memory://copies-blocking") as locks:
        tried(KINDS[kind](locks))
        with locks.lock("held") as lease:
            tried(lease)
