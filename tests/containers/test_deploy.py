"""The manifests in deploy/: nodes that keep each write grant at once, and forget no lease."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from testcontainers.compose import DockerCompose

import asynclock
from asynclock.testing import ContainerImage
from asynclock.testing.plugin import StartServers
from asynclock.testing.servers.process import ReservedPort, find_server
from tests.containers.conftest import containers

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
    return arguments(BY_KIND["ConfigMap"]["data"]["redis.conf"])


def arguments(text: str) -> list[str]:
    """The settings of a configuration file as arguments."""
    settings = [line.split(" ", 1) for line in text.splitlines() if not line.startswith("#")]
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


NODE = (DEPLOY / "systemd" / "lock-node.conf").read_text("utf-8")


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    """A folder with the certificates of two nodes, made in two calls, and the users' file."""
    for host in ("localhost", "127.0.0.1"):
        subprocess.run([DEPLOY / "tls" / "make-certificates", host], cwd=tmp_path, check=True)
    shutil.copy(DEPLOY / "users.acl", tmp_path)
    return tmp_path


def test_certificates_that_cannot_be_made_show_why(certified: Path) -> None:
    (certified / "ca.pem").write_text("no certificate")
    made = subprocess.run(
        [DEPLOY / "tls" / "make-certificates", "b"],
        cwd=certified,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode
    assert "ca.pem" in made.stderr
    assert not (certified / "b.pem").exists()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_the_node_of_systemd_grants_to_its_users_by_tls(certified: Path, host: str) -> None:
    if not (binary := find_server()).tls:
        pytest.skip(f"{binary.path} can't do TLS")
    for name in ("pem", "key"):
        shutil.copy(certified / f"{host}.{name}", certified / f"node.{name}")
    text = NODE.replace("/etc/asynclock", str(certified))
    text = text.replace("/var/lib/asynclock-node", str(certified))
    port = ReservedPort()
    file = certified / "lock-node.conf"
    file.write_text(text.replace("tls-port 6379", f"tls-port {port.number}"))
    node = await asyncio.create_subprocess_exec(
        binary.path, file, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        ca = certified / "ca.pem"
        at = f"{host}:{port.number}?ssl_ca_certs={ca}"
        usual: dict[str, Any] = {"node_timeout": 2.0}
        async with asynclock.connect(
            f"rediss://locks:change-me@{at}", restart_guard="disk", **usual
        ) as locks:
            await locks.ready(voting=True, timeout=30)
            assert await locks.lock("a").try_acquire()
        async with asynclock.connect(f"rediss://operator:change-me-too@{at}", **usual) as locks:
            assert [one.name async for one in locks.inspect_all()] == []
        async with asynclock.connect(f"rediss://{at}", **usual) as locks:
            with pytest.raises(asynclock.AsyncLockError, match=r"NOAUTH|password"):
                await locks.lock("a").acquire(timeout=1)
    finally:
        node.kill()
        await node.wait()
        port.release()


def test_the_node_of_systemd_keeps_what_the_other_manifests_keep() -> None:
    settings = arguments(NODE)
    pairs = dict(zip(settings[::2], settings[1::2], strict=True))
    theirs = kubernetes_settings()
    common = dict(zip(theirs[::2], theirs[1::2], strict=True))
    assert {name: pairs[name] for name in common} == {**common, "--dir": pairs["--dir"]}
    unit = (DEPLOY / "systemd" / "lock-node.service").read_text("utf-8")
    assert f"StateDirectory={Path(pairs['--dir']).name}\n" in unit
    assert "ExecStart=/usr/bin/redis-server /etc/asynclock/lock-node.conf\n" in unit


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.[st]*")), ids=lambda u: u.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for one in unit.parent.glob("*.[st]*"):
        text = re.sub(
            r"^ExecStart=\S+", "ExecStart=/bin/true", one.read_text("utf-8"), flags=re.MULTILINE
        )
        (tmp_path / one.name).write_text(text)
    words = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr, done.stderr


@pytest.fixture
def project(
    image: ContainerImage, worker_id: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DockerCompose]:
    """The services of compose.yaml under a name of their own."""
    monkeypatch.setenv("LOCK_NODE_IMAGE", str(image.path))
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", f"asynclock-test-{worker_id}-{os.getpid()}")
    command = str(Path(__file__).with_name("compose"))
    # The older docker-compose has no `up --wait`.
    with DockerCompose(DEPLOY, COMPOSE.name, wait=False, docker_command_path=command) as made:
        yield made


def services() -> list[Any]:
    return containers(label=f"com.docker.compose.project={os.environ['COMPOSE_PROJECT_NAME']}")


async def healthy() -> None:
    """Wait until the engine says that each node is healthy, as `up --wait` does."""
    while [one.health for one in await asyncio.to_thread(services)] != ["healthy"] * 3:
        await asyncio.sleep(0.1)


@pytest.mark.containers
@pytest.mark.timeout(240)
async def test_compose_grants_at_once_and_forgets_no_lease(project: DockerCompose) -> None:
    usual: dict[str, Any] = {"restart_guard": "disk", "node_timeout": 1, "max_ttl": 120}
    await healthy()
    ports = [one.ports["6379/tcp"][0] for one in services()]
    urls = [f"redis://{port['HostIp']}:{port['HostPort']}" for port in ports]
    async with asynclock.connect(*urls, **usual) as locks:
        lease = await locks.lock("a", ttl=120, renew=False).acquire(timeout=5)
        for service in services():
            service.kill()
        project.start()
        await healthy()
        async with asynclock.connect(*urls, **usual) as strangers:
            await strangers.ready(voting=True, timeout=5)  # a quarantine would be two minutes
            assert await strangers.lock("a").try_acquire() is None
            assert await strangers.lock("b").try_acquire()
        assert lease.held
