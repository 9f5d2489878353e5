"""In-memory nodes without a server: `asynclock.connect("memory://")`, for fast tests.

    locks = asynclock.connect("memory://a", "memory://b", "memory://c")
    memory_node("b").freeze()

Links, handshake, guards and Lua scripts are the real ones; only the socket is replaced. A name is
one node of the running event loop. Each test has its own loop, so tests share nothing. This needs
`lupa` (`pip install asynclock[test]`; from Python 3.15 on, `pip install lupa` as well).
"""

from asynclock.testing.memory.node import (
    MemoryEndpoint,
    MemoryNode,
    endpoint,
    freeze,
    memory_node,
    thaw,
)

__all__ = ["MemoryEndpoint", "MemoryNode", "endpoint", "freeze", "memory_node", "thaw"]
