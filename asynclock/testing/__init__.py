"""Real servers, real faults and a checker: for this project's tests and for those of its users.

Names are imported on first use, since pytest loads the plugin of this package at every start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asynclock.testing._resp import ServerReplyError
    from asynclock.testing.binaries import ServerBinary, all_servers, find_server
    from asynclock.testing.checker import Violation, check
    from asynclock.testing.clock import why_no_clock_jumps
    from asynclock.testing.cluster import RedisCluster
    from asynclock.testing.containers import ContainerImage, container_image, why_no_containers
    from asynclock.testing.history import Body, Event, History
    from asynclock.testing.memory import MemoryNode, freeze, lose, memory_node, thaw
    from asynclock.testing.proxy import FaultProxy
    from asynclock.testing.sentinel import SentinelGroup
    from asynclock.testing.servers import (
        LocalServer,
        ServerOptions,
        ServerStartError,
        local_servers,
        start_servers,
    )
    from asynclock.testing.tls import Certificates, make_certificates
    from asynclock.testing.topology import Quorum, Replicated, Single, Topology, until
    from asynclock.testing.virtual import run_virtual

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
    "_resp": ("ServerReplyError",),
    "binaries": ("ServerBinary", "all_servers", "find_server"),
    "clock": ("why_no_clock_jumps",),
    "checker": ("Violation", "check"),
    "cluster": ("RedisCluster",),
    "containers": ("ContainerImage", "container_image", "why_no_containers"),
    "history": ("Body", "Event", "History"),
    "memory": ("MemoryNode", "freeze", "lose", "memory_node", "thaw"),
    "virtual": ("run_virtual",),
    "proxy": ("FaultProxy",),
    "sentinel": ("SentinelGroup",),
    "servers": (
        "LocalServer",
        "ServerOptions",
        "ServerStartError",
        "local_servers",
        "start_servers",
    ),
    "topology": ("Quorum", "Replicated", "Single", "Topology", "until"),
    "tls": ("Certificates", "make_certificates"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
