"""`asynclock bench` as a user runs it."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from asynclock.testing import LocalServer

pytestmark = pytest.mark.timeout(180)  # each test starts a whole program


async def bench(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "asynclock", "bench", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


async def test_it_measures_three_shapes_of_load() -> None:
    async with LocalServer() as server:
        short = ("--seconds=0.1", "--rounds=1", "--tasks=5")
        status, out, errors = await bench(server.url, *short, "--json")
        assert status == 0, errors
        rows = json.loads(out)["loads"]
        assert [row["load"] for row in rows] == [
            "1 task",
            "5 tasks, own names",
            "5 tasks, one name",
        ]
        for row in rows:
            assert row["cycles_per_second"] > 0
            assert 0 < row["p50"] <= row["p99"] <= row["p999"]
            assert row["errors"] == {}
        keys = await server.command("KEYS", "*")
        assert isinstance(keys, list)
        expiries = [await server.command("PTTL", str(key)) for key in keys]
        assert all(isinstance(left, int) and left > 0 for left in expiries)


async def test_it_prints_a_table() -> None:
    async with LocalServer() as server:
        status, out, _ = await bench(server.url, "--seconds=0.1", "--rounds=1", "--tasks=2")
        assert status == 0
        assert out.splitlines()[0].split() == (
            "per second acquire p50 p99 p99.9 CPU per cycle errors".split()
        )
        assert len(out.splitlines()) == 4


async def test_no_nodes_is_a_mistake_and_no_traceback() -> None:
    status, _, errors = await bench("http://127.0.0.1")
    assert status == 64
    assert "Traceback" not in errors
