"""Real Redis or Valkey servers as processes of this machine, with a switch for every fault."""

from asynclock.testing.servers.local import (
    LocalServer,
    ServerStartError,
    local_servers,
    start_servers,
)
from asynclock.testing.servers.settings import ServerOptions

__all__ = ["LocalServer", "ServerOptions", "ServerStartError", "local_servers", "start_servers"]
