"""Servers in containers, with the same interface as servers that are processes.

    async with local_servers(3, binary=container_image("valkey/valkey:8.0")) as servers:
        ...

Every deployment of this package accepts such an image. Containers share the network and the files
of the host, so ports, folders, Unix sockets and the addresses that Sentinels and cluster nodes tell
each other are the same inside and outside. This needs a Linux host with `docker` (or `podman` under
that name).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asynclock.errors import ConfigurationError
from asynclock.testing.servers.binaries import ServerBinary
from asynclock.testing.servers.process import ServerProcess

_IMAGE = "ASYNCLOCK_TEST_IMAGE"
_DEFAULT = "redis:7.2"
# Official Valkey images have a program of this name too.
_PROGRAM = "redis-server"
# Seconds; the first use of an image may have to download it.
_PULL = 600.0


def why_no_containers() -> str | None:
    """Return None if a container engine answers, otherwise the reason why not, in one sentence."""
    if not shutil.which("docker"):
        return "containers need a docker command on PATH"
    answer = _docker("version", "--format", "{{.Server.Os}}", check=False)
    if answer.returncode:
        return f"no container engine answers: {answer.stderr.strip()}"
    return None if answer.stdout.strip() == "linux" else "containers need a Linux engine"


def container_image(name: str | None = None) -> ContainerImage:
    """Return an image to start servers from; default $ASYNCLOCK_TEST_IMAGE, else redis:7.2.

    Fetches it if the engine does not have it. Raises ConfigurationError, saying why, if there is
    no engine, no such image, or no server in it.
    """
    name = name or os.environ.get(_IMAGE) or _DEFAULT
    if reason := why_no_containers():
        raise ConfigurationError(reason)
    try:
        answer = _docker("run", "--rm", "--network=none", f"--entrypoint={_PROGRAM}", name, "-v")
        return ContainerImage.introduced_by(answer.stdout, Path(name), tls=True)
    except (subprocess.SubprocessError, ValueError) as error:
        text = getattr(error, "stderr", None) or error
        raise ConfigurationError(f"no server can be started from image {name!r}: {text}") from error


@dataclass(frozen=True, slots=True)
class ContainerImage(ServerBinary):
    """An image with a server, usable like a ServerBinary; `path` is the image's name."""

    def launch(
        self, arguments: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> ServerProcess:
        """Start a container with the server, whose files are in `folder`."""
        if env:
            raise ConfigurationError("a server's clock cannot jump in a container")
        return _ContainerProcess(str(self.path), arguments, folder)


class _ContainerProcess(ServerProcess):
    """A container, represented by the process of the command that waits for its end."""

    def __init__(self, image: str, arguments: Sequence[str], folder: Path) -> None:
        self._name = f"{folder.parent.name}-{folder.name}"
        (folder / "container").write_text(self._name)
        files = f"--volume={folder.parent}:{folder.parent}"
        user = f"--user={os.getuid()}:{os.getgid()}"
        run = ["docker", "run", "--rm", "--network=host", f"--name={self._name}", files, user]
        command = [*run, f"--entrypoint={_PROGRAM}", image, *arguments]
        super().__init__(command, folder, {})

    async def freeze(self) -> None:
        await asyncio.to_thread(_docker, "pause", self._name)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            _docker("unpause", self._name)
            self.frozen = False

    async def kill(self) -> None:
        await asyncio.to_thread(self.kill_now)

    def kill_now(self) -> None:
        # Repeated, because the container may still be in creation.
        while self.alive:
            _docker("rm", "--force", self._name, check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(1)
        self._pid_file.unlink(missing_ok=True)
        self.frozen = False


def _docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=_PULL, check=check
    )
