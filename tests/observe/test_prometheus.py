"""The Prometheus block of docs/observability.md, and the rules and the board beside it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import prometheus_client
import pytest
import yaml  # type: ignore[import-untyped]

from asynclock.errors import AlreadyHeldError, AsyncLockError
from asynclock.testing import LocalServer, lose
from asynclock.testing.servers.ports import ReservedPort
from tests.docs.blocks import ROOT, python_blocks

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


def test_the_board_is_one() -> None:
    board = json.loads((MONITORING / "grafana.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) == 8
    assert all(panel["targets"] for panel in board["panels"])


def test_each_alert_has_its_section_of_the_runbook() -> None:
    """And the scrape configuration has the rules."""
    scrape = yaml.safe_load((MONITORING / "prometheus.yaml").read_text("utf-8"))
    (name,) = scrape["rule_files"]
    page = (PAGE.parent / "runbook.md").read_text("utf-8")
    heads = re.findall(r"^## (.*)", page, re.MULTILINE)
    rules = yaml.safe_load((MONITORING / name).read_text("utf-8"))["groups"][0]["rules"]
    anchors = [rule["annotations"]["runbook"].partition("#")[2] for rule in rules]
    assert anchors == [head.lower().replace(" ", "-") for head in heads]
