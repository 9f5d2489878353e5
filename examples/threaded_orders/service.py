"""The server: `python -m examples.threaded_orders.service PORT DATABASE NODE…`."""

from __future__ import annotations

import logging
import math
import random
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from asynclock import (
    AcquireTimeoutError,
    LeaseLostError,
    QuorumUnavailableError,
    blocking,
)
from examples.fastapi_orders.store import StaleError, Store, open_store

TTL = 4.0


class Shop:
    """What all requests share: the store and the locks."""

    def __init__(self, store: Store, locks: blocking.LockManager) -> None:
        self._store = store
        self._locks = locks

    def ready(self) -> bool:
        """Return whether enough nodes can vote."""
        nodes = self._locks.nodes()
        return sum(node.state == "up" for node in nodes) > len(nodes) // 2

    def buy(self, order: int, buyer: str) -> tuple[int, float | None]:
        """Return the status for one request, and the seconds after which to come back."""
        try:
            with self._locks.lock(f"orders:{order}", timeout=2) as lease:
                return self._sell(order, buyer, lease), None
        except (AcquireTimeoutError, QuorumUnavailableError) as error:
            status = 409 if isinstance(error, AcquireTimeoutError) else 503
            return status, min(error.retry_after, 1.0)
        except (LeaseLostError, StaleError):
            return 412, None

    def _sell(self, order: int, buyer: str, lease: blocking.Lease) -> int:
        if self._store.sold(order):
            return 410
        time.sleep(random.uniform(0.001, 0.01))  # a card is charged
        # Nothing interrupts a thread whose lease is lost: the store checks the fence.
        self._store.sell(order, buyer, lease.fence)
        return 201


class Handler(BaseHTTPRequestHandler):
    """One request, in a thread of its own."""

    shop: Shop

    def do_GET(self) -> None:
        """Answer the health check."""
        self._answer(200 if self.shop.ready() else 503)

    def do_POST(self) -> None:
        """Sell an order: POST /orders/7/buyer-3."""
        _, _, order, buyer = self.path.split("/")
        self._answer(*self.shop.buy(int(order), buyer))

    def _answer(self, status: int, pause: float | None = None) -> None:
        self.send_response(status)
        if pause is not None:
            self.send_header("Retry-After", str(math.ceil(pause)))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """Many buyers connect at once."""

    request_queue_size = 128


def main(port: str, database: str, *nodes: str) -> None:
    """Serve until SIGTERM."""
    logging.getLogger("asynclock").addHandler(logging.NullHandler())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # `with` connects now, so that the health check knows of the nodes before the first sale.
    with blocking.connect(*nodes, ttl=TTL, max_ttl=TTL, node_timeout=1.0) as locks:
        Handler.shop = Shop(open_store(database), locks)
        with Server(("127.0.0.1", int(port)), Handler) as server:
            server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
