"""`asynclock bench`: which loads it runs, and what it makes of them."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from asynclock.cli import bench
from asynclock.cli._settings import Settings
from asynclock.cli.bench import Row, measure
from asynclock.testing import memory_node, run_virtual
from asynclock.testing.load import Load

ROUNDS = [
    Load(seconds=1.0, count=100, cpu=0.01, waits=[0.004, 0.001], errors=Counter(OSError=2)),
    Load(seconds=2.0, count=100, cpu=0.03, waits=[0.003, 0.002]),
    Load(seconds=1.0, count=300, cpu=0.06, waits=[0.005], errors=Counter(OSError=1, ValueError=4)),
]
FAILED = [Load(seconds=1.0, errors=Counter(OSError=3)), Load(seconds=1.0)]


def test_the_result_is_the_median_of_the_rounds_and_the_latencies_of_all_cycles() -> None:
    row = Row("hot", ROUNDS)
    figures = {
        "cycles_per_second": pytest.approx(100.0),
        "p50": 0.003,
        "p99": 0.005,
        "p999": 0.005,
        "cpu": pytest.approx(0.0002),
    }
    errors = {"OSError": 3, "ValueError": 4}
    assert row.figures() == figures
    assert row.as_json() == {"load": "hot", **figures, "errors": errors}
    assert row.cells() == (
        *("hot", "100", "3.00 ms", "5.00 ms", "5.00 ms", "200 µs"),
        "3 OSError, 4 ValueError",
    )
    assert not row.failed


def test_the_percentiles_are_what_they_are_called() -> None:
    waits = [number / 10_000 for number in range(10_000, 0, -1)]
    row = Row("", [Load(seconds=0.5, count=12_345_678, waits=waits), Load(seconds=0.5, count=0)])
    figures = row.figures()
    assert [figures[key] for key in ("p50", "p99", "p999")] == [0.5001, 0.9901, 0.9991]
    assert row.cells()[1:3] == ("12,345,678", "500.10 ms")
    assert figures["cpu"] == 0.0, "a round without a cycle divides nothing by zero"


def test_where_nothing_succeeded_there_are_no_figures() -> None:
    row = Row("hot", FAILED)
    assert row.failed
    assert row.as_json() == {"load": "hot", "errors": {"OSError": 3}}
    assert row.cells() == ("hot", "0", "", "", "", "", "3 OSError")


def test_three_loads_take_turns_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[str], float]] = []

    async def run_load(subject: Any, names: Sequence[str], seconds: float) -> Load:
        lease = await subject.acquire(names[0])
        assert await memory_node("a").command("EXISTS", f"asynclock:{names[0]}") == 1
        await subject.release(lease)
        assert await memory_node("a").command("EXISTS", f"asynclock:{names[0]}") == 0
        ran.append((list(names), seconds))
        return Load(seconds=seconds, count=len(ran))

    monkeypatch.setattr(bench, "run_load", run_load)
    rows = run_virtual(measure(Settings(("memory://a",)), 3, 0.7, 2))
    run = ran[0][0][0].removesuffix(":0")
    assert run.startswith("bench:")
    one, own, hot = [f"{run}:0"], [f"{run}:{at}" for at in range(3)], [f"{run}:hot"] * 3
    assert ran == [(one, 0.2), *[(one, 0.7), (own, 0.7), (hot, 0.7)] * 2]
    counts = {row.title: [load.count for load in row.rounds] for row in rows}
    assert counts == {"1 task": [2, 5], "3 tasks, own names": [3, 6], "3 tasks, one name": [4, 7]}


@pytest.mark.parametrize(
    ("rows", "status"),
    [([ROUNDS], 0), ([ROUNDS, FAILED], 69), ([FAILED], 69)],
    ids=["works", "fails-once", "fails"],
)
def test_the_command_passes_on_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rows: list[list[Load]],
    status: int,
) -> None:
    given: list[Any] = []

    async def measure(settings: Settings, *more: Any) -> list[Row]:
        await asyncio.sleep(0)
        given.append((settings.nodes, settings.prefix, *more))
        return [Row(f"load {number}", loads) for number, loads in enumerate(rows)]

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.delenv("ASYNCLOCK_CONFIG", raising=False)
    told: dict[str, Any] = {"tasks": 7, "seconds": 0.5, "rounds": 2, "prefix": "x:"}
    for as_json in (True, False):
        assert bench.bench(["redis://h"], json=as_json, **told) == status
    assert given == [(("redis://h",), "x:", 7, 0.5, 2)] * 2
    out = capsys.readouterr().out
    text, _, table = out.partition("\n}\n")
    assert json.loads(text + "}")["loads"] == [
        Row(f"load {number}", loads).as_json() for number, loads in enumerate(rows)
    ]
    titles, *lines = table.splitlines()
    for title in ("per second", "acquire p50", "p99", "p99.9", "CPU per cycle", "errors"):
        assert title in titles
    assert [line.split("  ")[0] for line in lines] == [f"load {n}" for n in range(len(rows))]
