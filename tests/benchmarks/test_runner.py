"""The runner end to end on tiny settings: real servers, real worker processes."""

import math
from pathlib import Path

import pytest

from benchmarks import bars, costs, kinds
from benchmarks.__main__ import main
from benchmarks.matrix import SCENARIOS, TELLS
from benchmarks.report import markdown, page
from benchmarks.results import Case, Results, latest
from benchmarks.runner import Cell, matrix
from benchmarks.systems import ENVIRONMENTS, FLOOR, FLOOR_SCRIPTS, FLOOR_WAITING, SYSTEMS

pytestmark = pytest.mark.timeout(180)  # worker processes on a busy machine start slowly

TINY = (
    "--rounds=1 --seconds=0.15 --warmup=0.05 --ttl=1 --max-ttl=1 --hold-seconds=0.5 "
    "--handovers=3 --here"
).split()


def test_a_whole_run(tmp_path: Path) -> None:
    """The limit, the plain client and asynclock beside each other, over every kind of scenario."""
    out = tmp_path / "2000-01-01"
    scenarios = "cycle hot paced handover renewal cold frozen".split()
    chosen = "--system=floor-plain --system=asynclock --nodes=5 --tasks=4 --loop=asyncio"
    assert main(["run", *scenarios, *chosen.split(), *TINY, f"--out={out}"]) == 0
    assert latest(tmp_path) == out.with_suffix(".json")
    assert out.with_suffix(".md").exists()
    assert out.with_suffix(".html").exists()
    measured = Results.from_json(out.with_suffix(".json").read_text())

    assert measured.problems == {}
    assert {"python", "cores", "date", "nodes"} <= measured.machine.keys()
    assert "hiredis" in measured.versions[FLOOR]
    for system in (FLOOR, "asynclock"):
        check_cycles(measured, Case("cycle", 5, 4), system)
        assert measured.median(Case("cold", 5, 4), system, "cold_ms") > 0
        assert measured.median(Case("paced", 5, 4), system, "wait_p50_ms") > 0
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


@pytest.mark.parametrize(
    ("scenarios", "systems"),
    [
        (("threads", "cycle4"), ("asynclock", "redis-py")),
        (("acked", "sharded"), ("asynclock", FLOOR)),
        (("handover",), ("asynclock", FLOOR_WAITING)),
        (("cycle",), (FLOOR, FLOOR_SCRIPTS)),
    ],
)
def test_threads_processes_replicas_and_shards(
    tmp_path: Path, scenarios: tuple[str, ...], systems: tuple[str, ...]
) -> None:
    """Code that blocks, four processes, other servers, and the floor of a hand-over."""
    out = tmp_path / "2000-01-01"
    chosen = ["--nodes=1", "--tasks=4", *(f"--system={one}" for one in systems)]
    settings = [*TINY, "--ttl=8", "--max-ttl=8"]
    assert main(["run", *scenarios, *chosen, *settings, f"--out={out}"]) == 0
    measured = Results.from_json(out.with_suffix(".json").read_text())
    assert measured.problems == {}
    for scenario in scenarios:
        for system in systems:
            case = Case(scenario, 1, 4)
            if scenario == "handover":
                assert measured.median(case, system, "handover_p50_ms") > 0
            else:
                check_cycles(measured, case, system)


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
    from benchmarks.chart import draw, headline  # matplotlib takes a second: not to collect

    results = Results()
    results.add(Case("cycle", 5, 100), FLOOR, {"cycles_per_s": 40_000.0})
    results.add(Case("cycle", 5, 100), "pottery", {"cycles_per_s": 400.0, "wait_p50_ms": math.nan})
    results.problems["<script>alert(1)</script>"] = "a | b"
    results.machine["nodes"] = "redis 7.0.15 (/usr/bin/redis-server)"
    results.bars = kinds.judge(results, bars.BARS)
    results = Results.from_json(results.to_json())
    assert "<script>alert" not in page(results)
    assert "a \\| b" in markdown(results)
    for name, picture in (("a.svg", headline), ("b.svg", headline), ("all.svg", draw)):
        picture(results, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    drawn = (tmp_path / "a.svg").read_text()
    assert "40,000" in drawn
    assert "Redis 7.0.15" in drawn
    with pytest.raises(ValueError, match="none of the cases"):
        draw(Results(), tmp_path / "c.svg")


def test_what_is_not_installed_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.install.HOME", tmp_path)
    out = tmp_path / "out"
    settings = [option for option in TINY if option != "--here"]
    chosen = ["--system=pottery", "--system=node-redlock", "--nodes=1", "--tasks=1"]
    run = ["run", "cycle", *chosen, *settings, f"--out={out}"]
    assert main(run) == 1
    said = capsys.readouterr().err
    assert "not installed: pottery, node-redlock" in said
    assert "nox -s bench-install -- pottery node\n" in said
    assert main(["bars", *settings, f"--out={out}"]) == 1
    assert not out.with_suffix(".json").exists()

    assert main([*run, "--without-missing"]) == 0
    results = Results.from_json(out.with_suffix(".json").read_text())
    assert "not installed" in results.problems["pottery"]
    assert "pottery" in out.with_suffix(".md").read_text()


def test_a_part_of_the_bars_is_printed_as_a_table_and_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.results.HERE", tmp_path)
    monkeypatch.setattr(bars, "CELLS", (Cell(Case("cycle", 1, 4), ("asynclock",)),))
    impossible = kinds.at_most(Case("cycle", 1, 4), "client_us", -1, "µs")
    monkeypatch.setattr(bars, "BARS", (impossible, kinds.never(Case("cycle", 1, 4), "overlaps")))
    assert main(["bars", "--only=N=1, 4", *TINY]) == 0
    head, first, second, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["bar", "required", "measured"]
    assert first.startswith("NOT MET  cycle, N=1, 4, asyncio: client_us ")
    assert second.startswith("met      cycle, N=1, 4, asyncio: overlaps ")
    assert last == "1 of 2 bars are met"
    assert not list(tmp_path.iterdir())
    assert main(["bars", "--only=N=3", *TINY]) == 1


def test_round_trips_names_and_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(costs, "TURNS", 2)
    monkeypatch.setattr(costs, "STARTS", 1)
    monkeypatch.setitem(SYSTEMS["asynclock"].options, "node_timeout", 2.0)  # for a busy machine
    out = tmp_path / "costs"
    sizes = "--system=asynclock --nodes=1 --tasks=30".split()
    settings = [*TINY, "--ttl=8", "--max-ttl=8"]
    assert main(["run", "far", "names", "start", *sizes, *settings, f"--out={out}"]) == 0
    measured = Results.from_json(out.with_suffix(".json").read_text())
    assert measured.problems == {}

    def figure(scenario: str, metric: str) -> float:
        return measured.median(Case(scenario, 1, 30), "asynclock", metric)

    # The link can't be faster than its delay, by which a loop's timer may be a little early.
    assert figure("far", "cold_trips") > 1.9
    for step in ("acquire", "release", "handover"):
        assert figure("far", f"{step}_trips") > 0.9
    assert figure("names", "client_mb") > 5
    assert not math.isnan(figure("names", "client_growth_percent"))
    assert figure("names", "names_per_s") > 0
    assert not math.isnan(figure("names", "node_bytes_per_name"))
    assert figure("start", "run_ms") > 0
    assert figure("start", "import_ms") > 0
    assert figure("start", "redis_import_ms") > 0


def test_like_is_compared_with_like(tmp_path: Path) -> None:
    """Peers behind a local lock, ours without hand-over, and names that come once; on uvloop."""
    out = tmp_path / "like"
    chosen = "--system=redis-py --system=redis-py-queued --system=asynclock-apart".split()
    sizes = ["--nodes=1", "--tasks=8", "--loop=uvloop"]
    run = ["run", "hot", "new", *chosen, *sizes, *TINY, f"--out={out}"]
    assert main([*run, "--seconds=1"]) == 0  # a busy machine does nothing for a part of a second
    measured = Results.from_json(out.with_suffix(".json").read_text())
    assert measured.problems == {}
    hot, new = Case("hot", 1, 8, "uvloop"), Case("new", 1, 8, "uvloop")
    for system in ("redis-py", "redis-py-queued", "asynclock-apart"):
        check_cycles(measured, new, system)
        assert measured.median(hot, system, "overlaps") == 0
        assert measured.median(hot, system, "cycles_per_s") > 0
    assert measured.median(hot, "asynclock-apart", "violations") == 0
    # Buffers of clients weigh more than the counters of the few names of a busy machine.
    assert not math.isnan(measured.median(new, "asynclock-apart", "node_bytes_per_name"))
    said = out.with_suffix(".md").read_text()
    assert TELLS["hot"] in said
    assert TELLS["new"] in said


def test_matrix_names_only_what_exists() -> None:
    assert TELLS.keys() == SCENARIOS.keys()
    cells = matrix(list(SCENARIOS), [], [], [], [])
    assert {system for cell in cells for system in cell.systems} <= SYSTEMS.keys()
    assert {system.environment for system in SYSTEMS.values()} <= ENVIRONMENTS.keys()
    assert not matrix(["frozen"], [], [1], [], [])  # no task can lock with the only node frozen
