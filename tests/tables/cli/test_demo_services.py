"""The services of the demo: how they are started, and what they answer to each order."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock.cli.demo import scenario, service
from asynclock.cli.demo.scenario import DemoError
from asynclock.cli.demo.store import Store
from tests.waiting import PATIENCE

from .test_demo import Process


def test_both_services_get_the_folder_their_name_their_users_and_the_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[Any, ...]] = []
    processes = [Process(b"ready\n"), Process(b"ready\n")]

    async def start(*words: Any, start_new_session: bool, **_: Any) -> Any:
        await asyncio.sleep(0)
        started.append((*words, start_new_session))
        return processes[len(started) - 1]

    async def play() -> None:
        async with scenario.services(tmp_path, ["redis://a", "redis://b"]) as running:
            assert [one.name for one in running] == ["orders-a", "orders-b"]
            assert not any(process.closed for process in processes)
        assert all(process.closed for process in processes)

    monkeypatch.setattr(scenario.asyncio, "create_subprocess_exec", start)
    asyncio.run(play())
    module = (sys.executable, "-m", "asynclock.cli.demo.service")
    assert started == [
        (*module, str(tmp_path), name, "10", "2.0", "redis://a", "redis://b", True)
        for name in ("orders-a", "orders-b")
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["orders-a.log", "orders-b.log"]


def test_if_a_service_does_not_begin_both_are_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processes = [Process(b"ready\n"), Process(b"")]
    waiting = list(processes)

    async def start(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(0)
        return waiting.pop(0)

    async def play() -> None:
        async with scenario.services(tmp_path, []):
            raise AssertionError("it began")

    monkeypatch.setattr(scenario.asyncio, "create_subprocess_exec", start)
    with pytest.raises(DemoError, match="orders-b ended unexpectedly"):
        asyncio.run(play())
    assert all(process.closed for process in processes)


def test_a_service_reads_its_arguments_and_leaves_ctrl_c_to_the_demo(
    monkeypatch: pytest.MonkeyPatch, logger: logging.Logger
) -> None:
    given: list[Any] = []

    async def serve(*words: Any) -> None:
        await asyncio.sleep(0)
        given.append(words)

    def note(*words: Any) -> None:
        given.append(words)

    played = SimpleNamespace(signal=note, SIGINT=signal.SIGINT, SIG_IGN=signal.SIG_IGN)
    monkeypatch.setattr(service, "signal", played)
    monkeypatch.setattr(service, "serve", serve)
    monkeypatch.setattr(sys, "argv", ["service", "/f", "orders-a", "10", "2.5", "redis://a", "b"])
    service.main()
    assert given == [
        (signal.SIGINT, signal.SIG_IGN),
        (Path("/f"), "orders-a", 10, 2.5, ["redis://a", "b"]),
    ]
    assert any(isinstance(one, logging.NullHandler) for one in logger.handlers)


async def test_a_service_answers_each_order_until_its_input_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings: list[Any] = []
    connect = asynclock.connect

    def noted(*nodes: str, **more: Any) -> Any:
        settings.append((nodes, more))
        return connect(*nodes, **more)

    monkeypatch.setattr(asynclock, "connect", noted)
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading))
    for act, order in ((1, 7), (2, 7), (3, 7), (3, 8)):
        os.write(writing, json.dumps({"act": act, "order": order, "at": 0.0}).encode() + b"\n")
    os.close(writing)
    async with asyncio.timeout(PATIENCE):
        await service.serve(tmp_path, "orders-a", 3, 20.0, ["memory://"])
    assert settings == [(("memory://",), {"ttl": 20.0, "max_ttl": 20.0, "label": "orders-a"})]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"ready": "orders-a"},
        {"order": 7, "sold": 3},
        {"order": 7, "sold": 1},
        {"order": 7, "sold": 1},
        {"order": 8, "sold": 1},
    ]
    store = Store(tmp_path / "store.sqlite")
    places = [(1, 7), (2, 7), (3, 7), (3, 8)]
    assert [store.sales(act, order) for act, order in places] == [3, 1, 1, 1]
    store.close()
