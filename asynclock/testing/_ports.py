"""Free ports that stay free.

A port found by "bind to 0 and close" can be taken by anybody before the server binds it, and again
between a crash and the restart. A `ReservedPort` therefore keeps a bound socket that never listens:
on Linux a server that sets SO_REUSEADDR (Redis does) may bind and listen beside it, nobody is ever
given the port by the kernel, and while the server is down a connect is refused at once.
"""

from __future__ import annotations

import contextlib
import socket
import sys

__all__ = ["ReservedPort"]

# BSDs and macOS refuse the second bind, so there the port is only looked up.
_CAN_SHARE = sys.platform.startswith("linux")
_CLUSTER_BUS_OFFSET = 10_000
_HIGHEST = 65_535


class ReservedPort:
    """A TCP port of `host`, ours until `release()`; with `bus`, port + 10000 as well."""

    def __init__(self, host: str = "127.0.0.1", *, bus: bool = False) -> None:
        self._sockets: list[socket.socket] = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                self.number = self._take(host, 0)
                if not bus:
                    return
                if self.number + _CLUSTER_BUS_OFFSET <= _HIGHEST:
                    self._take(host, self.number + _CLUSTER_BUS_OFFSET)
                    return
            self.release()
        raise OSError(f"no free port on {host}")

    def _take(self, host: str, port: int) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            number: int = sock.getsockname()[1]
        except OSError:
            sock.close()
            raise
        if _CAN_SHARE:
            self._sockets.append(sock)
        else:
            sock.close()
        return number

    def release(self) -> None:
        """Give the port back."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
