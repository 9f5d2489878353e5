"""`asynclock serve`: serves the live page without an application."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import Annotated

import typer

from ...errors import ConfigurationError
from .._options import ConfigOption, LongNodeTimeoutOption, NodeOption, PrefixOption
from .._sources import Settings, load
from .._status import Status
from .._text import say
from .held import NODE_TIMEOUT

TOKEN = "ASYNCLOCK_TOKEN"  # noqa: S105 - the name of a variable
STOP_TIMEOUT = 2
"""Maximum seconds at the end for open streams to close."""
_EXTRA = ("starlette", "uvicorn")


def serve(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 8765,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: LongNodeTimeoutOption = None,
) -> int:
    """Show locks and nodes on a page that updates itself.

    The page is served on this machine only and changes nothing. The command prints its address,
    with a new token each time; ASYNCLOCK_TOKEN sets a token of your own (at least 16 characters).
    To view the page from another machine, use a tunnel: ssh -L 8765:127.0.0.1:8765 host

    Examples:

        asynclock serve --node redis://localhost

        asynclock serve --port 0
    """
    settings = load(node, config, prefix=prefix, node_timeout=node_timeout)
    try:
        return asyncio.run(_serve(settings, port, os.environ.get(TOKEN)))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        say("the page needs an extra; install it with pip install 'asynclock[cli,dashboard]'")
        return Status.USAGE


async def _serve(settings: Settings, port: int, token: str | None) -> int:
    import uvicorn

    from ...contrib.dashboard import dashboard

    made = token or secrets.token_urlsafe(24)
    timeout = settings.options.get("node_timeout", NODE_TIMEOUT)
    async with settings.connect(node_timeout=timeout) as locks:
        app = dashboard(locks, token=made)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=STOP_TIMEOUT)
        with _listen(port) as listening:
            shown = "" if token else f"#token={made}"
            # Requests that come before the server is ready wait in the socket's queue.
            print(f"http://127.0.0.1:{listening.getsockname()[1]}/{shown}", flush=True)
            await uvicorn.Server(config).serve(sockets=[listening])
    return Status.OK


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigurationError(
            f"port {port} can't be used: {error.strerror}; --port 0 takes a free one"
        ) from None
