"""Real Redis or Valkey servers as processes of this machine, with a switch for every fault."""

from asynclock.testing.servers.local import LocalServer, ServerOptions, ServerStartError
from asynclock.testing.servers.several import local_servers, start_servers

__all__ = ["LocalServer", "ServerOptions", "ServerStartError", "local_servers", "start_servers"]
