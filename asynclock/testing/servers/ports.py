"""Reserves free ports.

Another process can take a port that was found by "bind to 0 and close" before the server binds it,
and again between a crash and the restart. So a `ReservedPort` keeps a bound socket that never
listens. On Linux a server that sets SO_REUSEADDR (Redis does) can still bind the port and listen.
The kernel gives the port to no other process, and while the server is down, connections are refused
at once.
"""

from __future__ import annotations

import contextlib
import socket
import sys

# BSDs and macOS refuse the second bind, so there the port is only looked up, not reserved.
_CAN_SHARE = sys.platform.startswith("linux")
_CLUSTER_BUS_OFFSET = 10_000
_HIGHEST = 65_535


class ReservedPort:
    """A TCP port of `host`, ours until `release()`; with `bus`, port + 10000 as well.

    In a `with` block it is released at the end of the block.
    """

    def __init__(self, host: str = "127.0.0.1", *, bus: bool = False) -> None:
        self._sockets: list[socket.socket] = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                self.number: int = self._take(host, 0)
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
            sock.bind((host, port))
            # Set after the bind: two sockets with this option before their bind could share a port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            number: int = sock.getsockname()[1]
        except OSError:
            sock.close()
            raise
        if _CAN_SHARE:
            self._sockets.append(sock)
        else:
            sock.close()
        return number

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Close the reserving socket, so that any process may use the port again."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
