"""The measurement of the live page measures something, at a size that takes a moment."""

from benchmarks.page import QUERIES, measure


async def test_updates_and_snapshots_are_measured() -> None:
    found = await measure(300, 40, 3, browser=False)
    assert found.updates.keys() == QUERIES.keys()
    assert all(0 < wall < 60 for times in found.updates.values() for wall, _ in times)
    assert 0 <= found.stall <= found.snapshot
    assert found.drawn == {}
