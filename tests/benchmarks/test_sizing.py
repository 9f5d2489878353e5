"""The figures of docs/tuning.md can be measured again."""

from __future__ import annotations

from benchmarks.sizing import measure


async def test_what_locks_cost_a_node() -> None:
    # A server counts the buffers of its connections as well: some 40 KB that come and go.
    sizes = await measure(blocks=2, cycles=200, names=2000)
    assert sizes.ratio > 1  # scripts do more than one plain command
    assert 0 < sizes.counter < sizes.held < 2000
    assert sizes.cpu > 0
    assert sizes.plain_cpu > 0
