"""For tests of the engine."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Let the collector look at the test's own objects only: all of them take it seconds."""
    gc.freeze()
    yield
    gc.unfreeze()
