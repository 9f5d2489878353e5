"""Where fences are checked: a number that nobody checks protects nothing.

`FencedRedis` guards writes to Redis, `require_fence` and `fence_middleware` (in the modules
`fencing.fastapi` and `fencing.aiohttp`, imported only by those who use them) guard HTTP handlers;
docs/fencing.md has the recipe for SQL.
"""

from .headers import (
    LOCK_FENCE_HEADER,
    LOCK_NAME_HEADER,
    FenceHeaderError,
    check_fence,
    fence_headers,
    read_fence_headers,
)
from .redis import FencedRedis
from .stamp import Fenced, FenceStamp, StaleFenceError
from .store import FenceStore, MemoryFenceStore

__all__ = [
    "LOCK_FENCE_HEADER",
    "LOCK_NAME_HEADER",
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
