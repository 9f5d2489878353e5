"""The project: `python -m examples.django_orders.project PORT DATABASE NODE…`."""

from __future__ import annotations

import logging
import math
import signal
import sys

import django
from django.conf import settings
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from asynclock import blocking
from examples.fastapi_orders.store import open_store
from examples.threaded_orders.service import TTL, Shop

shop: Shop


def health(_: HttpRequest) -> HttpResponse:
    """Answer the health check."""
    return HttpResponse(status=200 if shop.ready() else 503)


def buy(_: HttpRequest, order: int, buyer: str) -> HttpResponse:
    """Sell an order: POST /orders/7/buyer-3."""
    status, pause = shop.buy(order, buyer)
    headers = {} if pause is None else {"Retry-After": str(math.ceil(pause))}
    return HttpResponse(status=status, headers=headers)


urlpatterns = [path("", health), path("orders/<int:order>/<str:buyer>", buy)]


class Handler(WSGIRequestHandler):  # type: ignore[misc]  # Django has no types
    """One request, in a thread of its own."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Print nothing."""


class Server(ThreadedWSGIServer):  # type: ignore[misc]
    """Many buyers connect at once."""

    request_queue_size = 128


def main(port: str, database: str, *nodes: str) -> None:
    """Serve until SIGTERM."""
    global shop
    logging.getLogger("asynclock").addHandler(logging.NullHandler())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings.configure(ROOT_URLCONF=sys.modules[__name__], ALLOWED_HOSTS=["127.0.0.1"])
    django.setup()
    # `with` connects now, so that the health check knows of the nodes before the first sale.
    with blocking.connect(*nodes, ttl=TTL, max_ttl=TTL, node_timeout=1.0) as locks:
        shop = Shop(open_store(database), locks)
        with Server(("127.0.0.1", int(port)), Handler) as server:
            server.set_app(get_wsgi_application())
            server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
