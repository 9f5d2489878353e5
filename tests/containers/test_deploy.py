"""The manifests in deploy/: nodes that keep each write grant at once, and forget no lease."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import asynclock
from asynclock.testing import LocalServer, container_image, local_servers, why_no_containers
from asynclock.testing.plugin import StartServers

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
)
BY_KIND = {manifest["kind"]: manifest for manifest in MANIFESTS}
POD = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]


def compose_settings() -> list[str]:
    """The settings of the server, as in the command of each service."""
    services = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    commands = [service["command"] for service in services.values()]
    assert commands[1:] == commands[:-1]
    return commands[0][1:]


def kubernetes_settings() -> list[str]:
    """The same settings from the config map, as arguments."""
    lines = BY_KIND["ConfigMap"]["data"]["redis.conf"].splitlines()
    settings = [line.split(" ", 1) for line in lines if not line.startswith("#")]
    return [word for name, value in settings for word in (f"--{name}", value.strip('"'))]


def without(settings: list[str], name: str) -> list[str]:
    """The settings for a server in a folder of its own."""
    at = settings.index(name)
    return settings[:at] + settings[at + 2 :]


@pytest.mark.parametrize("source", [compose_settings, kubernetes_settings])
async def test_the_settings_let_fresh_nodes_grant_at_once(
    asynclock_servers: StartServers, source: Any
) -> None:
    """These are the settings on servers of this machine; the next tests use a container engine."""
    settings = without(source(), "--dir")
    servers = await asynclock_servers(3, args=settings)
    urls = [server.url for server in servers]
    async with asynclock.connect(*urls, restart_guard="disk") as locks:
        await locks.ready(voting=True, timeout=5)
        assert await locks.lock("a").try_acquire()
        assert all(node.votes_in == 0 for node in locks.nodes())
    assert "noeviction" in await servers[0].command("CONFIG", "GET", "maxmemory-policy")


def test_the_manifests_fit_together() -> None:
    """What an API server would find out: names, labels and volumes that lead nowhere."""
    labels = BY_KIND["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        BY_KIND["Service"]["spec"]["selector"],
        BY_KIND["StatefulSet"]["spec"]["selector"]["matchLabels"],
        BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        BY_KIND["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert selectors == [labels] * 4
    assert BY_KIND["StatefulSet"]["spec"]["serviceName"] == BY_KIND["Service"]["metadata"]["name"]
    assert BY_KIND["StatefulSet"]["spec"]["replicas"] == 3
    (container,) = POD["containers"]
    claims = BY_KIND["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volumes = {volume["name"] for volume in POD["volumes"]} | {
        claim["metadata"]["name"] for claim in claims
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == volumes
    assert kubernetes_settings()[kubernetes_settings().index("--dir") + 1] == mounts["data"]
    config = POD["volumes"][0]["configMap"]["name"]
    assert config == BY_KIND["ConfigMap"]["metadata"]["name"]
    assert container["command"] == ["redis-server", f"{mounts['config']}/redis.conf"]
    assert [port["name"] for port in container["ports"]] == ["redis"]
    assert BY_KIND["Service"]["spec"]["ports"][0]["targetPort"] == "redis"


def compose_command() -> list[str] | None:
    """`docker compose` or the older docker-compose; None where neither is installed."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version"], capture_output=True)
            if asked.returncode == 0:
                return command
    return None


class Project:
    """The services of compose.yaml under a name of their own."""

    def __init__(self, command: list[str], image: str, name: str) -> None:
        self._command = [*command, "--project-name", name, "--file", str(COMPOSE)]
        self._env = {**os.environ, "LOCK_NODE_IMAGE": image}
        services = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"].values()
        self.urls = [f"redis://{one['ports'][0].rpartition(':')[0]}" for one in services]

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            env=self._env,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ids(self) -> list[str]:
        return self.run("ps", "-q").split()

    async def healthy(self) -> None:
        """Wait until the engine says that each node is healthy, as `up --wait` does."""
        while True:
            words = ["docker", "inspect", "--format", "{{.State.Health.Status}}", *self.ids()]
            found = await asyncio.to_thread(subprocess.check_output, words, text=True)
            if found.split() == ["healthy"] * 3:
                return
            await asyncio.sleep(0.1)


@pytest.fixture
def project(worker_id: str) -> Iterator[Project]:
    if reason := why_no_containers():
        pytest.skip(reason)
    command = compose_command()
    if command is None:
        pytest.skip("containers need docker compose")
    image = str(container_image().path)
    made = Project(command, image, f"asynclock-test-{worker_id}-{os.getpid()}")
    try:
        made.run("up", "--detach")
        yield made
    finally:
        made.run("down", "--volumes", "--timeout", "1")


@pytest.mark.containers
@pytest.mark.timeout(240)
async def test_compose_grants_at_once_and_forgets_no_lease(project: Project) -> None:
    usual: dict[str, Any] = {"restart_guard": "disk", "node_timeout": 1, "max_ttl": 120}
    await project.healthy()
    async with asynclock.connect(*project.urls, **usual) as locks:
        lease = await locks.lock("a", ttl=120, renew=False).acquire(timeout=5)
        project.run("kill")
        project.run("up", "--detach")
        await project.healthy()
        async with asynclock.connect(*project.urls, **usual) as strangers:
            await strangers.ready(voting=True, timeout=5)  # a quarantine would be two minutes
            assert await strangers.lock("a").try_acquire() is None
            assert await strangers.lock("b").try_acquire()
        assert lease.held


@pytest.mark.containers
@pytest.mark.timeout(240)
async def test_the_config_of_kubernetes_starts_in_a_container() -> None:
    if reason := why_no_containers():
        pytest.skip(reason)
    settings = without(kubernetes_settings(), "--dir")
    async with local_servers(3, binary=container_image(), args=settings) as servers:
        server: LocalServer
        for server in servers:
            assert "always" in await server.command("CONFIG", "GET", "appendfsync")
        urls = [server.url for server in servers]
        async with asynclock.connect(*urls, restart_guard="disk", node_timeout=1) as locks:
            await locks.ready(voting=True, timeout=5)
