"""Checks of fences: a fence protects nothing unless the store checks it.

`FencedRedis` guards writes to Redis. `require_fence` and `fence_middleware` guard HTTP handlers;
they are in `fencing.fastapi` and `fencing.aiohttp`, which this package doesn't import.
docs/fencing.md has the recipe for SQL.
"""

from .redis import FencedRedis
from .stamp import (
    LOCK_FENCE_HEADER,
    LOCK_NAME_HEADER,
    LOCK_PART_HEADER,
    Fenced,
    FenceHeaderError,
    FenceStamp,
    FenceStore,
    MemoryFenceStore,
    StaleFenceError,
    check_fence,
    fence_headers,
    read_fence_headers,
)

__all__ = [
    "LOCK_FENCE_HEADER",
    "LOCK_NAME_HEADER",
    "LOCK_PART_HEADER",
    "FenceHeaderError",
    "FenceStamp",
    "FenceStore",
    "Fenced",
    "FencedRedis",
    "MemoryFenceStore",
    "StaleFenceError",
    "check_fence",
    "fence_headers",
    "read_fence_headers",
]
