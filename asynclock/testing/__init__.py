"""Real servers, real faults and a history checker, for the tests of this project and of its users.

Names are imported on first use, because pytest loads this package's plugin at every start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from asynclock.testing.faults import FaultProxy as FaultProxy
    from asynclock.testing.faults import busy as busy
    from asynclock.testing.faults import lose as lose
    from asynclock.testing.history import Body as Body
    from asynclock.testing.history import Event as Event
    from asynclock.testing.history import History as History
    from asynclock.testing.history import Violation as Violation
    from asynclock.testing.history import check as check
    from asynclock.testing.memory import MemoryNode as MemoryNode
    from asynclock.testing.memory import freeze as freeze
    from asynclock.testing.memory import memory_node as memory_node
    from asynclock.testing.memory import thaw as thaw
    from asynclock.testing.memory.virtual import run_virtual as run_virtual
    from asynclock.testing.servers import Certificates as Certificates
    from asynclock.testing.servers import LocalServer as LocalServer
    from asynclock.testing.servers import ServerOptions as ServerOptions
    from asynclock.testing.servers import ServerReplyError as ServerReplyError
    from asynclock.testing.servers import ServerStartError as ServerStartError
    from asynclock.testing.servers import local_servers as local_servers
    from asynclock.testing.servers import make_certificates as make_certificates
    from asynclock.testing.servers import start_servers as start_servers
    from asynclock.testing.servers import why_no_clock_jumps as why_no_clock_jumps
    from asynclock.testing.servers.containers import ContainerImage as ContainerImage
    from asynclock.testing.servers.containers import container_image as container_image
    from asynclock.testing.servers.containers import why_no_containers as why_no_containers
    from asynclock.testing.servers.process import ServerBinary as ServerBinary
    from asynclock.testing.servers.process import all_servers as all_servers
    from asynclock.testing.servers.process import find_server as find_server
    from asynclock.testing.topology import Quorum as Quorum
    from asynclock.testing.topology import RedisCluster as RedisCluster
    from asynclock.testing.topology import Replicated as Replicated
    from asynclock.testing.topology import SentinelGroup as SentinelGroup
    from asynclock.testing.topology import Single as Single
    from asynclock.testing.topology import Topology as Topology
    from asynclock.testing.topology import until as until
else:
    __all__ = sorted(_HOME_OF)  # noqa: PLE0605 - made of the table above

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)

    def __dir__() -> list[str]:
        return __all__
