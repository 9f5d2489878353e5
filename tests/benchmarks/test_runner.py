"""The runner end to end on tiny settings: real servers, real worker processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import bars
from benchmarks.__main__ import main
from benchmarks.report import markdown, page
from benchmarks.results import Case, Results, latest
from benchmarks.runner import matrix
from benchmarks.scenarios import SCENARIOS
from benchmarks.systems import ENVIRONMENTS, SYSTEMS

pytestmark = pytest.mark.timeout(180)  # worker processes on a busy machine start slowly

TINY = (
    "--rounds=1 --seconds=0.15 --warmup=0.05 --ttl=1 --max-ttl=1 --hold-seconds=0.5 "
    "--handovers=3 --here"
).split()


def test_a_whole_run(tmp_path: Path) -> None:
    """The limit, the plain client and asynclock beside each other, over every kind of scenario."""
    out = tmp_path / "2000-01-01"
    scenarios = "cycle hot handover renewal cold frozen".split()
    chosen = "--system=floor --system=asynclock --nodes=5 --tasks=4 --loop=asyncio"
    assert main(["run", *scenarios, *chosen.split(), *TINY, f"--out={out}"]) == 0
    assert latest(tmp_path) == out.with_suffix(".json")
    assert out.with_suffix(".md").exists() and out.with_suffix(".html").exists()
    measured = Results.from_json(out.with_suffix(".json").read_text())

    assert measured.problems == {}
    assert {"python", "cores", "date", "nodes"} <= measured.machine.keys()
    assert "hiredis" in measured.versions["floor"]
    for system in ("floor", "asynclock"):
        check_cycles(measured, Case("cycle", 5, 4), system)
        assert measured.median(Case("cold", 5, 4), system, "cold_ms") > 0
    hot = Case("hot", 5, 4)
    assert measured.systems(hot) == ["asynclock"]  # the floor does not wait for a held name
    assert measured.median(hot, "asynclock", "overlaps") == 0
    assert measured.median(hot, "asynclock", "violations") == 0
    handover = Case("handover", 5, 4)
    assert measured.median(handover, "asynclock", "handover_p50_ms") > 0
    assert measured.median(handover, "asynclock", "violations") == 0
    assert measured.median(Case("renewal", 5, 4), "asynclock", "lost") == 0
    frozen = Case("frozen", 5, 4)
    assert measured.median(frozen, "asynclock", "healthy_wait_p50_ms") > 0
    assert measured.median(frozen, "asynclock", "wait_p50_ms") > 0


def check_cycles(measured: Results, case: Case, system: str) -> None:
    assert measured.median(case, system, "cycles_per_s") > 0
    assert measured.median(case, system, "errors") == 0
    assert measured.median(case, system, "unfinished") == 0
    assert measured.median(case, system, "client_us") > 0
    # A cycle is an acquire and a release on every node, at the least.
    assert measured.median(case, system, "commands") > 1.9 * case.nodes
    p50, p999 = (measured.median(case, system, f"cycle_{p}_ms") for p in ("p50", "p999"))
    assert 0 < p50 <= p999


def test_report_escapes_and_chart_draws_the_same_again(tmp_path: Path) -> None:
    from benchmarks.chart import draw  # matplotlib takes a second: not for those who only collect

    results = Results()
    results.add(Case("cycle", 5, 100), "floor", {"cycles_per_s": 40_000.0})
    results.add(Case("cycle", 5, 100), "pottery", {"cycles_per_s": 400.0, "wait_p50_ms": math.nan})
    results.problems["<script>alert(1)</script>"] = "a | b"
    results.bars = bars.judge(results)
    results = Results.from_json(results.to_json())
    assert "<script>alert" not in page(results)
    assert "a \\| b" in markdown(results)
    for name in ("a.svg", "b.svg"):
        draw(results, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "40,000" in (tmp_path / "a.svg").read_text()


def test_what_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.install.HOME", tmp_path)
    out = tmp_path / "out"
    settings = [option for option in TINY if option != "--here"]
    main(["run", "cycle", "--system=pottery", "--nodes=1", "--tasks=1", *settings, f"--out={out}"])
    results = Results.from_json(out.with_suffix(".json").read_text())
    assert "not installed" in results.problems["pottery"]
    assert "pottery" in out.with_suffix(".md").read_text()


def test_a_bar_without_a_figure_is_not_met() -> None:
    assert {line["met"] for line in bars.judge(Results())} == {False}


def test_bars_judge_by_their_factor() -> None:
    results = Results()
    results.add(bars.WIDE, "asynclock", {"cycles_per_s": 2000.0, "client_us": 61.0})
    results.add(bars.WIDE, "pottery", {"cycles_per_s": 100.0})
    results.add(bars.WIDE, "aioredlock", {"cycles_per_s": 99.0})
    results.add(bars.WIDE, "floor", {"cycles_per_s": 4001.0})
    times, floor, cpu = (
        bars.times_faster(bars.WIDE, ("pottery", "aioredlock"), 20),
        bars.times_faster(bars.WIDE, ("floor",), 0.5),
        bars.at_most(bars.WIDE, "client_us", 60, "µs"),
    )
    assert [bar.judge(results)[1] for bar in (times, floor, cpu)] == [True, False, False]


def test_bars_use_only_cells_that_are_measured() -> None:
    """Some results made of its cells meet each bar: no bar needs a case that is never run."""
    results = Results()
    for cell in bars.CELLS:
        for system in cell.systems:
            good = 1e9 if system.startswith("asynclock") else 1.0
            sample = dict.fromkeys(
                ("client_us", "lost", "violations", "late_ms", "cores_percent", "waited_bodies"),
                0.0,
            )
            sample |= {"cycles_per_s": good, "cycle_p50_ms": 1 / good, "least_share": 1.0}
            sample |= {"handover_p50_ms": 0.1, "handover_p99_ms": 0.1, "bytes_per_lease": 1.0}
            sample |= {"commands_per_s_and_node": 0.0, "wait_p50_ms": 1.0, "cycle_p99_ms": 1.0}
            sample |= {"healthy_wait_p50_ms": 1.0, "healthy_cycle_p99_ms": 1.0}
            results.add(cell.case, system, sample)
    assert [line for line in bars.judge(results) if not line["met"]] == []


def test_matrix_names_only_what_exists() -> None:
    cells = matrix(list(SCENARIOS), [], [], [], [])
    assert {system for cell in cells for system in cell.systems} <= SYSTEMS.keys()
    assert {system.environment for system in SYSTEMS.values()} <= ENVIRONMENTS.keys()
    assert not matrix(["frozen"], [], [1], [], [])  # no task can lock with the only node frozen


def test_uvloop_carries_the_same_load(tmp_path: Path) -> None:
    out = tmp_path / "uvloop"
    chosen = "--system=floor --system=asynclock --nodes=1 --tasks=4 --loop=uvloop".split()
    main(["run", "cycle", *chosen, *TINY, f"--out={out}"])
    measured = Results.from_json(out.with_suffix(".json").read_text())
    assert measured.problems == {}
    for system in ("floor", "asynclock"):
        check_cycles(measured, Case("cycle", 1, 4, "uvloop"), system)
