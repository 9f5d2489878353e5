"""Names cost a node nothing once they are free."""

import pytest

from benchmarks.retention import measure


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("records", [False, True])
async def test_the_memory_is_back_after_the_retention(records: bool) -> None:
    found = await measure(20_000, 66, records=records)
    assert found.keys > 10_000
    assert found.most > found.before + 1_000_000
    assert found.keys_left == 0
    assert found.back, found
    assert found.fences_rise
