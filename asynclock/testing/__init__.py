"""Real servers, real faults and a history checker, for the tests of this project and of its users.

Names are imported on first use, because pytest loads this package's plugin at every start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asynclock.testing.faults import FaultProxy, busy, lose
    from asynclock.testing.history import Body, Event, History, Violation, check
    from asynclock.testing.memory import MemoryNode, freeze, memory_node, thaw
    from asynclock.testing.memory.virtual import run_virtual
    from asynclock.testing.servers import (
        Certificates,
        LocalServer,
        ServerOptions,
        ServerReplyError,
        ServerStartError,
        local_servers,
        make_certificates,
        start_servers,
        why_no_clock_jumps,
    )
    from asynclock.testing.servers.containers import (
        ContainerImage,
        container_image,
        why_no_containers,
    )
    from asynclock.testing.servers.process import ServerBinary, all_servers, find_server
    from asynclock.testing.topology import (
        Quorum,
        RedisCluster,
        Replicated,
        SentinelGroup,
        Single,
        Topology,
        until,
    )

__all__ = [
    "Body",
    "Certificates",
    "ContainerImage",
    "Event",
    "FaultProxy",
    "History",
    "LocalServer",
    "MemoryNode",
    "Quorum",
    "RedisCluster",
    "Replicated",
    "SentinelGroup",
    "ServerBinary",
    "ServerOptions",
    "ServerReplyError",
    "ServerStartError",
    "Single",
    "Topology",
    "Violation",
    "all_servers",
    "busy",
    "check",
    "container_image",
    "find_server",
    "freeze",
    "local_servers",
    "lose",
    "make_certificates",
    "memory_node",
    "run_virtual",
    "start_servers",
    "thaw",
    "until",
    "why_no_clock_jumps",
    "why_no_containers",
]

_HOMES = {
    "faults": "FaultProxy busy lose",
    "history": "Body Event History Violation check",
    "memory": "MemoryNode freeze memory_node thaw",
    "memory.virtual": "run_virtual",
    "servers": "Certificates LocalServer ServerOptions ServerReplyError ServerStartError "
    "local_servers make_certificates start_servers why_no_clock_jumps",
    "servers.containers": "ContainerImage container_image why_no_containers",
    "servers.process": "ServerBinary all_servers find_server",
    "topology": "Quorum RedisCluster Replicated SentinelGroup Single Topology until",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
