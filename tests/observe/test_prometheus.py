"""The Prometheus block of docs/observability.md, and the rules and the board beside it."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import prometheus_client
import pytest
import yaml  # type: ignore[import-untyped]
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider

import asynclock
from asynclock.errors import AlreadyHeldError, AsyncLockError
from asynclock.events import CLOSED, LOSS_REASONS
from asynclock.observe.otel import Telemetry
from asynclock.testing import LocalServer, lose
from asynclock.testing.plugin import StartServers
from asynclock.testing.servers.process import ReservedPort
from tests.docs.blocks import ROOT, python_blocks
from tests.waiting import go_through, until

PAGE = ROOT / "docs" / "observability.md"
MONITORING = ROOT / "docs" / "monitoring"


def printed() -> str:
    (block,) = [b for b in python_blocks(PAGE) if b.shown_by and "test_prometheus" in b.shown_by]
    return block.text


async def test_the_block_of_the_page(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves every metric that the alert rules and the board ask for."""
    reserved = ReservedPort()
    port = reserved.number
    started: list[Any] = []
    start = prometheus_client.start_http_server
    monkeypatch.setattr(
        prometheus_client, "start_http_server", lambda *a, **k: started.append(start(*a, **k))
    )
    providers: list[MeterProvider] = []

    def provide(*args: Any) -> MeterProvider:
        providers.append(MeterProvider(*args))
        return providers[-1]

    monkeypatch.setattr("opentelemetry.sdk.metrics.MeterProvider", provide)
    text = (
        printed()
        .replace("9464", str(port))
        .replace("localhost:6379", f"localhost:{asynclock_nodes[0].port}")
    )
    names: dict[str, Any] = {}
    exec(text, names)
    locks = names["locks"]
    try:
        async with locks.lock("a") as lease:
            with pytest.raises(AlreadyHeldError):
                await locks.lock("a").acquire()
        with pytest.raises(AsyncLockError):
            async with locks.lock("b") as lease:
                lose(lease)
                await asyncio.sleep(60)
        page = await asyncio.to_thread(get, f"http://127.0.0.1:{port}/metrics")
    finally:
        await locks.aclose()
        for provider in providers:
            provider.shutdown()  # else later tests of this process read its series
        for server, thread in started:
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            thread.join()
        reserved.release()
    assert 'le="0.0001"' in page
    assert 'asynclock_outcome="error"' in page
    # Exporters of OpenTelemetry 1.41 and older add no labels of their own.
    missing = [name for name in asked_for() if not re.search(rf"^{name}[ {{]", page, re.MULTILINE)]
    assert not missing, f"not on the page: {missing}"


def get(url: str) -> str:
    with build_opener(ProxyHandler({})).open(url, timeout=30) as answer:
        return str(answer.read().decode())


def asked_for() -> set[str]:
    files = [MONITORING / "alerts.yaml", MONITORING / "grafana.json"]
    return set().union(*(names_in(path) for path in files))


def names_in(path: Path) -> set[str]:
    found = re.findall(r"\basynclock_(?:acquire|hold|lease|node)_\w+", path.read_text())
    return {name for name in found if name != "asynclock_node"}


def promtool(*words: str | Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian has it in the package prometheus)")
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_board_is_one(tmp_path: Path) -> None:
    """Its panels lie side by side, and Prometheus can read what each asks for."""
    panels = json.loads((MONITORING / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == 12
    places = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in panels]
    assert places == [(8 * row, column) for row in range(6) for column in (0, 12)]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    texts = [one.replace("$__rate_interval", "5m") for one in asked]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(texts)]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", path)


def test_prometheus_takes_the_configuration() -> None:
    promtool("check", "config", MONITORING / "prometheus.yaml")


def test_each_alert_has_its_section_of_the_runbook() -> None:
    """And each reason of a loss has its row, and the scrape configuration has the rules."""
    scrape = yaml.safe_load((MONITORING / "prometheus.yaml").read_text("utf-8"))
    (name,) = scrape["rule_files"]
    page = (PAGE.parent / "runbook.md").read_text("utf-8")
    heads = re.findall(r"^## (.*)", page, re.MULTILINE)
    rules = yaml.safe_load((MONITORING / name).read_text("utf-8"))["groups"][0]["rules"]
    anchors = [rule["annotations"]["runbook"].partition("#")[2] for rule in rules]
    assert anchors == [head.lower().replace(" ", "-") for head in heads]
    assert set(re.findall(r"^\| (.*?) \|", page, re.MULTILINE)) == {"reason", *LOSS_REASONS}
    assert f'asynclock_loss_reason!="{CLOSED}"' in rules[0]["expr"]


# ---- each alert, with its fault ------------------------------------------------------------------
Nodes = list[LocalServer]
Locks = asynclock.LockManager
CALM, LATER = 20, 40
"""Minutes before the fault, and minutes of it."""


async def lose_one(nodes: Nodes, locks: Locks, _others: Locks) -> None:
    lease = await locks.lock("a").acquire()
    for node in nodes:
        await node.flush()
    assert not await lease.check()


async def lose_a_node(nodes: Nodes, locks: Locks, _others: Locks) -> None:
    await nodes[0].kill()
    await until(lambda: locks.nodes()[0].state == "down", "the node is seen as down")


async def lose_the_quorum(nodes: Nodes, locks: Locks, _others: Locks) -> None:
    await asyncio.gather(*(node.kill() for node in nodes[1:]))
    states = {"down"}
    await until(lambda: {one.state for one in locks.nodes()[1:]} == states, "both are down")


async def ask_without_quorum(nodes: Nodes, locks: Locks, _others: Locks) -> None:
    for node in nodes[1:]:  # such nodes still count as voting
        await node.command("SET", "large", "x" * 3_000_000)
        await node.command("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(asynclock.QuorumUnavailableError):
        await locks.lock("a").acquire(timeout=1)


async def time_out(_nodes: Nodes, locks: Locks, others: Locks) -> None:
    async with others.lock("orders:1"):
        with pytest.raises(asynclock.AcquireTimeoutError):
            await locks.lock("orders:1").acquire(timeout=0.1)


async def wait_long(_nodes: Nodes, locks: Locks, others: Locks) -> None:
    await others.lock("orders:1").acquire()
    waits = asyncio.create_task(locks.synchronized("orders:1")(nothing)())
    waits.add_done_callback(asyncio.Task.exception)
    await until(locks.waits, "the task waits")


async def nothing() -> None:
    pass


async def release_late(_nodes: Nodes, locks: Locks, _others: Locks) -> None:
    async with locks.lock("a", ttl=3, renew=False) as lease:
        await until(lambda: lease.remaining() < 0.9, "the lease is nearly over")


async def get_it_late(_nodes: Nodes, locks: Locks, others: Locks) -> None:
    held = await others.lock("a").acquire()
    asyncio.get_running_loop().call_later(5.1, lambda: asyncio.ensure_future(held.release()))
    await go_through(locks.lock("a", timeout=60))


UNAVAILABLE = {"LocksUnavailable", "LockNodeDoesNotVote"}


@pytest.mark.parametrize(
    ("fault", "alerts", "minutes"),
    [
        (lose_one, {"LeaseLost"}, 3),
        (lose_a_node, {"LockNodeDoesNotVote"}, LATER),
        (lose_the_quorum, UNAVAILABLE, LATER),
        (ask_without_quorum, {"LocksUnavailable"}, LATER),
        (time_out, {"LockTimeouts"}, LATER),
        (wait_long, {"LockWaitIsLong"}, LATER),
        (release_late, {"LeasesNearlyExpired"}, LATER),
        (get_it_late, {"LocksSlow"}, LATER),
    ],
)
async def test_its_alert_fires(
    asynclock_servers: StartServers,
    tmp_path: Path,
    fault: Callable[[Nodes, Locks, Locks], Awaitable[None]],
    alerts: set[str],
    minutes: int,
) -> None:
    """The fault happens to real servers; promtool plays what the metrics were for an hour.

    A loss happens once. The other faults go on: each minute the counters grow by what they grew.
    """
    meters = MeterProvider([PrometheusMetricReader()])
    telemetry = Telemetry(meter_provider=meters, patterns=["orders:*"])
    nodes = await asynclock_servers(3)
    settings: dict[str, Any] = {"restart_guard": False, "node_timeout": 2.0}
    urls = [node.url for node in nodes]
    async with (
        asynclock.connect(*urls, **settings, observers=[telemetry]) as locks,
        asynclock.connect(*urls, **settings) as others,
    ):
        await locks.ready(voting=True, timeout=30)
        before = read()
        await fault(nodes, locks, others)
        after = read()
    meters.shutdown()
    goes_on = minutes == LATER
    series = [
        {"series": name, "values": values(name, before.get(name), now, goes_on=goes_on)}
        for name, now in after.items()
    ]
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    wanted = [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in sorted(alerts)]
    played = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{CALM}m", "exp_samples": []},
            {"expr": firing, "eval_time": f"{CALM + minutes}m", "exp_samples": wanted},
        ],
    }
    rules = str(MONITORING / "alerts.yaml")
    path = tmp_path / "played.yaml"
    path.write_text(
        json.dumps({"rule_files": [rules], "evaluation_interval": "15s", "tests": [played]})
    )
    promtool("test", "rules", path)


def read() -> dict[str, tuple[float, bool]]:
    """Return the value of each series as Prometheus stores it, and whether it only grows."""
    found = {}
    for family in prometheus_client.REGISTRY.collect():
        for sample in family.samples:
            labels = {**sample.labels, "job": "orders", "instance": "orders-1:9464"}
            text = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
            if sample.name.startswith("asynclock_") and not sample.name.endswith("_created"):
                grows = family.type in ("counter", "histogram")
                found[f"{sample.name}{{{text}}}"] = sample.value, grows
    return found


def values(
    name: str, before: tuple[float, bool] | None, now: tuple[float, bool], *, goes_on: bool
) -> str:
    """Return what a series was, minute by minute, in the words of promtool."""
    value, grows = now
    step = value - (before[0] if before else 0.0) if grows and goes_on else 0.0
    if name.startswith("asynclock_acquire_longest_wait_seconds") and value:
        step = 60.0
    calm = f"{before[0]:f}+0x{CALM}" if before else f"_x{CALM + 1}"
    return f"{calm} {value:f}+{step:f}x{LATER}"
