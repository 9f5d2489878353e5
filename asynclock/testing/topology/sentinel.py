"""A primary, its replicas and their Sentinels as local processes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Unpack
from urllib.parse import urlsplit

from asynclock.testing.servers.local import LocalServer, ServerOptions, tls_settings
from asynclock.testing.topology.base import Replicated, follow, runs, until

FAILOVER_WITHIN = 50.0
"""Seconds; long, because a Sentinel that got no CPU for 2 s does nothing for 30 s."""


async def _tilted(sentinel: LocalServer) -> bool:
    # "Tilt": a Sentinel that was frozen mistrusts its clock and does nothing for 30 s.
    return runs(sentinel) and "sentinel_tilt:1" in str(await sentinel.command("INFO", "sentinel"))


class _Sentinel(LocalServer):
    """A server in Sentinel mode; it keeps its state in its configuration file."""

    watches: Sequence[str] = ()
    """The lines of its configuration; set them before the first start."""

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        self.identity = secrets.token_hex(20)
        super().__init__(**options)

    def _command_line(self, aof: bool) -> list[str]:  # noqa: ARG002 - a Sentinel keeps no data
        return [str(self._data / "sentinel.conf"), "--sentinel"]

    def _spawn(self) -> None:
        file = self._data / "sentinel.conf"
        if not file.exists():
            settings = {"bind": self.host, "port": str(0 if self.tls else self.port)}
            settings |= {"dir": str(self._data), "sentinel myid": self.identity}
            if self.tls:
                files = self.tls.copied_to(self.folder)
                settings |= tls_settings(files, self.port, client_certs=self.tls_client_certs)
            lines = [f"{key} {value}" for key, value in settings.items()]
            file.write_text("\n".join([*lines, *self.watches, ""]))
        super()._spawn()


class SentinelGroup(Replicated):
    """A primary with replicas and Sentinels, which watch it and fail it over by themselves.

    service: the Sentinels' name of the group. down_after: seconds of silence after which a Sentinel
    regards a server as down; on a busy machine a good one may be silent for most of a second.
    """

    def __init__(
        self,
        replicas: int = 2,
        sentinels: int = 3,
        *,
        service: str = "mymaster",
        down_after: float = 1.5,
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(replicas, **options)
        self.service = service
        self._down_after = down_after
        own: ServerOptions = {
            "binary": self.primary.binary,
            "host": self.primary.host,
            "tls": self.primary.tls,
            "tls_client_certs": self.primary.tls_client_certs,
        }
        self.sentinels: list[LocalServer] = [_Sentinel(**own) for _ in range(sentinels)]
        """The Sentinels, which can be killed and frozen like servers."""

    @property
    def addresses(self) -> list[str]:
        """One URL with all Sentinels and the name of the service."""
        url = urlsplit(self.primary.url)
        login, at, _ = url.netloc.rpartition("@")
        hosts = ",".join(urlsplit(sentinel.url).netloc for sentinel in self.sentinels)
        scheme = f"{url.scheme}+sentinel"
        return [
            url._replace(scheme=scheme, netloc=f"{login}{at}{hosts}", path=self.service).geturl()
        ]

    async def _arrange(self) -> None:
        """Start the Sentinels last, so that they first see all replicas in sync."""
        await super()._arrange()
        await super().ready()
        for sentinel in self.sentinels:
            if isinstance(sentinel, _Sentinel) and not sentinel.watches:
                sentinel.watches = self._watches(sentinel)
            if sentinel.frozen or await _tilted(sentinel):
                await sentinel.restart()
        await self._launch(self.sentinels)

    def close(self) -> None:
        """End all servers and Sentinels."""
        super().close()
        for sentinel in self.sentinels:
            sentinel.close()

    def _watches(self, own: _Sentinel) -> list[str]:
        """Return a configuration with all servers and Sentinels, so that there is no discovery."""
        name, primary = self.service, self.primary
        lines = [
            f"monitor {name} {primary.host} {primary.port} {len(self.sentinels) // 2 + 1}",
            f"down-after-milliseconds {name} {round(self._down_after * 1000)}",
            f"failover-timeout {name} 4000",
            f"parallel-syncs {name} {len(self.servers)}",
        ]
        words = zip(("auth-pass", "auth-user"), primary.endpoint.credentials[::-1], strict=False)
        lines += [f"{key} {name} {word}" for key, word in words]
        lines += [
            f"known-replica {name} {replica.host} {replica.port}" for replica in self.replicas
        ]
        for other in self.sentinels:
            if isinstance(other, _Sentinel) and other is not own:
                lines.append(f"known-sentinel {name} {other.host} {other.port} {other.identity}")
        return [f"sentinel {line}" for line in lines]

    async def ready(self) -> None:
        """Wait until replicas are in sync and every running Sentinel sees all and can fail over."""
        await super().ready()
        await until(self._agreed, f"all sentinels see {self.service} complete")

    async def _agreed(self) -> bool:
        asked = map(self._sees_all, filter(runs, self.sentinels))
        return all(await asyncio.gather(*asked))

    async def _sees_all(self, sentinel: LocalServer) -> bool:
        await sentinel.command("SENTINEL", "CKQUORUM", self.service)
        known = await sentinel.command("SENTINEL", "REPLICAS", self.service)
        replicas = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in known]
        seen = {
            replica["port"]
            for replica in replicas
            if replica["flags"] == "slave" and replica["master-link-status"] == "ok"
        }
        wanted = {str(replica.port) for replica in self.replicas if runs(replica)}
        return wanted <= seen and await self._named_by(sentinel) == self.primary.port

    async def _named_by(self, sentinel: LocalServer) -> int:
        """Return the port of the primary that this Sentinel tells clients."""
        address = await sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return int(address[1])

    async def fail_over(self, *, kill: bool = True) -> LocalServer:
        """Kill the primary, or order a failover, and wait until all agree on the new one."""
        old = self.primary
        if kill:
            await old.kill()
        else:
            await self.sentinels[0].command("SENTINEL", "FAILOVER", self.service)
        return await self.failed_over(old)

    async def failed_over(self, old: LocalServer) -> LocalServer:
        """Wait until every running Sentinel names another primary than `old`, and return it.

        Use this if a test itself has frozen, cut off or killed the primary.
        """

        async def moved() -> bool:
            ports = {await self._named_by(sentinel) for sentinel in filter(runs, self.sentinels)}
            candidates = [server for server in self.servers if ports == {server.port}]
            if not candidates or candidates == [old]:
                return False
            (self.primary,) = candidates
            return bool((await self.primary.command("ROLE"))[0] == "master")

        await until(moved, f"the sentinels replace {old}", timeout=FAILOVER_WITHIN)
        if runs(old):  # a Sentinel itself would do this only after 8 s
            await follow(old, self.primary)
        await super().ready()
        return self.primary
