"""The count of calls finds the functions that an acquire runs."""

import sys

from benchmarks.calls import measure


async def test_the_calls_of_a_cycle_are_counted() -> None:
    acquire, release = await measure(1)
    assert sys.getprofile() is None
    assert "_engine/acquire.py" in acquire.files
    assert "_engine/ending.py" in release.files
    for profile in (acquire, release):
        assert profile.total() >= len(profile.files) > 1
        assert profile.depth > 0
        assert not any(file.startswith("testing/") for file in profile.files)
