"""`asynclock serve`: serves the live page without an application."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import socket
from typing import Annotated
from urllib.parse import urlencode

import typer

from .. import _settings
from .._inspect.survey import Survey, ask
from .._nodes.wire import Command, Failure
from ..errors import ConfigurationError
from ..manager import engine_of
from . import _app
from ._output import Status, say
from ._settings import Settings, load
from .inspect import say_causes

SCAN = Command.plain("SCAN", "0", "COUNT", 1)
TOKEN = "ASYNCLOCK_TOKEN"  # noqa: S105 - the name of a variable
STOP_TIMEOUT = 2
"""Maximum seconds at the end for open streams to close."""
GARBAGE = (10_000, 10, 200)
"""Thresholds of Python's garbage collection. With 100,000 locks a picture is a million objects in
no cycle: going through all of them would take half of the CPU time, and a second at once."""
_EXTRA = ("starlette", "uvicorn")


def serve(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 8765,
    node: _app.NodeOption = None,
    config: _app.ConfigOption = None,
    prefix: _app.PrefixOption = None,
    node_timeout: _app.LongNodeTimeoutOption = None,
    max_ttl: _app.MaxTtlOption = None,
    restart_guard: _app.RestartGuardOption = None,
    acks: _app.AcksOption = None,
) -> int:
    """Show locks and nodes on a page that updates itself.

    The page is served on this machine only and changes nothing. The command prints its address
    once, with a new token each time; ASYNCLOCK_TOKEN sets a token of your own (at least 16
    characters). To view the page from another machine, use a tunnel: ssh -L 8765:127.0.0.1:8765
    host

    Give the same prefix, max_ttl, restart_guard and acks as your services, or their file: the page
    counts votes as they do. It says when these settings seem to differ.

    Examples:

        asynclock serve --node redis://localhost

        asynclock serve --config services.toml --port 0
    """
    settings = load(node, config, prefix, node_timeout, max_ttl, restart_guard, acks)
    try:
        return asyncio.run(_serve(settings, port, os.environ.get(TOKEN)))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        say(_settings.needs("the page", "cli", "dashboard"))
        return Status.USAGE


async def _serve(settings: Settings, port: int, token: str | None) -> int:
    import uvicorn

    from ..contrib.dashboard import dashboard

    gc.set_threshold(*GARBAGE)
    made = token or secrets.token_urlsafe(24)
    locks = settings.look("serve")
    app = dashboard(locks, token=made)  # before the nodes are met, to see since when one is down
    async with locks:
        nodes = engine_of(locks).multiplexer.nodes
        replies = await asyncio.gather(*(ask(node, SCAN) for node in nodes))
        refused = {
            node.address: reply.cause
            for node, reply in zip(nodes, replies, strict=True)
            if isinstance(reply, Failure) and reply.code == "NOPERM"
        }
        if Survey([], refused).shortfall(len(nodes)):
            say_causes(refused, engine_of(locks).settings.prefix)
            return Status.UNREACHABLE
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=STOP_TIMEOUT)
        with _listen(port) as listening:
            # Requests that come before the server is ready wait in the socket's queue.
            address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
            print(f"{address}#{urlencode({'token': made})}", flush=True)
            await uvicorn.Server(config).serve(sockets=[listening])
    return Status.OK


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigurationError(
            f"port {port} can't be used: {error.strerror}; --port 0 takes a free one"
        ) from None
