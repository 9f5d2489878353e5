"""Servers in containers, with the same interface as servers that are processes.

    async with local_servers(3, binary=container_image("valkey/valkey:8.0")) as servers:
        ...

Every deployment of this package accepts such an image. testcontainers (extra `[containers]`) starts
and removes the containers. They share the network and the files of the host, so ports, folders,
Unix sockets and the addresses that Sentinels and cluster nodes tell each other are the same inside
and outside. This needs a Linux host.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asynclock import _settings

with _settings.imports("asynclock.testing.container_image", "containers"):
    from docker.errors import DockerException
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.docker_client import DockerClient

from asynclock.errors import ConfigurationError
from asynclock.testing.servers.process import ServerBinary, ServerProcess

_IMAGE = "ASYNCLOCK_TEST_IMAGE"
_DEFAULT = "redis:7.2"
# Official Valkey images have a program of this name too.
_PROGRAM = "redis-server"
_KILL_TRIES = 600  # a tenth of a second each


def why_no_containers() -> str | None:
    """Return None if a container engine answers, otherwise the reason why not, in one sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with contextlib.closing(DockerClient().client) as engine:
                system = engine.version()["Os"]
                return None if system == "linux" else "containers need a Linux engine"
        except DockerException as error:
            reason = f"no container engine answers: {error}"
        gc.collect()  # the client's socket, which it did not close and which a cycle still holds
    return reason


def container_image(name: str | None = None) -> ContainerImage:
    """Return an image to start servers from; default $ASYNCLOCK_TEST_IMAGE, else redis:7.2.

    Fetches it if the engine does not have it. Raises ConfigurationError, saying why, if there is
    no engine, no such image, or no server in it.
    """
    name = name or os.environ.get(_IMAGE) or _DEFAULT
    if reason := why_no_containers():
        raise ConfigurationError(reason)
    asked = DockerContainer(name).with_command("-v")
    try:
        # The first container of a process also starts Ryuk, which threads at once could not share.
        with asked.with_kwargs(network="none", entrypoint=_PROGRAM):
            asked.wait()
            answer = b"".join(asked.get_logs()).decode()
        return ContainerImage.introduced_by(answer, Path(name), tls=True)
    except Exception as error:
        raise ConfigurationError(
            f"no server can be started from image {name!r}: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class ContainerImage(ServerBinary):
    """An image with a server, as `container_image` returns it; `path` is the image's name."""

    def launch(
        self, arguments: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> ServerProcess:
        """Start a container with the server, whose files are in `folder`."""
        if env:
            raise ConfigurationError("a server's clock cannot jump in a container")
        return _ContainerProcess(str(self.path), arguments, folder)


class _ContainerProcess(ServerProcess):
    """A container, represented by the thread that starts it, copies its log and removes it."""

    def __init__(self, image: str, arguments: Sequence[str], folder: Path) -> None:
        name = f"{folder.parent.name}-{folder.name}"
        self._pid_file = folder / "container"
        self._pid_file.write_text(name)
        self.frozen = False
        self._status: int | None = None
        self._container = (
            DockerContainer(image)
            .with_name(name)
            .with_command([*arguments])
            .with_volume_mapping(folder.parent, str(folder.parent), "rw")
            .with_kwargs(network="host", user=f"{os.getuid()}:{os.getgid()}", entrypoint=_PROGRAM)
        )
        # A daemon, because at the end of this process nothing must wait for the server's end.
        self._life = threading.Thread(target=self._live, args=[folder / "output.log"], daemon=True)
        self._life.start()

    def _live(self, file: Path) -> None:
        with file.open("ab", buffering=0) as log:
            try:
                with self._container as container:
                    for words in container.get_wrapped_container().logs(stream=True):
                        log.write(words)
                    self._status = container.wait()
            except Exception as error:
                log.write(f"{error}\n".encode())

    @property
    def pid(self) -> int:
        """Process id of the server."""
        container = self._container.get_wrapped_container()
        container.reload()
        return int(container.attrs["State"]["Pid"])

    @property
    def alive(self) -> bool:
        """Whether the container has not been removed."""
        return self._life.is_alive()

    @property
    def exit_status(self) -> int | None:
        """Exit status, None while the server runs or if it could not be started."""
        return self._status

    async def freeze(self) -> None:
        await asyncio.to_thread(self._container.get_wrapped_container().pause)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self._container.get_wrapped_container().unpause()
            self.frozen = False

    async def kill(self) -> None:
        await asyncio.to_thread(self.kill_now)

    def kill_now(self) -> None:
        said: Exception | None = None
        # Repeated, because the container may still be in creation.
        for _ in range(_KILL_TRIES):
            if not self.alive:
                break
            try:
                self._container.get_wrapped_container().kill()
            except Exception as error:
                said = error
            self._life.join(0.1)
        if self.alive:
            name = self._pid_file.read_text()
            raise ConfigurationError(
                f"the engine didn't end the container {name} ({said or 'no error'}): "
                f"docker rm --force {name}"
            )
        self._pid_file.unlink(missing_ok=True)
        self.frozen = False
